import { ServiceError } from '#shared/error.ts'

/** How long a service that is throttled is left alone where it does not say. */
const HOLD_MS = 2_000
const HOLD_MS_MAX = 10 * 60_000

/** Leaves a search service alone for as long as it says. All runs of this process share it: one that is throttled tells the others. */
export class Throttle {
  readonly #name: string
  #holdUntilMs = 0

  /** @param name Of the search backend. */
  constructor(name: string) {
    this.#name = name
  }

  /** @throws ServiceError `rate_limit_exceeded` without a call while it is left alone; what the call throws */
  async run<T>(call: () => Promise<T>): Promise<T> {
    const heldMs = this.#holdUntilMs - Date.now()
    if (heldMs > 0)
      throw new ServiceError('rate_limit_exceeded', `The search backend ${this.#name} is throttled.`, {
        retryAfterMs: heldMs,
      })
    try {
      return await call()
    } catch (error) {
      const { code, retryAfterMs = HOLD_MS } = ServiceError.from(error)
      if (code === 'rate_limit_exceeded') this.#holdUntilMs = Date.now() + Math.min(retryAfterMs, HOLD_MS_MAX)
      throw error
    }
  }
}
