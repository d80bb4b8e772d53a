/**
 * Minimum delay of a timer, in ms. A timer may fire shortly before its multiple of the interval, and would then be set again for the same multiple.
 */
const EARLY_MS = 5

/**
 * Returns the time in ms until the next multiple of an interval on the monotonic clock. All timers of a process that use this function fire together,
 * so an idle process wakes up rarely.
 */
export function untilAligned(ms: number): number {
  const left = ms - (performance.now() % ms)
  return Math.ceil(left < EARLY_MS ? left + ms : left)
}

interface TickOptions {
  readonly keepsAlive?: boolean
}

/**
 * Calls a function at each multiple of an interval, together with all other callers in this process. An error of the function ends the process, as
 * with any timer. If the event loop was blocked, then the missed calls are skipped.
 *
 * @returns Function that stops the calls
 */
export function atAlignedInterval(ms: number, run: () => void, { keepsAlive = true }: TickOptions = {}): () => void {
  let timer: NodeJS.Timeout | undefined
  const wait = () => {
    timer = setTimeout(tick, untilAligned(ms))
    if (!keepsAlive) timer.unref()
  }
  const tick = () => {
    wait()
    run()
  }
  wait()
  return () => clearTimeout(timer)
}
