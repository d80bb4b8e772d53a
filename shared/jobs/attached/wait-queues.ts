import type { PoolName } from '#schemas/job.ts'
import { type Work, workKey } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { WaitEstimate } from './wait-estimate.ts'

/** A waiting job is rejected only if its estimate exceeds twice the maximum wait, because estimates err. */
const LATE_RATIO = 2
/** Cache lifetime of the capacity, which is read on every call but changes less often. */
const CAPACITY_TTL_MS = 100

export interface QueuedJob {
  readonly envelope: Work & { readonly pool: PoolName; readonly tenant: string }
  /** Time at which the job was sent to its pool; undefined before. */
  readonly sentAtMs: number | undefined
}

export interface WaitQueue<Job extends QueuedJob = QueuedJob> {
  readonly waitEstimate: WaitEstimate<Job>
  /** True for the queue of one model whose own concurrency limit is below the number of slots. */
  readonly isBounded: boolean
  servedSentAtMs: number
  capacity: { readonly atMs: number; readonly count: number } | undefined
}

export interface LateJob<Job> {
  readonly job: Job
  readonly waitMs: number
}

type QueuesPresence = Pick<Presence, 'capacityOf' | 'slots' | 'workers'>

/** Wait estimates: one for each pool, and one for each model that has its own concurrency limit. */
export class WaitQueues<Job extends QueuedJob = QueuedJob> {
  readonly #presence: QueuesPresence
  /**
   * Queues by pool, or by pool and model if the model has its own limit. Durations of a fast model do not predict those of a slow
   * one.
   */
  readonly #queues = new Map<string, WaitQueue<Job>>()
  /**
   * The queue in which each job was counted. The limit of a model may become known while jobs wait; those jobs stay in their
   * queue.
   */
  readonly #queueOf = new WeakMap<Job, WaitQueue<Job>>()

  constructor(presence: QueuesPresence) {
    this.#presence = presence
  }

  of(work: QueuedJob['envelope'] | (Work & { readonly pool: PoolName })): WaitQueue<Job> {
    const isBounded = this.#presence.capacityOf(work.pool, work) !== undefined
    const key = isBounded ? `${work.pool} ${workKey(work)}` : work.pool
    const known = this.#queues.get(key)
    if (known) return known
    const queue: WaitQueue<Job> = {
      waitEstimate: new WaitEstimate(),
      isBounded,
      servedSentAtMs: 0,
      capacity: undefined,
    }
    this.#queues.set(key, queue)
    return queue
  }

  entered(job: Job): void {
    this.#queueOf.get(job)?.waitEstimate.forget(job)
    const queue = this.of(job.envelope)
    this.#queueOf.set(job, queue)
    queue.waitEstimate.entered(job, Date.now())
  }

  started(job: Job): void {
    const queue = this.#queueOf.get(job)
    queue?.waitEstimate.started(job, Date.now())
    if (queue) queue.servedSentAtMs = Math.max(queue.servedSentAtMs, job.sentAtMs ?? 0)
  }

  left(job: Job): void {
    this.#queueOf.get(job)?.waitEstimate.left(job, Date.now())
    this.#queueOf.delete(job)
  }

  /** Estimated wait of a new job, in ms. @param ahead Jobs that would run before it */
  estimateMs(work: Work & { readonly pool: PoolName }, ahead: number): number {
    const queue = this.of(work)
    return queue.waitEstimate.estimateMs(ahead, Date.now(), this.#capacityOf(queue, work))
  }

  /**
   * True if the broker may have lost a job that was sent long ago. A job of a limited model may instead wait at a worker for its
   * bulkhead. That is possible while some job runs and no later job has started.
   */
  mayBeLost(job: Job): boolean {
    const queue = this.#queueOf.get(job)
    if (!queue?.isBounded || (job.sentAtMs ?? 0) < queue.servedSentAtMs) return true
    return this.#presence.workers(job.envelope.pool).every(({ running }) => running === 0)
  }

  /** Jobs whose total wait will exceed the maximum by far, by their position in the fair order. */
  *late(waitMsMax: number): Generator<LateJob<Job>> {
    const now = Date.now()
    for (const queue of this.#queues.values()) {
      const { waitEstimate } = queue
      const [first] = waitEstimate.waiting.keys()
      const everyMs = first && waitEstimate.everyMs(now, this.#capacityOf(queue, first.envelope))
      if (!everyMs || waitEstimate.waiting.size * everyMs + waitedMs(waitEstimate, now) <= LATE_RATIO * waitMsMax)
        continue
      for (const [job, before] of inFairOrder([...waitEstimate.waiting.keys()])) {
        const waitMs = before * everyMs
        if (now - (waitEstimate.waiting.get(job) ?? now) + waitMs > LATE_RATIO * waitMsMax) yield { job, waitMs }
      }
    }
  }

  #capacityOf(queue: WaitQueue<Job>, work: Work & { readonly pool: PoolName }): number {
    const now = Date.now()
    if (!queue.capacity || now - queue.capacity.atMs >= CAPACITY_TTL_MS)
      queue.capacity = { atMs: now, count: this.#readCapacity(work) }
    return queue.capacity.count
  }

  /** Concurrent jobs that the pool can run; half of that while durable jobs wait for the same slots. */
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

/** How long the oldest job has waited so far, in ms. */
function waitedMs(waitEstimate: WaitEstimate<never> | WaitEstimate<QueuedJob>, now: number): number {
  const [oldest = now] = waitEstimate.waiting.values()
  return now - oldest
}

/** Jobs in fair order, with the number of jobs before each: one job of each tenant per round, in order of arrival. */
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
