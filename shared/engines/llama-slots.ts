import { ServiceError } from '#shared/error.ts'

/** What a refused call is told to wait. */
const RETRY_AFTER_MS = 5_000

interface Waiter<T> {
  readonly give: (slot: T) => void
}

/** A fixed set of things used by one caller at a time, first come, first served, with a bounded queue. */
export class Slots<T> {
  readonly #free: T[]
  readonly #waiting = new Set<Waiter<T>>()
  readonly #waitingMax: number

  constructor(slots: readonly T[], waitingMax: number) {
    this.#free = [...slots]
    this.#waitingMax = waitingMax
  }

  /**
   * Takes a slot, waiting until one is free. Give it back with {@link Slots.release}.
   *
   * @throws ServiceError `overloaded` when too many wait already; the abort reason
   */
  async take(signal: AbortSignal): Promise<T> {
    signal.throwIfAborted()
    const free = this.#free.pop()
    if (free !== undefined) return free
    if (this.#waiting.size >= this.#waitingMax) {
      throw new ServiceError('overloaded', 'The model has too many calls waiting.', { retryAfterMs: RETRY_AFTER_MS })
    }
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    const waiter = { give: resolve }
    const leave = () => {
      this.#waiting.delete(waiter)
      reject(signal.reason)
    }
    signal.addEventListener('abort', leave, { once: true })
    this.#waiting.add(waiter)
    return await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  /** Hands the slot to who waits longest. */
  release(slot: T): void {
    const [waiter] = this.#waiting
    if (!waiter) {
      this.#free.push(slot)
      return
    }
    this.#waiting.delete(waiter)
    waiter.give(slot)
  }
}
