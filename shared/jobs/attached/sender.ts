/*
 * Sends attached jobs to the topics of their pools.
 *
 * The problem: the queue of the broker serves jobs in order of arrival. If every job were sent on arrival, then one tenant could delay all
 * others.
 *
 * How it works: the prefetch of an ingress is its maximum of published jobs that no worker has started. A job is published at once if no
 * other job waits and the prefetch is not used up. Otherwise the job waits in the fair queue of its pool (`tenant-dispatcher.ts`), which
 * releases one job of each tenant in rotation. The prefetch is the number of free slots, or a quarter of all slots if that is more. In a
 * full pool, a new call therefore waits behind few other jobs. Several ingresses divide the prefetch in proportion to their waiting
 * tenants.
 *
 * The body stays in memory if the job starts at once in this process and a memory budget has reserved memory for it. The body of a waiting
 * job is stored for all attempts, so that waiting jobs need little memory.
 *
 * If the broker is unreachable, then a new job is refused at once. A job that the fair queue has already released returns to the head of
 * the queue.
 */

import type { ErrorBody } from '#schemas/error.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { AdmissionControl, AdmissionRequest } from '#shared/capacity/admission-control.ts'
import { SlotPartition, type WaitingCalls } from '#shared/capacity/slots.ts'
import { TenantDispatcher } from '#shared/capacity/tenant-dispatcher.ts'
import { recordOf, storeBody } from '#shared/jobs/body.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Log } from '#shared/log/log.ts'
import type { AttachedJob, NewAttachedJob } from './attached-job.ts'

/**
 * Minimum prefetch of a pool, in jobs: 3 for a single ingress. Several ingresses divide 4 among them. Without prefetch, slots of a small
 * pool would be idle, because a round trip to the broker may take longer than a job.
 */
const PREFETCH_MIN = { alone: 3, shared: 4 }
const DISPATCH_INTERVAL_MS = 1_000
/** Minimum Retry-After, in ms, of a job that no live worker can start. */
const RETRY_AFTER_MS_MIN = 5_000

export interface SenderOptions {
  readonly boot: string
  readonly broker: Broker
  readonly blobs: Blobs
  readonly presence: Presence
  readonly admission: AdmissionControl<AttachedJob>
  readonly log: Log
  readonly startTimeoutMs: number
  /** Called if a reachable broker rejected an attempt that the fair queue had released. */
  readonly onUnsent: (job: AttachedJob, error: unknown) => void
}

export class Sender {
  readonly #options: SenderOptions
  readonly #dispatchers = new Map<PoolName, TenantDispatcher<AttachedJob>>()
  readonly #partition: SlotPartition
  readonly #stopDispatch: () => void

