import { BulkJobs } from '#schemas/admin/admin.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { requireJobs, statusOf } from '#services/ingress/calls/job-object.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ALL_TENANTS } from '#shared/store/store.ts'
import { cancelOne, filterOf, redriveOne, requireOperator } from './jobs.ts'

/** Maximum pages that one call scans. If few of very many jobs match, then several calls are needed. */
const PAGES_MAX = 40
const PAGE = 100

/** Errors of one job. The operation continues with the next job. */
const PER_JOB_ERRORS: ReadonlySet<string> = new Set([
  'job_not_found',
  'job_not_finished',
  'job_already_finished',
  'model_not_found',
])

interface Operation {
  readonly statuses: string
  readonly can: (job: DurableJob) => boolean
  /** Whether the operation was done in an earlier call, so that it has no effect now. */
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
  // A child job cannot be run again alone: its parent runs again and creates new child jobs.
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
    throw new ServiceError('invalid_request', 'Idempotency-Key stands for one job. Name the job in the path.')
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

/**
 * Applies the operation to one job. An error of this job becomes part of its entry.
 *
 * @throws ServiceError for errors that would occur for every job
 */
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
 * Whether an ended job was run again. The new job has the ended job as its parent. Unlike child jobs, the new job was
 * created after the end of its parent.
 */
async function hasRepeat(context: IngressContext, { id, endpoint, finished_at_ms }: DurableJob): Promise<boolean> {
  const { jobs } = await requireJobs(context).list(ALL_TENANTS, { parentId: id, limit: 1 })
  return jobs.some((child) => child.endpoint === endpoint && child.created_at_ms >= (finished_at_ms ?? 0))
}
