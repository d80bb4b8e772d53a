import type { StoredRequest } from '#schemas/job.ts'
import type { Blobs, OldBlob } from '#shared/blobs/blobs.ts'
import type { Log } from '#shared/log/log.ts'
import type { HasFiles } from '#shared/store/files.ts'
import { isFileId } from '#shared/store/files.ts'
import { ownerOfBlob } from '#shared/store/job-id.ts'
import { EVERY_TENANT, type JobReads } from '#shared/store/store.ts'

/**
 * Blobs are kept as long as what names them: a durable job until it is deleted or purged, a call until it is answered. Who
 * ends one deletes its blobs; this finds what was left when that went wrong, by asking for the job or the file whose id the key tells.
 */
const MINUTE_MS = 60_000
/** From the blob of a body to the row of its job: longer than any statement takes, and than clocks differ. */
const ACCEPTED_MS = 10 * MINUTE_MS
/** Where nothing tells whose it is: a durable job may wait, run and be kept for seven days each. */
const UNKNOWN_MS = 22 * 24 * 60 * MINUTE_MS

/** The blobs that a request in the store names. */
export function blobsOf(request: unknown): string[] {
  const { blob, attachments = [] } = (request ?? {}) as Partial<StoredRequest>
  return [...(blob === undefined ? [] : [blob]), ...attachments]
}

/** Deletes blobs nobody needs. What cannot be deleted is left to the sweep. */
export async function dropBlobs(
  { blobs, log }: { readonly blobs: Blobs; readonly log: Log },
  keys: readonly string[],
): Promise<void> {
  for (const key of keys) {
    await blobs.delete(key).catch((error: unknown) => log.warn({ err: error, blob: key }, 'blob not deleted'))
  }
}

/**
 * Deletes the blobs that belong to no job: of refused and of crashed calls, and of jobs whose own were not deleted with them.
 *
 * @param store Undefined where a process cannot ask: then only what no job can need any more goes.
 * @param callMsMax How long a call may take, which may have blobs and is in no store.
 * @returns How many
 */
export async function sweepBlobs(blobs: Blobs, store: BlobOwners | undefined, callMsMax: number): Promise<number> {
  return await blobs.sweep(ACCEPTED_MS, async (old) => {
    const orphans = await Promise.all(old.map((blob) => isOrphan(blob, store, callMsMax + ACCEPTED_MS)))
    return old.filter((_, i) => orphans[i]).map(({ key }) => key)
  })
}

/** Who is asked whether a blob is still needed. */
type BlobOwners = JobReads & Partial<HasFiles>

async function isOrphan({ key, ageMs }: OldBlob, store: BlobOwners | undefined, callMs: number): Promise<boolean> {
  // Its row follows the last byte of an upload, however long that took.
  if (store?.files && isFileId(key)) return !(await store.files.has(key))
  const id = ownerOfBlob(key)
  // An attachment may still be that of a call, as the body of an attached job is.
  if (id !== key && ageMs < callMs) return false
  if (id === undefined && key.startsWith('job_')) return true
  if (id === undefined || !store) return ageMs > UNKNOWN_MS
  const job = await store.find(EVERY_TENANT, id)
  return !job || job.erased_at_ms !== null
}
