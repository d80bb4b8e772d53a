import type { FailedAttempt } from '#schemas/admin/requests.ts'
import type { DurableEvent } from '#schemas/durable-job.ts'
import { isFailedStatus, type RequestRow } from '#shared/store/requests.ts'

/** Reason in the event `job.retrying` if a draining worker returned the job to the queue. Such an attempt has not failed. */
const HANDED_BACK = 'handed_back'

interface RetryData {
  readonly reason?: string
  /** Absent in events of versions before 2026-12, and if the worker was lost. */
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
