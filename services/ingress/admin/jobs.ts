import { BulkJobs, ListAdminJobs } from '#schemas/admin/admin.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { WORD_LIST } from '#schemas/kinds/moderations.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { childCountsOf, childCountsOfPage } from '#services/ingress/calls/child-counts.ts'
import { acceptedOf } from '#services/ingress/calls/durable.ts'
import { firstPage, Group, pageOf, previewsOf, statesOfAll } from '#services/ingress/calls/job-list.ts'
import {
  type ChildCounts,
  hasStatus,
  isJobId,
  jobIdOf,
  jobObject,
  requireJobs,
  statusOf,
} from '#services/ingress/calls/job-object.ts'
import { idempotencyOf, readIdempotencyKey } from '#services/ingress/calls/job-options.ts'
import { type Pauses, sentenceOf } from '#shared/capacity/capacity.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { Peers } from '#shared/jobs/peers.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { OperatorJobs, OperatorStore } from '#shared/store/jobs.ts'
import { ALL_TENANTS } from '#shared/store/store.ts'
import { audit } from './audit.ts'

interface JobFilter {
  readonly project?: string | undefined
  readonly pool?: DurableJob['pool'] | undefined
  readonly model?: string | undefined
  readonly status?: string | undefined
  readonly since?: number | undefined
}

/**
 * The store for operators, with access to all projects.
 *
 * @throws ServiceError `jobs_unavailable` without a store
 */
export function requireOperator(context: IngressContext): OperatorStore {
  requireJobs(context)
  return (context.store as NonNullable<IngressContext['store']>).operator
}

export async function listAllJobs(context: IngressContext, call: Call): Promise<void> {
  const operator = requireOperator(context)
  refuseUnknown(ListAdminJobs, call.query)
  const { limit, after, parent_id, group, include_children, ...asked } = parseBody(
    ListAdminJobs,
    { ...call.query },
    'openai',
  )
  for (const [param, id] of Object.entries({ after, parent_id })) {
    if (id !== undefined && !isJobId(id))
      throw new ServiceError('invalid_value', `Expected the id of a job; got '${beginningOf(id, 64)}'.`, { param })
  }
  const { query, isWanted } = filterOf(context, asked)
  const { page, next } = await firstPage(after, async (cursor) => {
    const asked = { ...query, limit, after: cursor, isOwn: include_children !== 'true' }
    const found =
      group !== undefined
        ? await listGroup(context, group, asked)
        : parent_id === undefined
          ? await operator.listJobs(asked)
          : await listChildren(context, parent_id, asked)
    return { page: found.jobs.filter(isWanted), next: found.next }
  })
  const counts = await childCountsOfPage(context, page)
  const previews = await previewsOf(context, projectIdOf(call.key), page)
  const data = page.map((job) => operatorJob(job, undefined, counts.get(job.id), previews.get(job.id)))
  const last_id = next ?? page.at(-1)?.id ?? null
  await call.reply.whole({ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more: next !== null })
}

/**
 * Lists the child jobs of one job, in the order of their submission. The store filters by state. All other filters are
 * applied afterwards, so a page may have fewer jobs than the limit.
 */
async function listChildren(context: IngressContext, parentId: string, query: OperatorJobs) {
  const { limit, after, states } = query
  const page = { limit, parentId, ...(after !== undefined && { after }), ...(states && { states }) }
  const { jobs, hasMore } = await requireJobs(context).list(ALL_TENANTS, page)
  return { jobs: jobs.filter((job) => isAsked(job, query)), next: hasMore ? (jobs.at(-1)?.id ?? null) : null }
}

/**
 * Lists all requests of a batch, or all child jobs of another composed job, newest first. The parts of a batch, which only group its requests, are
 * left out.
 */
async function listGroup(context: IngressContext, id: string, query: OperatorJobs) {
  const { limit, after, states } = query
  const group = new Group(id)
  const jobs = requireJobs(context)
  const { tenant } = await jobs.get(ALL_TENANTS, group.root)
  const page = { limit, after: group.cursor(after, 'desc'), ...(states && { states }) }
  const matches = (job: DurableJob) => group.has(job) && isAsked(job, query)
  const found = await pageOf(jobs, tenant, page, { matches, group, needsScan: true })
  return { jobs: [...found.jobs], next: found.hasMore ? found.lastId : null }
}

function isAsked(job: DurableJob, { tenant, pool, model, sinceMs = 0 }: OperatorJobs): boolean {
  return (
    job.tenant === (tenant ?? job.tenant) &&
    job.pool === (pool ?? job.pool) &&
    job.model === (model ?? job.model) &&
    job.created_at_ms >= sinceMs
  )
}

