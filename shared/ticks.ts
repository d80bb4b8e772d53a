/** What is sooner than this is the tick of just now, whose timer came early. */
const EARLY_MS = 5

/**
 * Milliseconds until the next whole multiple of an interval, by the clock of this process: about the interval at most. Whoever
 * waits for these wakes together with all others, so that a process without work wakes seldom.
 */
export function untilTick(ms: number): number {
  const left = ms - (performance.now() % ms)
  return Math.ceil(left < EARLY_MS ? left + ms : left)
}

/** How {@link every} goes on. */
interface TickOptions {
  /** It keeps the process alive; default: yes. */
  readonly keepsAlive?: boolean
}

/**
 * Calls something at each tick of an interval, in step with all that do the same in this process. What it throws ends the
 * process, as that of any timer. After the loop stood still there is one call for all those that it missed.
 *
 * @returns Ends it.
 */
export function every(ms: number, run: () => void, { keepsAlive = true }: TickOptions = {}): () => void {
  let timer: NodeJS.Timeout | undefined
  const wait = () => {
    timer = setTimeout(tick, untilTick(ms))
    if (!keepsAlive) timer.unref()
  }
  const tick = () => {
    wait()
    run()
  }
  wait()
  return () => clearTimeout(timer)
}
