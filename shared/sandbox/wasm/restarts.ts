import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { ServiceError } from '#shared/error.ts'

const BACKOFF: Backoff = { baseMs: 250, maxMs: 10_000 }
/** Maximum crashes within the window. After that, nothing is started until the oldest crash has left the window. */
const CRASHES_MAX = 5
const WINDOW_MS = 5 * 60_000

export class Restarts {
  readonly #now: () => number
  #crashesMs: number[] = []

  /** @param now Milliseconds of a monotonic clock. */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  note(): void {
    this.#crashesMs.push(this.#now())
  }

  /**
   * Milliseconds to wait before the next start; 0 if there was no recent crash.
   *
   * @throws ServiceError `sandbox_unavailable` after too many crashes
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