/**
 * Converts the filters to a store query. Several statuses share one state in the store, so `isWanted` filters the
 * result by status.
 *
 * @throws ServiceError `invalid_value` for an unknown status or project
 */
function filterOf(context: IngressContext, { project, pool, model, status, since }: JobFilter) {
  const statuses = status?.split(',').map((one) => one.trim())
  const query: Omit<OperatorJobs, 'limit'> = {
    tenant: project === undefined ? undefined : projectIdNamed(context.keys.known, project),
    pool,
    model: model === undefined ? undefined : (context.models.find(model)?.id ?? model),
    states: statuses && statesOfAll(statuses),
    sinceMs: since === undefined ? undefined : since * 1_000,
  }
  return { query, isWanted: (job: DurableJob) => hasStatus(job, statuses) }
}

export async function getAnyJob(context: IngressContext, call: Call): Promise<void> {
  await sendJob(context, call, await findAnyJob(context, call))
}

export async function cancelAnyJob(context: IngressContext, call: Call): Promise<void> {
  await sendJob(context, call, await cancelOne(context, call, await findAnyJob(context, call)))
}

export async function redriveAnyJob(context: IngressContext, call: Call): Promise<void> {
  const job = await redriveOne(context, call, await findAnyJob(context, call))
  call.reply.setHeader('location', `/v1/admin/jobs/${job.id}`)
  await call.reply.whole(operatorJob(job), 202)
}

async function cancelOne(context: IngressContext, call: Call, { tenant, id }: DurableJob): Promise<DurableJob> {
  const job = await requireJobs(context).cancel(tenant, id)
  audit(context, call, 'cancel_job', { job_id: id, of_project: tenant })
  return job
}

async function redriveOne(context: IngressContext, call: Call, old: DurableJob): Promise<DurableJob> {
  const { tenant, id, model, pool } = old
  if (pool !== 'code' && model !== WORD_LIST && !context.models.find(model)) {
    throw new ServiceError('model_not_found', `The model '${model}' of this job is no longer available.`)
  }
  const key = readIdempotencyKey(call.headers['idempotency-key'])
  const asked = await idempotencyOf(key, call, null, context.config.jobRetentionMs)
  const { job, isReplay } = acceptedOf(await requireJobs(context).redrive(tenant, id, asked))
  if (!isReplay) audit(context, call, 'redrive_job', { job_id: id, new_job_id: job.id, of_project: tenant })
  return job
}

async function findAnyJob(context: IngressContext, call: Call): Promise<DurableJob> {
  const job = await requireJobs(context).get(ALL_TENANTS, jobIdOf(call))
  call.facts.job_id = job.id
  return job
}

async function sendJob(context: IngressContext, call: Call, job: DurableJob): Promise<void> {
  const { broker, jobs, pauses, limits } = context
  const isQueued = job.state === 'queued'
  const ahead = isQueued ? await requireOperator(context).countAhead(job) : 0
  const taken = isQueued ? await limits.useOf(job.tenant) : undefined
  const fleet = { presence: jobs.presence, pauses, isBrokerReachable: broker.isReachable }
  await call.reply.whole(operatorJob(job, pendingReason(job, fleet, ahead, taken), await childCountsOf(context, job)))
}

/**
 * Returns a job in the form for operators: its project, its state and the reason of a wait. Callers' data is left out:
 * the result, messages of the progress, and the URL of the webhook, which may contain a secret.
 *
 * @param waits Reason of the wait. Null if the job does not wait, and undefined if not determined
 * @param counts Progress of child jobs. Undefined if there are none, or if not determined
 */
function operatorJob(
  job: DurableJob,
  waits?: PendingReason | null,
  counts?: ChildCounts,
  preview?: string,
): Record<string, unknown> {
  const { result: _, progress, webhook, urls: __, ...shown } = jobObject(job, { counts, preview })
  const url = `/v1/admin/jobs/${job.id}`
  return {
    ...shown,
    project: job.tenant,
    kind: job.kind,
    worker: job.owner,
    tries: job.tries,
    crashes: job.crashes,
    progress: numbersOf(progress),
    webhook:
      webhook === null ? null : { host: URL.parse(job.webhook_url ?? '')?.host ?? null, events: job.webhook_events },
    ...(waits !== undefined && { waits }),
    urls: { get: url, cancel: `${url}/cancel`, redrive: `${url}/redrive` },
  }
}

