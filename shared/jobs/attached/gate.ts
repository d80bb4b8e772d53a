import type { PoolName } from '#schemas/job.ts'
import { ServiceError } from '#shared/error.ts'
import { type Work, workKey } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { Admission } from './admission.ts'
import { Reservations } from './reservations.ts'

/** The part of the longest wait that those find who come back when they were told to: the rest is for what changes meanwhile. */
const BACK_PART = 0.8
/** The part below which whoever comes is let in, however many are expected back: some never come. */
const OPEN_PART = 0.5

/** What {@link Gate} needs. */
export interface GateOptions {
  readonly presence: Presence
  /** Longest wait that may be expected of a job when it is accepted. */
  readonly startTimeoutMs: number
  /** Jobs that would be run before a new one of a tenant. @param reserved Jobs of each tenant that are expected */
  readonly ahead: (asked: Asked, reserved: ReadonlyMap<string, number>) => number
}

/** Whose turn it is that a job would wait for. */
export type Asked = Work & { readonly pool: PoolName; readonly tenant: string; readonly body?: unknown }

/** What is known of those that wait for the same places. */
interface Line {
  readonly admission: Admission
  readonly reservations: Reservations
}

const NONE: ReadonlyMap<string, number> = new Map()

/**
 * Refuses jobs that would wait too long, each with a time of its own to come back: that at which those before it have been run or
 * have come back themselves. Then it is let in, before any that are new (docs/design.md, Turns).
 */
export class Gate {
  readonly #options: GateOptions
  /** By pool, and by model where that has a bound of its own: a quick one says nothing of a slow one. */
  readonly #lines = new Map<string, Line>()

  constructor(options: GateOptions) {
    this.#options = options
  }

  /** @throws ServiceError `overloaded`, with the time after which the job could start in time */
  admit(asked: Asked): void {
    const { startTimeoutMs } = this.#options
    const { reservations } = this.#lineOf(asked)
    const { tenant, body } = asked
    const now = Date.now()
    const place = reservations.counts.has(tenant) ? reservations.find(tenant, body, now) : undefined
    const waitMs = this.estimateMs(asked)
    const mayEnter = place?.isDue ? waitMs <= startTimeoutMs : this.#isOpen(asked, waitMs)
    if (place && (mayEnter || place.isDue)) reservations.drop(tenant, body)
    if (mayEnter) return
    // Who comes too early is told the same time again; who came in time waits for what is there, and for nobody who came later.
    if (place && !place.isDue) throw refusal(waitMs, place.atMs - now)
    const wholeMs = place ? waitMs : this.estimateMs(asked, reservations.counts)
    const retryAfterMs = Math.max(1_000, wholeMs - startTimeoutMs * BACK_PART)
    reservations.add(tenant, body, now + retryAfterMs, now)
    throw refusal(wholeMs, retryAfterMs)
  }

  /** How long a new job would wait, in milliseconds. @param reserved Jobs that are expected before it */
  estimateMs(asked: Asked, reserved = NONE): number {
    const ahead = this.#options.ahead(asked, reserved)
    return ahead === 0 ? 0 : this.#lineOf(asked).admission.estimateMs(ahead, Date.now())
  }

  /** A job ended well: others like it need not wait as long. */
  completed(job: Asked): void {
    this.#lineOf(job).admission.completed(Date.now())
  }

  /** Whether a job may enter that has no place, or comes before its time. */
  #isOpen(asked: Asked, waitMs: number): boolean {
    const { startTimeoutMs } = this.#options
    if (waitMs > startTimeoutMs) return false
    if (waitMs <= startTimeoutMs * OPEN_PART) return true
    return this.estimateMs(asked, this.#lineOf(asked).reservations.counts) <= startTimeoutMs
  }

  #lineOf(job: Work & { readonly pool: PoolName }): Line {
    const isBounded = this.#options.presence.capacityOf(job.pool, job) !== undefined
    const key = isBounded ? `${job.pool} ${workKey(job)}` : job.pool
    const known = this.#lines.get(key)
    if (known) return known
    const line = { admission: new Admission(), reservations: new Reservations() }
    this.#lines.set(key, line)
    return line
  }
}

function refusal(waitMs: number, retryAfterMs: number): ServiceError {
  const seconds = Math.round(waitMs / 1_000)
  return new ServiceError('overloaded', `The queue is full: a call would wait about ${seconds} s.`, { retryAfterMs })
}
