import type { PoolName } from '#schemas/job.ts'
import { ServiceError } from '#shared/error.ts'
import type { Work } from '#shared/jobs/peers.ts'
import type { Line, Lines } from './lines.ts'
import type { Place } from './reservations.ts'

/** The part of the longest wait that those find who come back when they were told to: the rest is for what changes meanwhile. */
const BACK_PART = 0.8
/** The part below which whoever comes is let in, however many are expected back: some never come. */
const OPEN_PART = 0.5
/** Before that nobody should come back. */
const RETRY_MS_MIN = 1_000
/** And nobody is told to wait for longer: openai's SDKs then come when they like (docs/design.md, Turns). */
const RETRY_MS_MAX = 60_000

/** What {@link Gate} needs. */
export interface GateOptions {
  readonly lines: Pick<Lines, 'of' | 'estimateMs'>
  /** Longest wait that may be expected of a job when it is accepted. */
  readonly startTimeoutMs: number
  /** Jobs that would be run before a new one of a tenant. @param reserved Jobs of each tenant that are expected */
  readonly ahead: (asked: Asked, reserved: ReadonlyMap<string, number>) => number
}

/** Whose turn it is that a job would wait for. */
export type Asked = Work & { readonly pool: PoolName; readonly tenant: string; readonly body?: unknown }

const NONE: ReadonlyMap<string, number> = new Map()

/**
 * Refuses jobs that would wait too long, each with a time of its own to come back: that at which those before it have been run or
 * have come back themselves. Then it is let in, before any that are new (docs/design.md, Turns).
 */
export class Gate {
  readonly #options: GateOptions

  constructor(options: GateOptions) {
    this.#options = options
  }

  /** @throws ServiceError `overloaded`, with the time after which the job could start in time */
  admit(asked: Asked): void {
    const { startTimeoutMs, lines } = this.#options
    const { reservations } = lines.of(asked)
    const { tenant, body } = asked
    const now = Date.now()
    const place = reservations.counts.has(tenant) ? reservations.find(tenant, body, now) : undefined
    const isTurn = place !== undefined && this.#isTurn(place, now)
    const waitMs = this.estimateMs(asked)
    const mayEnter = isTurn ? waitMs <= startTimeoutMs : this.#isOpen(asked, waitMs)
    if (place && (mayEnter || isTurn)) reservations.drop(tenant, body)
    if (mayEnter) return
    // Who comes too early is told the same time again; who came in time waits for what is there, and for nobody who came later.
    if (place && !isTurn) {
      const backMs = place.isBack ? now + toldMs(place.atMs - now) : place.backMs
      reservations.tell(tenant, body, backMs)
      throw refusal(waitMs, backMs - now)
    }
    const wholeMs = place ? waitMs : this.estimateMs(asked, reservations.counts)
    const afterMs = Math.max(RETRY_MS_MIN, wholeMs - startTimeoutMs * BACK_PART)
    reservations.add(tenant, body, { atMs: now + afterMs, backMs: now + toldMs(afterMs) }, now)
    throw refusal(wholeMs, toldMs(afterMs))
  }

  /** How long a new job would wait, in milliseconds. @param reserved Jobs that are expected before it */
  estimateMs(asked: Asked, reserved = NONE): number {
    const ahead = this.#options.ahead(asked, reserved)
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
    return isDue || (isBack && atMs - now <= this.#options.startTimeoutMs * (1 - BACK_PART))
  }

  /** Whether a job may enter that has no place, or comes before its time. */
  #isOpen(asked: Asked, waitMs: number): boolean {
    const { startTimeoutMs } = this.#options
    if (waitMs > startTimeoutMs) return false
    if (waitMs <= startTimeoutMs * OPEN_PART) return true
    return this.estimateMs(asked, this.#lineOf(asked).reservations.counts) <= startTimeoutMs
  }

  #lineOf(job: Asked): Line {
    return this.#options.lines.of(job)
  }
}

/** What a caller hears that would wait too long. @param afterMs When it is to come back */
export function refusal(waitMs: number, afterMs: number): ServiceError {
  const seconds = Math.round(waitMs / 1_000)
  const message = `The queue is full: a call would wait about ${seconds} s.`
  return new ServiceError('overloaded', message, { retryAfterMs: toldMs(afterMs) })
}

/** The same for one that waits already and will not start in time. @param startTimeoutMs Longest wait that may be expected */
export function lateRefusal(waitMs: number, startTimeoutMs: number): ServiceError {
  return refusal(waitMs, waitMs - startTimeoutMs * BACK_PART)
}

function toldMs(ms: number): number {
  return Math.min(RETRY_MS_MAX, Math.max(RETRY_MS_MIN, ms))
}
