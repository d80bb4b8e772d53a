/** Maximum time between event-loop yields, in ms. */
const YIELD_INTERVAL_MS = 5
/** Work that ends within this time runs without waiting, so that small work is not queued behind large work. */
const SYNC_BUDGET_MS = 1

const waiting: (() => void)[] = []

/**
 * Runs long computations in slices of 5 ms and returns the result. Between slices the event loop handles other events. At most
 * one slice of all such work runs per iteration, so a hundred computations delay other events no more than one.
 *
 * @param work Yields wherever it may be interrupted, at least once per millisecond
 * @param signal Stops the work at its next slice
 * @throws Any error of the work; the signal's reason
 */
export async function runYielding<T>(work: Generator<unknown, T>, signal?: AbortSignal): Promise<T> {
  let turnEnds = performance.now() + (waiting.length > 0 ? SYNC_BUDGET_MS : YIELD_INTERVAL_MS)
  for (;;) {
    signal?.throwIfAborted()
    const step = work.next()
    if (step.done) return step.value
    if (performance.now() < turnEnds) continue
    await yieldToEventLoop()
    turnEnds = performance.now() + YIELD_INTERVAL_MS
  }
}

/**
 * Like {@link runYielding}, for work that is usually short. If the work ends within its first slice, then the result is returned
 * without a promise.
 *
 * @throws Any error of the work
 */
export function runNowOrYielding<T>(work: Generator<unknown, T>): T | Promise<T> {
  const turnEnds = performance.now() + (waiting.length > 0 ? SYNC_BUDGET_MS : YIELD_INTERVAL_MS)
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
    if (performance.now() >= turnEnds) return yieldToEventLoop().then(() => runYielding(work))
  }
}

/** Runs work to its end without yielding. Only for work that is short by its bounds. @throws Any error of the work */
export function runToEnd<T>(work: Generator<unknown, T>): T {
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
  }
}

/** Resolves in a later event-loop iteration, when all earlier callers have been resolved. */
export function yieldToEventLoop(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve)
    if (waiting.length === 1) setImmediate(grant)
  })
}

/** An immediate scheduled here runs in the next iteration; in between, the event loop handles other events. */
function grant(): void {
  waiting.shift()?.()
  if (waiting.length > 0) setImmediate(grant)
}

/** Maximum starts per event-loop iteration. */
const STARTS_PER_TICK = 8
const WAITING_MAX = 1_000

/**
 * Spreads bursts of work over event-loop iterations, in order of arrival.
 *
 * Node delivers all received requests at once. If 256 calls started in one iteration, then the tokens of running streams would
 * wait for all of them. With 8 starts per iteration, a burst of 256 takes 32 iterations.
 *
 * @returns A function that waits for a start in this iteration or a later one. The function returns undefined if the work may start
 * now, also if WAITING_MAX callers already wait: a bounded queue matters more than fairness
 */
export function openTickThrottle(): () => Promise<void> | undefined {
  const queue: (() => void)[] = []
  let begun = 0
  let isScheduled = false
  const schedule = () => {
    if (isScheduled) return
    isScheduled = true
    setImmediate(startNext)
  }
  const startNext = () => {
    isScheduled = false
    const next = queue.splice(0, STARTS_PER_TICK)
    begun = queue.length > 0 ? STARTS_PER_TICK : next.length
    if (next.length > 0) schedule()
    for (const begin of next) begin()
  }
  return () => {
    schedule()
    if (begun++ < STARTS_PER_TICK || queue.length >= WAITING_MAX) return undefined
    return new Promise((resolve) => void queue.push(resolve))
  }
}
