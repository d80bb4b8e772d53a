import { z } from 'zod'

/** Used for calls that end before the engine reports their tokens. */
const CHARS_PER_TOKEN = 4
const NANOS_PER_USD = 1_000_000_000

const Amount = z.int().min(0).default(0)

export const Metered = z.object({
  input_tokens: Amount,
  cached_tokens: Amount,
  output_tokens: Amount,
  audio_ms: Amount,
  run_ms: Amount.describe('Of code'),
  cost_nanos: Amount.describe('Cost of external services, such as searches, in billionths of a US dollar'),
})
export type Metered = z.infer<typeof Metered>

export const NOTHING: Metered = Metered.parse({})

interface CountedEvent {
  readonly type?: string
  readonly input_tokens?: number
  readonly duration?: number
  readonly execution_time?: number
  readonly usage?: {
    readonly input_tokens: number
    readonly output_tokens: number
    readonly cached_tokens?: number
    readonly cost_usd?: number
  }
  readonly text?: string
}

/**
 * Computes the usage of one attempt from its events. The engine reports the usage at the end. If the attempt ends earlier, then the
 * usage until then is estimated and recorded (docs/internals/protocol.md, Disconnects).
 */
export class Meter {
  #metered = NOTHING
  #promptTokens = 0
  #chars = 0
  #isCounted = false

  see(event: unknown): void {
    const { type, input_tokens = 0, duration, execution_time, usage, text } = event as CountedEvent
    if (type === 'start') {
      this.#promptTokens = input_tokens
      if (duration !== undefined) this.#metered = { ...this.#metered, audio_ms: Math.round(duration * 1_000) }
    } else if (usage) this.#count(usage)
    else if (text !== undefined) this.#chars += text.length
    else if (execution_time !== undefined) {
      this.#metered = { ...this.#metered, run_ms: Math.round(execution_time * 1_000) }
    }
  }

  /**
   * Tokens so far, for limits and metrics. The ledger uses other numbers, because these include the child jobs of a composed job.
   */
  get tokens(): { input: number; output: number } {
    const { input_tokens: input, output_tokens: output } = this.#metered
    if (this.#isCounted || this.#chars === 0) return { input, output }
    return { input: this.#promptTokens, output: Math.ceil(this.#chars / CHARS_PER_TOKEN) }
  }

  get metered(): Metered {
    const { input, output } = this.tokens
    return { ...this.#metered, input_tokens: input, output_tokens: output }
  }

  #count({ input_tokens, output_tokens, cached_tokens = 0, cost_usd = 0 }: NonNullable<CountedEvent['usage']>): void {
    this.#isCounted = true
    this.#metered = {
      ...this.#metered,
      ...{ input_tokens, output_tokens, cached_tokens },
      cost_nanos: Math.round(cost_usd * NANOS_PER_USD),
    }
  }
}

export function meteredOf(events: readonly unknown[]): Metered {
  const meter = new Meter()
  for (const event of events) meter.see(event)
  return meter.metered
}
