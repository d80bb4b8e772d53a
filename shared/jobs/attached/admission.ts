/** How far back completions count. */
const WINDOW_MS = 30_000
/** Completions are counted by the second, so that a busy ingress holds thirty numbers and not a hundred thousand times. */
const BUCKET_MS = 1_000
/** Completions below which the rate says nothing. */
const SAMPLES_MIN = 20

/** Completions from `fromMs` on, for one second. */
interface Bucket {
  readonly fromMs: number
  count: number
}

/**
 * Estimates how long a new job would wait, from what this ingress sees: the jobs before it over its measured rate of
 * completions (docs/design.md, Turns). With several ingresses each sees its share of both, so the ratio holds.
 */
export class Admission {
  /** Oldest first. */
  readonly #buckets: Bucket[] = []

  /** A job ended at `now`. */
  completed(now: number): void {
    const last = this.#buckets.at(-1)
    if (last && now - last.fromMs < BUCKET_MS) {
      last.count++
      return
    }
    this.#buckets.push({ fromMs: now, count: 1 })
    this.#forget(now)
  }

  /**
   * Milliseconds a job that is accepted now would wait; 0 while nothing waits, or too little is known.
   *
   * @param queued Jobs of this ingress that would be run before it.
   */
  estimateMs(queued: number, now: number): number {
    if (queued === 0) return 0
    this.#forget(now)
    const first = this.#buckets[0]
    const count = this.#buckets.reduce((sum, bucket) => sum + bucket.count, 0)
    if (first === undefined || count < SAMPLES_MIN) return 0
    return (queued * Math.max(1, now - first.fromMs)) / count
  }

  #forget(now: number): void {
    while (this.#buckets[0] && this.#buckets[0].fromMs <= now - WINDOW_MS) this.#buckets.shift()
  }
}
