import type { PoolName } from '#schemas/job.ts'
import { type Work, workKey } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { Reservations } from './reservations.ts'
import { WaitEstimate } from './wait-estimate.ts'

/** A waiting job is rejected only if its estimate exceeds twice the maximum wait, because estimates err. */
const LATE_FACTOR = 2
/** Cache lifetime of the capacity: read on every call, updated less often. */
const CAPACITY_TTL_MS = 100

export interface QueuedJob {
  readonly envelope: Work & { readonly pool: PoolName; readonly tenant: string }
  /** Undefined until the job was sent to its pool. */
  readonly sentAtMs: number | undefined
}

export interface WaitQueue<Job extends QueuedJob = QueuedJob> {
  readonly admission: WaitEstimate<Job>
  readonly reservations: Reservations
  /** True for the queue of one model whose own concurrency limit is below the number of slots. */
  readonly isBounded: boolean
  servedSentAtMs: number
  places: { readonly atMs: number; readonly count: number } | undefined
}

export interface LateJob<Job> {
  readonly job: Job
  readonly waitMs: number
}

type LinesPresence = Pick<Presence, 'capacityOf' | 'slots' | 'workers'>

/** Wait estimates and reservations: one set for each pool, and one for each model that has its own concurrency limit. */
export class WaitQueues<Job extends QueuedJob = QueuedJob> {
  readonly #presence: LinesPresence
  /**
   * By pool, or by pool and model if the model has its own limit. Durations of a fast model do not predict those of a slow one.
   */
  readonly #lines = new Map<string, WaitQueue<Job>>()
  /**
   * The queue in which each job was counted. The limit of a model may become known while jobs wait; those jobs stay in their
   * queue.
   */
  readonly #lineOf = new WeakMap<Job, WaitQueue<Job>>()

  constructor(presence: LinesPresence) {
    this.#presence = presence
  }

  of(work: QueuedJob['envelope'] | (Work & { readonly pool: PoolName })): WaitQueue<Job> {
    const isBounded = this.#presence.capacityOf(work.pool, work) !== undefined
    const key = isBounded ? `${work.pool} ${workKey(work)}` : work.pool
    const known = this.#lines.get(key)
    if (known) return known
    const line: WaitQueue<Job> = {
      admission: new WaitEstimate(),
      reservations: new Reservations(),
      isBounded,
      servedSentAtMs: 0,
      places: undefined,
    }
    this.#lines.set(key, line)
    return line
  }

  entered(job: Job): void {
    this.#lineOf.get(job)?.admission.forget(job)
    const line = this.of(job.envelope)
    this.#lineOf.set(job, line)
    line.admission.entered(job, Date.now())
  }

  started(job: Job): void {
    const line = this.#lineOf.get(job)
    line?.admission.started(job, Date.now())
    if (line) line.servedSentAtMs = Math.max(line.servedSentAtMs, job.sentAtMs ?? 0)
  }

  left(job: Job): void {
    this.#lineOf.get(job)?.admission.left(job, Date.now())
    this.#lineOf.delete(job)
  }

  /** Estimated wait of a new job, in ms. @param ahead Jobs that would run before it */
  estimateMs(work: Work & { readonly pool: PoolName }, ahead: number): number {
    const line = this.of(work)
    return line.admission.estimateMs(ahead, Date.now(), this.#placesOf(line, work))
  }

  /**
   * True if the broker may have lost a job that was sent long ago. A job of a limited model may instead wait at a worker for its
   * bulkhead. That is possible while some job runs and no later job has started.
   */
  mayBeLost(job: Job): boolean {
    const line = this.#lineOf.get(job)
    if (!line?.isBounded || (job.sentAtMs ?? 0) < line.servedSentAtMs) return true
    return this.#presence.workers(job.envelope.pool).every(({ running }) => running === 0)
  }

  /** Jobs whose total wait will exceed the maximum by far, by their position in the fair order. */
  *late(waitMsMax: number): Generator<LateJob<Job>> {
    const now = Date.now()
    for (const line of this.#lines.values()) {
      const { admission } = line
      const [first] = admission.waiting.keys()
      const everyMs = first && admission.everyMs(now, this.#placesOf(line, first.envelope))
      if (!everyMs || admission.waiting.size * everyMs + waitedMs(admission, now) <= LATE_FACTOR * waitMsMax) continue
      for (const [job, before] of inTurn([...admission.waiting.keys()])) {
        const waitMs = before * everyMs
        if (now - (admission.waiting.get(job) ?? now) + waitMs > LATE_FACTOR * waitMsMax) yield { job, waitMs }
      }
    }
  }

  #placesOf(line: WaitQueue<Job>, work: Work & { readonly pool: PoolName }): number {
    const now = Date.now()
    if (!line.places || now - line.places.atMs >= CAPACITY_TTL_MS)
      line.places = { atMs: now, count: this.#places(work) }
    return line.places.count
  }

  /** Concurrent jobs that the pool can run; half of that while durable jobs wait for the same slots. */
  #places(work: Work & { readonly pool: PoolName }): number {
    const { pool, kind, model } = work
    const bound = this.#presence.capacityOf(pool, work)
    const isShared = this.#presence.workers(pool).some(({ draining, isSilent, capacity }) => {
      if (draining || isSilent) return false
      return capacity?.waiting.some((one) => bound === undefined || (one.kind === kind && one.model === model))
    })
    const places = bound ?? this.#presence.slots(pool)
    return isShared ? Math.ceil(places / 2) : places
  }
}

/** Wait of the oldest job so far. */
function waitedMs(admission: WaitEstimate<never> | WaitEstimate<QueuedJob>, now: number): number {
  const [oldest = now] = admission.waiting.values()
  return now - oldest
}

/** Jobs in fair order, with the number of jobs before each: one job of each tenant per round, in order of arrival. */
function inTurn<Job extends QueuedJob>(jobs: readonly Job[]): [Job, number][] {
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
