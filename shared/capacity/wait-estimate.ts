/** Maximum number of recent job durations that are stored. */
const TIMES_MAX = 32
/**
 * Number of durations from which a mean is computed. With fewer, the shortest duration is used instead, and only a part of the estimate counts in a
 * refusal: a fifth for each measured job.
 */
const TIMES_MIN = 5
/** Maximum number of running jobs whose ages count in one estimate. */
const RUNNING_MAX = 1_000
/** Fraction of a cold job's duration that counts in a refusal, because loading a model may take as long as ten calls. */
const COLD_WEIGHT = 0.1
/** Time in ms without a completion after which the next job is cold. Servers such as Ollama unload an idle model after 5 min. */
const COLD_AFTER_MS = 300_000
/** Queue length up to which each position is computed anew. In a longer queue, positions are up to {@link RANKS_TTL_MS} old. */
const FRESH_RANKS_MAX = 200
const RANKS_TTL_MS = 1_000
/** Wait of a job in ms that proves that all slots are busy. The measured completion rate is then that of all slots. */
const BUSY_MS = 250
/**
 * Minimum wait in ms of the oldest job before the estimate assumes that other ingresses use slots too. From then on, the estimate uses the
 * peak number of running jobs of this ingress instead of all slots.
 */
const SETTLED_MS = 5_000
/** Interval in ms over which the peak number of running jobs is measured. The peak of the previous interval counts too. */
const PEAK_MS = 30_000

interface Run {
  /** Undefined while the model of the job is being prepared. */
  readonly startedAtMs: number | undefined
  readonly isCold: boolean
}

/** Returns the jobs in the order of their starts, each with the number of jobs before it. */
export type StartOrder<Job> = (jobs: readonly Job[]) => [Job, number][]

/**
 * Estimates the wait of a new job from the jobs that compete for the same slots (docs/internals/design.md, Fairness).
 *
 * While jobs wait, the estimate is (jobs ahead) × (interval between completions). Before 20 completions, the interval is (job duration) / (slots). If
 * a running job exceeds the usual duration, then its present age is used as its duration. Example: 30 jobs ahead and 2 completions per second give 15
 * s.
 *
 * The problem: the first call after a start may take many times as long as the next calls. If its duration counted in full, then most calls of a
 * burst would be refused although they could start in time. Three rules prevent this:
 * 1. The duration of a job is its time in a slot. The preparation of its model does not count, and the wait of a parked call does not count.
 * 2. A job is cold if no job has completed in the 5 min before its start, because the job may load a model and fill caches. If there are no other
 *    measurements, then a tenth of its duration counts.
 * 3. A refusal needs proof. With fewer than five measured jobs, only a part of the estimate counts ({@link provenEveryMs}).
 *
 * Example, measured with the default model on 2 cores: the first call takes 9 s, and 100 calls follow for 2 slots. In full, 9 s would give a wait of
 * 450 s for the last call, which in fact starts after 149 s. A tenth gives 45 s, so all calls are admitted. If the next calls are slow too, then their
 * ages raise the estimate while they run. New calls are then refused, and waiting calls as well.
 *
 * Engines that batch calls need no rule of their own. Each sequence of a batch counts as a slot, and the measured durations already include the
 * slowdown by the batch.
 *
 * With several ingresses, each ingress counts only its own jobs and completions. Both numbers shrink by the same factor, so the estimate stays
 * correct.
 */
export class WaitEstimate<Job = unknown> {
  readonly #inOrder: StartOrder<Job>
  readonly #completions = new Completions()
  readonly #waiting = new Map<Job, number>()
  /** Jobs that wait on a worker for a permit of their model. The oldest job comes first. */
  readonly #parked = new Set<Job>()
  /** Jobs in slots, in the order of their starts. */
  readonly #running = new Map<Job, Run>()
  readonly #times: number[] = []
  #coldMs: number | undefined
  #completedAtMs = Number.NEGATIVE_INFINITY
  #slotCount = 0
  #ranks: { readonly atMs: number; readonly of: ReadonlyMap<Job, number> } | undefined
  #busySinceMs: number | undefined
  #peak = { fromMs: 0, before: 0, now: 0 }