  constructor(options: SenderOptions) {
    this.#options = options
    const { boot, presence } = options
    const sendAll = () => {
      for (const [pool, turns] of this.#dispatchers) if (turns.hasWaiting) void this.#sendNext(pool)
    }
    const waiting = () => this.#waiting()
    this.#partition = new SlotPartition({
      boot,
      publish: (record) => presence.send(record),
      waiting,
      onChange: sendAll,
    })
    this.#stopDispatch = atAlignedInterval(DISPATCH_INTERVAL_MS, sendAll)
  }

  onControl(record: ControlRecord): void {
    if (record.type === 'calls_waiting') this.#partition.receive(record)
  }

  /** Number of jobs that would run before a new job. */
  ahead(asked: AdmissionRequest): number {
    return this.#dispatcherOf(asked.pool).ahead(asked.tenant, asked)
  }

  /**
   * Returns the error for a job that no live worker can start. Undefined if a live worker can still start the job.
   *
   * @param waitMs Time that the job has waited
   */
  unstartedError(job: AttachedJob, waitMs: number): ErrorBody | undefined {
    const why = unstartedReason(this.#options.presence, job, waitMs)
    if (why === undefined) return undefined
    const retry_after_ms = Math.max(
      RETRY_AFTER_MS_MIN,
      this.#options.admission.estimateMs(job.envelope, this.ahead(job.envelope)),
    )
    return { code: 'overloaded', message: `${why} Try again later.`, param: null, retry_after_ms, reason: 'no_worker' }
  }

  /**
   * Sends a new job, or adds it to the fair queue. Resolves when the broker has the record, or at once if the job has to wait.
   *
   * @throws ServiceError `overloaded` if a queue is full or the broker is unreachable
   */
  async accept(job: AttachedJob, { body, heldBytes }: Pick<NewAttachedJob, 'body' | 'heldBytes'>): Promise<void> {
    const { broker, blobs } = this.#options
    if (broker.enqueueLocal && broker.isReachable && heldBytes !== undefined) {
      job.stored = { value: body, bytes: heldBytes }
      const sending = this.#enter(job)
      if (sending) return await sending
      this.#dispatcherOf(job.envelope.pool).leave(job)
      job.stored = undefined
    }
    const storing = storeBody(job.id, body, blobs)
    const stored = storing instanceof Promise ? await storing : storing
    job.stored = stored
    if (job.state !== 'done') await (broker.isReachable ? this.#enter(job) : this.#publish(job))
    else if ('blob' in stored) this.dropBlob(job.id)
  }

  /**
   * Publishes a job, or adds it to the fair queue.
   *
   * @returns A promise that settles when the broker has the job. Undefined if the job waits in the fair queue
   */
  #enter(job: AttachedJob): Promise<void> | undefined {
    const { pool } = job.envelope
    const turns = this.#dispatcherOf(pool)
    if (turns.sendAtOnce(job)) return this.#publish(job)
    turns.enter(job)
    return this.#sendNext(pool, job)
  }

  sendAgain(job: AttachedJob): void {
    const { pool } = job.envelope
    this.#dispatcherOf(pool).leave(job)
    this.#dispatcherOf(pool).enterFirst(job)
    void this.#sendNext(pool)
  }

  start(job: AttachedJob): void {
    const turns = this.#dispatcherOf(job.envelope.pool)
    if (turns.start(job) && turns.hasWaiting) void this.#sendNext(job.envelope.pool)
  }

  leave(job: AttachedJob): void {
    const turns = this.#dispatcherOf(job.envelope.pool)
    if (turns.leave(job) && turns.hasWaiting) void this.#sendNext(job.envelope.pool)
  }

  /**
   * Number of jobs of a pool that wait in the fair queues of all ingresses. The counts of other ingresses are those of their last
   * reports.
   */
  callsWaiting(pool: PoolName): number {
    return this.#dispatcherOf(pool).waiting + this.#partition.callsElsewhere(pool)
  }

  waitingOf(pool: PoolName, model: string): number {
    return this.#dispatcherOf(pool).waitingOf(model)
  }

  forget(jobs: Iterable<AttachedJob>): void {
    for (const job of jobs) this.#dispatcherOf(job.envelope.pool).leave(job)
  }

  dropBlob(id: string): void {
    this.#options.blobs.delete(id).catch((error: unknown) => {
      this.#options.log.warn({ err: error, job_id: id }, 'blob could not be deleted; the deletion is retried later')
    })
  }

  close(): void {
    this.#stopDispatch()
    this.#partition.close()
  }

  #dispatcherOf(pool: PoolName): TenantDispatcher<AttachedJob> {
    const known = this.#dispatchers.get(pool)
    if (known) return known
    const { broker, presence } = this.#options
    const partition = this.#partition
    const turns = new TenantDispatcher<AttachedJob>(pool, {
      presence,
      partition,
      prefetch(running) {
        if (!broker.isReachable) return undefined
        const share = partition.of(pool)
        const slots = presence.slots(pool)
        const least = slots === 0 || share < 1 ? PREFETCH_MIN.shared : PREFETCH_MIN.alone
        // The last heartbeat of a worker may report a slot as free that a job of this ingress has taken since. The number of free slots is
        // therefore limited to all slots minus the running jobs of this ingress.
        return Math.max(least, slots / 4, Math.min(presence.freeSlots(pool), slots - running)) * share
      },
    })
    this.#dispatchers.set(pool, turns)
    return turns
  }

  *#waiting(): Generator<WaitingCalls> {
    for (const [pool, turns] of this.#dispatchers) for (const calls of turns.calls()) yield { pool, ...calls }
  }

  /**
   * Publishes every job that may be sent now.
   *
   * @param own Job of the caller, which waits for the publication of this job only
   * @returns A promise that settles when the broker has `own`. Undefined if `own` still waits
   */
  #sendNext(pool: PoolName, own?: AttachedJob): Promise<void> | undefined {
    const turns = this.#dispatcherOf(pool)
    let sending: Promise<void> | undefined
    for (let job = turns.next(); job; job = turns.next()) {
      if (job === own) sending = this.#publish(job)
      else this.#publishLater(job)
    }
    if (turns.hasWaiting) this.#partition.changed()
    return sending
  }

  #publishLater(job: AttachedJob): void {
    const { attempt } = job
    this.#publish(job).catch((error: unknown) => {
      // The error is ignored if the record arrived in spite of it and its attempt runs, or if the job has a newer attempt.
      if (job.state !== 'queued' || job.attempt !== attempt) return
      if (this.#options.broker.isReachable) this.#options.onUnsent(job, error)
      // The broker is unreachable, so the job waits at the head of the fair queue.
      else this.sendAgain(job)
    })
  }

  async #publish(job: AttachedJob): Promise<void> {
    const { stored, envelope, attempt } = job
    if (!stored || job.state === 'done') return
    job.sentAtMs = Date.now()
    const { broker } = this.#options
    const topic = jobsTopic(envelope.pool)
    if ('value' in stored) broker.enqueueLocal?.(topic, { ...envelope, attempt, body: stored.value }, stored.bytes)
    else {
      await broker.submit(topic, recordOf({ ...envelope, attempt }, stored), envelope.deadline_ms - Date.now())
      if (job.attempt === attempt) job.isAtBroker = true
    }
  }
}

function unstartedReason(presence: Presence, { envelope, sentAtMs }: AttachedJob, waitMs: number): string | undefined {
  const { pool, model } = envelope
  if (presence.workers(pool).length === 0) return `No ${pool} worker is running.`
  if (!presence.hasModel(pool, model)) return `No ${pool} worker has the model '${model}'.`
  // The broker may lose a record after it has acknowledged the record. A record counts as lost if no worker has started its job for
  // `waitMs` although slots are free.
  const isLost = sentAtMs !== undefined && Date.now() - sentAtMs >= waitMs && presence.freeSlots(pool) > 0
  return isLost ? `No worker started the request within ${Math.round(waitMs / 1_000)} s.` : undefined
}
