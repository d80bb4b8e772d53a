/** How long work goes on before others have their turn, in milliseconds. */
const YIELD_INTERVAL_MS = 5
/** What ends within this time does not wait for a turn: small work must not stand behind large. */
const SYNC_BUDGET_MS = 1

const waiting: (() => void)[] = []

/**
 * Runs work that takes long to its end and gives what it returns. The event loop comes round after each 5 ms of it, and of
 * all such work only one is done in a round: a hundred at once hold up nobody longer than one.
 *
 * @param work Yields wherever it may be interrupted, at least once a millisecond.
 * @param signal Ends the work at its next turn.
 * @throws What the work throws; the signal's reason
 */
export async function runYielding<T>(work: Generator<unknown, T>, signal?: AbortSignal): Promise<T> {
  let turnEnds = performance.now() + (waiting.length > 0 ? SYNC_BUDGET_MS : YIELD_INTERVAL_MS)
  for (;;) {
    signal?.throwIfAborted()
    const step = work.next()
    if (step.done) return step.value
    if (performance.now() < turnEnds) continue
    await nextTurn()
    turnEnds = performance.now() + YIELD_INTERVAL_MS
  }
}

/**
 * The same for work that is mostly short: what ends within its first turn is given as it is, without a promise.
 *
 * @throws What the work throws
 */
export function runNowOrYielding<T>(work: Generator<unknown, T>): T | Promise<T> {
  const turnEnds = performance.now() + (waiting.length > 0 ? SYNC_BUDGET_MS : YIELD_INTERVAL_MS)
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
    if (performance.now() >= turnEnds) return nextTurn().then(() => runYielding(work))
  }
}

/** Runs such work at once, where it is known to be short. @throws What the work throws */
export function runToEnd<T>(work: Generator<unknown, T>): T {
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
  }
}

/** Resolves when the event loop has come round, and it is the turn of whoever asks. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve)
    if (waiting.length === 1) setImmediate(grant)
  })
}

/** An immediate that is set here is of the next round: in between the loop takes what has come. */
function grant(): void {
  waiting.shift()?.()
  if (waiting.length > 0) setImmediate(grant)
}
