import type { DurableEvent, DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import { ERRORS } from '#schemas/error.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { DURABLE_POLICY } from '#shared/jobs/worker/durable-run.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import type { DoneStep } from '#shared/store/family.ts'
import type { ChildCounts } from './child-counts.ts'

export interface JobDetails {
  /** Stored answer of a completed job. If undefined, then the field is left out. */
  readonly result?: unknown
  readonly deliveries?: readonly WebhookDelivery[]
  readonly children?: readonly DurableJob[]
  readonly steps?: readonly DoneStep[]
  readonly counts?: ChildCounts | undefined
  /** Cost in US dollars; undefined if unknown. */
  readonly cost?: number | undefined
  /** Number of jobs that start before this one; null if the job does not wait, or if the number is unknown. */
  readonly position?: number | null
}

/**
 * Status of a job in the API. The state `scheduled` is shown as queued, and `waiting` as in progress. A job whose
 * cancel was requested is shown as cancelling.
 */
export function statusOf({ state, cancel_requested_at_ms }: DurableJob): string {
  if (!TERMINAL.has(state) && cancel_requested_at_ms !== null) return 'cancelling'
  if (state === 'scheduled') return 'queued'
  return state === 'waiting' ? 'in_progress' : state
}

export function jobObject(job: DurableJob, details: JobDetails = {}): Record<string, unknown> {
  const url = `/v1/jobs/${job.id}`
  const isResultKnown = job.state !== 'completed' || details.result !== undefined
  const endedAt = (state: DurableJob['state']) => (job.state === state ? seconds(job.finished_at_ms) : null)
  return {
    id: job.id,
    object: 'job',
    endpoint: job.endpoint,
    model: job.model,
    status: statusOf(job),
    created_at: seconds(job.created_at_ms),
    run_at: job.state === 'scheduled' ? seconds(job.run_at_ms) : null,
    started_at: seconds(job.started_at_ms),
    completed_at: endedAt('completed'),
    failed_at: endedAt('failed'),
    cancelled_at: endedAt('cancelled'),
    expired_at: endedAt('expired'),
    expires_at: seconds(job.deadline_ms),
    result_expires_at: seconds(retainedUntilMs(job)),
    attempt: job.attempt,
    max_attempts: DURABLE_POLICY.triesMax,
    queue: { pool: job.pool, position: details.position ?? null },
    priority: job.priority,
    parent_id: job.parent_id,
    ...(details.children && { children: details.children.map(childObject) }),
    ...(details.counts && { child_counts: details.counts }),
    ...(details.steps && { steps: details.steps.map(stepObject) }),
    progress: progressOf(job),
    ...(isResultKnown && { result: details.result ?? null }),
    error: job.error === null ? null : errorOf(job),
    usage: job.usage,
    ...(details.cost !== undefined && { cost_usd: details.cost }),
    metadata: job.metadata,
    stream: job.stream,
    last_sequence_number: job.last_seq,
    request_id: job.request_id,
    webhook: webhookOf(job, details.deliveries),
    urls: { get: url, result: `${url}/result`, events: `${url}/events`, cancel: `${url}/cancel` },
  }
}

function childObject(child: DurableJob): object {
  const { id, endpoint, model, usage } = child
  return { id, endpoint, model, status: statusOf(child), usage }
}

function stepObject({ kind, cost, attempt, at_ms }: DoneStep): object {
  return { kind, cost, attempt, done_at: seconds(at_ms) }
}

/** Time at which the job is deleted with its result. Until the job has ended, this is the earliest possible time. */
function retainedUntilMs({ purge_at_ms, run_at_ms, started_at_ms, retention_ms }: DurableJob): number {
  return purge_at_ms ?? Math.max(run_at_ms, started_at_ms ?? 0) + retention_ms
}

/**
 * An event in the form of the API (docs/internals/protocol.md, Job events).
 *
 * @param job The whole job, for events that contain it
 * @param position Queue position, for `job.queued` if the job still waits
 */
export function eventObject(
  event: DurableEvent,
  pool: string,
  job?: Record<string, unknown>,
  position: number | null = null,
): Record<string, unknown> {
  const { type, seq, job_id, at_ms, attempt } = event
  const head = { type, sequence_number: seq, job_id, created_at: seconds(at_ms) }
  if (job) return { ...head, job }
  if (type === 'job.queued') return { ...head, queue: { pool, position } }
  const isOfAttempt = type === 'job.started' || type === 'job.retrying'
  return { ...head, ...(isOfAttempt && { attempt }), ...(event.data as object | null) }
}

/**
 * Progress in the last `job.progress` event. Handlers send none at their end, so a completed job is shown with 100 %.
 */
function progressOf({ state, progress }: DurableJob): object | null {
  const shown = (progress as { progress?: object } | null)?.progress
  if (!shown) return null
  return state === 'completed' ? { ...shown, percent: 100 } : shown
}

function errorOf(job: DurableJob): object {
  const error = ServiceError.fromBody(job.error as NonNullable<DurableJob['error']>)
  return { ...openaiErrorBody(error).error, status: ERRORS[error.code].status }
}

function webhookOf(job: DurableJob, deliveries: readonly WebhookDelivery[] = []): object | null {
  if (job.webhook_url === null) return null
  const shown = deliveries.map(({ id, type, state, tries, status, error, next_at_ms }) => {
    const next_at = state === 'pending' ? seconds(next_at_ms) : null
    return { id, type, status: state, attempts: tries, response_status: status, error, next_at }
  })
  return { url: job.webhook_url, events: job.webhook_events, deliveries: shown }
}

function seconds(ms: number): number
function seconds(ms: number | null): number | null
function seconds(ms: number | null): number | null {
  return ms === null ? null : Math.floor(ms / 1_000)
}
