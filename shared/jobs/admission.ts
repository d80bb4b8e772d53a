/** How far back completions count. */
const WINDOW_MS = 30_000
/** Completions below which the rate says nothing. */
const SAMPLES_MIN = 20

/**
 * Estimates how long a new job would wait, from what this ingress sees: its waiting jobs over its measured rate of
 * completions (DESIGN section 5). With several ingresses each sees its share of both, so the ratio holds.
 */
export class Admission {
  /** Times of completions, oldest first. */
  #ends: number[] = []

  /** A job ended at `now`. */
  completed(now: number): void {
    this.#ends.push(now)
    if (this.#ends.length > 4_096) this.#forget(now)
  }

  /**
   * Milliseconds a job that is accepted now would wait; 0 while nothing waits, or too little is known.
   *
   * @param queued Jobs of this ingress that wait for a worker.
   */
  estimateMs(queued: number, now: number): number {
    if (queued === 0) return 0
    this.#forget(now)
    const first = this.#ends[0]
    if (first === undefined || this.#ends.length < SAMPLES_MIN) return 0
    const perMs = this.#ends.length / Math.max(1, now - first)
    return queued / perMs
  }

  #forget(now: number): void {
    const oldest = now - WINDOW_MS
    const keepFrom = this.#ends.findIndex((end) => end > oldest)
    this.#ends = keepFrom < 0 ? [] : this.#ends.slice(keepFrom)
  }
}