function numbersOf(progress: unknown): object | null {
  if (!progress) return null
  const { phase = null, percent = null, message: _, ...rest } = progress as Record<string, unknown>
  const numbers = ['counts', 'requests_per_second', 'estimated_end_at', 'estimated_end_range'].filter(
    (name) => name in rest,
  )
  return { phase, percent, ...Object.fromEntries(numbers.map((name) => [name, rest[name]])) }
}

interface PendingReason {
  readonly reason:
    | 'scheduled'
    | 'retry_backoff'
    | 'children'
    | 'broker_away'
    | 'model_paused'
    | 'pool_paused'
    | 'no_worker'
    | 'no_worker_for_model'
    | 'project_full'
    | 'slots_taken'
    | 'model_full'
    | 'batch_lane'
    | 'in_turn'
  readonly message: string
  /** Unix seconds at which the wait ends, if known. */
  readonly until: number | null
  readonly ahead: number | null
}

type Taken = { readonly most: number; readonly calls: number; readonly jobs: number } | undefined

interface Fleet {
  readonly presence: Pick<Peers, 'workers' | 'hasModel' | 'slots' | 'freeSlots' | 'capacityOf'>
  readonly pauses: Pick<Pauses, 'of'>
  readonly isBrokerReachable: boolean
}

/**
 * Returns the reason why a durable job waits. Null if the job runs or has ended.
 *
 * @param ahead Number of jobs that start before this job
 */
export function pendingReason(job: DurableJob, fleet: Fleet, ahead: number, taken?: Taken): PendingReason | null {
  if (job.state === 'scheduled') return timed(job)
  if (job.state === 'waiting') return wait('children', 'The job waits for its child jobs.')
  if (job.state !== 'queued') return null
  const [reason, message] = queuedReason(job, fleet, taken)
  return { ...wait(reason, `${message}${aheadOf(ahead)}`), ahead }
}

function timed({ attempt, run_at_ms }: DurableJob): PendingReason {
  const until = Math.floor(run_at_ms / 1_000)
  const at = new Date(until * 1_000).toISOString().replace('.000', '')
  if (attempt === 0) return { ...wait('scheduled', `The job is scheduled for ${at}.`), until }
  return { ...wait('retry_backoff', `Attempt ${attempt} failed; the next one is due at ${at}.`), until }
}

function queuedReason(
  job: DurableJob,
  { presence, pauses, isBrokerReachable }: Fleet,
  taken: Taken,
): [PendingReason['reason'], string] {
  const { pool, model, kind } = job
  const pause = pauses.of(job)
  if (pause) return [`${pause.target}_paused`, sentenceOf(pause)]
  if (!isBrokerReachable) return ['broker_away', 'The broker cannot be reached.']
  const workers = presence.workers(pool)
  const slots = presence.slots(pool)
  if (workers.length === 0) return ['no_worker', `No ${pool} worker is running.`]
  if (slots === 0) return ['no_worker', `Each of the ${workers.length} ${pool} workers is draining.`]
  if (!presence.hasModel(pool, model)) return ['no_worker_for_model', `No ${pool} worker has the model '${model}'.`]
  if (taken && taken.calls + taken.jobs >= taken.most) return ['project_full', fullText(taken)]
  if (presence.freeSlots(pool) === 0) return ['slots_taken', `All ${slots} slots of the pool ${pool} are taken.`]
  if (job.priority === 'low') return ['batch_lane', 'Jobs of low priority may use only a part of the slots.']
  const capacity = presence.capacityOf(pool, { kind, model })
  if (capacity !== undefined && capacity < slots && isFull(job, presence))
    return ['model_full', `Workers run at most ${capacity} jobs of the model '${model}' at once.`]
  return ['in_turn', 'A worker is about to claim the job.']
}

/**
 * Whether the bulkhead of the job's model is full. A worker then reports in its heartbeat that jobs of the same kind,
 * model and priority wait.
 */
function isFull({ pool, kind, model, priority }: DurableJob, presence: Fleet['presence']): boolean {
  const isAlike = (one: { kind: string; model: string; priority: string }) =>
    one.kind === kind && one.model === model && one.priority === priority
  return presence.workers(pool).some(({ capacity }) => capacity?.backlog.some(isAlike))
}

function fullText({ most, calls, jobs }: NonNullable<Taken>): string {
  const [ofCalls, ofJobs] = [calls === 1 ? '1 call' : `${calls} calls`, jobs === 1 ? '1 job' : `${jobs} jobs`]
  return `The project is at its concurrency limit: ${ofCalls} and ${ofJobs} are running, and ${most} may run at once.`
}

function aheadOf(ahead: number): string {
  return ` ${ahead === 1 ? '1 job' : `${ahead} jobs`} of the same model and priority ${ahead === 1 ? 'is' : 'are'} older.`
}

