import type { ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import { ServiceError } from '#shared/error.ts'
import { type Work, workKey } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { AttachedJob } from './attached-job.ts'
import type { Sender } from './sender.ts'

/** How far back completions count. */
const WINDOW_MS = 30_000
/** Completions are counted by the second, so that a busy ingress holds thirty numbers and not a hundred thousand times. */
const BUCKET_MS = 1_000
/** Completions below which the rate says nothing. */
const SAMPLES_MIN = 20
/** Before that nobody should ask again whom a pool had no slot for. */
const RETRY_MS_MIN = 5_000

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

/** What {@link Admissions} need. */
export interface AdmissionsOptions {
  readonly presence: Presence
  readonly sender: Sender
  /** Longest wait that may be expected of a job when it is accepted. */
  readonly startTimeoutMs: number
}

/** Whose turn it is that a job would wait for. */
type Asked = Work & { readonly pool: PoolName; readonly tenant: string }

/** Refuses the jobs that would wait too long, and those that waited and that nobody will start. */
export class Admissions {
  readonly #options: AdmissionsOptions
  /** By pool, and by model where that has a bound of its own: a quick one says nothing of a slow one. */
  readonly #admissions = new Map<string, Admission>()

  constructor(options: AdmissionsOptions) {
    this.#options = options
  }

  /**
   * What cannot start in time is refused now, with the time after which it could (± 20 %, so that not all come back at once).
   *
   * @throws ServiceError `overloaded`
   */
  require(asked: Asked): void {
    const { startTimeoutMs } = this.#options
    const waitMs = this.#estimateMs(asked)
    if (waitMs <= startTimeoutMs) return
    const retryAfterMs = (waitMs - startTimeoutMs) * (0.8 + 0.4 * Math.random())
    const seconds = Math.round(waitMs / 1_000)
    throw new ServiceError('overloaded', `The queue is full: a call would wait about ${seconds} s.`, { retryAfterMs })
  }

  /** What the caller of a job hears that nobody will start; undefined while somebody may. @param waitMs How long it waited */
  unstartedError(job: AttachedJob, waitMs: number): ErrorBody | undefined {
    const why = whyUnstarted(this.#options.presence, job, waitMs)
    if (why === undefined) return undefined
    const retry_after_ms = Math.max(RETRY_MS_MIN, this.#estimateMs(job.envelope))
    return { code: 'overloaded', message: `${why} Try again later.`, param: null, retry_after_ms }
  }

  /** The rate at which jobs end that take the same places. */
  of(job: Omit<Asked, 'tenant'>): Admission {
    const isBounded = this.#options.presence.capacityOf(job.pool, job) !== undefined
    const key = isBounded ? `${job.pool} ${workKey(job)}` : job.pool
    const known = this.#admissions.get(key)
    if (known) return known
    const admission = new Admission()
    this.#admissions.set(key, admission)
    return admission
  }

  /** How long a new job would wait, in milliseconds. */
  #estimateMs(asked: Asked): number {
    return this.of(asked).estimateMs(this.#options.sender.ahead(asked), Date.now())
  }
}

function whyUnstarted(presence: Presence, { envelope, sentAtMs }: AttachedJob, waitMs: number): string | undefined {
  const { pool, model } = envelope
  if (presence.workers(pool).length === 0) return `No ${pool} worker is running.`
  if (!presence.hasModel(pool, model)) return `No ${pool} worker has the model '${model}'.`
  // The broker may lose what it has taken.
  const isLost = sentAtMs !== undefined && Date.now() - sentAtMs >= waitMs && presence.freeSlots(pool) > 0
  return isLost ? 'No worker has taken the request.' : undefined
}
