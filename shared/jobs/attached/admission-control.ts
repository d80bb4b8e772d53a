import type { PoolName } from '#schemas/job.ts'
import { ServiceError } from '#shared/error.ts'
import type { Work } from '#shared/jobs/peers.ts'
import type { ReservedTime } from './reservations.ts'
import type { WaitQueue, WaitQueues } from './wait-queues.ts'

/** Retry-After targets 80 % of `startTimeoutMs`; the other 20 % absorbs estimation error. */
const RETRY_TARGET_RATIO = 0.8
/**
 * If the wait without reservations is below 50 % of `startTimeoutMs`, then any caller is admitted: some reserved callers never
 * return.
 */
const OPEN_ADMISSION_RATIO = 0.5
/** Retry-After is 3 % later than the computed time, so that workers that were slower than estimated can catch up. */
const RETRY_AFTER_MARGIN = 1.03
/** Wait beyond `startTimeoutMs` that is accepted for a returning caller: 5 s, or half of `startTimeoutMs` if that is shorter. */
const RETURNING_GRACE_MS = 5_000
const RETURNING_GRACE_RATIO = 0.5
const RETRY_AFTER_MS_MIN = 1_000
/** Cap on Retry-After for unknown clients. Every known SDK honours 60 s. */
const RETRY_AFTER_MS_MAX = 60_000

export interface AdmissionControlOptions {
  readonly waitQueues: Pick<WaitQueues, 'of' | 'estimateMs'>
  readonly startTimeoutMs: number
  /**
   * Number of jobs that would run before a new job of the tenant.
   *
   * @param reserved Expected returning callers of each tenant, which count as waiting jobs
   * @param own Expected returning callers of the job's own tenant; default: its entry in `reserved`
   */
  readonly ahead: (asked: AdmissionRequest, reserved: ReadonlyMap<string, number>, own?: number) => number
}

export interface AdmissionRequest extends Work {
  readonly pool: PoolName
  readonly tenant: string
  readonly body?: unknown
  /** Longest `Retry-After` that this caller's SDK honours, in ms; default: one minute. */
  readonly retryMsMax?: number | undefined
}

const NONE: ReadonlyMap<string, number> = new Map()

/**
 * Admission control for attached jobs (docs/internals/design.md, Fairness).
 *
 * The problem: if a queue grows without bound, then every caller waits until its timeout and all work is wasted. If rejected
 * callers return at random, then new callers overtake them and some never get in.
 *
 * The invariant: an admitted job is expected to start within `startTimeoutMs`. A rejected caller that returns on time is admitted
 * before newer callers.
 *
 * How it works:
 * 1. Estimate the wait: jobs ahead in the fair queue, times the interval between two starts. Reserved callers count as if they
 *   waited.
 * 2. If the estimate fits `startTimeoutMs`, then admit the job.
 * 3. Otherwise reserve a position and reject with a Retry-After: the moment at which the remaining wait is 80 % of
 *   `startTimeoutMs`.
 * 4. If the caller returns when its reservation is due, then only earlier returning callers count as ahead. A grace of up to 5 s
 *   applies.
 *
 * Example: `startTimeoutMs` is 60 s and the estimate is 100 s. Then Retry-After is (100 − 48) × 1.03 = 53.6 s.
 *
 * Rejected alternative: a constant Retry-After. All rejected callers would return together, find the queue full and be rejected
 * again.
 */
export class AdmissionControl {
  readonly #options: AdmissionControlOptions

  constructor(options: AdmissionControlOptions) {
    this.#options = options
  }

