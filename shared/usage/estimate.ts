import type { PoolName } from '#schemas/job.ts'
import type { Price } from '#schemas/price.ts'
import { callCost, NANOS_PER_USD, NOTHING } from './usage.ts'

/*
 * Estimates the maximum usage of a call before it runs, so that budget and tokens can be reserved until the real usage is known. Input is estimated
 * from its characters, and output from the limit of the caller or of the model.
 */

const CHARS_PER_TOKEN = 4
const OUTPUT_TOKENS = 4_096
/** Estimated tokens of an image, sound or file. The number is not estimated from the base64 text, which has far more characters than tokens. */
const MEDIA_TOKENS = 1_500
/** Bytes of one minute of compressed speech, at 32 kbit/s. */
const AUDIO_BYTES_PER_MINUTE = 240_000
const PIECE_VALUES = 5_000

export interface Estimate {
  readonly tokens: number
  readonly nanos: number
}

export interface EstimatedCall {
  readonly pool: PoolName
  readonly body: unknown
}

interface Bounds {
  readonly max_tokens?: number
  readonly n?: number
  readonly timeout_seconds?: number
  readonly max_cost_usd?: number
  readonly audio?: { readonly bytes?: number }
}

export function* estimateOf({ pool, body }: EstimatedCall, price: Price | undefined): Generator<undefined, Estimate> {
  const { max_tokens = OUTPUT_TOKENS, n = 1, timeout_seconds = 0, audio, max_cost_usd = 0 } = (body ?? {}) as Bounds
  const isText = pool === 'inference' || pool === 'research'
  const input = pool === 'code' || audio ? 0 : yield* tokensIn(body)
  const output = isText ? max_tokens * n : 0
  const metered = {
    ...NOTHING,
    input_tokens: input,
    output_tokens: output,
    audio_ms: Math.ceil(((audio?.bytes ?? 0) / AUDIO_BYTES_PER_MINUTE) * 60_000),
    run_ms: timeout_seconds * 1_000,
  }
  const nanos = (callCost(metered, price, true) ?? 0) + Math.round(max_cost_usd * NANOS_PER_USD)
  return { tokens: input + output, nanos }
}

function* tokensIn(body: unknown): Generator<undefined, number> {
  const waiting: unknown[] = [body]
  let chars = 0
  let tokens = 0
  for (let nth = 1; waiting.length > 0; nth++) {
    if (nth % PIECE_VALUES === 0) yield
    const value = waiting.pop()
    if (typeof value === 'number') tokens++
    else if (typeof value === 'string') {
      if (value.startsWith('data:')) tokens += MEDIA_TOKENS
      else chars += value.length
    } else if (typeof value === 'object' && value !== null) {
      for (const name in value) waiting.push((value as Record<string, unknown>)[name])
    }
  }
  return tokens + Math.ceil(chars / CHARS_PER_TOKEN)
}
