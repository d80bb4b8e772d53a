/** Maximum starts per event-loop iteration. */
const STARTS_PER_TICK = 8
const WAITING_MAX = 1_000

/**
 * Spreads bursts of work over event-loop iterations, in order of arrival.
 *
 * Node delivers all received requests at once. If 256 calls started in one iteration, then the tokens of running streams would
 * wait for all of them. With 8 starts per iteration, a burst of 256 takes 32 iterations.
 */
export class TickThrottle {
  readonly #waiting: (() => void)[] = []
  #begun = 0
  #isScheduled = false

  /**
   * Waits for a start in this iteration or a later one, in order of arrival.
   *
   * @returns Undefined: start now. Also returned if WAITING_MAX callers already wait: a bounded wait list matters more than
   * fairness
   */
  enter(): Promise<void> | undefined {
    this.#schedule()
    if (this.#begun++ < STARTS_PER_TICK || this.#waiting.length >= WAITING_MAX) return undefined
    return new Promise((resolve) => void this.#waiting.push(resolve))
  }

  #schedule(): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    setImmediate(() => this.#startNext())
  }

  #startNext(): void {
    this.#isScheduled = false
    const next = this.#waiting.splice(0, STARTS_PER_TICK)
    this.#begun = this.#waiting.length > 0 ? STARTS_PER_TICK : next.length
    if (next.length > 0) this.#schedule()
    for (const begin of next) begin()
  }
}
