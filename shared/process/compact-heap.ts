import { performance } from 'node:perf_hooks'

/*
 * Returns unused memory of a process to the operating system. Two components would otherwise retain it.
 *
 * 1. V8 collects garbage when the heap is nearly full, which the heap of an idle process never is. Emptied pages stay until a later collection.
 *    Minutes after a burst of large bodies, resident memory was 1.3 GiB for a heap of 43 MiB. So the heap is compacted after the start, and when the
 *    process is idle after a burst. Compaction blocks the event loop for about 0.1 s.
 *
 * 2. After the allocator of glibc has released a large block, it serves blocks of up to that size (at most 32 MiB) from its own heap. Small blocks in
 *    between then prevent the heap from shrinking (388 of 544 MiB). `MALLOC_MMAP_THRESHOLD_` in the environment disables this (mallopt(3)).
 *
 * `npm start` and the image set that variable and `node --expose-gc`; without the flag nothing is compacted. Rejected: reaching the collector through
 * a second context (`node:vm`). V8 optimizes less in a process with two contexts, and each call cost 50 % more CPU for the life of the process.
 */

/**
 * After a compaction, a process needs up to 20 % more CPU per token for several bursts. A process is therefore compacted only after a long idle
 * period, and only if its memory grew by more than a burst of 256 streams needs.
 */
const EVERY_MS = 30_000
const IDLE = 0.02
const GROWTH_BYTES = 256 * 1024 * 1024
/**
 * Maximum heap size that is compacted, because a larger heap would block calls for too long. V8 later shrinks such a heap in
 * small steps.
 */
const HEAP_BYTES_MAX = 1024 * 1024 * 1024

/** Collects all garbage of this process and releases the freed pages. Does nothing without `node --expose-gc`. */
export function compactHeap(): void {
  // `last-resort` is the only flavor that shrinks the heap completely. Node's type definitions lack these options.
  const collect = globalThis.gc as ((options: { type: string; flavor: string }) => void) | undefined
  collect?.({ type: 'major', flavor: 'last-resort' })
}

/**
 * Compacts the heap now, and whenever the process is idle after a burst. Does not keep the process alive.
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
