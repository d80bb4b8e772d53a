import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { ServiceError } from '#shared/error.ts'

const BACKOFF: Backoff = { baseMs: 250, maxMs: 10_000 }
/** Crashes within the window, after which nothing is started until the oldest has left it. */
const CRASHES_MAX = 5
const WINDOW_MS = 5 * 60_000

/** How often a process that crashes is started again. */
export class Restarts {
  readonly #now: () => number
  #crashesMs: number[] = []

  /** @param now Milliseconds of a clock that only goes forward. */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  /** It crashed, or did not start. */
  note(): void {
    this.#crashesMs.push(this.#now())
  }

  /**
   * Milliseconds to wait before it is started; 0 when it did not crash lately.
   *
   * @throws ServiceError `sandbox_unavailable` when it crashed too often
   */
  delayMs(random: number): number {
    const now = this.#now()
    this.#crashesMs = this.#crashesMs.filter((atMs) => now - atMs < WINDOW_MS)
    const [oldest, count] = [this.#crashesMs[0], this.#crashesMs.length]
    if (oldest === undefined) return 0
    if (count < CRASHES_MAX) return backoffMs(count, BACKOFF, random)
    const retryAfterMs = oldest + WINDOW_MS - now
    throw new ServiceError('sandbox_unavailable', 'The WebAssembly sandbox crashed too often.', { retryAfterMs })
  }
}
