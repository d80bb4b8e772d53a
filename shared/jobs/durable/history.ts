import type { GenerateRequest } from '#schemas/generate.ts'
import type { SharedHistory } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Holding } from '#shared/capacity/byte-budgets.ts'
import { storeBody } from '#shared/jobs/body.ts'
import { type FileStore, HISTORY, newFileId } from '#shared/store/records.ts'

/*
 * The history of chained responses, shared rather than copied.
 *
 * The problem: a response that continues another one has the whole conversation as its prompt. If each job stored a copy, then a
 * chain of n responses would take space in the order of n².
 *
 * How it works: a job stores its own turns, and names the segments that hold the earlier turns. A segment is a blob of at least
 * 64 KiB, written once, by the job at which that much had accumulated. Shorter turns are stored with the job, so a chain of n
 * short responses takes at most n × 64 KiB.
 *
 * Example:
 * 1. The first job stores turn 1 with the job.
 * 2. The second job writes segment A with turns 1, 2, 3.
 * 3. The third job names segments A and B, and stores turns 4, 5 with the job.
 *
 * A segment is a hidden file of the project with a reference count. The erasure of the last job that names it deletes it;
 * otherwise it expires with the last of these jobs. The text of a conversation is limited like a body, so a prompt has at most
 * some hundred segments.
 */

interface HistoryContext {
  readonly files: FileStore
  readonly blobs: Blobs
  readonly holding: Holding | undefined
  readonly tenant: string
  readonly keepMs: number
}

/** A body as it is stored, and the shared history that precedes its turns; undefined: the body contains all turns. */
export interface SharedBody {
  readonly body: unknown
  readonly history: SharedHistory | undefined
}

/**
 * Moves the beginning of a prompt into shared segments. If no job is created afterwards, then the caller must {@link
 * releaseHistory release} the result.
 *
 * @param before Existing segments, which contain the turns from `at` on
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
  // A segment may have expired since it was read. The job then stores its whole prompt.
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
