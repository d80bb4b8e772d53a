/**
 * The calls that one engine runs at once; the others wait in line, first come, first served.
 *
 * Nobody is refused here for want of room: a call waits until its signal aborts, which it does at its deadline at the
 * latest. The line is no longer than the slots of the worker, each of which holds one call.
 */
export class Slots {
  readonly #waiting = new Set<() => void>()
  #free: number

  /** @param count Calls at once. */
  constructor(count: number) {
    this.#free = count
  }

  /** Takes a slot, waiting until one is free. Give it back with {@link release}, once. @throws The signal's reason */
  async take(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (this.#free > 0) {
      this.#free--
      return
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const leave = () => {
      this.#waiting.delete(resolve)
      reject(signal.reason)
    }
    signal.addEventListener('abort', leave, { once: true })
    this.#waiting.add(resolve)
    await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  /** Hands a slot to the call that has waited longest, or puts it back. */
  release(): void {
    const [next] = this.#waiting
    if (next === undefined) {
      this.#free++
      return
    }
    this.#waiting.delete(next)
    next()
  }
}
