import type { PoolName } from '#schemas/job.ts'
import type { Price } from '#schemas/price.ts'
import type { UsageEntry } from '#shared/store/records.ts'
import type { Metered } from './meter.ts'

/** A price of one dollar per million units is this number of billionths of a dollar per unit. */
const NANOS_PER_MILLIONTH = 1_000
const NANOS_PER_USD = 1_000_000_000

export interface EndedCall {
  readonly project: string
  readonly keyId: string
  readonly pool: PoolName
  readonly model: string
  readonly end: 'completed' | 'failed' | 'cancelled'
  readonly metered: Metered
  readonly endedAtMs: number
}

export function entryOf(call: EndedCall, price: Price | undefined): UsageEntry {
  const { project, keyId, pool, model, end, endedAtMs } = call
  // A batch itself does not count as a call, because each of its requests does.
  const calls = pool === 'batches' ? 0 : 1
  // The child jobs of a research job used its tokens, and they have ledger rows of their own.
  const isComposed = pool === 'research'
  const metered = isComposed ? { ...call.metered, input_tokens: 0, cached_tokens: 0, output_tokens: 0 } : call.metered
  return {
    ...{ project, keyId, model, day: dayOf(endedAtMs), calls, failed: end === 'failed' ? calls : 0 },
    inputTokens: metered.input_tokens,
    cachedInputTokens: metered.cached_tokens,
    outputTokens: metered.output_tokens,
    audioMs: metered.audio_ms,
    costNanos: metered.cost_nanos + (price ? costNanos(metered, price, end === 'completed') : 0),
  }
}

const DAY_MS = 86_400_000
let last = { nth: 0, day: '1970-01-01' }

export function dayOf(unixMs: number): string {
  const nth = Math.floor(unixMs / DAY_MS)
  if (nth !== last.nth) last = { nth, day: new Date(unixMs).toISOString().slice(0, 10) }
  return last.day
}

export function callCost(metered: Metered, price: Price | undefined, isCompleted: boolean): number | undefined {
  const hasPrice = price && Object.values(price).some((amount) => amount > 0)
  return hasPrice ? costNanos(metered, price, isCompleted) : undefined
}

/**
 * Cost in whole billionths of a dollar, so that sums are exact. Tokens and time are charged even if the call failed. The price per
 * call is charged only if the call completed.
 */
function costNanos(metered: Metered, price: Price, isCompleted: boolean): number {
  const { input_tokens, output_tokens, audio_ms, run_ms } = metered
  const cached = Math.min(metered.cached_tokens, input_tokens)
  const { input_per_million, cached_input_per_million = input_per_million, output_per_million } = price
  const ofTokens =
    (input_tokens - cached) * input_per_million + cached * cached_input_per_million + output_tokens * output_per_million
  const ofTime = (audio_ms / 60_000) * price.per_minute_audio + (run_ms / 1_000) * price.per_second
  const ofCall = isCompleted ? price.per_call : 0
  return Math.round(ofTokens * NANOS_PER_MILLIONTH + (ofTime + ofCall) * NANOS_PER_USD)
}
