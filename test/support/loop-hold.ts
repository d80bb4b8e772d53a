/**
 * Runs `work` and returns the longest time for which it blocked the event loop, in milliseconds. Only CPU time of this thread counts, so that
 * other load on the machine does not change the result.
 */
export async function longestHold(work: () => Promise<unknown>): Promise<number> {
  let longestMs = 0
  let last = cpuMs()
  let isDone = false
  const watch = () => {
    const now = cpuMs()
    longestMs = Math.max(longestMs, now - last)
    last = now
    if (!isDone) setImmediate(watch)
  }
  setImmediate(watch)
  await work().finally(() => {
    isDone = true
  })
  watch()
  return longestMs
}

/** CPU time of this thread, in milliseconds. */
export function cpuMs(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1_000
}
