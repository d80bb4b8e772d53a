import { abortable } from '#shared/abortable.ts'

const CALLS_MS = 10_000
/** Duration of a submission, in milliseconds, that needs no pause. */
const FREE_RUN_MS = 2
/** Pause after a submission, as a multiple of its duration beyond {@link FREE_RUN_MS}. */
const RESTS = 2
const REST_MS_MAX = 500

/**
 * Slows down batch lines while interactive calls are answered (docs/internals/design.md, Composed jobs).
 *
 * The rate at which lines become jobs determines all costs of a batch, in every process. The duration of a submission
 * measures the load of the store and this process, and so the delay of interactive calls. Example: a submission of 42
 * ms is followed by a pause of 80 ms; one of 2 ms by none.
 */
export class BatchThrottle {
  #calledAtMs = Number.NEGATIVE_INFINITY
  #nextAtMs = 0

  noteCall(): void {
    this.#calledAtMs = performance.now()
  }

  /**
   * Creates a job from a line when the throttle permits.
   *
   * @throws the errors of `submit`; the signal's reason
   */
  async line<T>(submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (let waitMs = this.#waitMs; waitMs > 0; waitMs = this.#waitMs) {
      await abortable(new Promise((resolve) => setTimeout(resolve, waitMs)), signal)
    }
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      this.#rest(performance.now() - startedAt)
    }
  }

  get #waitMs(): number {
    const now = performance.now()
    return now - this.#calledAtMs > CALLS_MS ? 0 : Math.ceil(this.#nextAtMs - now)
  }

  #rest(tookMs: number): void {
    const now = performance.now()
    const restMs = RESTS * Math.max(0, tookMs - FREE_RUN_MS)
    this.#nextAtMs = Math.min(now + REST_MS_MAX, Math.max(now, this.#nextAtMs) + restMs)
  }
}
