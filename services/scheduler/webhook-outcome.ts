import { ServiceError } from '#shared/error.ts'
import type { OutboundAnswer } from '#shared/outbound/outbound.ts'
import type { DeliveryOutcome } from '#shared/store/webhooks.ts'

const SECOND_MS = 1_000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS

/** Waits between the tries of one message (docs/guides/webhooks.md). After the last one the message has failed. */
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
const RETRY_AFTER_MS_MAX = 10 * HOUR_MS
const GONE = 410
/** Statuses whose Retry-After is honoured. */
const BUSY = new Set([429, 503])

/**
 * Outcome of a try. A 2xx status means delivered. A 410 means failed, since the receiver wants no further try. After any other answer or
 * error the next try follows after a wait; if all waits are used up, then the message has failed.
 *
 * @param result The answer, or the error instead of one.
 * @param tries Tries of the message, including this one.
 * @param random In [0, 1).
 */
export function outcomeOf(
  result: OutboundAnswer | ServiceError,
  tries: number,
  waitsMs: readonly number[],
  random: number,
): DeliveryOutcome {
  const status = result instanceof ServiceError ? undefined : result.status
  if (status !== undefined && status >= 200 && status < 300) return { state: 'delivered', status }
  const error = result instanceof ServiceError ? result.message : `The receiver answered ${result.status}.`
  const failure = { error, ...(status !== undefined && { status }) }
  const waitMs = waitsMs[tries - 1]
  if (waitMs === undefined || status === GONE) return { state: 'failed', ...failure }
  const jittered = waitMs * (1 - JITTER + 2 * JITTER * random)
  return { state: 'pending', retryInMs: Math.max(jittered, askedMs(result)), ...failure }
}

/** The wait that the receiver requests: `Retry-After` in seconds or as an HTTP date (RFC 9110 §10.2.3); 0 if there is none to honour. */
function askedMs(result: OutboundAnswer | ServiceError): number {
  if (result instanceof ServiceError || !BUSY.has(result.status)) return 0
  const value = result.headers['retry-after'] ?? ''
  const seconds = Number(value)
  const ms = Number.isFinite(seconds) ? seconds * SECOND_MS : Date.parse(value) - Date.now()
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), RETRY_AFTER_MS_MAX) : 0
}
