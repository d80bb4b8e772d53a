/** If less time than this remains until a tick, then the timer fired early for that tick, so the next one is used. */
const EARLY_MS = 5

/**
 * Milliseconds until the next multiple of an interval on the monotonic clock, at most about one interval. All timers of a process
 * that use this fire together, so an idle process wakes rarely.
 */
export function untilAligned(ms: number): number {
  const left = ms - (performance.now() % ms)
  return Math.ceil(left < EARLY_MS ? left + ms : left)
}

interface TickOptions {
  /** Whether the timer keeps the process alive; default: true. */
  readonly keepsAlive?: boolean
}

/**
 * Calls a function at each tick of an interval, in step with all other users in this process. An error of the function ends the
 * process, as with any timer. After the event loop was blocked, missed ticks are merged into one call.
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
