import { setTimeout as delay } from 'node:timers/promises'
import type { ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { bury } from '#shared/jobs/dead-letters.ts'
import { type ForeignJob, readForeign } from '#shared/jobs/records.ts'
import { jobsTopic } from '#shared/jobs/topics.ts'
import { UnknownRecordLog } from '#shared/jobs/unknown-record-log.ts'
import type { Log } from '#shared/log/log.ts'
import type { Attempts } from './attempts.ts'
import type { Lane, Poller } from './poller.ts'
import type { Reporter } from './reporter/reporter.ts'

/** How long a job that this worker does not know is passed on, from when it was first seen here. */
const PASS_ON_MS = 5_000
/** How long it is kept before it goes back: one that only old workers could take must not run in circles. */
const REQUEUE_DELAY_MS = { base: 150, spread: 200 }
/** How long a record that could not be buried is kept before somebody tries again; the broker counts those tries. */
const BURY_AGAIN_MS = 5_000
/** Jobs whose first sight is remembered; the oldest are forgotten first. */
const SEEN_MAX = 1_000

/** What {@link UnsupportedJobs} needs. */
export interface ForeignOptions {
  readonly broker: Broker
  readonly log: Log
  readonly pool: PoolName
  readonly taking: Poller
  readonly attempts: Attempts
  readonly reporter: Reporter
  /** Default: 5 s. */
  readonly passOnMs?: number | undefined
}

/**
 * Jobs that this worker cannot run and another one may: while a fleet is upgraded, a newer ingress sends kinds of job, or
 * forms of them, that only newer workers know.
 *
 * Such a record goes to the end of its queue, as it came, for whoever takes it next, until this worker has seen the job for a
 * few seconds. It is put there anew rather than released: a share group drops a record without a word that was released too
 * often, and a classic group gives it to the same worker again.
 */
export class UnsupportedJobs {
  readonly #options: ForeignOptions
  readonly #skipped: UnknownRecordLog
  readonly #seen = new Map<string, number>()

  constructor(options: ForeignOptions) {
    this.#options = options
    this.#skipped = new UnknownRecordLog(options.log)
  }

  /** Takes a record that this version cannot run. What cannot be read by any is buried. */
  onDelivery(lane: Lane, delivery: Delivery): void {
    const job = readForeign(delivery.value)
    if (!job) return this.#bury(delivery)
    const isOver = this.#options.attempts.wasJobCancelled(job) || job.deadline_ms < Date.now()
    if (isOver) return delivery.acknowledge()
    void this.#handle(lane, delivery, job)
  }

  async #handle(lane: Lane, delivery: Delivery, job: ForeignJob): Promise<void> {
    const { passOnMs = PASS_ON_MS, taking } = this.#options
    // It has gone round for long enough: nobody who knows it seems to be there.
    if (Date.now() - this.#firstSeen(job) > passOnMs) return this.#giveUp(delivery, job)
    taking.enter(lane)
    await this.#passOn(lane, delivery, job)
    taking.leave(lane)
    taking.free()
  }

  /** Passes a job on, once. */
  async #passOn({ priority }: Lane, delivery: Delivery, job: ForeignJob): Promise<void> {
    const { broker, pool, taking } = this.#options
    this.#skipped.note('job of another version passed on', job.kind.slice(0, 40))
    const signal = taking.stopped
    await delay(REQUEUE_DELAY_MS.base + Math.random() * REQUEUE_DELAY_MS.spread, undefined, { signal }).catch(() => {
      // Only the abort can reject: the record goes back at once.
    })
    // Twice in the queue, should this process die in between, costs no more than a second start that is refused.
    await broker.submit(jobsTopic(pool, priority), delivery.value).then(
      () => delivery.acknowledge(),
      () => delivery.release(),
    )
  }

  /** Its caller is told; a durable job waits in the store, whence it is published again. */
  #giveUp(delivery: Delivery, job: ForeignJob): void {
    if (!job.reply) return delivery.acknowledge()
    const events = this.#options.reporter.open({ ...job, reply: job.reply }, () => undefined)
    void events.started()
    void events.failed(UNKNOWN_KIND)
    this.#bury(delivery)
  }

  /** A record nobody can read goes to `dead`, raw; the queue moves on. */
  #bury(delivery: Delivery): void {
    const { broker, log, pool } = this.#options
    log.error({ position: delivery.position, bytes: delivery.value.length }, 'record not understood')
    bury(broker, pool, delivery.position, delivery.value).then(
      () => delivery.acknowledge(),
      (error: unknown) => {
        // What `dead` will never take would come back for ever; the line above has its position.
        if (ServiceError.from(error).code === 'request_too_large') return delivery.acknowledge()
        void delay(BURY_AGAIN_MS, undefined, { ref: false }).then(() => delivery.release())
      },
    )
  }

  #firstSeen({ id, attempt }: ForeignJob): number {
    const key = `${id}:${attempt}`
    const known = this.#seen.get(key)
    if (known !== undefined) return known
    const now = Date.now()
    this.#seen.set(key, now)
    for (const oldest of this.#seen.keys()) {
      if (this.#seen.size <= SEEN_MAX) break
      this.#seen.delete(oldest)
    }
    return now
  }
}

/** The wait is longer than an ingress makes on its caller's behalf: every worker there is has been tried. */
const UNKNOWN_KIND: ErrorBody = {
  code: 'overloaded',
  message: 'No worker that runs knows this kind of request: the service is being upgraded. Try again later.',
  param: null,
  retry_after_ms: 30_000,
}
