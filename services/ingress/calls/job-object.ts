import type { DurableEvent, DurableJob, DurableState, WebhookDelivery } from '#schemas/durable-job.ts'
import { ERRORS } from '#schemas/error.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { DURABLE_POLICY } from '#shared/jobs/worker/durable-run.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { batch } from '#shared/kinds/batch.ts'
import { openaiErrorBody } from '#shared/kinds/errors.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { childJobId, type DoneStep } from '#shared/store/jobs.ts'
import type { Call, IngressContext } from './call.ts'

interface JobDetails {
  readonly result?: unknown
  readonly deliveries?: readonly WebhookDelivery[]
  readonly children?: readonly DurableJob[]
  readonly steps?: readonly DoneStep[]
  readonly counts?: ChildCounts | undefined
  readonly cost?: number | undefined
  /** Number of jobs that start before this one. Null if the job does not wait, or if the number is unknown. */
  readonly position?: number | null
}

/**
 * Status of a job in the API. The state `scheduled` is shown as `queued`, and `waiting` as `in_progress`. After a
 * cancel request, a job is shown as `cancelling` until it ends.
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
 * Progress in the last `job.progress` event. Handlers send no progress event when they end, so a completed job is shown
 * with 100 %.
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
 * The job in the path, if it belongs to the project of the caller.
 *
 * @throws ServiceError `job_not_found`
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

/**
 * Maximum composed jobs per page whose child jobs are counted exactly. Limited, because counting the child jobs of one
 * batch takes about twenty reads of the store.
 */
const COUNTED_MAX = 10

export interface ChildCounts {
  readonly total: number
  readonly completed: number
  readonly failed: number
}

/** Progress of the child jobs. Undefined if there are none, or if the batch was not validated yet. */
export async function childCountsOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (job.kind !== batch.name) return job.children === 0 ? undefined : await countChildren(context, job)
  const counts = reportedCountsOf(job) ?? (await plannedOf(context, job))
  // The progress event counts only whole parts, so ended requests of unfinished parts are added here. If all requests
  // are already counted, then nothing is added.
  if (!counts || counts.completed + counts.failed >= counts.total) return counts
  return { ...counts, ...(await countEnded(context, job, counts)) }
}

/**
 * Counts of a batch without a progress event. The total is the number of requests that the first step, `validate`, has
 * recorded.
 */
async function plannedOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (TERMINAL.has(job.state)) return undefined
  const validated = (await requireJobs(context).stepsOf(job)).find(({ kind }) => kind === 'validate')
  return validated && { total: validated.cost.requests ?? 0, completed: 0, failed: 0 }
}

/**
 * Child counts of a page of jobs, by job id. The first {@link COUNTED_MAX} jobs are counted as by
 * {@link childCountsOf}. For later batches of the page, the counts come from their last progress event. Other later
 * jobs have no counts.
 */
export async function childCountsOfPage(
  context: IngressContext,
  jobs: readonly DurableJob[],
): Promise<ReadonlyMap<string, ChildCounts>> {
  const composed = jobs.filter(({ kind, children }) => children > 0 || kind === batch.name)
  const counted = new Set(composed.slice(0, COUNTED_MAX))
  const all = await Promise.all(
    composed.map(
      async (job) => [job.id, counted.has(job) ? await childCountsOf(context, job) : reportedCountsOf(job)] as const,
    ),
  )
  return new Map(all.flatMap(([id, counts]) => (counts ? [[id, counts] as const] : [])))
}

function reportedCountsOf({ kind, progress }: DurableJob): ChildCounts | undefined {
  if (kind !== batch.name) return undefined
  const { progress: said } = (progress ?? {}) as { progress?: { counts?: ChildCounts } }
  return said?.counts && { total: said.counts.total, completed: said.counts.completed, failed: said.counts.failed }
}

async function countChildren({ store }: IngressContext, { id, tenant, children }: DurableJob): Promise<ChildCounts> {
  const counts: Partial<Record<DurableState, number>> = (await store?.countChildren(tenant, id)) ?? {}
  const { completed = 0, failed = 0, cancelled = 0, expired = 0 } = counts
  return { total: children, completed, failed: failed + cancelled + expired }
}

/**
 * Maximum requests per part. A job may have at most 500 child jobs, so a batch of 50,000 requests has 500 parts of 100
 * requests.
 */
export const PART_REQUESTS = 100
export const PARTS_IN_FLIGHT_MAX = 20

/** Progress phase of a part whose next line waits for a rate limit or a budget. */
export const LINES_WAIT = 'waiting'

interface EndedRequests {
  readonly completed: number
  readonly failed: number
}

/**
 * Counts the ended requests of a batch, including those of unfinished parts.
 *
 * A batch records progress only once per group of parts, because one write per request would be expensive. Requests
 * that ended since the last record are added here.
 *
 * @param reported Counts of the last progress event, which contain only whole parts
 */
export async function countEnded(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  reported: EndedRequests,
): Promise<EndedRequests> {
  const parts = partsUnderWay(id, reported)
  const counts = await Promise.all(parts.map(async (part) => (await store?.countChildren(tenant, part)) ?? {}))
  return counts.reduce<EndedRequests>(
    (sum, { completed = 0, failed = 0, cancelled = 0, expired = 0 }) => ({
      completed: sum.completed + completed,
      failed: sum.failed + failed + cancelled + expired,
    }),
    reported,
  )
}

export async function waitingFor(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  reported: EndedRequests,
): Promise<string | null> {
  const parts = await Promise.all(partsUnderWay(id, reported).map((part) => store?.find(tenant, part)))
  for (const part of parts) {
    const { progress } = (part?.progress ?? {}) as { progress?: { phase?: string; message?: string } }
    if (part?.state === 'scheduled' && progress?.phase === LINES_WAIT) return progress.message ?? null
  }
  return null
}

function partsUnderWay(id: string, { completed, failed }: EndedRequests): string[] {
  const first = Math.floor((completed + failed) / PART_REQUESTS)
  return Array.from({ length: PARTS_IN_FLIGHT_MAX }, (_, nth) => childJobId(id, String(first + nth)))
}
