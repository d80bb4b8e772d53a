import { ManyJobs } from '#schemas/admin/admin.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { statusOf } from '#services/ingress/jobs/object.ts'
import { requireJobs } from '#services/ingress/jobs/paths.ts'
import { ServiceError } from '#shared/error.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { EVERY_TENANT } from '#shared/store/store.ts'
import { cancelOne, filterOf, redriveOne, requireOperator } from './jobs.ts'

/** Pages looked at for one call: what is rare among very many jobs takes several calls. */
const PAGES_MAX = 40
const PAGE = 100

/** Refusals that are about one job: another one may be moved all the same. */
const OF_ONE_JOB: ReadonlySet<string> = new Set([
  'job_not_found',
  'job_not_finished',
  'job_already_finished',
  'model_not_found',
])

/** What is done to each of many jobs, and to which. */
interface Deed {
  /** Statuses where none is named. */
  readonly statuses: string
  readonly can: (job: DurableJob) => boolean
  /** Whether it was done before, so that the same call may be made twice. */
  readonly isDone?: (context: IngressContext, job: DurableJob) => Promise<boolean>
  readonly run: (context: IngressContext, call: Call, job: DurableJob) => Promise<DurableJob>
}

const CANCEL: Deed = {
  statuses: 'queued,in_progress',
  can: (job) => !TERMINAL.has(job.state) && job.cancel_requested_at_ms === null,
  run: cancelOne,
}
const REDRIVE: Deed = {
  statuses: 'failed',
  // Its parent is what runs again, with children of its own.
  can: (job) => TERMINAL.has(job.state) && job.state !== 'completed' && job.depth === 0,
  isDone: hasRepeat,
  run: redriveOne,
}

/** POST /v1/admin/jobs/cancel: many jobs at once, or only which these would be. */
export async function cancelManyJobs(context: IngressContext, call: Call, body: unknown): Promise<void> {
  await toMany(context, call, body, CANCEL)
}

/** POST /v1/admin/jobs/redrive: many jobs at once, without those that were run again before. */
export async function redriveManyJobs(context: IngressContext, call: Call, body: unknown): Promise<void> {
  await toMany(context, call, body, REDRIVE)
}

async function toMany(context: IngressContext, call: Call, body: unknown, deed: Deed): Promise<void> {
  requireOperator(context)
  refuseUnknown(ManyJobs, body)
  if (call.headers['idempotency-key'] !== undefined) {
    throw new ServiceError('invalid_request', 'Idempotency-Key stands for one job. Name the job in the path.')
  }
  const asked = parseBody(ManyJobs, body, 'openai')
  const { found, hasMore } = await select(context, asked, deed)
  const data: object[] = []
  for (const job of found) {
    if (call.reply.hasLeft) return
    data.push(asked.dry_run ? entryOf(job) : await moved(context, call, job, deed))
  }
  await call.reply.whole({ object: 'list', data, dry_run: asked.dry_run, has_more: hasMore })
}

async function select(context: IngressContext, { max, dry_run: _, ...asked }: ManyJobs, deed: Deed) {
  const { query, isWanted } = filterOf(context, { ...asked, status: asked.status ?? deed.statuses })
  const found: DurableJob[] = []
  let after: string | null | undefined
  for (let pages = 0; after !== null && pages < PAGES_MAX; pages++) {
    const page = await requireOperator(context).listJobs({ ...query, limit: PAGE, after })
    for (const job of page.jobs) {
      if (!isWanted(job) || !deed.can(job) || (await deed.isDone?.(context, job))) continue
      if (found.length === max) return { found, hasMore: true }
      found.push(job)
    }
    after = page.next
  }
  return { found, hasMore: after !== null }
}

/** One that is refused does not keep the others from being moved. @throws ServiceError For what would be so for each of them */
async function moved(context: IngressContext, call: Call, job: DurableJob, deed: Deed): Promise<object> {
  try {
    const now = await deed.run(context, call, job)
    return { ...entryOf(job), status: statusOf(now), ...(now.id !== job.id && { new_id: now.id }) }
  } catch (thrown) {
    const { code, message } = ServiceError.from(thrown)
    if (!OF_ONE_JOB.has(code)) throw thrown
    return { ...entryOf(job), error: { code, message } }
  }
}

function entryOf(job: DurableJob) {
  return { id: job.id, object: 'job', project: job.tenant, model: job.model, status: statusOf(job) }
}

/** Whether a job that ended was run again since: what it submitted while it ran is older. */
async function hasRepeat(context: IngressContext, { id, endpoint, finished_at_ms }: DurableJob): Promise<boolean> {
  const { jobs } = await requireJobs(context).list(EVERY_TENANT, { parentId: id, limit: 1 })
  return jobs.some((child) => child.endpoint === endpoint && child.created_at_ms >= (finished_at_ms ?? 0))
}
