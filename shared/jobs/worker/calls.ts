/*
 * Attached calls that a worker has taken from the queue. Each call is run, requeued, or parked: a parked call waits here for a permit.
 *
 * The problem: a worker can check the model only after it has taken the record. The model may be missing or busy on this worker, but free on another
 * worker.
 *
 * 1. If the call was cancelled, or its ingress is dead, then the record is acknowledged and dropped.
 * 2. If this worker does not have the model but another worker does, then the call is requeued.
 * 3. If the bulkhead of the model is full here, then the call is requeued at most twice, so that another worker can start it. This limit also applies
 *    while this worker prepares the model and another one is ready.
 * 4. After that, the worker keeps the call, sends `started` and runs the attempt. If the model has no free permit, then the call is parked
 *    (`shared/capacity/slots.ts`).
 *
 * A requeue appends the record to the queue unchanged, so no attempt is counted, the ingress is not involved, and no slot is used. The first requeue
 * is immediate. If the call returns, then all workers are probably full, and each further requeue waits 5 ms longer.
 *
 * The invariant: the record of a live call is acknowledged only when the ingress has received `started`, or the queue has the record again.
 */

import { setTimeout as delay } from 'node:timers/promises'
import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import type { ModelBulkhead, ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import type { ParkedCalls } from '#shared/capacity/slots.ts'
import { preparingOn } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import { Attempt, type Attempts } from './attempt.ts'
import type { Lane, Poller } from './poller.ts'
import type { Reporter } from './reporter.ts'

/** Delay in ms of every requeue of a call after the first. The delay grows by `step` per requeue, up to `most`. */
const REQUEUE_DELAY_MS = { step: 5, most: 50 }

/** Pause of this worker's polling after a requeue, in ms, so that another waiting worker can take the call. */
const REQUEUE_PAUSE_MS = 2

/** Maximum number of calls that wait for their requeue, each with a body of at most 64 KiB. Further calls are returned to their ingress. */
const DELAYED_MAX = 256

const SEEN_MAX = 1_000

/** Number of deliveries of one record after which its job counts as poison. By default, Kafka silently drops a record after five deliveries. */
const DELIVERIES_MAX = 4
/**
 * Minimum age of a job, in ms, at which its ingress can count as dead. Before this age, the first heartbeat of the ingress may not have
 * arrived yet.
 */
const ORPHAN_AGE_MS = 5_000

/** Maximum number of requeues of a call if this worker has the model but no free permit. */
const REQUEUES_MAX = 2

interface CallsOptions {
  readonly parkedCalls: ParkedCalls<Lane, ModelBulkhead>
  readonly attempts: Attempts
  readonly broker: Broker
  readonly log: Log
  readonly pool: PoolName
  readonly worker: { readonly boot: string; readonly presence: Presence }
  readonly reporter: Reporter
  readonly bulkheads: ModelBulkheads
  readonly poller: Poller
}

export class Calls {
  readonly #options: CallsOptions
  readonly #requeue: Requeue

  constructor(options: CallsOptions) {
    this.#options = options
    this.#requeue = new Requeue(options)
  }

  get delayed(): number {
    return this.#requeue.delayed
  }

  get requeued(): number {
    return this.#requeue.requeued
  }

  onDelivery(lane: Lane, delivery: Delivery, job: AttachedEnvelope, kind: Handler): void {
    const { parkedCalls, attempts, log, reporter, bulkheads, poller } = this.#options
    if (attempts.isOver(job)) return delivery.acknowledge()
    // A job may arrive before the first heartbeat of its ingress. An unknown ingress therefore counts as dead only if the job is old.
    const isOld = Date.now() - job.created_at_ms > ORPHAN_AGE_MS
    if (isOld && this.#options.worker.presence.isDead(job.reply.boot)) {
      log.info({ job_id: job.id, ingress: job.reply.boot }, 'job dropped: its ingress is dead')
      return delivery.acknowledge()
    }
    const isKnown = bulkheads.hasModel(job.model)
    if (this.#shouldRequeue(lane, job, isKnown) && this.#requeue.requeue(lane, delivery, job)) return
    if (!poller.canKeep(lane)) return delivery.release()
    const events = reporter.open(job, kind.merge)
    // After `started`, the ingress supervises the job, so the broker need not redeliver the record.
    void events.started().then(() => delivery.acknowledge())
    if (delivery.deliveryCount >= DELIVERIES_MAX) {
      log.error({ job_id: job.id, deliveries: delivery.deliveryCount }, 'job failed because it crashed several workers')
      void events.failed({
        code: 'internal_error',
        message: 'The request crashed several workers and is not retried.',
        param: null,
      })
      return
    }
    // If no worker of this pool has the model, then another worker may have it soon, for example during a rollout. The job is therefore
    // returned to its ingress, which retries it.
    if (!isKnown) {
      poller.pause()
      return void events.handedBack()
    }
    if (parkedCalls.isFull && !parkedCalls.canStart(lane, bulkheads.of(job))) return void events.handedBack()
    void attempts.run(lane, new Attempt(job, kind, events, log, delivery.payload !== undefined))
  }

  #shouldRequeue(lane: Lane, job: AttachedEnvelope, isKnown: boolean): boolean {
    const { parkedCalls, pool, bulkheads, worker } = this.#options
    const { presence } = worker
    const { model, deadline_ms } = job
    if (deadline_ms <= Date.now()) return false
    if (!isKnown) return !presence.hasAllCapacities || presence.hasModel(pool, model)
    // The call is requeued if this worker still prepares the model (download or build) while another worker is ready.
    const own = presence.peers.get(worker.boot)
    if (own && preparingOn(own, model) && !presence.preparing(pool, model))
      return this.#requeue.requeuesOf(job) < REQUEUES_MAX
    const bulkhead = bulkheads.of(job)
    if (
      bulkhead.hasFreePermit ||
      parkedCalls.canStart(lane, bulkhead) ||
      presence.workersWithModel(pool, model).length < 2
    )
      return false
    // A worker without any permit for the model can never start the call, so the number of requeues is unlimited. Other workers have the permits.
    return bulkhead.permitsMax === 0 || this.#requeue.requeuesOf(job) < REQUEUES_MAX
  }
}

interface RequeueOptions {
  readonly broker: Broker
  readonly pool: PoolName
  readonly poller: Poller
}

class Requeue {
  readonly #options: RequeueOptions
  readonly #seen = new Map<string, number>()
  #delayed = 0
  #requeued = 0

  constructor(options: RequeueOptions) {
    this.#options = options
  }

  get delayed(): number {
    return this.#delayed
  }

  get requeued(): number {
    return this.#requeued
  }

  requeuesOf({ id, attempt }: AttachedEnvelope): number {
    return this.#seen.get(`${id}:${attempt}`) ?? 0
  }

  /**
   * Requeues a call.
   *
   * @returns False if too many calls already wait for their requeue. The caller must then return the job to its ingress
   */
  requeue({ priority }: Lane, delivery: Delivery, job: AttachedEnvelope): boolean {
    if (this.#delayed >= DELAYED_MAX) return false
    this.#delayed++
    void this.#submitAgain(jobsTopic(this.#options.pool, priority), delivery, this.#delayMs(job))
    return true
  }

  async #submitAgain(topic: string, delivery: Delivery, delayMs: number): Promise<void> {
    const { broker, poller } = this.#options
    if (delayMs > 0) {
      await delay(delayMs, undefined, { signal: poller.stopped }).catch(() => {
        // The delay rejects only if the signal aborts. The call is then requeued at once.
      })
    }
    this.#requeued++
    poller.pause(REQUEUE_PAUSE_MS)
    // If this process crashes here, then the record exists twice. The ingress rejects the second start.
    await broker.submit(topic, delivery.value).then(
      () => delivery.acknowledge(),
      () => delivery.release(),
    )
    this.#delayed--
    // A drain waits until no call is delayed. `free()` makes the drain check this again.
    if (poller.stopped.aborted) poller.free()
  }

  #delayMs(job: AttachedEnvelope): number {
    const key = `${job.id}:${job.attempt}`
    const times = this.requeuesOf(job)
    this.#seen.delete(key)
    this.#seen.set(key, times + 1)
    const [oldest = key] = this.#seen.keys()
    if (this.#seen.size > SEEN_MAX) this.#seen.delete(oldest)
    return Math.min(REQUEUE_DELAY_MS.most, REQUEUE_DELAY_MS.step * times)
  }
}
