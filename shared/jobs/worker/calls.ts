import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import { Attempt } from './attempt.ts'
import type { Attempts } from './attempts.ts'
import type { ModelBulkheads } from './bulkheads/bulkheads.ts'
import type { ParkedCalls } from './bulkheads/parked-calls.ts'
import type { Lane, Poller } from './poller.ts'
import type { Reporter } from './reporter/reporter.ts'
import { Requeue } from './requeue.ts'

/** Deliveries of one record after which its job counts as poison. Kafka drops a record silently after five. */
const DELIVERIES_MAX = 4
/** Age at which the first heartbeat of a job's ingress must have arrived. */
const ORPHAN_AGE_MS = 5_000

/** Maximum number of requeues of a call whose model this worker has, but without a free permit. */
const REQUEUES_MAX = 2

export interface CallsOptions {
  readonly parkedCalls: ParkedCalls
  readonly attempts: Attempts
  readonly broker: Broker
  readonly log: Log
  readonly pool: PoolName
  readonly presence: () => Presence
  readonly reporter: Reporter
  readonly bulkheads: ModelBulkheads
  readonly poller: Poller
}

/**
 * Handles the attached calls that one worker takes: runs, parks or requeues them.
 *
 * 1. If this worker does not have the model but another one does, then the call is requeued.
 * 2. If the bulkhead of the model is full here, then the call is requeued at most twice, so that another worker can start it.
 * 3. After that, the call is parked here until a permit is free (`bulkheads/parked-calls.ts`).
 */
export class Calls {
  readonly #options: CallsOptions
  readonly #requeue: Requeue

  constructor(options: CallsOptions) {
    this.#options = options
    this.#requeue = new Requeue(options)
  }

  /** Calls that wait for a short delay before they are requeued. */
  get delayed(): number {
    return this.#requeue.delayed
  }

  /** Requeued calls so far; each requeue counts. */
  get requeued(): number {
    return this.#requeue.requeued
  }

  /**
   * Handles one record. The record is acknowledged when the ingress knows of the start, or when the queue has the record again.
   */
  onDelivery(lane: Lane, delivery: Delivery, job: AttachedEnvelope, kind: Handler): void {
    const { parkedCalls, attempts, log, reporter, bulkheads, poller } = this.#options
    if (attempts.wasJobCancelled(job) || attempts.wasCancelled(job) || attempts.has(job)) return delivery.acknowledge()
    if (this.#isOrphan(job)) {
      log.info({ job_id: job.id, ingress: job.reply.boot }, 'job of a dead ingress dropped')
      return delivery.acknowledge()
    }
    const isKnown = bulkheads.hasModel(job.model)
    if (this.#shouldRequeue(lane, job, isKnown) && this.#requeue.requeue(lane, delivery, job)) return
    if (!poller.canKeep(lane)) return delivery.release()
    const events = reporter.open(job, kind.merge)
    // After `started` is sent, the ingress supervises the job, so the broker need not.
    void events.started().then(() => delivery.acknowledge())
    if (delivery.deliveryCount >= DELIVERIES_MAX) {
      log.error({ job_id: job.id, deliveries: delivery.deliveryCount }, 'poison job')
      void events.failed({
        code: 'internal_error',
        message: 'The request crashed several workers and is not retried.',
        param: null,
      })
      return
    }
    // Models are rolled out worker by worker: another worker may soon have this one.
    if (!isKnown) {
      poller.pause()
      return void events.handedBack()
    }
    if (parkedCalls.isFull && !parkedCalls.canStart(lane, bulkheads.of(job))) return void events.handedBack()
    void attempts.run(lane, new Attempt(job, kind, events, log, delivery.payload !== undefined))
  }

  /** True if another worker may start the call sooner and its deadline has not passed. */
  #shouldRequeue(lane: Lane, job: AttachedEnvelope, isKnown: boolean): boolean {
    const { parkedCalls, pool, bulkheads } = this.#options
    const presence = this.#options.presence()
    const { model, deadline_ms } = job
    if (deadline_ms <= Date.now()) return false
    if (!isKnown) return !presence.hasAllCapacities || presence.hasModel(pool, model)
    const bulkhead = bulkheads.of(job)
    if (
      bulkhead.hasFreePermit ||
      parkedCalls.canStart(lane, bulkhead) ||
      presence.workersWithModel(pool, model).length < 2
    )
      return false
    // This worker has no permit for the model, but others may have some.
    return bulkhead.permitsMax === 0 || this.#requeue.requeuesOf(job) < REQUEUES_MAX
  }

  /**
   * True if the ingress of the job is dead: no heartbeat was ever received. A young job may have overtaken the first heartbeat.
   */
  #isOrphan(job: AttachedEnvelope): boolean {
    return Date.now() - job.created_at_ms > ORPHAN_AGE_MS && this.#options.presence().isDead(job.reply.boot)
  }
}
