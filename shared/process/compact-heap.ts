import { performance } from 'node:perf_hooks'

/*
 * Returns unused memory of a process to the operating system, which V8 and glibc would otherwise keep.
 *
 * 1. V8 collects garbage when the heap is nearly full, and the heap of an idle process never is. Minutes after a burst of large bodies,
 *    resident memory was still 1.3 GiB for a heap of 43 MiB. The heap is therefore compacted after the start, and when the process is idle
 *    after a burst. Compaction blocks the event loop for about 0.1 s.
 *
 * 2. glibc serves large blocks from its own heap after it has released a block of that size (up to 32 MiB). Small blocks between them then
 *    prevent the heap from shrinking. In a measurement, 388 of 544 MiB of resident memory were in that heap. The variable
 *    `MALLOC_MMAP_THRESHOLD_` disables this behaviour (mallopt(3)).
 *
 * `npm start` and the image set the variable and start `node --expose-gc`. Without that flag, the heap is not compacted. Rejected: access
 * to the collector through a second context (`node:vm`). In a process with two contexts, V8 optimizes less, and each call cost 50 % more
 * CPU.
 */

/**
 * Interval in ms of the check whether to compact. A compaction makes the next bursts slower: they need up to 20 % more CPU per token. The heap is
 * therefore compacted only after a long idle period, and only if it grew by more than 256 streams need.
 */
const CHECK_INTERVAL_MS = 30_000
const IDLE_UTILIZATION_MAX = 0.02
const GROWTH_BYTES = 256 * 1024 * 1024
/**
 * Maximum heap size in bytes for a compaction. In a larger heap, the compaction would block calls for longer. V8 shrinks such a heap in small steps
 * later.
 */
const HEAP_BYTES_MAX = 1024 * 1024 * 1024

/** Collects all garbage of this process and releases the freed pages. Has no effect without `node --expose-gc`. */
export function compactHeap(): void {
  // Only the flavor `last-resort` of V8's collector shrinks the heap completely. Node's type definitions lack this option.
  const collect = globalThis.gc as ((options: { type: string; flavor: string }) => void) | undefined
  collect?.({ type: 'major', flavor: 'last-resort' })
}

/**
 * Compacts the heap now, and later whenever the process is idle after a burst. The timer does not keep the process alive.
 *
 * @param everyMs Time between two checks, in ms. The heap is compacted only if the event loop was idle since the last check
 */
export function compactWhenIdle(everyMs = CHECK_INTERVAL_MS): void {
  compactHeap()
  let smallest = process.memoryUsage.rss()
  let before = performance.eventLoopUtilization()
  setInterval(() => {
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, before)
    before = now
    const { rss, heapTotal } = process.memoryUsage()
    smallest = Math.min(smallest, rss)
    if (utilization > IDLE_UTILIZATION_MAX || rss < smallest + GROWTH_BYTES || heapTotal > HEAP_BYTES_MAX) return
    compactHeap()
    smallest = process.memoryUsage.rss()
  }, everyMs).unref()
}
