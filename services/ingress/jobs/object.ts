import type { DurableEvent, DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import { ERRORS } from '#schemas/error.ts'
import { ServiceError } from '#shared/error.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { DURABLE_POLICY } from '#shared/jobs/worker/durable-run.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import type { DoneStep } from '#shared/store/family.ts'
import type { ChildCounts } from './child-counts.ts'

/** What the wire form of a job shows that does not stand in its row. */
export interface JobDetails {
  /** The stored answer of a completed job; the field is left out where it was not looked up. */
  readonly result?: unknown
  readonly deliveries?: readonly WebhookDelivery[]
  readonly children?: readonly DurableJob[]
  readonly steps?: readonly DoneStep[]
  /** How far those are that it has others do. */
  readonly counts?: ChildCounts | undefined
  /** What it has cost, in US dollars; undefined: that is not known. */
  readonly cost?: number | undefined
  /** Jobs that would be started before it; default: it does not wait, or nobody knows. */
  readonly position?: number | null
}

/** The status of a job on the wire: `scheduled` shows as queued, `waiting` as in progress, a cancel that was asked for as cancelling. */
export function statusOf({ state, cancel_requested_at_ms }: DurableJob): string {
  if (!TERMINAL.has(state) && cancel_requested_at_ms !== null) return 'cancelling'
  if (state === 'scheduled') return 'queued'
  return state === 'waiting' ? 'in_progress' : state
}

/** A job as callers see it (docs/protocol.md, The job object). */
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
    result_expires_at: seconds(keptUntilMs(job)),
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

/** When the job is forgotten with its result. Before its end what is sure: it cannot end before it starts. */
function keptUntilMs({ purge_at_ms, run_at_ms, started_at_ms, retention_ms }: DurableJob): number {
  return purge_at_ms ?? Math.max(run_at_ms, started_at_ms ?? 0) + retention_ms
}

/**
 * An event as callers see it (docs/protocol.md, Job events).
 *
 * @param job The whole job, for the events that end it.
 * @param position Of a job that is still queued when the event is told.
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

/** The row keeps what its last `job.progress` said. A handler is asked before its end: that of all its work is all of it. */
function progressOf({ state, progress }: DurableJob): object | null {
  const told = (progress as { progress?: object } | null)?.progress
  if (!told) return null
  return state === 'completed' ? { ...told, percent: 100 } : told
}

function errorOf(job: DurableJob): object {
  const error = ServiceError.fromBody(job.error as NonNullable<DurableJob['error']>)
  return { ...openaiErrorBody(error).error, status: ERRORS[error.code].status }
}

function webhookOf(job: DurableJob, deliveries: readonly WebhookDelivery[] = []): object | null {
  if (job.webhook_url === null) return null
  const told = deliveries.map(({ id, type, state, tries, status, error, next_at_ms }) => {
    const next_at = state === 'pending' ? seconds(next_at_ms) : null
    return { id, type, status: state, attempts: tries, response_status: status, error, next_at }
  })
  return { url: job.webhook_url, events: job.webhook_events, deliveries: told }
}

function seconds(ms: number): number
function seconds(ms: number | null): number | null
function seconds(ms: number | null): number | null {
  return ms === null ? null : Math.floor(ms / 1_000)
}
