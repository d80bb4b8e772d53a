import { ListAdminJobs } from '#schemas/admin/admin.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { WORD_LIST } from '#schemas/moderations.ts'
import { acceptedOf } from '#services/ingress/answer/durable.ts'
import { idempotencyOf, readIdempotencyKey } from '#services/ingress/answer/prefer-header.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { projectIdNamed } from '#services/ingress/callers/named-project.ts'
import { childCountsOf, childCountsOfPage } from '#services/ingress/jobs/child-counts.ts'
import { firstPage } from '#services/ingress/jobs/list.ts'
import { statusOf } from '#services/ingress/jobs/object.ts'
import { isJobId, jobIdOf, requireJobs } from '#services/ingress/jobs/paths.ts'
import { statesOfAll } from '#services/ingress/jobs/statuses.ts'
import { ServiceError } from '#shared/error.ts'
import type { OperatorJobs, OperatorStore } from '#shared/store/operator.ts'
import { EVERY_TENANT } from '#shared/store/store.ts'
import { audit } from './audit.ts'
import { operatorJob } from './job-object.ts'
import { pendingReason } from './pending-reason.ts'

/** Filters of an operator on the jobs of all projects, from a query or a body. */
interface Asked {
  readonly project?: string | undefined
  readonly pool?: DurableJob['pool'] | undefined
  readonly model?: string | undefined
  readonly status?: string | undefined
  readonly since?: number | undefined
}

/**
 * Store with access to all projects.
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
  const { limit, after, parent_id, ...asked } = parseBody(ListAdminJobs, { ...call.query }, 'openai')
  for (const [param, id] of Object.entries({ after, parent_id })) {
    if (id !== undefined && !isJobId(id))
      throw new ServiceError('invalid_value', 'Expected the id of a job.', { param })
  }
  const { query, isWanted } = filterOf(context, asked)
  const { page, next } = await firstPage(after, async (cursor) => {
    const asked = { ...query, limit, after: cursor }
    const found =
      parent_id === undefined ? await operator.listJobs(asked) : await listChildren(context, parent_id, asked)
    return { page: found.jobs.filter(isWanted), next: found.next }
  })
  const counts = await childCountsOfPage(context, page)
  const data = page.map((job) => operatorJob(job, undefined, counts.get(job.id)))
  const last_id = next ?? page.at(-1)?.id ?? null
  await call.reply.whole({ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more: next !== null })
}

/** Children of one job, by their index. The other filters apply to the page afterwards, so it may be short. */
async function listChildren(context: IngressContext, parentId: string, query: OperatorJobs) {
  const { limit, after, states, tenant, pool, model, sinceMs = 0 } = query
  const page = { limit, parentId, ...(after !== undefined && { after }), ...(states && { states }) }
  const { jobs, hasMore } = await requireJobs(context).list(EVERY_TENANT, page)
  const isAsked = (job: DurableJob) =>
    job.tenant === (tenant ?? job.tenant) &&
    job.pool === (pool ?? job.pool) &&
    job.model === (model ?? job.model) &&
    job.created_at_ms >= sinceMs
  return { jobs: jobs.filter(isAsked), next: hasMore ? (jobs.at(-1)?.id ?? null) : null }
}

/**
 * Converts the filters to a store query. `isWanted` filters again, because some statuses share a state.
 *
 * @throws ServiceError `invalid_value`
 */
export function filterOf(context: IngressContext, { project, pool, model, status, since }: Asked) {
  const statuses = status?.split(',').map((one) => one.trim())
  const query: Omit<OperatorJobs, 'limit'> = {
    tenant: project === undefined ? undefined : projectIdNamed(context.keys.known, project),
    pool,
    model: model === undefined ? undefined : (context.models.find(model)?.id ?? model),
    states: statuses && statesOfAll(statuses),
    sinceMs: since === undefined ? undefined : since * 1_000,
  }
  return { query, isWanted: (job: DurableJob) => statuses?.includes(statusOf(job)) ?? true }
}

export async function getAnyJob(context: IngressContext, call: Call): Promise<void> {
  await sendJob(context, call, await findAnyJob(context, call))
}

/**
 * POST /v1/admin/jobs/{id}/cancel.
 *
 * @throws ServiceError `job_already_finished`
 */
export async function cancelAnyJob(context: IngressContext, call: Call): Promise<void> {
  await sendJob(context, call, await cancelOne(context, call, await findAnyJob(context, call)))
}

export async function redriveAnyJob(context: IngressContext, call: Call): Promise<void> {
  const job = await redriveOne(context, call, await findAnyJob(context, call))
  call.reply.setHeader('location', `/v1/admin/jobs/${job.id}`)
  await call.reply.whole(operatorJob(job), 202)
}

/**
 * Cancels a job for an operator.
 *
 * @throws ServiceError `job_already_finished`
 */
export async function cancelOne(context: IngressContext, call: Call, { tenant, id }: DurableJob): Promise<DurableJob> {
  const job = await requireJobs(context).cancel(tenant, id)
  audit(context, call, 'cancel_job', { job_id: id, of_project: tenant })
  return job
}

/**
 * Runs a job again for an operator.
 *
 * @throws ServiceError `model_not_found`, `job_not_finished`, `job_already_finished`
 */
export async function redriveOne(context: IngressContext, call: Call, old: DurableJob): Promise<DurableJob> {
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
  const job = await requireJobs(context).get(EVERY_TENANT, jobIdOf(call))
  call.facts.job_id = job.id
  return job
}

async function sendJob(context: IngressContext, call: Call, job: DurableJob): Promise<void> {
  const { broker, jobs, pauses, places } = context
  const isQueued = job.state === 'queued'
  const ahead = isQueued ? await requireOperator(context).countAhead(job) : 0
  const taken = isQueued ? await places.takenOf(job.tenant) : undefined
  const fleet = { presence: jobs.presence, pauses, isBrokerReachable: broker.isReachable }
  await call.reply.whole(operatorJob(job, pendingReason(job, fleet, ahead, taken), await childCountsOf(context, job)))
}
