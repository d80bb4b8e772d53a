import type { DurableEvent, DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import { ERRORS } from '#schemas/error.ts'
import type { Usage } from '#schemas/kinds/generate.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { DURABLE_POLICY } from '#shared/jobs/worker/durable-run.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { batch } from '#shared/kinds/batch.ts'
import { promptUsage } from '#shared/kinds/embed/embed.ts'
import { openaiErrorBody } from '#shared/kinds/errors.ts'
import { chatUsage } from '#shared/kinds/generate/chat/whole.ts'
import { cumulativeUsage } from '#shared/kinds/generate/messages/whole.ts'
import { responsesUsage } from '#shared/kinds/generate/responses/output.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { DoneStep } from '#shared/store/jobs.ts'
import type { Call, IngressContext } from './call.ts'

export interface ChildCounts {
  readonly total: number
  readonly completed: number
  /** Number of requests that failed, were cancelled or expired. */
  readonly failed: number
  /** Requests that ended per second over the last minutes. Null until as many requests were answered as are running. Absent unless a batch runs. */
  readonly requests_per_second?: number | null
  /** Expected end of the batch in Unix seconds. Null without a rate. */
  readonly estimated_end_at?: number | null
  /** Earliest and latest expected end in Unix seconds. Null before the first answers, and as soon as `requests_per_second` is known. */
  readonly estimated_end_range?: { readonly earliest: number; readonly latest: number } | null
}

interface JobDetails {
  readonly result?: unknown
  readonly deliveries?: readonly WebhookDelivery[]
  readonly children?: readonly DurableJob[]
  readonly steps?: readonly DoneStep[]
  readonly counts?: ChildCounts | undefined
  readonly cost?: number | undefined
  /** Beginning of the prompt, in lists. */
  readonly preview?: string | undefined
  /** Number of jobs that start before this job. Null if the job does not wait, or if the number is unknown. */
  readonly position?: number | null
}

/**
 * Returns the status of a job in the API. The state `scheduled` is shown as `queued`, and `waiting` as `in_progress`.
 * After a cancel request, a job is shown as `cancelling` until it ends.
 */
export function statusOf({ state, cancel_requested_at_ms }: DurableJob): string {
  if (!TERMINAL.has(state) && cancel_requested_at_ms !== null) return 'cancelling'
  if (state === 'scheduled') return 'queued'
  return state === 'waiting' ? 'in_progress' : state
}

/**
 * Whether a job has one of the statuses of a filter. Besides the statuses of the API, a filter may name the two kinds of `queued` jobs that wait for
 * a time: `scheduled` for the first attempt, and `retrying` for a later attempt.
 */
export function hasStatus(job: DurableJob, statuses: readonly string[] | undefined): boolean {
  if (!statuses) return true
  const status = statusOf(job)
  if (statuses.includes(status)) return true
  const isTimed = status === 'queued' && job.state === 'scheduled'
  return isTimed && statuses.includes(job.attempt === 0 ? 'scheduled' : 'retrying')
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
    ...(details.counts && { child_counts: ofChildren(details.counts) }),
    ...(details.steps && { steps: details.steps.map(stepObject) }),
    progress: progressOf(job, details.counts),
    ...(isResultKnown && { result: details.result ?? null }),
    error: job.error === null ? null : errorOf(job),
    usage: usageOf(job),
    ...(details.cost !== undefined && { cost_usd: details.cost }),
    metadata: job.metadata,
    stream: job.stream,
    last_sequence_number: job.last_seq,
    request_id: job.request_id,
    ...(details.preview !== undefined && { prompt_preview: details.preview }),
    webhook: webhookOf(job, details.deliveries),
    urls: { get: url, result: `${url}/result`, events: `${url}/events`, cancel: `${url}/cancel` },
  }
}

function childObject(child: DurableJob): object {
  const { id, endpoint, model } = child
  return { id, endpoint, model, status: statusOf(child), usage: usageOf(child) }
}

/** Converts the counts of one endpoint's attempts to the format of its answers. */
const USAGE_FORMATS: Readonly<Record<string, (usage: Usage) => object>> = {
  '/v1/chat/completions': (usage) => chatUsage(usage),
  '/v1/completions': (usage) => chatUsage(usage),
  '/v1/embeddings': ({ input_tokens }) => promptUsage(input_tokens),
  '/v1/messages': cumulativeUsage,
  '/v1/responses': (usage) => responsesUsage(usage),
}

