import { ServiceError } from '#shared/error.ts'

/** Calls that may wait in line; beyond it a call is refused at once. */
const WAITING_MAX = 1_024

/** Caps the calls in flight to one upstream: the rest wait in line, for a bounded time and in bounded number. */
export class Slots {
  readonly #model: string
  readonly #waitMs: number
  readonly #waiting: Array<() => void> = []
  #free: number

  /**
   * @param inFlightMax Calls at once.
   * @param waitMs Longest wait for a slot.
   */
  constructor(model: string, inFlightMax: number, waitMs: number) {
    this.#model = model
    this.#free = inFlightMax
    this.#waitMs = waitMs
  }

  /**
   * Takes a slot, waiting for one if need be. The caller hands it back with `release`, once.
   *
   * @throws ServiceError `overloaded` when none came free in time; the signal's reason when it aborts first.
   */
  async take(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (this.#free > 0) {
      this.#free -= 1
      return
    }
    if (this.#waiting.length >= WAITING_MAX) throw this.#overloaded()
    await this.#wait(signal)
  }

  /** Hands a slot to the call that has waited longest, or puts it back. */
  release(): void {
    const next = this.#waiting.shift()
    if (next) next()
    else this.#free += 1
  }

  #wait(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = () => {
        clearTimeout(timer)
        signal.removeEventListener('abort', onAbort)
      }
      const enter = () => {
        leave()
        resolve()
      }
      const giveUp = (reason: unknown) => {
        leave()
        this.#waiting.splice(this.#waiting.indexOf(enter), 1)
        reject(reason)
      }
      const onAbort = () => giveUp(signal.reason)
      const timer = setTimeout(() => giveUp(this.#overloaded()), this.#waitMs)
      signal.addEventListener('abort', onAbort, { once: true })
      this.#waiting.push(enter)
    })
  }

  #overloaded(): ServiceError {
    return new ServiceError('overloaded', `Too many calls to the upstream of model '${this.#model}' are running.`, {
      retryAfterMs: this.#waitMs,
    })
  }
}
