import type { PoolName } from '#schemas/job.ts'
import { type Work, workKey } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { Reservations } from './reservations.ts'
import { WaitEstimate } from './wait-estimate.ts'

/** How many times its longest wait a job is let wait before it is said to be too late: estimates err. */
const LATE_FACTOR = 2
/** How long it serves how many places there are: it is asked for every call, and workers tell it less often. */
const CAPACITY_TTL_MS = 100

/** What a line sees of a job. */
export interface QueuedJob {
  readonly envelope: Work & { readonly pool: PoolName; readonly tenant: string }
  /** When it was put into the queue of its pool; undefined before that. */
  readonly sentAtMs: number | undefined
}

/** What is known of jobs that wait for the same places. */
export interface WaitQueue<Job extends QueuedJob = QueuedJob> {
  readonly admission: WaitEstimate<Job>
  readonly reservations: Reservations
  /** Jobs of one model alone, which runs fewer at once than there are slots. */
  readonly isBounded: boolean
  /** When the youngest was sent of those that have started. */
  servedSentAtMs: number
  /** Jobs that run at once, as of a time. */
  places: { readonly atMs: number; readonly count: number } | undefined
}

/** A job that will not start in time. */
export interface LateJob<Job> {
  readonly job: Job
  /** How long it would still wait, in milliseconds. */
  readonly waitMs: number
}

/** What {@link WaitQueues} need of the control channel. */
type LinesPresence = Pick<Presence, 'capacityOf' | 'slots' | 'workers'>

/** The lines before the places of workers: one for each pool, and for each model that has a bound of its own. */
export class WaitQueues<Job extends QueuedJob = QueuedJob> {
  readonly #presence: LinesPresence
  /** By pool, and by model where that has a bound of its own: a quick one says nothing of a slow one. */
  readonly #lines = new Map<string, WaitQueue<Job>>()
  /** A bound may be heard of when jobs of its model wait already: they leave the line that they are in. */
  readonly #lineOf = new WeakMap<Job, WaitQueue<Job>>()

  constructor(presence: LinesPresence) {
    this.#presence = presence
  }

  /** The line that a new job would wait in. */
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

  /** A job waits, maybe again. */
  entered(job: Job): void {
    this.#lineOf.get(job)?.admission.forget(job)
    const line = this.of(job.envelope)
    this.#lineOf.set(job, line)
    line.admission.entered(job, Date.now())
  }

  /** A worker has the job. */
  started(job: Job): void {
    const line = this.#lineOf.get(job)
    line?.admission.started(job, Date.now())
    if (line) line.servedSentAtMs = Math.max(line.servedSentAtMs, job.sentAtMs ?? 0)
  }

  /** A job waits and runs no more. */
  left(job: Job): void {
    this.#lineOf.get(job)?.admission.left(job, Date.now())
    this.#lineOf.delete(job)
  }

  /** How long a new job would wait, in milliseconds. @param ahead Jobs that would be run before it */
  estimateMs(work: Work & { readonly pool: PoolName }, ahead: number): number {
    const line = this.of(work)
    return line.admission.estimateMs(ahead, Date.now(), this.#placesOf(line, work))
  }

  /**
   * Whether the queue may have lost a job that was sent long ago. One of a model with a bound waits at a worker for its place, as
   * long as something runs and none that was sent later has started.
   */
  mayBeLost(job: Job): boolean {
    const line = this.#lineOf.get(job)
    if (!line?.isBounded || (job.sentAtMs ?? 0) < line.servedSentAtMs) return true
    return this.#presence.workers(job.envelope.pool).every(({ running }) => running === 0)
  }

  /** Jobs that must be expected to wait far longer than they may, by where they stand in turn of their tenants. */
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

  /** Jobs that run at once; half of the places while durable jobs wait for them. */
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

/** How long the job waits that came first. */
function waitedMs(admission: WaitEstimate<never> | WaitEstimate<QueuedJob>, now: number): number {
  const [oldest = now] = admission.waiting.values()
  return now - oldest
}

/** Jobs with how many go before each: one of each tenant in every round, in the order in which they came. */
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
