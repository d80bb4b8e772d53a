import { ListAdminBatches } from '#schemas/admin/admin.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import {
  BATCHES,
  batchIdOf,
  batchObjectsOfPage,
  currentBatchObject,
  findBatch,
  jobIdOfBatch,
} from '#services/ingress/batches/batches.ts'
import { MESSAGE_BATCHES } from '#services/ingress/batches/messages.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { firstPage } from '#services/ingress/calls/job-list.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { namesOf } from '#services/ingress/endpoints/usage.ts'
import { batch } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ALL_TENANTS } from '#shared/store/store.ts'
import { audit } from './audit.ts'
import { requireOperator } from './jobs.ts'

const ENDPOINTS = [BATCHES, MESSAGE_BATCHES] as const

/** GET /v1/admin/batches: batches and message batches of all projects, or of the project in the query, newest first. */
export async function listAllBatches(context: IngressContext, call: Call): Promise<void> {
  const operator = requireOperator(context)
  refuseUnknown(ListAdminBatches, call.query)
  const { project, limit, after } = parseBody(ListAdminBatches, { ...call.query }, 'openai')
  const tenant = project === undefined ? undefined : projectIdNamed(context.keys.known, project)
  const { page, next } = await firstPage(after === undefined ? undefined : cursorOf(after), async (cursor) => {
    if (tenant !== undefined) return await batchesOf(context, tenant, limit, cursor)
    const { jobs, next } = await operator.listJobs({ pool: batch.pool, isOwn: true, limit, after: cursor })
    return { page: jobs, next }
  })
  const batches = await batchObjectsOfPage(context, page)
  const data = page.map((job, nth) => ({ ...(batches[nth] as (typeof batches)[number]), ...identityOf(context, job) }))
  const last_id = next === null ? (data.at(-1)?.id ?? null) : batchIdOf(next, 'batch_')
  await call.reply.whole({ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more: next !== null })
}

/**
 * Returns one page of batches, newest first. Batches of the OpenAI and the Anthropic API have different endpoints, and the store has an index by
 * project and endpoint. One page per endpoint is therefore read, and the pages are merged.
 */
async function batchesOf(context: IngressContext, tenant: string, limit: number, after: string | undefined) {
  const jobs = requireJobs(context)
  const pages = await Promise.all(
    ENDPOINTS.map((endpoint) =>
      jobs.list(tenant, { limit, endpoint, isOwn: true, ...(after !== undefined && { after }) }),
    ),
  )
  const found = pages.flatMap((one) => one.jobs).toSorted((a, b) => (a.id < b.id ? 1 : -1))
  const page = found.slice(0, limit)
  const hasMore = found.length > limit || pages.some((one) => one.hasMore)
  return { page, next: hasMore ? (page.at(-1)?.id ?? null) : null }
}

export async function getAnyBatch(context: IngressContext, call: Call): Promise<void> {
  await sendBatch(context, call, await findAnyBatch(context, call))
}

/**
 * POST /v1/admin/batches/{id}/cancel: cancels a batch of any project. The results of requests that have already ended are still written
 * to the result files.
 */
export async function cancelAnyBatch(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await findAnyBatch(context, call)
  const job = await requireJobs(context).cancel(tenant, id, 'once')
  audit(context, call, 'cancel_job', { job_id: id, of_project: tenant })
  await sendBatch(context, call, job)
}

async function findAnyBatch(context: IngressContext, call: Call): Promise<DurableJob> {
  const isOfMessages = String(call.params.id).startsWith('msgbatch_')
  return isOfMessages
    ? await findBatch(context, call, MESSAGE_BATCHES, 'msgbatch_', ALL_TENANTS)
    : await findBatch(context, call, BATCHES, 'batch_', ALL_TENANTS)
}

async function sendBatch(context: IngressContext, call: Call, job: DurableJob): Promise<void> {
  await call.reply.whole({ ...(await currentBatchObject(context, job)), ...identityOf(context, job) })
}

function identityOf(context: IngressContext, { id, endpoint, tenant }: DurableJob) {
  const prefix = endpoint === MESSAGE_BATCHES ? 'msgbatch_' : 'batch_'
  return { id: batchIdOf(id, prefix), project: tenant, project_name: namesOf(context, 'project')(tenant) }
}

function cursorOf(after: string): string {
  const id = jobIdOfBatch(after, 'batch_') ?? jobIdOfBatch(after, 'msgbatch_')
  if (id !== undefined) return id
  throw new ServiceError('invalid_value', "Invalid 'after': expected the id of a batch.", { param: 'after' })
}
