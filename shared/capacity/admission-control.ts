import type { PoolName } from '#schemas/job.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { type Work, workKey } from './fair-queue.ts'
import { WaitEstimate } from './wait-estimate.ts'

/**
 * Retry-After of a rejected caller ends when the estimated wait has fallen to this fraction of `startTimeoutMs`. The remaining fraction
 * absorbs estimation errors.
 */
const RETRY_TARGET_RATIO = 0.8
/** Factor on Retry-After. The additional time allows for workers that are slower than estimated. */
const RETRY_AFTER_MARGIN = 1.03
const RETRY_AFTER_MS_MIN = 1_000
/** Maximum Retry-After in ms for clients whose SDK is unknown. Such clients are assumed to honour 60 s, as every known SDK does. */
const RETRY_AFTER_MS_MAX = 60_000
/**
 * Lower bound of a spread Retry-After. A value above the maximum becomes a random time between this fraction of the
 * maximum and the maximum.
 */
const CAP_SPREAD_RATIO = 0.5
/** Maximum number of tenants per queue whose next retry time is stored. At the maximum, all entries are dropped. */
const PACED_TENANTS_MAX = 10_000

export interface AdmissionRequest extends Work {
  readonly pool: PoolName
  readonly tenant: string
  /** Longest `Retry-After` that this caller's SDK honours, in ms. Default: one minute. */
  readonly retryMsMax?: number | undefined
}

/** Advice in the text of a refusal, because SDKs show this text to their users after the last retry. */
const AS_JOB = 'submit the request as a durable job, which waits in the queue (Prefer: respond-async)'

function refusal(waitMs: number, afterMs: number, mostMs?: number): ServiceError {
  const retryAfterMs = retryAfterOf(afterMs, mostMs)
  const [wait, back] = [Math.round(waitMs / 1_000), Math.ceil(retryAfterMs / 1_000)]
  const message = `The queue is full: a call would wait about ${wait} s. Try again in ${back} s, or ${AS_JOB}.`
  return new ServiceError('overloaded', message, { retryAfterMs, reason: 'queue_full' })
}

function retryAfterOf(ms: number, mostMs = RETRY_AFTER_MS_MAX): number {
  return Math.min(mostMs, Math.max(RETRY_AFTER_MS_MIN, ms))
}

/** A waiting job is rejected if its total wait would exceed this multiple of `START_TIMEOUT_MS` ({@link AdmissionControl.late}). */
const LATE_RATIO = 2
const CAPACITY_TTL_MS = 100

export interface QueuedJob {
  readonly envelope: Work & { readonly pool: PoolName; readonly tenant: string }
  readonly sentAtMs: number | undefined
}

interface WaitQueue<Job extends QueuedJob = QueuedJob> {
  readonly waitEstimate: WaitEstimate<Job>
  /** True if all jobs of the queue are for one model whose concurrency limit is below the number of slots. */
  readonly isBounded: boolean
  servedSentAtMs: number
  /** Retry time that each tenant's last rejected caller received. */
  readonly retriesAtMs: Map<string, number>
  capacity: { readonly atMs: number; readonly count: number } | undefined
}

interface LateJob<Job> {
  readonly job: Job
  readonly waitMs: number
  readonly error: ServiceError
}

interface PoolWorker {
  readonly running: number
  readonly draining: boolean
  readonly isSuspected: boolean
  readonly capacity: { readonly backlog: readonly Work[] } | undefined
}

interface QueuesPresence {
  capacityOf(pool: PoolName, work: Work): number | undefined
  slots(pool: PoolName): number
  workers(pool: PoolName): readonly PoolWorker[]
  /** Returns an object if every worker of the model is still preparing the model, and otherwise undefined. */
  preparing(pool: PoolName, model: string): object | undefined
}

/**
 * Admission control for attached jobs (docs/internals/design.md, Fairness).
 *
 * The problem: if a queue grows without bound, then every caller waits until its timeout and all work is wasted. If many rejected callers return at
 * the same moment, then most are rejected again, and the rejections themselves use the CPU.
 *
 * The invariants: an admitted job is expected to start within `startTimeoutMs`. The retries of a tenant arrive no faster than jobs complete.
 *
 * How it works, with one estimate for each pool, and one for each model that has its own concurrency limit:
 * 1. Estimate the wait: jobs ahead in the fair queue, times the interval between two starts ({@link WaitEstimate}).
 * 2. If the estimate fits `startTimeoutMs`, then admit the job.
 * 3. Otherwise reject the job. The Retry-After ends when the remaining wait is 80 % of `startTimeoutMs`. The retry is at least one interval after
 *    that of the tenant's previously rejected job. Above the maximum, Retry-After is a random time between half of the maximum and the maximum.
 *
 * Example: `startTimeoutMs` is 60 s, the estimate is 100 s, and 2 jobs complete per second. The first Retry-After is (100 − 48) × 1.03 = 53.6 s, and
 * the next Retry-After is half a second longer.
 *
 * Rejected alternative: reservations, which recognise a returning caller by a hash of its request and admit it before newer callers. Goodput did not
 * improve, and the state and its rules took 350 lines.
 */
