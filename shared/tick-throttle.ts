/** Work that is begun in one turn of the event loop. */
const STARTS_PER_TICK = 8
/** Pieces of work that wait for a later turn at most. */
const WAITING_MAX = 1_000

/**
 * Work that comes in bursts, begun a few in each turn of the event loop, in the order in which it came.
 *
 * Node hands over all that has come at once. Begun in one turn, 256 calls would hold up the tokens of running streams for as long
 * as all of them take together.
 */
export class TickThrottle {
  readonly #waiting: (() => void)[] = []
  #begun = 0
  #isTurning = false

  /**
   * Waits for a place in this turn or in one of the next; nobody goes ahead of those that wait.
   *
   * @returns Undefined when the work may begin at once; so it may where a thousand wait already, since one connection carries any number of
   *   requests and they would fill the memory.
   */
  enter(): Promise<void> | undefined {
    this.#turnLater()
    if (this.#begun++ < STARTS_PER_TICK || this.#waiting.length >= WAITING_MAX) return undefined
    return new Promise((resolve) => void this.#waiting.push(resolve))
  }

  #turnLater(): void {
    if (this.#isTurning) return
    this.#isTurning = true
    setImmediate(() => this.#turn())
  }

  #turn(): void {
    this.#isTurning = false
    const next = this.#waiting.splice(0, STARTS_PER_TICK)
    this.#begun = this.#waiting.length > 0 ? STARTS_PER_TICK : next.length
    if (next.length > 0) this.#turnLater()
    for (const begin of next) begin()
  }
}
