import type { GenerateRequest } from '#schemas/generate.ts'
import type { SharedHistory } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { storeBody } from '#shared/jobs/body.ts'
import type { Holding } from '#shared/limits/stored-quota.ts'
import { type FileStore, HISTORY, newFileId } from '#shared/store/files.ts'

/*
 * The history of chained responses, shared rather than copied.
 *
 * A response that goes on from another one has the whole conversation for a prompt. Its job stores its own turns, and names the segments
 * that hold those before: blobs of at least 64 KiB, each written once, by the job at which so much had gathered. What is shorter is
 * stored with the job, so that a chain of n short responses costs n times at most 64 KiB.
 *
 *     first   turns 1         stored with the job
 *     second  segment A: turns 1, 2, 3
 *     third   segments A, B: turns 4, 5
 *
 * A segment is a file of the project that no caller sees. It counts how many jobs name it: the erasure of the last one deletes it, and
 * an erasure before leaves it to the others. Of jobs whose retention ends it expires with the last. The text of a conversation is bounded
 * as a body is, so that a prompt has at most some hundred segments.
 */

/** What {@link shareHistory} works with. */
interface HistoryContext {
  readonly files: FileStore
  readonly blobs: Blobs
  readonly holding: Holding | undefined
  readonly tenant: string
  /** How long the job may name its segments. */
  readonly keepMs: number
}

/** A body as it is stored, and the history that it goes on from; undefined: none. */
export interface SharedBody {
  readonly body: unknown
  readonly history: SharedHistory | undefined
}

/**
 * Takes the history out of a body. What is written or kept here is to be {@link releaseHistory released} if no job is made.
 *
 * @param before The segments that have the turns from `at` on, as far as these reach.
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
  // A segment may have expired since it was read: then the job has all of its prompt.
  if ((await files.refer(tenant, ids, keepMs)) < ids.length) {
    await releaseHistory({ files, blobs }, tenant, history)
    return { body, history: undefined }
  }
  const own = { ...request, turns: isSegment ? head : [...head, ...rest] }
  return { body: { after_history: own }, history }
}

/** A job names its segments no more. */
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
