const WINDOW_MS = 30_000
/** Completions are counted per second, so that the window holds 30 numbers instead of one entry per job. */
const BUCKET_MS = 1_000
/** Minimum number of completions for a rate. */
const SAMPLES_MIN = 20

interface Bucket {
  readonly fromMs: number
  count: number
}

export class Completions {
  readonly #buckets: Bucket[] = []

  add(now: number): void {
    const last = this.#buckets.at(-1)
    if (last && now - last.fromMs < BUCKET_MS) {
      last.count++
      return
    }
    this.#buckets.push({ fromMs: now, count: 1 })
    this.#forget(now)
  }

  /** Mean interval between completions in ms; undefined if there are fewer than 20. @param sinceMs Ignores earlier completions */
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
