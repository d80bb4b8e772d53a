import { abortable } from '#shared/lib/abortable.ts'
import type { ServiceError } from '#shared/lib/error.ts'

export interface SemaphoreOptions {
  readonly permits: number
  readonly permitsPerKey?: number
  /** Maximum waiting callers per key. Default: no maximum, for code that bounds its callers in another way. */
  readonly waitingPerKeyMax?: number
  readonly refusal?: () => ServiceError
}

interface Waiting {
  readonly amount: number
  readonly enter: () => void
}

interface Key {
  taken: number
  readonly waiting: Set<Waiting>
}

/**
 * Semaphore with a fair queue: permits go to keys in round robin, and within a key in order of arrival.
 *
 * If the key is a project, for example, then a project with a thousand callers gets as many permits as a project with one caller. A maximum per key
 * (a bulkhead) prevents a key with long tasks from holding all permits. Without keys, the queue is first in, first out.
 *
 * A caller may take several permits in one call, such as one per byte. Smaller requests do not overtake a large request. A request for more permits than
 * exist is admitted when nothing else is in use.
 *
 * Example with 2 permits, at most 1 per key: key `a` has 200 callers and gets 1 permit. A caller of key `b` gets the second permit at once.
 */
export class Semaphore {
  readonly #options: SemaphoreOptions
  readonly #keys = new Map<string, Key>()
  #taken = 0

  constructor(options: SemaphoreOptions) {
    this.#options = options
  }

  get taken(): number {
    return this.#taken
  }

  /**
   * Takes permits, and waits if necessary. The caller must return the permits with {@link release}, once.
   *
   * @throws The error of the option `refusal` if too many callers wait under `name`, or the signal's reason
   */
  async take(signal: AbortSignal, amount = 1, name = ''): Promise<void> {
    signal.throwIfAborted()
    const key = this.#keys.get(name) ?? { taken: 0, waiting: new Set<Waiting>() }
    this.#keys.set(name, key)
    if (key.waiting.size === 0 && this.#mayTake(key, amount) && this.#hasFree(amount) && !this.#next())
      return this.#grant(name, key, amount)
    const { waitingPerKeyMax = Number.POSITIVE_INFINITY, refusal } = this.#options
    if (refusal && key.waiting.size >= waitingPerKeyMax) throw refusal()
    const { promise, resolve } = Promise.withResolvers<void>()
    const waiting = { amount, enter: resolve }
    key.waiting.add(waiting)
    try {
      await abortable(promise, signal)
    } catch (error) {
      // An abort removes the waiting request, or returns permits that were granted at the same moment. In both cases, a
      // smaller request behind this one may now fit.
      if (key.waiting.delete(waiting)) this.#forgetIdle(name, key)
      else this.#giveBack(name, key, amount)
      this.#grantNext()
      throw error
    }
  }

  release(amount = 1, name = ''): void {
    const key = this.#keys.get(name)
    if (!key) return
    this.#giveBack(name, key, amount)
    this.#grantNext()
  }

  #mayTake({ taken }: Key, amount: number): boolean {
    return taken === 0 || taken + amount <= (this.#options.permitsPerKey ?? Number.POSITIVE_INFINITY)
  }

  #hasFree(amount: number): boolean {
    return this.#taken === 0 || this.#taken + amount <= this.#options.permits
  }

  #next(): [string, Key, Waiting] | undefined {
    for (const [name, key] of this.#keys) {
      const [first] = key.waiting
      if (first && this.#mayTake(key, first.amount)) return [name, key, first]
    }
    return undefined
  }

  #grantNext(): void {
    for (let next = this.#next(); next && this.#hasFree(next[2].amount); next = this.#next()) {
      const [name, key, waiting] = next
      key.waiting.delete(waiting)
      this.#grant(name, key, waiting.amount)
      waiting.enter()
    }
  }

  #grant(name: string, key: Key, amount: number): void {
    this.#taken += amount
    key.taken += amount
    this.#keys.delete(name)
    this.#keys.set(name, key)
  }

  #giveBack(name: string, key: Key, amount: number): void {
    this.#taken -= amount
    key.taken -= amount
    this.#forgetIdle(name, key)
  }

  #forgetIdle(name: string, key: Key): void {
    if (key.taken === 0 && key.waiting.size === 0) this.#keys.delete(name)
  }
}
