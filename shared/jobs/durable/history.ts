import type { DurableJob } from '#schemas/durable-job.ts'
import type { SharedHistory, StoredRequest } from '#schemas/job.ts'
import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import type { Blobs, OldBlob } from '#shared/blobs/blobs.ts'
import type { Holding } from '#shared/capacity/byte-budgets.ts'
import { storeBody } from '#shared/jobs/body.ts'
import { batch } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { ownerOfBlob } from '#shared/store/jobs.ts'
import { type FileStore, type HasFiles, HISTORY, isFileId, newFileId } from '#shared/store/records.ts'
import { ALL_TENANTS, type JobReads, type Scope, type Store } from '#shared/store/store.ts'
import { TERMINAL } from './follow.ts'

/*
 * Shared storage for the history of chained responses.
 *
 * The problem: a response that continues another response has the whole conversation as its prompt. If each job stored a copy, then a chain
 * of n responses would take space in the order of n².
 *
 * How it works: a turn is one message of the conversation. A job stores its own turns, and names the segments that hold the earlier turns.
 * A segment is a blob of at least 64 KiB. A job writes a segment when its own stored turns reach this size. Until then, turns are stored
 * with the job, so a chain of n short responses takes at most n × 64 KiB.
 *
 * Example:
 * 1. The first job stores turn 1 with the job.
 * 2. The second job has turns 1, 2, 3, which together reach 64 KiB, and writes segment A with them.
 * 3. The third job names segment A, and stores turns 4, 5 with the job.
 * 4. The fourth job has turns 4 to 7, which together reach 64 KiB. The job writes segment B with them, and names A and B.
 *
 * A segment is a hidden file of the project with a reference count. The erasure of the last job that refers to a segment deletes the
 * segment. Otherwise the segment expires with the last of these jobs. The text of a conversation has the maximum size of a request body, so a
 * prompt has at most some hundred segments.
 */

interface HistoryContext {
  readonly files: FileStore
  readonly blobs: Blobs
  readonly holding: Holding | undefined
  readonly tenant: string
  readonly keepMs: number
}

/** A body as stored, and the shared segments with the earlier turns. If `history` is undefined, then the body contains all turns. */
export interface SharedBody {
  readonly body: unknown
  readonly history: SharedHistory | undefined
}

/**
 * Moves the beginning of a prompt into shared segments. If no job is created afterwards, then the caller must {@link releaseHistory
 * release} the result.
 *
 * @param before Existing segments, which together contain consecutive turns. `at` is the index in the prompt of their first turn
 */
export async function shareHistory(
  { files, blobs, holding, tenant, keepMs }: HistoryContext,
  body: unknown,
  before: SharedHistory,
): Promise<SharedBody> {
  const { turns, ...request } = body as GenerateRequest
  const from = before.at + before.segments.reduce((sum, segment) => sum + segment.turns, 0)
  const head = turns.slice(0, before.at)
  const rest = turns.slice(from)
  const segments = [...before.segments]
  const id = newFileId()
  const stored = await storeBody(id, rest, holding?.over(blobs) ?? blobs)
  const isSegment = 'blob' in stored
  if (isSegment) {
    const bytes = await blobs.size(id)
    const row = { id, tenant, purpose: HISTORY, filename: '', bytes, keepMs }
    await files.create(row, { filesMax: Number.MAX_SAFE_INTEGER })
    holding?.stored()
    segments.push({ blob: id, turns: rest.length, bytes })
  }
  if (segments.length === 0) return { body, history: undefined }
  const history = { at: before.at, segments }
  const ids = segments.map(({ blob }) => blob)
  // A segment may have expired since it was read. In this case the job stores its whole prompt.
  if ((await files.refer(tenant, ids, keepMs)) < ids.length) {
    await releaseHistory({ files, blobs }, tenant, history)
    return { body, history: undefined }
  }
  const own = { ...request, turns: isSegment ? head : [...head, ...rest] }
  return { body: { after_history: own }, history }
}

