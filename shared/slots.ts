/**
 * Room for so much at once, such as calls or bytes. What finds none waits in line, first come, first served: nothing small
 * slips past something large, and one alone always has room.
 *
 * Nobody is refused here: a caller waits until its signal aborts, which it does at its deadline at the latest. The line is
 * bounded by who calls: a worker's slots, each of which holds one job.
 */
export class Slots {
  readonly #max: number
  readonly #waiting = new Set<{ readonly amount: number; readonly enter: () => void }>()
  #taken = 0

  /** @param max How much at once. */
  constructor(max: number) {
    this.#max = max
  }

  /** How much is taken. */
  get taken(): number {
    return this.#taken
  }

  /** Takes room, waiting until there is some. Give it back with {@link release}, once. @throws The signal's reason */
  async take(signal: AbortSignal, amount = 1): Promise<void> {
    signal.throwIfAborted()
    if (this.#waiting.size === 0 && this.#hasRoom(amount)) {
      this.#taken += amount
      return
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const waiting = { amount, enter: resolve }
    const leave = () => {
      this.#waiting.delete(waiting)
      reject(signal.reason)
      // It may have kept smaller ones waiting behind it.
      this.#letIn()
    }
    signal.addEventListener('abort', leave, { once: true })
    this.#waiting.add(waiting)
    await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  /** Gives room back, to whoever has waited longest. */
  release(amount = 1): void {
    this.#taken -= amount
    this.#letIn()
  }

  #hasRoom(amount: number): boolean {
    return this.#taken === 0 || this.#taken + amount <= this.#max
  }

  #letIn(): void {
    for (const waiting of this.#waiting) {
      if (!this.#hasRoom(waiting.amount)) return
      this.#waiting.delete(waiting)
      this.#taken += waiting.amount
      waiting.enter()
    }
  }
}
