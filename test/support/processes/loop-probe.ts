/**
 * Preloaded into a service's process: tells its parent the longest time for which one round of the event loop computed, in
 * milliseconds of the thread's CPU. How busy the machine is with other things does not count.
 */
const QUESTION = 'longest hold?'

// Processes that the service forks inherit its flags and have channels of their own.
if (process.argv[1]?.endsWith('services/main.js')) watch()

function watch(): void {
  let longestMs = 0
  let last = cpuMs()
  setInterval(() => {
    const now = cpuMs()
    longestMs = Math.max(longestMs, now - last)
    last = now
  }, 1).unref()
  process.on('message', (message) => {
    if (message !== QUESTION) return
    process.send?.(longestMs)
    longestMs = 0
  })
  process.channel?.unref()
}

function cpuMs(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1_000
}
