const TIMES_MAX = 32
/**
 * With fewer durations than this, the shortest one replaces the mean, because the first jobs may include a model load.
 */
const TIMES_MIN = 5
const RUNNING_MAX = 1_000
/** If a job has waited longer than this, then all slots are busy. The measured completion rate is then that of all slots. */
const BUSY_MS = 250
/** If jobs have waited for this time and for two job durations, then this ingress is assumed to use all slots that it can get. */
const SETTLED_MS = 5_000
/** Length of an interval. The peak number of running jobs is taken over the current interval and the one before it. */
const PEAK_MS = 30_000

/**
 * Estimates the wait of a new job from the jobs that compete for the same slots (docs/internals/design.md, Fairness).
 *
 * While jobs wait, the estimate is (jobs ahead) × (interval between completions). Before 20 completions, the interval is (job
 * duration) / (slots). A running job that exceeds the usual duration counts with the time for which it has run.
 *
 * If there are several ingresses, then each counts only its own jobs and completions, so the ratio stays correct.
 *
 * Example: 30 jobs ahead and 2 completions per second give 15 s.
 */
export class WaitEstimate<Job = unknown> {
  readonly #completions = new Completions()
  readonly #waiting = new Map<Job, number>()
  readonly #running = new Map<Job, number>()
  readonly #times: number[] = []
  #busySinceMs: number | undefined
  #peak = { fromMs: 0, before: 0, now: 0 }

  get waiting(): ReadonlyMap<Job, number> {
    return this.#waiting
  }

  entered(job: Job, now: number): void {
    this.forget(job)
    this.#waiting.set(job, now)
  }

  /** Removes a job without counting its duration, because it was handed back or its worker died. */
  forget(job: Job): void {
    this.#waiting.delete(job)
    this.#running.delete(job)
  }

  started(job: Job, now: number): void {
    this.#waiting.delete(job)
    this.#running.set(job, now)
    this.#rollPeak(now)
    this.#peak.now = Math.max(this.#peak.now, this.#running.size)
  }

  left(job: Job, now: number): void {
    const startedAtMs = this.#running.get(job)
    this.forget(job)
    if (startedAtMs === undefined) return
    this.#times.push(now - startedAtMs)
    if (this.#times.length > TIMES_MAX) this.#times.shift()
  }

  completed(now: number): void {
    this.#busySince(now)
    this.#completions.add(now)
  }

  /**
   * Estimated wait of a new job in ms; 0 if no job is ahead or if there are no measurements.
   *
   * @param queued Jobs of this ingress that would run before the new job
   * @param places Slots that run such jobs; 0 if unknown
   */
  estimateMs(queued: number, now: number, places = 0): number {
    return queued === 0 ? 0 : queued * (this.everyMs(now, places) ?? 0)
  }

  /** Interval in ms between two starts while jobs wait; undefined without measurements. */
  everyMs(now: number, places: number): number | undefined {
    const busySinceMs = this.#busySince(now)
    const busyMs = busySinceMs === undefined ? undefined : this.#completions.everyMs(now, busySinceMs)
    if (busyMs !== undefined) return busyMs
    // This interval is an upper bound, because workers may have been idle for part of the time.
    const leastMs = this.#completions.everyMs(now)
    const takesMs = this.#takesMs(now)
    if (takesMs === undefined || places === 0) return leastMs
    return Math.min(takesMs / this.#usable(places, takesMs, now), leastMs ?? Number.POSITIVE_INFINITY)
  }

  /** Mean duration in ms. A running job that exceeds the usual duration counts with the time for which it has run. */
  #takesMs(now: number): number | undefined {
    const ended = this.#times.length
    const [oldest] = this.#running.values()
    if (ended === 0) return oldest === undefined ? undefined : now - oldest
    const usual = ended < TIMES_MIN ? Math.min(...this.#times) : sumOf(this.#times) / ended
    let [sum, count] = [usual * ended, ended]
    for (const startedAtMs of this.#running.values()) {
      if (now - startedAtMs <= usual || count === ended + RUNNING_MAX) break
      sum += now - startedAtMs
      count++
    }
    return sum / count
  }

  /** Slots that this ingress can use while other ingresses use the rest. Until enough jobs were observed: all slots. */
  #usable(places: number, takesMs: number, now: number): number {
    const [oldest] = this.#waiting.values()
    if (oldest === undefined || now - oldest < Math.max(SETTLED_MS, 2 * takesMs)) return places
    this.#rollPeak(now)
    return Math.max(1, Math.min(places, Math.max(this.#peak.before, this.#peak.now)))
  }

  #busySince(now: number): number | undefined {
    const [oldest] = this.#waiting.values()
    if (oldest === undefined || now - oldest < BUSY_MS) this.#busySinceMs = undefined
    else this.#busySinceMs ??= now
    return this.#busySinceMs
  }

  #rollPeak(now: number): void {
    const { fromMs, now: peak } = this.#peak
    if (now - fromMs < PEAK_MS) return
    this.#peak = { fromMs: now, before: now - fromMs < 2 * PEAK_MS ? peak : 0, now: this.#running.size }
  }
}

function sumOf(numbers: readonly number[]): number {
  return numbers.reduce((sum, one) => sum + one, 0)
}

const WINDOW_MS = 30_000

/** Completions are counted per second, so the window of 30 s takes 30 numbers instead of one entry per job. */
const BUCKET_MS = 1_000

const SAMPLES_MIN = 20

interface Bucket {
  readonly fromMs: number
  count: number
}

class Completions {
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