/** Usage in the format of the endpoint. The usage of a completed job comes from its answer; other jobs have the counts of their attempts. */
function usageOf({ state, endpoint, usage }: DurableJob): unknown {
  const format = state === 'completed' ? undefined : USAGE_FORMATS[endpoint]
  if (!format || typeof usage !== 'object' || usage === null) return usage
  const { input_tokens = 0, output_tokens = 0, cached_tokens } = usage as Partial<Usage>
  return format({ input_tokens, output_tokens, ...(cached_tokens !== undefined && { cached_tokens }) })
}

function stepObject({ kind, cost, attempt, at_ms }: DoneStep): object {
  return { kind, cost, attempt, done_at: seconds(at_ms) }
}

/**
 * Returns the time at which the job is deleted with its result. Until the job has ended, this is the earliest possible
 * time.
 */
function retainedUntilMs({ purge_at_ms, run_at_ms, started_at_ms, retention_ms }: DurableJob): number {
  return purge_at_ms ?? Math.max(run_at_ms, started_at_ms ?? 0) + retention_ms
}

/**
 * Returns an event in the form of the API (docs/internals/protocol.md, Job events).
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
  // Only operators read messages of upstream servers, in the request log.
  const { upstream_message: _, ...data } = (event.data ?? {}) as { upstream_message?: string }
  return { ...head, ...(isOfAttempt && { attempt }), ...data }
}

export function estimateOf(counts: ChildCounts): object {
  const { requests_per_second = null, estimated_end_at = null, estimated_end_range = null } = counts
  return { requests_per_second, estimated_end_at, estimated_end_range }
}

function ofChildren({ total, completed, failed }: ChildCounts): object {
  return { total, completed, failed }
}

/**
 * Progress in the last `job.progress` event. Handlers send no progress event when they end, so a completed job is shown
 * with 100 %. The progress of a batch comes from the current counts, because its events count only whole groups of requests.
 */
function progressOf({ state, kind, progress }: DurableJob, counts: ChildCounts | undefined): object | null {
  const shown = (progress as { progress?: object } | null)?.progress
  if (kind === batch.name && counts) return { phase: null, ...shown, ...batchProgress(counts) }
  if (!shown) return null
  return state === 'completed' ? { ...shown, percent: 100 } : shown
}

function batchProgress(counts: ChildCounts): object {
  const { total, completed, failed } = counts
  const ended = completed + failed
  const percent = total === 0 ? 0 : Math.floor((100 * ended) / total)
  const message = `${ended} of ${total} requests have ended${failed > 0 ? `, ${failed} of them failed` : ''}.`
  return { percent, message, counts: ofChildren(counts), ...estimateOf(counts) }
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

export function requireJobs(context: IngressContext): DurableJobs {
  if (context.durable) return context.durable
  const message = 'Durable jobs are not available: the operator must set DATABASE_URL.'
  throw new ServiceError('jobs_unavailable', message)
}

export function isJobId(text: string): boolean {
  return /^job_[0-9A-Za-z_-]{8,64}$/.test(text)
}

export function jobIdOf(call: Call): string {
  const id = String(call.params.id)
  if (isJobId(id)) return id
  throw jobNotFound(id)
}

export function jobNotFound(id: string): ServiceError {
  return new ServiceError('job_not_found', `No job with the id '${beginningOf(id, 64)}'.`)
}

/**
 * Returns the job in the path, if it belongs to the project of the caller.
 *
 * @throws ServiceError `job_not_found` if the project has no such job
 */
export function findJob(jobs: DurableJobs, call: Call): Promise<DurableJob> {
  return jobs.get(projectIdOf(call.key), jobIdOf(call))
}

export function queryNumber(call: Call, name: string, most: number): number | undefined {
  const text = call.query[name]
  if (text === undefined) return undefined
  const value = /^\d{1,15}$/.test(String(text)) ? Number(text) : Number.NaN
  if (value <= most) return value
  const message = `Invalid '${name}': expected a whole number from 0 to ${most}.`
  throw new ServiceError('invalid_value', message, { param: name })
}
