import { ServiceError } from '#shared/lib/error.ts'

/** Pause in ms after a rate limit, if the response has no Retry-After. */
const BACKOFF_MS = 2_000
const BACKOFF_MS_MAX = 10 * 60_000

/** Pauses all calls of this process to a search service after a rate limit, for the time in Retry-After. */
export class Throttle {
  readonly #name: string
  #pausedUntilMs = 0

  constructor(name: string) {
    this.#name = name
  }

  /**
   * Runs a call, unless the service is paused.
   *
   * @throws ServiceError `rate_limit_exceeded` during the pause, and otherwise the errors of the call
   */
  async run<T>(call: () => Promise<T>): Promise<T> {
    const heldMs = this.#pausedUntilMs - Date.now()
    if (heldMs > 0)
      throw new ServiceError(
        'rate_limit_exceeded',
        `The search backend ${this.#name} is throttled because of its rate limit.`,
        {
          retryAfterMs: heldMs,
        },
      )
    try {
      return await call()
    } catch (error) {
      const { code, retryAfterMs = BACKOFF_MS } = ServiceError.from(error)
      if (code === 'rate_limit_exceeded') this.#pausedUntilMs = Date.now() + Math.min(retryAfterMs, BACKOFF_MS_MAX)
      throw error
    }
  }
}
