import { setTimeout as delay, setTimeout } from 'node:timers/promises'
import type { Priority } from '#schemas/durable-job.ts'
import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker, Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import type { ModelBulkhead, ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import { laneSlots, type ParkedCalls, reservedSlots } from '#shared/capacity/slots.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import { Attempt, type Attempts } from './attempt.ts'
import type { Reporter } from './reporter.ts'

/** A poll requests a quarter of the free slots, but at least this many records. A burst thus spreads over the workers. */
const BATCH_MIN = 8
/** Pause after a hand-back, in ms, so that another worker takes the call next. */
const POLL_PAUSE_MS = 50
const LANE_BUSY_MS = 1_000
/**
 * Interval at which a full worker checks again for slots. A slot may become available although no job ended, for example when the
 * interactive lane no longer counts as busy.
 */
const FULL_CHECK_INTERVAL_MS = 250
const ATTACHED_EXPECTED_MS = 10_000

export interface Lane {
  readonly priority: Priority
  readonly consumer: QueueConsumer
  running: number
  busyAtMs: number
  /** Number of records requested by the pending poll; 0: none is pending. */
  requested: number
  abort: AbortController
}

interface PollerOptions {
  readonly slots: number
  /** Number of extra slots, beyond `slots`, for models that hold no slot ({@link ModelBulkheads.extra}); default: none. */
  readonly extra?: (free: number) => number
  /** True if another worker could start queued jobs; default: none could. */
  readonly hasFreePeer?: () => boolean
  /** Called for each record. If a slot is needed, then the callee calls {@link Poller.enter}. */
  onDelivery(lane: Lane, delivery: Delivery): void
  /** Called when a slot was freed or may have become available. */
  onSlotReleased(): void
}

/**
 * Consume loop of a worker: takes at most as many records as there are free slots, from each lane up to its limit.
 *
 * No prefetch here: a record that waits in a full worker could have started on another one.
 */
export class Poller {
  readonly lanes: Lane[] = []
  readonly #options: PollerOptions
  readonly #stop = new AbortController()
  #loop: Promise<unknown> = Promise.resolve()
  #freed: PromiseWithResolvers<void> | undefined
  #lastTurnMs = Date.now()
  #taken = 0
  /** Attached calls that occupy a slot. */
  #attached = 0
  /** All attached calls on this worker, including those that wait for a permit. */
  #attachedHere = 0
  #attachedAtMs = Number.NEGATIVE_INFINITY
  #pauseMs = 0
  #isDrained = false

  constructor(options: PollerOptions) {
    this.#options = options
  }

  start(lanes: readonly Pick<Lane, 'priority' | 'consumer'>[], onFatal: (error: unknown) => void): void {
    for (const lane of lanes)
      this.lanes.push({ ...lane, running: 0, busyAtMs: 0, requested: 0, abort: new AbortController() })
    this.#loop = Promise.all(this.lanes.map((lane) => this.#pollForever(lane))).catch(onFatal)
  }

  get stopped(): AbortSignal {
    return this.#stop.signal
  }

  get isDraining(): boolean {
    return this.#isDrained || this.stopped.aborted
  }

  setDrained(isOnHold: boolean): void {
    this.#isDrained = isOnHold
    for (const lane of this.lanes) abortPoll(lane)
    this.free()
  }

  get running(): number {
    let running = 0
    for (const lane of this.lanes) running += lane.running
    return running
  }

  get taken(): number {
    return this.#taken
  }

  /** Milliseconds since the last iteration of the loop. With free slots, the value stays around a second; a full worker reports 0. */
  get idleMs(): number {
    return this.running >= this.#options.slots ? 0 : Date.now() - this.#lastTurnMs
  }

  get hasFreeSlot(): boolean {
    return this.lanes.some((lane) => this.freeOf(lane) > 0 || this.#extraOf(lane) > 0)
  }

  /** Number of records that a lane may take now. Extra slots count only if no other worker could start the job. */
  slotsFor(lane: Lane): number {
    const free = this.freeOf(lane)
    if (free > 0) return free
    const extra = this.#extraOf(lane)
    return extra > 0 && !this.#options.hasFreePeer?.() ? extra : 0
  }

  /**
   * True if a call that was taken from the queue may stay on this worker. While jobs run in extra slots, such a call waits here without a
   * slot.
   */
  canKeep(lane: Lane): boolean {
    return this.slotsFor(lane) > 0 || (!this.#isDrained && this.running > this.#options.slots)
  }

  /** Free slots of a lane; negative while extra slots are in use. */
  freeOf(lane: Lane): number {
    if (this.#isDrained) return Number.NEGATIVE_INFINITY
    const { slots } = this.#options
    const [interactive, batch] = this.lanes
    if (!interactive || !batch) return slots - this.running
    const isInteractiveBusy = Date.now() - interactive.busyAtMs < LANE_BUSY_MS
    const free = laneSlots(lane.priority, { slots, running: this.running, batch: batch.running, isInteractiveBusy })
    // Extra jobs of the batch lane do not reduce the slots reserved for the interactive lane.
    return lane === interactive ? free + Math.max(0, batch.running - (slots - reservedSlots(slots))) : free
  }

  get isAttachedExpected(): boolean {
    return this.#attachedHere > 0 || performance.now() - this.#attachedAtMs < ATTACHED_EXPECTED_MS
  }

  /** Number of further slots that durable jobs may take while attached calls wait: half of all slots, minus those that durable jobs use. */
  get durableShare(): number {
    return Math.ceil(this.#options.slots / 2) - (this.running - this.#attached)
  }

  countAttached(count: 1 | -1): void {
    this.#attachedHere += count
    this.#attachedAtMs = performance.now()
  }

  enter(lane: Lane, count = 1, isAttached = false): void {
    lane.running += count
    if (isAttached) this.#attached += count
    // Both lanes poll at the same time. After one lane has received jobs, the other must not request more than the remaining
    // slots.
    for (const one of this.lanes) if (one.requested > 0 && one.requested > this.slotsFor(one)) abortPoll(one)
  }

  /** Releases slots without announcing them; {@link free} announces them. */
  leave(lane: Lane, count = 1, isAttached = false): void {
    lane.running -= count
    if (isAttached) this.#attached -= count
  }

  free(): void {
    this.#freed?.resolve()
    this.#freed = undefined
    this.#options.onSlotReleased()
  }

  pause(ms = POLL_PAUSE_MS): void {
    this.#pauseMs = Math.max(this.#pauseMs, ms)
    for (const lane of this.lanes) abortPoll(lane)
  }

  /** Takes no new jobs. Resolves when pending polls have returned. A second call waits as well. */
  async stop(): Promise<void> {
    this.#stop.abort()
    for (const lane of this.lanes) abortPoll(lane)
    this.free()
    await this.#loop
  }

  async untilEmpty(isEmpty = () => true): Promise<void> {
    while (this.running > 0 || !isEmpty()) await this.#untilFreed()
  }

  async close(): Promise<void> {
    await Promise.all(this.lanes.map((lane) => lane.consumer.close()))
  }

  async #pollForever(lane: Lane): Promise<void> {
    while (!this.stopped.aborted) {
      if (lane.priority === 'normal') this.#lastTurnMs = Date.now()
      const bulkhead = this.slotsFor(lane)
      if (bulkhead > 0) await this.#take(lane, bulkhead)
      else if (await this.#untilReleasedOrCheck()) this.#options.onSlotReleased()
    }
  }

  /** Resolves when a slot was freed (false), or when the check interval has passed (true). */
  async #untilReleasedOrCheck(): Promise<boolean> {
    const late = setTimeout(FULL_CHECK_INTERVAL_MS, true, { ref: false })
    return await Promise.race([this.#untilFreed().then(() => false), late])
  }

  #extraOf(lane: Lane): number {
    return this.#options.extra?.(Math.min(0, this.freeOf(lane))) ?? 0
  }

  async #take(lane: Lane, bulkhead: number): Promise<void> {
    if (lane.abort.signal.aborted) lane.abort = new AbortController()
    lane.requested = shareOf(bulkhead)
    const deliveries = await lane.consumer.take(lane.requested, lane.abort.signal)
    lane.requested = 0
    for (const delivery of deliveries) {
      lane.busyAtMs = Date.now()
      this.#taken++
      this.#options.onDelivery(lane, delivery)
    }
    if (this.#pauseMs > 0) await setTimeout(this.#pauseMs, undefined, { ref: false })
    this.#pauseMs = 0
  }

  #untilFreed(): Promise<void> {
    this.#freed ??= Promise.withResolvers<void>()
    return this.#freed.promise
  }
}

function abortPoll(lane: Lane): void {
  if (lane.requested > 0) lane.abort.abort()
}

function shareOf(free: number): number {
  return Math.max(Math.min(free, BATCH_MIN), Math.ceil(free / 4))
}

/** Delay in ms before a call that returns after a requeue is requeued again. The delay grows by `step` per requeue, up to `most`. */
const REQUEUE_DELAY_MS = { step: 5, most: 50 }

/** Pause of this worker's polling after a requeue, in ms: long enough for another waiting worker to take the call. */
const REQUEUE_PAUSE_MS = 2

/** Maximum number of delayed calls, each with a body of at most 64 KiB; further ones are handed back. */
const DELAYED_MAX = 256

const SEEN_MAX = 1_000

/** Number of deliveries of one record after which its job counts as poison. Kafka silently drops a record after five deliveries. */
const DELIVERIES_MAX = 4
/** Age of a job, in ms, from which its ingress may count as dead. The first heartbeat of the ingress must have arrived by then. */
const ORPHAN_AGE_MS = 5_000

/** Maximum number of requeues of a call whose model this worker has, but without a free permit. */
const REQUEUES_MAX = 2

interface CallsOptions {
  readonly parkedCalls: ParkedCalls<Lane, ModelBulkhead>
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
 * 3. After that, the call is parked here until a permit is free (`shared/capacity/slots.ts`).
 */
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

  /** Handles one record. The record is acknowledged when the ingress has received `started`, or when the queue has the record again. */
  onDelivery(lane: Lane, delivery: Delivery, job: AttachedEnvelope, kind: Handler): void {
    const { parkedCalls, attempts, log, reporter, bulkheads, poller } = this.#options
    if (attempts.isOver(job)) return delivery.acknowledge()
    if (this.#isOrphan(job)) {
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
      log.error({ job_id: job.id, deliveries: delivery.deliveryCount }, 'job crashed several workers and was failed')
      void events.failed({
        code: 'internal_error',
        message: 'The request crashed several workers and is not retried.',
        param: null,
      })
      return
    }
    // Models are rolled out worker by worker, so another worker may soon have this model.
    if (!isKnown) {
      poller.pause()
      return void events.handedBack()
    }
    if (parkedCalls.isFull && !parkedCalls.canStart(lane, bulkheads.of(job))) return void events.handedBack()
    void attempts.run(lane, new Attempt(job, kind, events, log, delivery.payload !== undefined))
  }

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
    // A worker without any permit for the model requeues the call without limit, because other workers may have permits.
    return bulkhead.permitsMax === 0 || this.#requeue.requeuesOf(job) < REQUEUES_MAX
  }

  /**
   * True if the ingress of the job is dead, because no heartbeat was ever received. False for a young job, which may have
   * overtaken the first heartbeat.
   */
  #isOrphan(job: AttachedEnvelope): boolean {
    return Date.now() - job.created_at_ms > ORPHAN_AGE_MS && this.#options.presence().isDead(job.reply.boot)
  }
}

interface RequeueOptions {
  readonly broker: Broker
  readonly pool: PoolName
  readonly poller: Poller
}

/**
 * Requeues attached calls that another worker can run sooner, because this one lacks the model or a permit for it.
 *
 * The record goes back unchanged, so no attempt is counted and the ingress is not involved. No slot is used here. The first
 * requeue is immediate. If the call returns, then all workers are full, and each further requeue waits 5 ms longer.
 */
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

  /** Requeues a call. @returns False if too many calls are delayed: the caller hands the job back */
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
    // If this process crashes here, then the record exists twice. The ingress then rejects the second start.
    await broker.submit(topic, delivery.value).then(
      () => delivery.acknowledge(),
      () => delivery.release(),
    )
    this.#delayed--
    // A drain waits until no call is delayed; `free` makes it check again.
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
