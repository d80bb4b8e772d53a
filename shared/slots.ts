/**
 * Weighted semaphore for units such as calls or bytes. Waiters are served first in, first out, so a small request never overtakes
 * a large one. A request above the maximum is admitted when nothing else is in use.
 *
 * No request is refused: a caller waits until its signal aborts, at its deadline at the latest. The number of waiters is limited
 * by the callers: a worker's slots, each of which runs one job.
 */
export class Slots {
  readonly #max: number
  readonly #waiting = new Set<{ readonly amount: number; readonly enter: () => void }>()
  #taken = 0

  constructor(max: number) {
    this.#max = max
  }

  get taken(): number {
    return this.#taken
  }

  /** Takes an amount, and waits if necessary. Call {@link release} once afterwards. @throws The signal's reason */
  async take(signal: AbortSignal, amount = 1): Promise<void> {
    signal.throwIfAborted()
    if (this.#waiting.size === 0 && this.#hasFree(amount)) {
      this.#taken += amount
      return
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const waiting = { amount, enter: resolve }
    const leave = () => {
      this.#waiting.delete(waiting)
      reject(signal.reason)
      // Smaller requests may have waited behind the aborted one.
      this.#grantNext()
    }
    signal.addEventListener('abort', leave, { once: true })
    this.#waiting.add(waiting)
    await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  release(amount = 1): void {
    this.#taken -= amount
    this.#grantNext()
  }

  #hasFree(amount: number): boolean {
    return this.#taken === 0 || this.#taken + amount <= this.#max
  }

  #grantNext(): void {
    for (const waiting of this.#waiting) {
      if (!this.#hasFree(waiting.amount)) return
      this.#waiting.delete(waiting)
      this.#taken += waiting.amount
      waiting.enter()
    }
  }
}
