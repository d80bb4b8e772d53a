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

/** The rate at which jobs ended of late. */
export class Completions {
  /** Oldest first. */
  readonly #buckets: Bucket[] = []

  /** A job ended at `now`. */
  add(now: number): void {
    const last = this.#buckets.at(-1)
    if (last && now - last.fromMs < BUCKET_MS) {
      last.count++
      return
    }
    this.#buckets.push({ fromMs: now, count: 1 })
    this.#forget(now)
  }

  /** Milliseconds from one to the next; undefined where these are too few. @param sinceMs Earlier ones do not count */
  everyMs(now: number, sinceMs = 0): number | undefined {
    this.#forget(now)
    let [fromMs, count] = [now, 0]
    for (const bucket of this.#buckets) {
      if (bucket.fromMs < sinceMs) continue
      fromMs = Math.min(fromMs, bucket.fromMs)
      count += bucket.count
    }
    return count < SAMPLES_MIN ? undefined : Math.max(1, now - fromMs) / count
  }

  #forget(now: number): void {
    while (this.#buckets[0] && this.#buckets[0].fromMs <= now - WINDOW_MS) this.#buckets.shift()
  }
}
