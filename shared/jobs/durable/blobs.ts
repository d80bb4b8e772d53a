import type { StoredRequest } from '#schemas/job.ts'
import type { Blobs, OldBlob } from '#shared/blobs/blobs.ts'
import type { Log } from '#shared/log/log.ts'
import { ownerOfBlob } from '#shared/store/jobs.ts'
import { type HasFiles, isFileId } from '#shared/store/records.ts'
import { ALL_TENANTS, type JobReads } from '#shared/store/store.ts'

/**
 * Lifetime of blobs. A durable job keeps its blobs until it is erased or purged, a call until it is answered. The code that ends a
 * job deletes them. If that fails, then the sweep in this file finds the leftovers. Each key contains the id of its job or file,
 * which the sweep looks up in the store.
 */
const MINUTE_MS = 60_000
/** A younger blob without a job row is not deleted, because the row of its job may not be inserted yet. Longer than any statement and any clock difference. */
const ACCEPTED_MS = 10 * MINUTE_MS
/**
 * Age at which a blob is deleted if this process cannot look up its job. The age exceeds the 21 days for which a durable job can exist:
 * it may wait, run and be retained for seven days each.
 */
const UNKNOWN_MS = 22 * 24 * 60 * MINUTE_MS

export function blobsOf(request: unknown): string[] {
  const { blob, attachments = [] } = (request ?? {}) as Partial<StoredRequest>
  return [...(blob === undefined ? [] : [blob]), ...attachments]
}

export async function dropBlobs(
  { blobs, log }: { readonly blobs: Blobs; readonly log: Log },
  keys: readonly string[],
): Promise<void> {
  for (const key of keys) {
    await blobs.delete(key).catch((error: unknown) => log.warn({ err: error, blob: key }, 'blob could not be deleted'))
  }
}

/**
 * Deletes blobs whose job no longer exists: those of refused or crashed calls, and those that earlier deletions left behind.
 *
 * @param store Undefined if this process has no store: then only blobs older than any job are deleted
 * @param callMsMax Maximum duration of a call in ms; calls may have blobs and are not in the store
 * @returns Number of deleted blobs
 */
export async function sweepBlobs(blobs: Blobs, store: BlobOwners | undefined, callMsMax: number): Promise<number> {
  return await blobs.sweep(ACCEPTED_MS, async (old) => {
    const orphans = await Promise.all(old.map((blob) => isOrphan(blob, store, callMsMax + ACCEPTED_MS)))
    return old.filter((_, i) => orphans[i]).map(({ key }) => key)
  })
}

type BlobOwners = JobReads & Partial<HasFiles>

async function isOrphan({ key, ageMs }: OldBlob, store: BlobOwners | undefined, callMs: number): Promise<boolean> {
  // The row of a file is written right after the last byte of its upload. A blob of the minimum age without a row is therefore an orphan.
  if (store?.files && isFileId(key)) return !(await store.files.has(key))
  const id = ownerOfBlob(key)
  // The blob may be an attachment of a running call, or the body of an attached job. Neither is recorded in the store.
  if (id !== key && ageMs < callMs) return false
  if (id === undefined && key.startsWith('job_')) return true
  if (id === undefined || !store) return ageMs > UNKNOWN_MS
  const job = await store.find(ALL_TENANTS, id)
  return !job || job.erased_at_ms !== null
}
