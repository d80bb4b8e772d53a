import { performance } from 'node:perf_hooks'

/*
 * Memory that a process does not need any more goes back to the operating system.
 *
 * Two parts keep it otherwise. V8 collects garbage when the heap is short of room, which that of an idle process never is, and keeps the
 * emptied pages until a later collection: minutes after a burst of large bodies the resident memory was 1.3 GiB for a heap of 43 MiB. So the heap is
 * compacted at the end of the start and when the process is idle after a burst. That takes about 0.1 s, in which nothing else runs.
 * The other part is the allocator of glibc: once it has released a large block, it takes blocks of up to that size (at most 32 MiB) from its
 * own heap, which small blocks between them then keep from shrinking (388 of 544 MiB). `MALLOC_MMAP_THRESHOLD_` in the environment stops that
 * (mallopt(3)).
 *
 * `npm start` and the image set that variable and `node --expose-gc`; without the flag nothing is compacted. The collector could be reached
 * without it, through a context of its own (`node:vm`), but V8 optimizes less in a process with two contexts: each call then cost half as
 * much CPU again, for as long as the process ran.
 */

const EVERY_MS = 10_000
/** Share of its time for which an idle event loop runs at most. */
const IDLE = 0.02
/** Growth since the last compaction that is worth one. */
const GROWTH_BYTES = 128 * 1024 * 1024
/** Compacting a larger heap would hold up a call for too long; V8 shrinks such a heap in small steps, later. */
const HEAP_BYTES_MAX = 1024 * 1024 * 1024

/** Collects all garbage of this process and releases the freed pages. Does nothing without `node --expose-gc`. */
export function compactHeap(): void {
  // The only flavor that shrinks the heap as far as it goes. The types of Node know none of these options.
  const collect = globalThis.gc as ((options: { type: string; flavor: string }) => void) | undefined
  collect?.({ type: 'major', flavor: 'last-resort' })
}

/**
 * Compacts the heap now, and from now on whenever the process is idle after a burst (see above). Does not keep the process alive.
 *
 * @param everyMs Time between two checks, in milliseconds; the event loop must have been idle for as long.
 */
export function compactWhenIdle(everyMs = EVERY_MS): void {
  compactHeap()
  let smallest = process.memoryUsage.rss()
  let before = performance.eventLoopUtilization()
  setInterval(() => {
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, before)
    before = now
    const { rss, heapTotal } = process.memoryUsage()
    smallest = Math.min(smallest, rss)
    if (utilization > IDLE || rss < smallest + GROWTH_BYTES || heapTotal > HEAP_BYTES_MAX) return
    compactHeap()
    smallest = process.memoryUsage.rss()
  }, everyMs).unref()
}