function wait(reason: PendingReason['reason'], message: string): PendingReason {
  return { reason, message, until: null, ahead: null }
}

/** Maximum pages that one call scans. If few of very many jobs match, then several calls are needed. */
const PAGES_MAX = 40
const PAGE = 100

/** Error codes that concern a single job of a bulk operation, which then continues with the next job. */
const PER_JOB_ERRORS: ReadonlySet<string> = new Set([
  'job_not_found',
  'job_not_finished',
  'job_already_finished',
  'model_not_found',
])

interface Operation {
  readonly statuses: string
  readonly can: (job: DurableJob) => boolean
  /** Whether an earlier bulk call already applied the operation to the job. Such a job is skipped. */
  readonly isDone?: (context: IngressContext, job: DurableJob) => Promise<boolean>
  readonly run: (context: IngressContext, call: Call, job: DurableJob) => Promise<DurableJob>
}

const CANCEL: Operation = {
  statuses: 'queued,in_progress',
  can: (job) => !TERMINAL.has(job.state) && job.cancel_requested_at_ms === null,
  run: cancelOne,
}
const REDRIVE: Operation = {
  statuses: 'failed',
  // A child job cannot run again alone. If its parent runs again, then the parent creates new child jobs.
  can: (job) => TERMINAL.has(job.state) && job.state !== 'completed' && job.depth === 0,
  isDone: hasRepeat,
  run: redriveOne,
}

export async function bulkCancelJobs(context: IngressContext, call: Call, body: unknown): Promise<void> {
  await runBulk(context, call, body, CANCEL)
}

/** POST /v1/admin/jobs/redrive: runs many jobs again, except those that were run again earlier. */
export async function bulkRedriveJobs(context: IngressContext, call: Call, body: unknown): Promise<void> {
  await runBulk(context, call, body, REDRIVE)
}

async function runBulk(context: IngressContext, call: Call, body: unknown, operation: Operation): Promise<void> {
  requireOperator(context)
  refuseUnknown(BulkJobs, body)
  if (call.headers['idempotency-key'] !== undefined) {
    throw new ServiceError(
      'invalid_request',
      'Idempotency-Key identifies one job, but this request selects several. Omit the header.',
    )
  }
  const asked = parseBody(BulkJobs, body, 'openai')
  const { found, hasMore } = await select(context, asked, operation)
  const data: object[] = []
  for (const job of found) {
    if (call.reply.isDisconnected) return
    data.push(asked.dry_run ? entryOf(job) : await applyTo(context, call, job, operation))
  }
  await call.reply.whole({ object: 'list', data, dry_run: asked.dry_run, has_more: hasMore })
}

async function select(context: IngressContext, { max, dry_run: _, ...asked }: BulkJobs, operation: Operation) {
  const { query, isWanted } = filterOf(context, { ...asked, status: asked.status ?? operation.statuses })
  const found: DurableJob[] = []
  let after: string | null | undefined
  for (let pages = 0; after !== null && pages < PAGES_MAX; pages++) {
    const page = await requireOperator(context).listJobs({ ...query, limit: PAGE, after })
    for (const job of page.jobs) {
      if (!isWanted(job) || !operation.can(job) || (await operation.isDone?.(context, job))) continue
      if (found.length === max) return { found, hasMore: true }
      found.push(job)
    }
    after = page.next
  }
  return { found, hasMore: after !== null }
}

async function applyTo(context: IngressContext, call: Call, job: DurableJob, operation: Operation): Promise<object> {
  try {
    const now = await operation.run(context, call, job)
    return { ...entryOf(job), status: statusOf(now), ...(now.id !== job.id && { new_id: now.id }) }
  } catch (thrown) {
    const { code, message } = ServiceError.from(thrown)
    if (!PER_JOB_ERRORS.has(code)) throw thrown
    return { ...entryOf(job), error: { code, message } }
  }
}

function entryOf(job: DurableJob) {
  return { id: job.id, object: 'job', project: job.tenant, model: job.model, status: statusOf(job) }
}

/**
 * Whether an ended job was run again as a new job. The new job and the child jobs of the first run all have the ended
 * job as their parent. Only the new job was created after that job had ended.
 */
async function hasRepeat(context: IngressContext, { id, endpoint, finished_at_ms }: DurableJob): Promise<boolean> {
  const { jobs } = await requireJobs(context).list(ALL_TENANTS, { parentId: id, limit: 1 })
  return jobs.some((child) => child.endpoint === endpoint && child.created_at_ms >= (finished_at_ms ?? 0))
}