export class AdmissionControl<Job extends QueuedJob = QueuedJob> {
  readonly #presence: QueuesPresence
  readonly #startTimeoutMs: number
  /** Queues by pool. A model with its own limit has its own queue, because its jobs may take longer than those of other models. */
  readonly #queues = new Map<string, WaitQueue<Job>>()
  /** The queue in which each job is counted. If a model's limit becomes known while jobs wait, then these jobs stay in their first queue. */
  readonly #queueOf = new WeakMap<Job, WaitQueue<Job>>()
  /** Jobs at workers whose model is being prepared. */
  readonly #preparing = new Set<Job>()

  constructor(presence: QueuesPresence, startTimeoutMs: number) {
    this.#presence = presence
    this.#startTimeoutMs = startTimeoutMs
  }

  /**
   * Admits a job or rejects it.
   *
   * @param ahead Number of jobs that would run before this job
   * @throws ServiceError `overloaded` if the job would not start within its start timeout
   */
  admit(asked: AdmissionRequest, ahead: number): void {
    if (ahead === 0) return
    const waitMs = this.estimateMs(asked, ahead)
    if (waitMs <= this.#startTimeoutMs) return
    const excessMs = (waitMs - this.#startTimeoutMs * RETRY_TARGET_RATIO) * RETRY_AFTER_MARGIN
    throw refusal(waitMs, this.#paced(asked, excessMs), asked.retryMsMax)
  }

  completed(work: QueuedJob['envelope']): void {
    this.of(work).waitEstimate.completed(Date.now())
  }

  of(work: QueuedJob['envelope'] | (Work & { readonly pool: PoolName })): WaitQueue<Job> {
    const isBounded = this.#presence.capacityOf(work.pool, work) !== undefined
    const key = isBounded ? `${work.pool} ${workKey(work)}` : work.pool
    const known = this.#queues.get(key)
    if (known) return known
    const queue: WaitQueue<Job> = {
      waitEstimate: new WaitEstimate(inFairOrder),
      isBounded,
      servedSentAtMs: 0,
      retriesAtMs: new Map(),
      capacity: undefined,
    }
    this.#queues.set(key, queue)
    return queue
  }

  entered(job: Job): void {
    const now = Date.now()
    this.#queueOf.get(job)?.waitEstimate.forget(job, now)
    this.#preparing.delete(job)
    const queue = this.of(job.envelope)
    this.#queueOf.set(job, queue)
    queue.waitEstimate.entered(job, now)
  }

  started(job: Job): void {
    const queue = this.#queueOf.get(job)
    if (!queue) return
    const { envelope, sentAtMs = 0 } = job
    queue.waitEstimate.started(job, Date.now(), queue.isBounded ? this.#capacityOf(queue, envelope) : 0)
    queue.servedSentAtMs = Math.max(queue.servedSentAtMs, sentAtMs)
    if (!this.#presence.preparing(envelope.pool, envelope.model)) return
    this.#preparing.add(job)
    queue.waitEstimate.preparing(job)
  }

  /** Called when a worker has published its state, because a model may have become ready. */
  onCapacity(): void {
    for (const job of this.#preparing) {
      if (this.#presence.preparing(job.envelope.pool, job.envelope.model)) continue
      this.#preparing.delete(job)
      this.#queueOf.get(job)?.waitEstimate.prepared(job, Date.now())
    }
  }

  left(job: Job): void {
    this.#queueOf.get(job)?.waitEstimate.left(job, Date.now())
    this.#queueOf.delete(job)
    this.#preparing.delete(job)
  }

  /** Queue position and estimated wait of a job that has not started. Undefined if the job runs. */
  waitOf(job: Job): { readonly position: number; readonly waitMs: number | undefined } | undefined {
    const queue = this.#queueOf.get(job)
    if (!queue) return undefined
    const now = Date.now()
    const position = queue.waitEstimate.positionOf(job, now)
    if (position === undefined) return undefined
    const everyMs = queue.waitEstimate.everyMs(now, this.#capacityOf(queue, job.envelope))
    return { position, waitMs: everyMs === undefined ? undefined : position * everyMs }
  }

  estimateMs(work: Work & { readonly pool: PoolName }, ahead: number): number {
    const queue = this.of(work)
    return queue.waitEstimate.estimateMs(ahead, Date.now(), this.#capacityOf(queue, work))
  }

  /**
   * Whether the broker may have lost a job that was sent long ago and has not started. If the model has its own limit, then the job may instead wait
   * at a worker for a permit. In this case, the job counts as lost only if a job sent later has started, or if no worker runs a job.
   */
  mayBeLost(job: Job): boolean {
    const queue = this.#queueOf.get(job)
    if (!queue?.isBounded || (job.sentAtMs ?? 0) < queue.servedSentAtMs) return true
    return this.#presence.workers(job.envelope.pool).every(({ running }) => running === 0)
  }

  /**
   * Returns the waiting jobs whose total wait would exceed twice `START_TIMEOUT_MS`, each with its remaining wait and its error. New jobs are refused
   * beyond `START_TIMEOUT_MS`. The bound for waiting jobs is twice as high, because estimates are imprecise.
   */
  *late(): Generator<LateJob<Job>> {
    const now = Date.now()
    const mostMs = LATE_RATIO * this.#startTimeoutMs
    for (const queue of this.#queues.values()) {
      const { waitEstimate } = queue
      const [first] = waitEstimate.waiting.keys()
      const everyMs = first && waitEstimate.provenEveryMs(now, this.#capacityOf(queue, first.envelope))
      if (!everyMs || waitEstimate.waiting.size * everyMs + waitedMs(waitEstimate, now) <= mostMs) continue
      for (const [job, before] of inFairOrder([...waitEstimate.waiting.keys()])) {
        const waitMs = before * everyMs
        if (now - (waitEstimate.waiting.get(job) ?? now) + waitMs > mostMs)
          yield { job, waitMs, error: this.#lateRefusal(waitMs) }
      }
    }
  }

  /** Returns the Retry-After: at least `afterMs`, and at least one interval after the retry of the tenant's previously rejected call. */
  #paced(asked: AdmissionRequest, afterMs: number): number {
    const { tenant, retryMsMax = RETRY_AFTER_MS_MAX } = asked
    const now = Date.now()
    const { retriesAtMs: retries } = this.of(asked)
    const intervalMs = this.estimateMs(asked, 1)
    const nextMs = (retries.get(tenant) ?? 0) + intervalMs - now
    const delayMs = Math.max(RETRY_AFTER_MS_MIN, afterMs, nextMs)
    if (delayMs > retryMsMax) return retryMsMax * (1 - Math.random() * CAP_SPREAD_RATIO)
    if (retries.size >= PACED_TENANTS_MAX) retries.clear()
    retries.set(tenant, now + delayMs)
    return delayMs
  }

  #lateRefusal(waitMs: number): ServiceError {
    return refusal(waitMs, waitMs - this.#startTimeoutMs * RETRY_TARGET_RATIO)
  }

  #capacityOf(queue: WaitQueue<Job>, work: Work & { readonly pool: PoolName }): number {
    const now = Date.now()
    if (!queue.capacity || now - queue.capacity.atMs >= CAPACITY_TTL_MS)
      queue.capacity = { atMs: now, count: this.#readCapacity(work) }
    return queue.capacity.count
  }

  /**
   * Returns the number of concurrent jobs that the pool can run. While durable jobs wait for the same slots, only half of the slots count,
   * because durable jobs may use the other half.
   */
  #readCapacity(work: Work & { readonly pool: PoolName }): number {
    const { pool, kind, model } = work
    const bound = this.#presence.capacityOf(pool, work)
    const isShared = this.#presence.workers(pool).some(({ draining, isSuspected, capacity }) => {
      if (draining || isSuspected) return false
      return capacity?.backlog.some((one) => bound === undefined || (one.kind === kind && one.model === model))
    })
    const places = bound ?? this.#presence.slots(pool)
    return isShared ? Math.ceil(places / 2) : places
  }
}

function waitedMs({ waiting }: { readonly waiting: ReadonlyMap<unknown, number> }, now: number): number {
  const [oldest = now] = waiting.values()
  return now - oldest
}

/** Returns the jobs with the number of jobs before each. The order is round robin: one job of each tenant per round, oldest first. */
function inFairOrder<Job extends QueuedJob>(jobs: readonly Job[]): [Job, number][] {
  const counts = new Map<string, number>()
  const rounds: Job[][] = []
  for (const job of jobs) {
    const { tenant } = job.envelope
    const nth = counts.get(tenant) ?? 0
    counts.set(tenant, nth + 1)
    rounds[nth] ??= []
    rounds[nth].push(job)
  }
  return rounds.flat().map((job, before) => [job, before])
}
