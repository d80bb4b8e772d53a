import type { FailedAttempt } from '#schemas/admin/requests.ts'
import type { DurableEvent } from '#schemas/durable-job.ts'
import {
  CANCELLED_STATUS,
  isFailedStatus,
  type RequestLog,
  type RequestQuery,
  type RequestRow,
} from '#shared/store/requests.ts'

/** Reason in the event `job.retrying` if a draining worker returned the job to the queue. Such an attempt has not failed. */
const HANDED_BACK = 'handed_back'

interface RetryData {
  readonly reason?: string
  /** Absent if the worker was lost. */
  readonly message?: string
  readonly server?: string
  readonly upstream_message?: string
  readonly delay_ms?: number
}

/**
 * Returns the failed attempts of a durable job, from its events and the row of its last attempt. The events do not name the worker, so
 * `worker` is null in every attempt except the last one. The list is empty if the events were erased.
 */
export function attemptsOfJob(row: RequestRow, events: readonly DurableEvent[], isOperator: boolean): FailedAttempt[] {
  const startedAt = new Map(
    events.flatMap(({ type, attempt, at_ms }) => (type === 'job.started' ? [[attempt, at_ms]] : [])),
  )
  const attemptAt = (attempt: number, endMs: number) => {
    const startMs = startedAt.get(attempt) ?? endMs
    return { attempt, started_at: startMs / 1_000, duration_ms: Math.max(0, endMs - startMs) }
  }
  const retried = events.flatMap(({ type, attempt, at_ms, data }): FailedAttempt[] => {
    const {
      reason = '',
      message = '',
      server = null,
      upstream_message = null,
      delay_ms = 0,
    } = (data ?? {}) as RetryData
    if (type !== 'job.retrying' || reason === HANDED_BACK) return []
    const error = { error_code: reason, error_message: message, retry_delay_ms: delay_ms }
    return [{ ...attemptAt(attempt, at_ms), worker: null, server, ...error, ...(isOperator && { upstream_message }) }]
  })
  const { attempts, worker, server, errorCode, errorMessage, upstreamMessage, endedAtMs, status } = row
  if (!isFailedStatus(status) || errorCode === null || !startedAt.has(attempts)) return retried
  const last = { worker, server, error_code: errorCode, error_message: errorMessage ?? '', retry_delay_ms: null }
  return [
    ...retried,
    { ...attemptAt(attempts, endedAtMs), ...last, ...(isOperator && { upstream_message: upstreamMessage }) },
  ]
}

/*
 * Retries of a request by the SDK of its caller, for the detail of a request.
 *
 * An SDK sends a retry as a new request. The header `x-stainless-retry-count` contains the number of the retry, but no header
 * contains the id of the first request. A request and its retry are therefore matched by equal project, key, endpoint, model and
 * user agent, by consecutive numbers, and by their times. If a caller sends several such requests at the same time, then the
 * retry of another request may be found.
 */

/** Maximum time in ms between the end of a request and the start of its retry. SDKs wait at most a minute. */
const WAIT_MS_MAX = 90_000
/** Maximum difference in ms between the clocks of two ingresses. */
const CLOCK_SKEW_MS = 1_000
const CANDIDATES_MAX = 20
/** Maximum candidates per retry that are checked, each with two reads of the log. */
const CHECKED_MAX = 3
const RETRIES_MAX = 10
/** Statuses after which an SDK may retry. A call that reached the timeout of the SDK has the status 499. */
const STATUSES: readonly (readonly [number, number])[] = [
  [400, 599],
  [CANCELLED_STATUS, CANCELLED_STATUS],
]

/** Returns the failed or cancelled request after which the SDK sent the given request as its retry. */
export async function requestBefore(log: RequestLog, row: RequestRow): Promise<RequestRow | undefined> {
  const { sdkRetry, userAgent, startedAtMs } = row
  if (sdkRetry === null) return undefined
  const times = { sinceMs: startedAtMs - WAIT_MS_MAX, untilMs: startedAtMs + CLOCK_SKEW_MS }
  const pages = await Promise.all(
    STATUSES.map((statuses) => log.list({ ...callerOf(row), ...times, statuses, limit: CANDIDATES_MAX })),
  )
  const newest = pages.flatMap(({ rows }) => rows).toSorted((a, b) => b.endedAtMs - a.endedAtMs)
  return newest.find((one) => (one.sdkRetry ?? 0) === sdkRetry - 1 && one.userAgent === userAgent)
}

/**
 * Returns the retries of a failed or cancelled request, in order. Undefined for a request that succeeded.
 *
 * @param durationMsMax Maximum duration of a retry
 */
export async function retriesOf(
  log: RequestLog,
  row: RequestRow,
  durationMsMax: number,
): Promise<RequestRow[] | undefined> {
  if (row.status < 400) return undefined
  const retries: RequestRow[] = []
  let next = await retryOf(log, row, durationMsMax)
  while (next && retries.push(next) < RETRIES_MAX && next.status >= 400) next = await retryOf(log, next, durationMsMax)
  return retries
}

async function retryOf(log: RequestLog, row: RequestRow, durationMsMax: number): Promise<RequestRow | undefined> {
  const sinceMs = row.endedAtMs - CLOCK_SKEW_MS
  const startMsMax = row.endedAtMs + WAIT_MS_MAX
  const { rows } = await log.list({
    ...callerOf(row),
    ...{ sdkRetry: (row.sdkRetry ?? 0) + 1, sinceMs, untilMs: startMsMax + durationMsMax },
    ...{ isOldestFirst: true, limit: CANDIDATES_MAX },
  })
  const fits = ({ userAgent, startedAtMs }: RequestRow) =>
    userAgent === row.userAgent && startedAtMs >= sinceMs && startedAtMs <= startMsMax
  // The search is repeated from the retry back to its request. If it finds another request, then the retry belongs to that
  // request and is skipped.
  for (const retry of rows.filter(fits).slice(0, CHECKED_MAX))
    if ((await requestBefore(log, retry))?.id === row.id) return retry
  return undefined
}

function callerOf({ project, keyId, endpoint, model }: RequestRow): Partial<RequestQuery> {
  return { project, keyId, endpoint, model: model ?? undefined }
}
