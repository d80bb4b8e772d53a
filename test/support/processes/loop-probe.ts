/*
 * A module that is preloaded into a service process. On request of the parent process, the module reports the longest block of the event loop
 * since the previous request. The time is CPU time in milliseconds, so that other load on the machine does not count.
 */
const QUESTION = 'longest hold?'

// Child processes of the service inherit this preload. Only the service itself reports, because the message channel of a child process has
// another purpose.
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
