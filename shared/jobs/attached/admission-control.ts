import type { PoolName } from '#schemas/job.ts'
import { ServiceError } from '#shared/error.ts'
import type { Work } from '#shared/jobs/peers.ts'
import type { Place } from './reservations.ts'
import type { WaitQueue, WaitQueues } from './wait-queues.ts'

/** The part of the longest wait that those find who come back when they were told to: the rest is for what changes meanwhile. */
const RETRY_TARGET_RATIO = 0.8
/** The part below which whoever comes is let in, however many are expected back: some never come. */
const OPEN_ADMISSION_RATIO = 0.5
/** Callers are told to come back a little after their turn is expected, so that a fleet that ran fewer jobs than expected catches up. */
const RETRY_AFTER_MARGIN = 1.03
/** A caller that comes in its turn is let in though it must wait so much longer than the longest wait: in milliseconds, and as a part of that. */
const RETURNING_GRACE_MS = 5_000
const RETURNING_GRACE_RATIO = 0.5
/** Before that nobody should come back. */
const RETRY_MS_MIN = 1_000
/** The longest time that is told to a caller of whom nobody said what it obeys: every SDK obeys it. */
const RETRY_MS_MAX = 60_000

/** What {@link AdmissionControl} needs. */
export interface AdmissionControlOptions {
  readonly lines: Pick<WaitQueues, 'of' | 'estimateMs'>
  /** Longest wait that may be expected of a job when it is accepted. */
  readonly startTimeoutMs: number
  /**
   * Jobs that would be run before a new one of a tenant.
   *
   * @param reserved Jobs of each tenant that are expected
   * @param own Those of this tenant that are expected before it, if not all
   */
  readonly ahead: (asked: Asked, reserved: ReadonlyMap<string, number>, own?: number) => number
}

/** Whose turn it is that a job would wait for. */
export interface Asked extends Work {
  readonly pool: PoolName
  readonly tenant: string
  readonly body?: unknown
  /** The longest `Retry-After` that its caller obeys, in milliseconds; default: a minute. */
  readonly retryMsMax?: number | undefined
}

const NONE: ReadonlyMap<string, number> = new Map()

/**
 * Refuses jobs that would wait too long, each with a time of its own to come back: that at which those before it have been run or
 * have come back themselves. Then it is let in, before any that are new (docs/design.md, Turns).
 */
export class AdmissionControl {
  readonly #options: AdmissionControlOptions

  constructor(options: AdmissionControlOptions) {
    this.#options = options
  }

  /** @throws ServiceError `overloaded`, with the time after which the job could start in time */
  admit(asked: Asked): void {
    const { startTimeoutMs, lines } = this.#options
    const { reservations } = lines.of(asked)
    const { tenant, body, retryMsMax } = asked
    const now = Date.now()
    const place = reservations.counts.has(tenant) ? reservations.find(tenant, body, now) : undefined
    const isTurn = place !== undefined && this.#isTurn(place, now)
    const waitMs = this.estimateMs(asked)
    // In its turn a caller is behind those only who came in theirs and found no room. Without these it would overtake them by chance.
    const wholeMs = isTurn
      ? this.estimateMs(asked, reservations.lateCounts, place.before)
      : this.estimateMs(asked, reservations.counts)
    const mayEnter = this.#isOpen(
      waitMs,
      isTurn ? wholeMs - Math.min(RETURNING_GRACE_MS, startTimeoutMs * RETURNING_GRACE_RATIO) : wholeMs,
    )
    if (place && mayEnter) reservations.drop(tenant, body)
    if (mayEnter) return
    // Who comes too early is told the same time again.
    if (place && !isTurn) {
      const backMs = place.isBack ? now + toldMs(place.atMs - now, retryMsMax) : place.backMs
      reservations.reserve(tenant, body, backMs)
      throw refusal(waitMs, backMs - now, retryMsMax)
    }
    const afterMs = Math.max(RETRY_MS_MIN, (wholeMs - startTimeoutMs * RETRY_TARGET_RATIO) * RETRY_AFTER_MARGIN)
    const times = { atMs: now + afterMs, backMs: now + toldMs(afterMs, retryMsMax) }
    if (place) reservations.defer(tenant, body, times, now)
    else reservations.add(tenant, body, times, now)
    throw refusal(wholeMs, afterMs, retryMsMax)
  }

  /** How long a new job would wait, in milliseconds. See {@link AdmissionControlOptions.ahead} */
  estimateMs(asked: Asked, reserved = NONE, own?: number): number {
    const ahead = this.#options.ahead(asked, reserved, own)
    return ahead === 0 ? 0 : this.#options.lines.estimateMs(asked, ahead)
  }

  /** A job ended well: others like it need not wait as long. */
  completed(job: Asked): void {
    this.#lineOf(job).admission.completed(Date.now())
  }

  /**
   * Whether a place may be taken: its time has come, or its caller came when it was told to, sooner than that since it was told the
   * longest time that is obeyed, and would not wait longer than may be.
   */
  #isTurn({ isDue, isBack, atMs }: Place, now: number): boolean {
    return isDue || (isBack && atMs - now <= this.#options.startTimeoutMs * (1 - RETRY_TARGET_RATIO))
  }

  /** Whether a job may enter. @param wholeMs What it would wait if all came that are expected before it */
  #isOpen(waitMs: number, wholeMs: number): boolean {
    const { startTimeoutMs } = this.#options
    return wholeMs <= startTimeoutMs || waitMs <= startTimeoutMs * OPEN_ADMISSION_RATIO
  }

  #lineOf(job: Asked): WaitQueue {
    return this.#options.lines.of(job)
  }
}

/** For who would rather wait than come back. SDKs that came back in vain show this as their error. */
const AS_JOB = 'hand it in as a job, which waits for its turn (Prefer: respond-async)'

/** What a caller hears that would wait too long. @param afterMs When it is to come back @param mostMs The longest time that it obeys */
function refusal(waitMs: number, afterMs: number, mostMs?: number): ServiceError {
  const retryAfterMs = toldMs(afterMs, mostMs)
  const [wait, back] = [Math.round(waitMs / 1_000), Math.ceil(retryAfterMs / 1_000)]
  const message = `The queue is full: a call would wait about ${wait} s. Try again in ${back} s, or ${AS_JOB}.`
  return new ServiceError('overloaded', message, { retryAfterMs })
}

/** The same for one that waits already and will not start in time. @param startTimeoutMs Longest wait that may be expected */
export function lateRefusal(waitMs: number, startTimeoutMs: number): ServiceError {
  return refusal(waitMs, waitMs - startTimeoutMs * RETRY_TARGET_RATIO)
}

function toldMs(ms: number, mostMs = RETRY_MS_MAX): number {
  return Math.min(mostMs, Math.max(RETRY_MS_MIN, ms))
}
