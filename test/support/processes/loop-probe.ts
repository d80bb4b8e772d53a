/**
 * Preloaded into a service process. Reports to the parent the longest hold of the event loop, in milliseconds of CPU time. Other load on the machine does not count.
 */
const QUESTION = 'longest hold?'

// Child processes of the service inherit this preload, but their channel belongs to the service. Only the service itself reports.
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
