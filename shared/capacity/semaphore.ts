import { abortable } from '#shared/lib/abortable.ts'
import type { ServiceError } from '#shared/lib/error.ts'

/*
 * A semaphore whose permits go to keys in round robin. A key is a project: its thousand callers get as many permits as the one
 * caller of another project. With a maximum of permits per key (a bulkhead), a key that holds its permits for long cannot take the
 * last ones from others.
 *
 * Example with 2 permits, 1 per key: `a` asks 200 times and gets 1; `b` asks once and gets the other at once.
 */

export interface FairSemaphoreOptions {
  readonly permits: number
  /** Maximum permits of one key. Default: all. */
  readonly permitsPerKey?: number
  readonly waitingPerKeyMax: number
  readonly refusal: () => ServiceError
}

interface Key {
  taken: number
  readonly waiting: Set<() => void>
}

export class FairSemaphore {
  readonly #permitsPerKey: number
  readonly #waitingPerKeyMax: number
  readonly #refusal: () => ServiceError
  readonly #keys = new Map<string, Key>()
  #free: number

  constructor({ permits, permitsPerKey = permits, waitingPerKeyMax, refusal }: FairSemaphoreOptions) {
    this.#free = permits
    this.#permitsPerKey = permitsPerKey
    this.#waitingPerKeyMax = waitingPerKeyMax
    this.#refusal = refusal
  }

  /**
   * Waits for a permit. The caller returns it with {@link release}.
   *
   * @throws ServiceError the refusal if too many callers of the key wait; the signal's reason
   */
  async take(name: string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const key = this.#keys.get(name) ?? { taken: 0, waiting: new Set() }
    this.#keys.set(name, key)
    // A released permit passes directly to a waiting caller. So if a permit is free here, no waiting caller may take it, and none
    // is overtaken.
    if (this.#free > 0 && key.taken < this.#permitsPerKey) return this.#grant(name, key)
    if (key.waiting.size >= this.#waitingPerKeyMax) throw this.#refusal()
    const { promise, resolve } = Promise.withResolvers<void>()
    key.waiting.add(resolve)
    try {
      await abortable(promise, signal)
    } catch (error) {
      // The permit may have been granted at the same moment.
      if (!key.waiting.delete(resolve)) this.release(name)
      this.#forgetIdle(name, key)
      throw error
    }
  }

  release(name: string): void {
    const key = this.#keys.get(name)
    if (!key) return
    key.taken--
    this.#free++
    this.#forgetIdle(name, key)
    this.#grantNext()
  }

  #grantNext(): void {
    for (const [name, key] of this.#keys) {
      const [begin] = key.taken < this.#permitsPerKey ? key.waiting : []
      if (!begin) continue
      key.waiting.delete(begin)
      this.#grant(name, key)
      return begin()
    }
  }

  #grant(name: string, key: Key): void {
    this.#free--
    key.taken++
    this.#keys.delete(name)
    this.#keys.set(name, key)
  }

  #forgetIdle(name: string, key: Key): void {
    if (key.taken === 0 && key.waiting.size === 0) this.#keys.delete(name)
  }
}

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
