import type { DurableJob } from '#schemas/durable-job.ts'
import type { StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { batch } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Scope, Store } from '#shared/store/store.ts'
import { blobsOf, dropBlobs } from './blobs.ts'
import { TERMINAL } from './follow.ts'
import { releaseHistory } from './history.ts'

interface EraseContext {
  readonly store: Store
  readonly blobs: Blobs
  readonly log: Log
}

export async function eraseJob(context: EraseContext, scope: Scope, job: DurableJob): Promise<void> {
  const { store } = context
  const { id, tenant, depth, parent_id, state } = job
  const parent = depth > 0 && parent_id !== null ? await store.find(scope, parent_id) : undefined
  if (parent && !TERMINAL.has(parent.state)) {
    throw new ServiceError('job_not_finished', 'The parent of this job has not ended. Cancel the parent first.')
  }
  if (TERMINAL.has(state) && job.children > 0) await eraseChildren(context, scope, job)
  const content = await store.findContent(scope, id)
  const steps = job.steps === 0 ? [] : await store.listSteps(tenant, id)
  if (!(await store.erase(scope, id))) {
    throw new ServiceError('job_not_finished', `The job is ${state}. Cancel it first.`)
  }
  const own = blobsOf(content?.request)
  const { history } = (content?.request ?? {}) as Partial<StoredRequest>
  // The input of a batch is also stored as a file of its project, whose row is deleted here.
  if (job.kind === batch.name) for (const key of own) await store.files.delete(tenant, key)
  await releaseHistory({ files: store.files, blobs: context.blobs }, tenant, history)
  await dropBlobs(context, [...own, ...steps.flatMap(({ blob }) => blob ?? [])])
}

/** Children that have children of their own may have very many descendants, so they are only marked here. The next purges remove them. */
async function eraseChildren(context: EraseContext, scope: Scope, { id, tenant }: DurableJob): Promise<void> {
  const children = await context.store.listChildren(tenant, id)
  const unended = children.find(({ state }) => !TERMINAL.has(state))
  if (unended)
    throw new ServiceError('job_not_finished', `A child of the job is ${unended.state}. Cancel the child first.`)
  if (children.some((child) => child.children > 0)) await context.store.forgetChildren(id)
  else for (const child of children) await eraseJob(context, scope, child)
}
