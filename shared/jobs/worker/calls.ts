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

/** Deliveries of one record after which its job is called poison; Kafka drops a record silently after five. */
const DELIVERIES_MAX = 4
/** Age at which a queued job has surely been preceded by a heartbeat of its ingress. */
const ORPHAN_AGE_MS = 5_000

/** How often a call is passed on whose model has places here, all of them taken. */
const PASSES_MAX = 2

/** What {@link Calls} need. */
export interface CallsOptions {
  readonly aside: ParkedCalls
  readonly attempts: Attempts
  readonly broker: Broker
  readonly log: Log
  readonly pool: PoolName
  readonly presence: () => Presence
  readonly reporter: Reporter
  readonly rooms: ModelBulkheads
  readonly taking: Poller
}

/** What one worker does with the attached calls that it takes: it runs them, keeps them aside, or passes them on. */
export class Calls {
  readonly #options: CallsOptions
  readonly #passing: Requeue

  constructor(options: CallsOptions) {
    this.#options = options
    this.#passing = new Requeue(options)
  }

  /** Calls that are kept for a moment before they are passed on. */
  get kept(): number {
    return this.#passing.kept
  }

  /** Calls passed on so far, each time counted. */
  get passed(): number {
    return this.#passing.requeued
  }

  /** Takes a record. It is acknowledged as soon as its ingress watches over the call, or the queue has it again. */
  onDelivery(lane: Lane, delivery: Delivery, job: AttachedEnvelope, kind: Handler): void {
    const { aside, attempts, log, reporter, rooms, taking } = this.#options
    if (attempts.wasJobCancelled(job) || attempts.wasCancelled(job) || attempts.has(job)) return delivery.acknowledge()
    if (this.#isOrphan(job)) {
      log.info({ job_id: job.id, ingress: job.reply.boot }, 'job of a dead ingress dropped')
      return delivery.acknowledge()
    }
    const isKnown = rooms.knows(job.model)
    if (this.#mayPass(lane, job, isKnown) && this.#passing.take(lane, delivery, job)) return
    if (!taking.mayKeep(lane)) return delivery.release()
    const events = reporter.open(job, kind.merge)
    // The broker has seen the record as soon as `started` is out: from then on the ingress watches over the job.
    void events.started().then(() => delivery.acknowledge())
    if (delivery.deliveryCount >= DELIVERIES_MAX) {
      log.error({ job_id: job.id, deliveries: delivery.deliveryCount }, 'poison job')
      void events.failed({ code: 'internal_error', message: 'The request keeps ending its workers.', param: null })
      return
    }
    // Models are rolled out worker by worker: one that comes soon may know it.
    if (!isKnown) {
      taking.pause()
      return void events.handedBack()
    }
    if (aside.isFull && !aside.mayStart(lane, rooms.of(job))) return void events.handedBack()
    void attempts.run(lane, new Attempt(job, kind, events, log, delivery.payload !== undefined))
  }

  /** Whether another worker may begin with a call sooner, and its caller still waits. */
  #mayPass(lane: Lane, job: AttachedEnvelope, isKnown: boolean): boolean {
    const { aside, pool, rooms } = this.#options
    const presence = this.#options.presence()
    const { model, deadline_ms } = job
    if (deadline_ms <= Date.now()) return false
    if (!isKnown) return !presence.hasHeardAll || presence.hasModel(pool, model)
    const room = rooms.of(job)
    if (room.hasPlace || aside.mayStart(lane, room) || presence.knowing(pool, model).length < 2) return false
    // Others may have places where this one has none.
    return room.most === 0 || this.#passing.timesSeen(job) < PASSES_MAX
  }

  /** Nobody waits for the job: its ingress was never heard. A young job may have overtaken its first heartbeat. */
  #isOrphan(job: AttachedEnvelope): boolean {
    return Date.now() - job.created_at_ms > ORPHAN_AGE_MS && this.#options.presence().isUnheard(job.reply.boot)
  }
}
