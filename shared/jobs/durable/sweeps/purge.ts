import { setTimeout as delay } from 'node:timers/promises'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { blobsOf, dropBlobs } from '#shared/jobs/durable/blobs.ts'
import { PURGE_LEASE } from '#shared/store/leases.ts'
import type { SweepContext } from './publish.ts'

/** Lease of the purging process: longer than one step. If the process crashes, then another one continues after this time. */
const LEASE_MS = 60_000
const STEPS_MAX = 100
const FILES_MAX = 50
const CONVERSATIONS_MAX = 50

/**
 * Deletes jobs, files and conversations after their retention, with their blobs. A lease ensures that only one scheduler purges
 * at a time. Blobs are deleted after their job: a crash in between leaves orphaned blobs for the sweep, but never a job without
 * its body.
 *
 * After each step, the purge pauses for as long as the step took. An embedded store thus keeps half of its time for other work.
 *
 * @param stopped Ends the purge after the current step
 * @returns True if there is more to delete
 */
export async function purge(
  { store, log }: SweepContext,
  blobs: Blobs,
  boot: string,
  stopped: AbortSignal,
): Promise<boolean> {
  for (let steps = 0; steps < STEPS_MAX && !stopped.aborted; steps++) {
    if (!(await store.holdLease(PURGE_LEASE, boot, LEASE_MS))) return false
    const startedAt = performance.now()
    const { requests, hasMore } = await store.purge()
    await dropBlobs({ blobs, log }, requests.flatMap(blobsOf))
    const files = await store.files.purge(FILES_MAX)
    await dropBlobs({ blobs, log }, files)
    const conversations = await store.conversations.purge(CONVERSATIONS_MAX)
    await store.storedBytes.tidy()
    if (!hasMore && files.length < FILES_MAX && conversations < CONVERSATIONS_MAX) return false
    await delay(performance.now() - startedAt)
  }
  return true
}
