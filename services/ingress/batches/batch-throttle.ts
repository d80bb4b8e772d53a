import { abortable } from '#shared/lib/abortable.ts'

const CALLS_MS = 10_000
/** Maximum duration of a submission that is not followed by a pause, in milliseconds. */
const FREE_RUN_MS = 2
/** Pause after a submission, as a multiple of its duration beyond {@link FREE_RUN_MS}. */
const PAUSE_FACTOR = 2
const PAUSE_MS_MAX = 500

/**
 * Slows down batch lines while interactive calls are answered (docs/internals/design.md, Composed jobs).
 *
 * The rate at which lines become jobs determines all costs of a batch, in every process. The duration of a submission
 * shows the load of the store and of this process, and so the delay of interactive calls. Example: after a submission
 * of 42 ms follows a pause of 80 ms; after one of 2 ms, none.
 */
export class BatchThrottle {
  #calledAtMs = Number.NEGATIVE_INFINITY
  #nextAtMs = 0

  recordCall(): void {
    this.#calledAtMs = performance.now()
  }

  /**
   * Creates a job from a line, after the current pause.
   *
   * @throws the errors of `submit`; the reason of the signal
   */
  async line<T>(submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (let waitMs = this.#delayMs; waitMs > 0; waitMs = this.#delayMs) {
      await abortable(new Promise((resolve) => setTimeout(resolve, waitMs)), signal)
    }
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      this.#pause(performance.now() - startedAt)
    }
  }

  get #delayMs(): number {
    const now = performance.now()
    return now - this.#calledAtMs > CALLS_MS ? 0 : Math.ceil(this.#nextAtMs - now)
  }

  #pause(tookMs: number): void {
    const now = performance.now()
    const restMs = PAUSE_FACTOR * Math.max(0, tookMs - FREE_RUN_MS)
    this.#nextAtMs = Math.min(now + PAUSE_MS_MAX, Math.max(now, this.#nextAtMs) + restMs)
  }
}
