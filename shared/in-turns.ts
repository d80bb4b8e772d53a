/** How long work goes on before others have their turn, in milliseconds. */
const TURN_MS = 5
/** What ends within this time does not wait for a turn: small work must not stand behind large. */
const FREE_MS = 1

const waiting: (() => void)[] = []

/**
 * Runs work that takes long to its end and gives what it returns. The event loop comes round after each 5 ms of it, and of
 * all such work only one is done in a round: a hundred at once hold up nobody longer than one.
 *
 * @param work Yields wherever it may be interrupted, at least once a millisecond.
 * @param signal Ends the work at its next turn.
 * @throws What the work throws; the signal's reason
 */
export async function inTurns<T>(work: Generator<unknown, T>, signal?: AbortSignal): Promise<T> {
  let turnEnds = performance.now() + (waiting.length > 0 ? FREE_MS : TURN_MS)
  for (;;) {
    signal?.throwIfAborted()
    const step = work.next()
    if (step.done) return step.value
    if (performance.now() < turnEnds) continue
    await turn()
    turnEnds = performance.now() + TURN_MS
  }
}

/** Runs such work at once, where it is known to be short. @throws What the work throws */
export function atOnce<T>(work: Generator<unknown, T>): T {
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
  }
}

function turn(): Promise<void> {
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
