import { Completions } from './completions.ts'

/** Jobs of which the time counts that they took: the last ones. */
const TIMES_MAX = 32
/** Jobs below which the shortest time counts: the first may have waited until its model was loaded. */
const TIMES_MIN = 5
/** Running jobs that are looked at, the oldest first. */
const RUNNING_MAX = 1_000
/** A job that waited so long has found no free place: the rate of completions is that of all places. */
const BUSY_MS = 250
/** After such a wait, or twice the time of a job, places that this ingress could have are taken by its jobs. */
const SETTLED_MS = 5_000
/** How long it counts how many jobs ran at once: this long, or twice. */
const PEAK_MS = 30_000

/**
 * Estimates how long a new job would wait, from what this ingress sees of those that take the same places (docs/design.md, Turns).
 *
 * While jobs wait it is the rate at which they end. Before twenty of them have, it is the time that one takes, over the places that
 * there are: of those that still run the time so far counts where that is longer. With several ingresses each sees its share of
 * both, so the ratio holds.
 */
export class WaitEstimate<Job = unknown> {
  readonly #completions = new Completions()
  /** When each came, or comes again; oldest first. */
  readonly #waiting = new Map<Job, number>()
  /** When each started; oldest first. */
  readonly #running = new Map<Job, number>()
  /** What the last ones took, in milliseconds. */
  readonly #times: number[] = []
  #busySinceMs: number | undefined
  #peak = { fromMs: 0, before: 0, now: 0 }

  /** Jobs that wait, in the order in which they came, each with the time of that. */
  get waiting(): ReadonlyMap<Job, number> {
    return this.#waiting
  }

  /** A job waits for a place, maybe again. */
  entered(job: Job, now: number): void {
    this.forget(job)
    this.#waiting.set(job, now)
  }

  /** A job is not in this line any more. What it has taken says nothing: it was handed back, or its worker died. */
  forget(job: Job): void {
    this.#waiting.delete(job)
    this.#running.delete(job)
  }

  /** A job has a place. */
  started(job: Job, now: number): void {
    this.#waiting.delete(job)
    this.#running.set(job, now)
    this.#rollPeak(now)
    this.#peak.now = Math.max(this.#peak.now, this.#running.size)
  }

  /** A job waits and runs no more, whatever its end. */
  left(job: Job, now: number): void {
    const startedAtMs = this.#running.get(job)
    this.forget(job)
    if (startedAtMs === undefined) return
    this.#times.push(now - startedAtMs)
    if (this.#times.length > TIMES_MAX) this.#times.shift()
  }

  /** A job ended well at `now`. */
  completed(now: number): void {
    this.#busySince(now)
    this.#completions.add(now)
  }

  /**
   * Milliseconds a job that is accepted now would wait; 0 while nothing waits, or too little is known.
   *
   * @param queued Jobs of this ingress that would be run before it.
   * @param places Jobs that run at once; 0: nobody knows.
   */
  estimateMs(queued: number, now: number, places = 0): number {
    return queued === 0 ? 0 : queued * (this.everyMs(now, places) ?? 0)
  }

  /** Milliseconds from the start of one job to that of the next while jobs wait; undefined: too little is known. */
  everyMs(now: number, places: number): number | undefined {
    const busySinceMs = this.#busySince(now)
    const busyMs = busySinceMs === undefined ? undefined : this.#completions.everyMs(now, busySinceMs)
    if (busyMs !== undefined) return busyMs
    // Fewer may have been asked for than could be run.
    const leastMs = this.#completions.everyMs(now)
    const takesMs = this.#takesMs(now)
    if (takesMs === undefined || places === 0) return leastMs
    return Math.min(takesMs / this.#usable(places, takesMs, now), leastMs ?? Number.POSITIVE_INFINITY)
  }

  /** What a job takes, those that run counted as far as they have come beyond that. */
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

  /** Of the places those that this ingress gets, as far as that has been seen: others may have theirs. */
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
