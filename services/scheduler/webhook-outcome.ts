import { ServiceError } from '#shared/error.ts'
import type { OutboundAnswer } from '#shared/outbound/outbound.ts'
import type { DeliveryOutcome } from '#shared/store/webhooks.ts'

const SECOND_MS = 1_000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS

/** Waits between the tries of one message (docs/webhooks.md). After the last one the message has failed. */
export const RETRIES_MS: readonly number[] = [
  5 * SECOND_MS,
  MINUTE_MS,
  5 * MINUTE_MS,
  30 * MINUTE_MS,
  2 * HOUR_MS,
  5 * HOUR_MS,
  10 * HOUR_MS,
]
const JITTER = 0.1
/** Longest wait a receiver may ask for. */
const RETRY_AFTER_MS_MAX = 10 * HOUR_MS
const GONE = 410
/** Statuses whose Retry-After is honoured. */
const BUSY = new Set([429, 503])

/** One try at a message, as far as it decides about the next. */
export interface Try {
  /** How often the message was taken up, this time included. */
  readonly tries: number
  /** Time since the message was made. */
  readonly ageMs: number
}

/**
 * What becomes of a message after a try. 2xx: delivered. 410: failed, the receiver wants no more. Anything else: tried
 * again, until the waits are used up.
 *
 * A message that was taken up and put back, because too many were on their way to its host, counts as tried; so a wait is
 * used up only when the age of the message says so too.
 *
 * @param result The answer, or why there is none.
 * @param random In [0, 1).
 */
export function outcomeOf(
  result: OutboundAnswer | ServiceError,
  { tries, ageMs }: Try,
  waitsMs: readonly number[],
  random: number,
): DeliveryOutcome {
  const status = result instanceof ServiceError ? undefined : result.status
  if (status !== undefined && status >= 200 && status < 300) return { state: 'delivered', status }
  const error = result instanceof ServiceError ? result.message : `The receiver answered ${result.status}.`
  const failure = { error, ...(status !== undefined && { status }) }
  const waitMs = waitsMs[Math.min(tries - 1, waitsPassed(ageMs, waitsMs))]
  if (waitMs === undefined || status === GONE) return { state: 'failed', ...failure }
  const jittered = waitMs * (1 - JITTER + 2 * JITTER * random)
  return { state: 'pending', retryInMs: Math.max(jittered, askedMs(result)), ...failure }
}

/** How many waits fit into a time, each as short as jitter makes it. */
function waitsPassed(ageMs: number, waitsMs: readonly number[]): number {
  let sum = 0
  let passed = 0
  for (const waitMs of waitsMs) {
    sum += waitMs * (1 - JITTER)
    if (sum > ageMs) break
    passed++
  }
  return passed
}

/** `Retry-After` in seconds or as an HTTP date (RFC 9110 §10.2.3); 0 when there is none to honour. */
function askedMs(result: OutboundAnswer | ServiceError): number {
  if (result instanceof ServiceError || !BUSY.has(result.status)) return 0
  const value = result.headers['retry-after'] ?? ''
  const seconds = Number(value)
  const ms = Number.isFinite(seconds) ? seconds * SECOND_MS : Date.parse(value) - Date.now()
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), RETRY_AFTER_MS_MAX) : 0
}
