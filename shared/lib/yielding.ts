const YIELD_INTERVAL_MS = 2
/**
 * If other computations wait, then a new computation runs for this time in ms before it joins the queue. Most computations are small and
 * end within this time.
 */
const SYNC_BUDGET_MS = 1

/** Waiting computations by project, which are resumed round robin. The first project of the map has waited longest. */
const waiting = new Map<string, (() => void)[]>()

/**
 * Runs a long computation in slices of 2 ms. Between slices, the event loop handles other events. Each event-loop iteration runs one slice of one
 * computation, so a hundred computations delay other events no more than a single one.
 *
 * @param work Yields at each point where it may be interrupted, at least once per millisecond
 * @param signal Stops the work at its next slice
 * @throws Any error of the work, or the abort reason of the signal
 */
export async function runYielding<T>(work: Generator<unknown, T>, signal?: AbortSignal, project = ''): Promise<T> {
  let turnEnds = performance.now() + (waiting.size > 0 ? SYNC_BUDGET_MS : YIELD_INTERVAL_MS)
  for (;;) {
    signal?.throwIfAborted()
    const step = work.next()
    if (step.done) return step.value
    if (performance.now() < turnEnds) continue
    await yieldToEventLoop(project)
    turnEnds = performance.now() + YIELD_INTERVAL_MS
  }
}

/**
 * Runs work as {@link runYielding} does. If the work ends within its first time slice, then its result is returned directly instead of a promise.
 *
 * @throws Any error of the work
 */
export function runNowOrYielding<T>(work: Generator<unknown, T>): T | Promise<T> {
  const turnEnds = performance.now() + (waiting.size > 0 ? SYNC_BUDGET_MS : YIELD_INTERVAL_MS)
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
    if (performance.now() >= turnEnds) return yieldToEventLoop().then(() => runYielding(work))
  }
}

/**
 * Runs work to its end without yielding. Only for work that is certainly short.
 *
 * @throws Any error of the work
 */
export function runToEnd<T>(work: Generator<unknown, T>): T {
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
  }
}

/** Resolves in a later event-loop iteration, after all earlier calls for the same project. Projects are served round robin. */
export function yieldToEventLoop(project = ''): Promise<void> {
  return new Promise((resolve) => {
    const own = waiting.get(project)
    if (own) own.push(resolve)
    else waiting.set(project, [resolve])
    if (!own && waiting.size === 1) setImmediate(grant)
  })
}

/**
 * Resumes one waiting computation. If more computations wait, then the next one is resumed in the next event-loop
 * iteration, so that other events are handled in between.
 */
function grant(): void {
  const [next] = waiting
  if (!next) return
  const [project, own] = next
  const resume = own.shift()
  waiting.delete(project)
  if (own.length > 0) waiting.set(project, own)
  resume?.()
  if (waiting.size > 0) setImmediate(grant)
}

const STARTS_PER_TICK = 8
const WAITING_MAX = 1_000

/**
 * Spreads bursts of work over event-loop iterations, in order of arrival.
 *
 * Node delivers all received requests in one event-loop iteration. If 256 calls started in one iteration, then running streams would send no tokens
 * until all had started. With 8 starts per iteration, a burst of 256 takes 32 iterations.
 *
 * @returns A function that returns undefined if the work may start now, and otherwise a promise for its start. If WAITING_MAX
 * callers wait, then further work starts at once, because the queue must be bounded.
 */
export function openTickThrottle(perTick = STARTS_PER_TICK): () => Promise<void> | undefined {
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
    const next = queue.splice(0, perTick)
    begun = queue.length > 0 ? perTick : next.length
    if (next.length > 0) schedule()
    for (const begin of next) begin()
  }
  return () => {
    schedule()
    if (begun++ < perTick || queue.length >= WAITING_MAX) return undefined
    return new Promise((resolve) => void queue.push(resolve))
  }
}