export async function releaseHistory(
  { files, blobs }: Pick<HistoryContext, 'files' | 'blobs'>,
  tenant: string,
  history: SharedHistory | undefined,
): Promise<void> {
  if (!history) return
  const unused = await files.release(
    tenant,
    history.segments.map(({ blob }) => blob),
  )
  for (const id of unused) await blobs.delete(id)
}

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
  // The input of a batch is also a file of the project. The row of this file is deleted here.
  if (job.kind === batch.name) for (const key of own) await store.files.delete(tenant, key)
  await releaseHistory({ files: store.files, blobs: context.blobs }, tenant, history)
  await dropBlobs(context, [...own, ...steps.flatMap(({ blob }) => blob ?? [])])
}

/**
 * Erases the children of a job. A child that has children itself may have thousands of descendants. Such a child is only marked here, and the next
 * purges delete it.
 */
async function eraseChildren(context: EraseContext, scope: Scope, { id, tenant }: DurableJob): Promise<void> {
  const children = await context.store.listChildren(tenant, id)
  const unended = children.find(({ state }) => !TERMINAL.has(state))
  if (unended)
    throw new ServiceError('job_not_finished', `A child of the job is ${unended.state}. Cancel the child first.`)
  if (children.some((child) => child.children > 0)) await context.store.forgetChildren(id)
  else for (const child of children) await eraseJob(context, scope, child)
}

/*
 * Lifetime of blobs. The blobs of a durable job exist until the job is erased or purged, and those of an attached call until its answer. The code
 * that ends a job deletes its blobs. If the deletion fails, then the sweep in this file deletes the orphaned blobs. Each key contains the id of a job
 * or file, which the sweep looks up in the store.
 */

const MINUTE_MS = 60_000
/**
 * Minimum age in ms at which a blob without a job is deleted. A younger blob may belong to a job whose row is not inserted yet. The age exceeds the
 * duration of any statement and any clock difference.
 */
const ORPHAN_AGE_MS_MIN = 10 * MINUTE_MS
/**
 * Age in ms at which a blob is deleted if this process cannot look up its job. A durable job can exist for at most 21 days: it may wait, run and be
 * retained for seven days each.
 */
const UNKNOWN_OWNER_AGE_MS = 22 * 24 * 60 * MINUTE_MS

export function blobsOf(request: unknown): string[] {
  const { blob, attachments = [] } = (request ?? {}) as Partial<StoredRequest>
  return [...(blob === undefined ? [] : [blob]), ...attachments]
}

export async function dropBlobs(
  { blobs, log }: { readonly blobs: Blobs; readonly log: Log },
  keys: readonly string[],
): Promise<void> {
  for (const key of keys) {
    await blobs
      .delete(key)
      .catch((error: unknown) =>
        log.warn({ err: error, blob: key }, 'blob could not be deleted; the deletion is retried later'),
      )
  }
}

/**
 * Deletes blobs whose job no longer exists: blobs of refused or crashed calls, and blobs whose deletion failed.
 *
 * @param store Undefined if this process has no store. In this case, blobs are deleted only if they are older than the
 * maximum lifetime of a job
 * @param callMsMax Maximum duration of an attached call in ms. Such calls may have blobs and are not in the store
 * @returns Number of deleted blobs
 */
export async function sweepBlobs(blobs: Blobs, store: BlobOwners | undefined, callMsMax: number): Promise<number> {
  return await blobs.sweep(ORPHAN_AGE_MS_MIN, async (old) => {
    const orphans = await Promise.all(old.map((blob) => isOrphan(blob, store, callMsMax + ORPHAN_AGE_MS_MIN)))
    return old.filter((_, i) => orphans[i]).map(({ key }) => key)
  })
}

type BlobOwners = JobReads & Partial<HasFiles>

async function isOrphan({ key, ageMs }: OldBlob, store: BlobOwners | undefined, callMs: number): Promise<boolean> {
  // The row of a file is written right after the last byte of its upload. A blob that has the minimum age and no row is therefore orphaned.
  if (store?.files && isFileId(key)) return !(await store.files.has(key))
  const id = ownerOfBlob(key)
  // A blob whose key is not exactly the id of a durable job may belong to an attached call. The store does not contain attached calls, so
  // such a blob is kept for the maximum duration of a call.
  if (id !== key && ageMs < callMs) return false
  if (id === undefined && key.startsWith('job_')) return true
  if (id === undefined || !store) return ageMs > UNKNOWN_OWNER_AGE_MS
  const job = await store.find(ALL_TENANTS, id)
  return !job || job.erased_at_ms !== null
}
