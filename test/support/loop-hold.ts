/**
 * The longest time that one turn of the event loop computed while some work ran, in milliseconds of this thread's CPU: how
 * busy the machine is with other things does not count.
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

/** Milliseconds of CPU that this thread has used. */
export function cpuMs(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1_000
}
