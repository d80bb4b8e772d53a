import { setTimeout as delay } from 'node:timers/promises'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { blobsOf, dropBlobs } from '#shared/jobs/durable/blobs.ts'
import { PURGE_LEASE } from '#shared/store/leases.ts'
import type { SweepContext } from './publish.ts'

/** How long others keep away should this process die in the middle: longer than one step takes. */
const LEASE_MS = 60_000
/** Steps of one turn. */
const STEPS_MAX = 100
/** Files of one step. */
const FILES_MAX = 50
/** Conversations of one step. */
const CONVERSATIONS_MAX = 50

/**
 * Deletes jobs, files and conversations that are past their retention, with their blobs, as the only scheduler that does so at the time. Blobs go after their job
 * is gone: a crash in between leaves some to the sweep, and never a job without its body.
 *
 * It works in small steps and rests as long as each took, so that an embedded store has half of its time for everything else.
 *
 * @param stopped Ends it after the step under way.
 * @returns Whether there is more
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