  constructor(inOrder: StartOrder<Job> = (jobs) => jobs.map((job, before) => [job, before])) {
    this.#inOrder = inOrder
  }

  get waiting(): ReadonlyMap<Job, number> {
    return this.#waiting
  }

  entered(job: Job, now: number): void {
    this.forget(job, now)
    this.#waiting.set(job, now)
  }

  /** Removes a job without counting its duration, because the job was returned to its queue or its worker died. */
  forget(job: Job, now: number): void {
    // The ranks refer to jobs that have ended, so they are dropped when no job waits.
    if (this.#waiting.delete(job) && this.#waiting.size === 0) this.#ranks = undefined
    this.#parked.delete(job)
    if (this.#running.delete(job)) this.#runParked(now)
  }

  /**
   * Called when a worker has taken a job from its queue. The duration of the job begins when it runs. If as many jobs run as there are slots
   * for the model, then the job is parked until one of them ends.
   *
   * @param slotCount Number of slots in all workers that can run the job. 0 if unknown, or if workers park no jobs of this queue
   */
  started(job: Job, now: number, slotCount = 0): void {
    this.forget(job, now)
    this.#slotCount = slotCount
    this.#parked.add(job)
    this.#runParked(now)
  }

  /** Stops the clock of a job, because its model is being prepared. */
  preparing(job: Job): void {
    const run = this.#running.get(job)
    if (run) this.#running.set(job, { ...run, startedAtMs: undefined })
  }

  /** Restarts the clock of a job, because its model is ready. */
  prepared(job: Job, now: number): void {
    if (this.#running.delete(job)) this.#run(job, now)
  }

  /** Counts a completion. Must be called before {@link left}. Otherwise a parked job that then starts in the free slot could count as cold. */
  completed(now: number): void {
    this.#busySince(now)
    this.#completions.add(now)
    this.#completedAtMs = now
  }

  left(job: Job, now: number): void {
    const run = this.#running.get(job)
    this.forget(job, now)
    if (run?.startedAtMs === undefined) return
    const ms = now - run.startedAtMs
    if (run.isCold) this.#coldMs = ms
    else this.#times.push(ms)
    if (this.#times.length > TIMES_MAX) this.#times.shift()
  }

  /**
   * Returns the estimated wait of a new job in ms. With few measurements, only a part of the estimate counts ({@link provenEveryMs}). 0 if no job is
   * ahead or if there are no measurements.
   *
   * @param queued Jobs of this ingress that would run before the new job.
   * @param slotCount Number of slots that can run the job. 0 if unknown
   */
  estimateMs(queued: number, now: number, slotCount = 0): number {
    return queued === 0 ? 0 : queued * (this.provenEveryMs(now, slotCount) ?? 0)
  }

  /** Returns the expected interval in ms between two job starts while jobs wait. Undefined if only cold jobs were measured. */
  everyMs(now: number, slotCount: number): number | undefined {
    return this.#everyMs(now, slotCount, this.#durations(now).meanMs)
  }

  /** Returns the interval in ms that counts in a refusal: a part of {@link everyMs} if there are few measurements. Undefined without measurements. */
  provenEveryMs(now: number, slotCount: number): number | undefined {
    return this.#everyMs(now, slotCount, this.#durations(now).provenMs)
  }

  /** Position of a job that waits in this ingress, or is parked at a worker. The next job to start has position 1. Undefined for a job that runs. */
  positionOf(job: Job, now: number): number | undefined {
    if (this.#waiting.has(job)) return this.#parked.size + this.#rankOf(job, now) + 1
    return this.#parked.has(job) ? [...this.#parked].indexOf(job) + 1 : undefined
  }

  #runParked(now: number): void {
    for (const job of this.#parked) {
      if (this.#slotCount > 0 && this.#running.size >= this.#slotCount) return
      this.#parked.delete(job)
      this.#run(job, now)
    }
  }

  #run(job: Job, now: number): void {
    this.#running.set(job, { startedAtMs: now, isCold: now - this.#completedAtMs > COLD_AFTER_MS })
    this.#rollPeak(now)
    this.#peak.now = Math.max(this.#peak.now, this.#running.size)
  }

  /** Number of waiting jobs before a job. Each waiting stream requests its position every second, so a long queue is sorted once for all its jobs. */
  #rankOf(job: Job, now: number): number {
    const { size } = this.#waiting
    if (!this.#ranks || size <= FRESH_RANKS_MAX || now - this.#ranks.atMs >= RANKS_TTL_MS)
      this.#ranks = { atMs: now, of: new Map(this.#inOrder([...this.#waiting.keys()])) }
    // A job that has entered since the queue was sorted counts as the last job.
    return Math.min(this.#ranks.of.get(job) ?? size, size - 1)
  }

  #everyMs(now: number, slotCount: number, takesMs: number | undefined): number | undefined {
    const busySinceMs = this.#busySince(now)
    const busyMs = busySinceMs === undefined ? undefined : this.#completions.everyMs(now, busySinceMs)
    if (busyMs !== undefined) return busyMs
    // The measured interval is an upper bound, because slots may have been idle during the measurement.
    const longestMs = this.#completions.everyMs(now)
    if (takesMs === undefined || slotCount === 0) return longestMs
    return Math.min(takesMs / this.#usable(slotCount, takesMs, now), longestMs ?? Number.POSITIVE_INFINITY)
  }

  /**
   * Mean duration in ms, and the duration that counts in a refusal. If a running job exceeds the usual duration, then its present age is used as its
   * duration. The mean is undefined until a job without a cold start has ended.
   */
  #durations(now: number): { readonly meanMs?: number; readonly provenMs?: number } {
    const ended = this.#times.length
    const usualMs = ended < TIMES_MIN ? Math.min(...this.#times) : sumOf(this.#times) / ended
    const { warm, cold } = this.#agesAbove(ended === 0 ? 0 : usualMs, now)
    if (ended === 0) {
      const coldMs = Math.max(COLD_WEIGHT * (this.#coldMs ?? 0), ...cold)
      const provenMs = Math.max(coldMs, sumOf(warm) / Math.max(TIMES_MIN, warm.length))
      return provenMs > 0 ? { provenMs } : {}
    }
    const count = ended + warm.length + cold.length
    const meanMs = (usualMs * ended + sumOf(warm) + sumOf(cold)) / count
    return { meanMs, provenMs: meanMs * Math.min(1, count / TIMES_MIN) }
  }

  /** Returns the ages in ms of the jobs that have run for longer than `usualMs`. A tenth of the age of a cold job counts. */
  #agesAbove(usualMs: number, now: number): { readonly warm: number[]; readonly cold: number[] } {
    const [warm, cold]: [number[], number[]] = [[], []]
    for (const { startedAtMs = now, isCold } of this.#running.values()) {
      const ageMs = (now - startedAtMs) * (isCold ? COLD_WEIGHT : 1)
      if (ageMs > usualMs) (isCold ? cold : warm).push(ageMs)
      // The jobs are ordered by their starts, so all further jobs are younger.
      else if (!isCold && startedAtMs < now) break
      if (warm.length + cold.length === RUNNING_MAX) break
    }
    return { warm, cold }
  }

  /**
   * Returns the number of slots that this ingress can use while other ingresses use the remaining slots. Until enough jobs were observed,
   * the result is the number of all slots.
   */
  #usable(slotCount: number, takesMs: number, now: number): number {
    const [oldest] = this.#waiting.values()
    if (oldest === undefined || now - oldest < Math.max(SETTLED_MS, 2 * takesMs)) return slotCount
    this.#rollPeak(now)
    return Math.max(1, Math.min(slotCount, Math.max(this.#peak.before, this.#peak.now)))
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

/** Completions are counted per second, so that the window of 30 s needs 30 numbers instead of one entry per job. */
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
    if (this.#buckets.length > WINDOW_MS / BUCKET_MS) this.#buckets.shift()
  }

  everyMs(now: number, sinceMs = 0): number | undefined {
    let [fromMs, count] = [now, 0]
    for (const bucket of this.#buckets) {
      if (bucket.fromMs < sinceMs || bucket.fromMs <= now - WINDOW_MS) continue
      fromMs = Math.min(fromMs, bucket.fromMs)
      count += bucket.count
    }
    return count < SAMPLES_MIN ? undefined : Math.max(1, now - fromMs) / count
  }
}
