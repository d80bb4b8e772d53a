import { setTimeout as delay } from 'node:timers/promises'
import type { ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import { writeDeadLetter } from '#shared/jobs/dead-letters.ts'
import { jobsTopic, readUnsupported, UnknownRecordLog, type UnsupportedJob } from '#shared/jobs/records.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Attempts, PoolObserver } from './attempt.ts'
import type { Lane, Poller } from './poller.ts'
import type { Reporter } from './reporter.ts'

const REQUEUE_TIMEOUT_MS = 5_000
/** Delay before a requeue, in ms. Without a delay, workers of old versions would requeue the record in a tight loop. */
const REQUEUE_DELAY_MS = { base: 150, spread: 200 }
/**
 * Delay in ms before a record is released if the dead-letter topic refused it. Without a delay, redeliveries would soon exhaust the broker's delivery
 * limit.
 */
const DEAD_LETTER_RETRY_MS = 5_000
const SEEN_MAX = 1_000

export interface UnsupportedJobsOptions {
  readonly broker: Broker
  readonly log: Log
  readonly pool: PoolName
  readonly poller: Poller
  readonly attempts: Attempts
  readonly reporter: Reporter
  readonly requeueForMs?: number | undefined
  readonly observer?: Pick<PoolObserver, 'onDeadLetter'>
}

/**
 * Jobs of a kind or format that this version does not support. During a rolling upgrade, a newer ingress sends jobs that only
 * newer workers can run.
 *
 * This worker appends the record to its queue again, unchanged, each time it receives the record. If the same job is still received after five
 * seconds, then the job is given up. Rejected alternative: releasing the record. A Kafka share group silently drops a record that was released too
 * often, and a classic group redelivers it to the same worker.
 */
export class UnsupportedJobs {
  readonly #options: UnsupportedJobsOptions
  readonly #skipped: UnknownRecordLog
  readonly #seen = new Map<string, number>()

  constructor(options: UnsupportedJobsOptions) {
    this.#options = options
    this.#skipped = new UnknownRecordLog(options.log)
  }

  onDelivery(lane: Lane, delivery: Delivery): void {
    const job = readUnsupported(delivery.value)
    if (!job) return this.#writeDeadLetter(delivery)
    const isOver = this.#options.attempts.wasJobCancelled(job) || job.deadline_ms < Date.now()
    if (isOver) return delivery.acknowledge()
    void this.#handle(lane, delivery, job)
  }

  async #handle(lane: Lane, delivery: Delivery, job: UnsupportedJob): Promise<void> {
    const { requeueForMs = REQUEUE_TIMEOUT_MS, poller } = this.#options
    // If no live worker supported the kind of this job within the timeout, then the job is given up.
    if (Date.now() - this.#firstSeen(job) > requeueForMs) return this.#giveUp(delivery, job)
    poller.enter(lane)
    await this.#requeue(lane, delivery, job)
    poller.leave(lane)
    poller.free()
  }

  async #requeue({ priority }: Lane, delivery: Delivery, job: UnsupportedJob): Promise<void> {
    const { broker, pool, poller } = this.#options
    this.#skipped.note('unsupported job requeued', job.kind.slice(0, 40))
    const signal = poller.stopped
    await delay(REQUEUE_DELAY_MS.base + Math.random() * REQUEUE_DELAY_MS.spread, undefined, { signal }).catch(() => {
      // The delay rejects only if the signal aborts. The record is then requeued at once.
    })
    // If this process crashes here, then the record exists twice. The owner of the job rejects the second start.
    await broker.submit(jobsTopic(pool, priority), delivery.value).then(
      () => delivery.acknowledge(),
      () => delivery.release(),
    )
  }

  /**
   * Sends an error to the caller of an attached call. A durable job stays in the store and is published again later.
   */
  #giveUp(delivery: Delivery, job: UnsupportedJob): void {
    if (!job.reply) return delivery.acknowledge()
    const events = this.#options.reporter.open({ ...job, reply: job.reply }, () => undefined)
    void events.started()
    void events.failed(UNKNOWN_KIND)
    this.#writeDeadLetter(delivery)
  }

  #writeDeadLetter(delivery: Delivery): void {
    const { broker, log, pool, observer } = this.#options
    observer?.onDeadLetter?.()
    log.error(
      { record_offset: delivery.position, bytes: delivery.value.length },
      'queue record is not supported; moving it to the dead letters',
    )
    writeDeadLetter(broker, pool, delivery.position, delivery.value).then(
      () => delivery.acknowledge(),
      (error: unknown) => {
        // If the record is too large for the dead-letter topic, then it is dropped, because it would otherwise be
        // redelivered forever. The log line above contains its position.
        if (ServiceError.from(error).code === 'request_too_large') return delivery.acknowledge()
        void delay(DEAD_LETTER_RETRY_MS, undefined, { ref: false }).then(() => delivery.release())
      },
    )
  }

  #firstSeen({ id, attempt }: UnsupportedJob): number {
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

/**
 * Error for a kind that no worker supports. The Retry-After is so long that no ingress retries the job, because every live worker has already
 * rejected the job.
 */
const UNKNOWN_KIND: ErrorBody = {
  code: 'overloaded',
  message: 'No running worker supports this kind of request: the service is being upgraded. Try again later.',
  param: null,
  retry_after_ms: 30_000,
  reason: 'no_worker',
}