  /** @throws ServiceError `overloaded`, with the Retry-After after which the job could start within `startTimeoutMs` */
  admit(asked: AdmissionRequest): void {
    const { startTimeoutMs, waitQueues } = this.#options
    const { reservations } = waitQueues.of(asked)
    const { tenant, body, retryMsMax } = asked
    const now = Date.now()
    const place = reservations.counts.has(tenant) ? reservations.find(tenant, body, now) : undefined
    const isDue = place !== undefined && this.#isDue(place, now)
    const waitMs = this.estimateMs(asked)
    // A returning caller queues only behind earlier returning callers that found the queue full. Counting them keeps the order
    // FIFO.
    const wholeMs = isDue
      ? this.estimateMs(asked, reservations.lateCounts, place.ahead)
      : this.estimateMs(asked, reservations.counts)
    const mayEnter = this.#isWithinLimit(
      waitMs,
      isDue ? wholeMs - Math.min(RETURNING_GRACE_MS, startTimeoutMs * RETURNING_GRACE_RATIO) : wholeMs,
    )
    if (place && mayEnter) reservations.drop(tenant, body)
    if (mayEnter) return
    // A caller that returns too early keeps its reserved time.
    if (place && !isDue) {
      const returnMs = place.hasReturned ? now + retryAfterOf(place.atMs - now, retryMsMax) : place.returnMs
      reservations.reserve(tenant, body, returnMs)
      throw refusal(waitMs, returnMs - now, retryMsMax)
    }
    const afterMs = Math.max(RETRY_AFTER_MS_MIN, (wholeMs - startTimeoutMs * RETRY_TARGET_RATIO) * RETRY_AFTER_MARGIN)
    const times = { atMs: now + afterMs, returnMs: now + retryAfterOf(afterMs, retryMsMax) }
    if (place) reservations.defer(tenant, body, times, now)
    else reservations.add(tenant, body, times, now)
    throw refusal(wholeMs, afterMs, retryMsMax)
  }

  /** Estimated wait of a new job, in ms. See {@link AdmissionControlOptions.ahead} for the parameters. */
  estimateMs(asked: AdmissionRequest, reserved = NONE, own?: number): number {
    const ahead = this.#options.ahead(asked, reserved, own)
    return ahead === 0 ? 0 : this.#options.waitQueues.estimateMs(asked, ahead)
  }

  /** Records a successful end, which updates the completion rate of the queue. */
  completed(job: AdmissionRequest): void {
    this.#queueOf(job).waitEstimate.completed(Date.now())
  }

  /**
   * True if the reservation is due. Also true if the caller honoured a capped Retry-After and its remaining wait fits the limit.
   */
  #isDue({ isDue, hasReturned: isBack, atMs }: ReservedTime, now: number): boolean {
    return isDue || (isBack && atMs - now <= this.#options.startTimeoutMs * (1 - RETRY_TARGET_RATIO))
  }

  /** @param wholeMs Estimated wait if every earlier reservation is used */
  #isWithinLimit(waitMs: number, wholeMs: number): boolean {
    const { startTimeoutMs } = this.#options
    return wholeMs <= startTimeoutMs || waitMs <= startTimeoutMs * OPEN_ADMISSION_RATIO
  }

  #queueOf(job: AdmissionRequest): WaitQueue {
    return this.#options.waitQueues.of(job)
  }
}

/** Alternative for callers that prefer to wait. After fruitless retries, SDKs show this text as their error. */
const AS_JOB = 'submit it as a durable job, which waits in its queue (Prefer: respond-async)'

/**
 * @param waitMs Estimated wait, for the message @param afterMs Computed Retry-After @param mostMs Cap that the caller's SDK
 * honours
 */
function refusal(waitMs: number, afterMs: number, mostMs?: number): ServiceError {
  const retryAfterMs = retryAfterOf(afterMs, mostMs)
  const [wait, back] = [Math.round(waitMs / 1_000), Math.ceil(retryAfterMs / 1_000)]
  const message = `The queue is full: a call would wait about ${wait} s. Try again in ${back} s, or ${AS_JOB}.`
  return new ServiceError('overloaded', message, { retryAfterMs })
}

/**
 * The rejection of a job that already waits and will not start in time. @param waitMs Remaining wait @param startTimeoutMs
 * Maximum wait
 */
export function lateRefusal(waitMs: number, startTimeoutMs: number): ServiceError {
  return refusal(waitMs, waitMs - startTimeoutMs * RETRY_TARGET_RATIO)
}

function retryAfterOf(ms: number, mostMs = RETRY_AFTER_MS_MAX): number {
  return Math.min(mostMs, Math.max(RETRY_AFTER_MS_MIN, ms))
}
