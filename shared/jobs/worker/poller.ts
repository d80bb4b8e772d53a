/*
 * Consume loop of a worker: takes records from the queues of its pool while slots are free.
 *
 * The problem: a record that waits in a full worker could have started on another worker. A worker therefore never prefetches.
 *
 * How it works: a pool has one lane per priority, each with its own queue and loop. A poll requests a quarter of the lane's free slots, but
 * at least 8 of them if so many are free. A burst is therefore distributed over the workers. Attached calls are passed to `calls.ts`, and
 * durable jobs to `claims.ts`. Example: with 64 free slots a poll requests 16 records, with 20 slots 8 records, and with 5 slots 5 records.
 *
 * The invariant: no poll requests more records than its lane has free slots. If one lane takes slots that a pending poll of the other lane
 * needs, then that poll is aborted. If one model holds all slots, then another model may use extra slots beyond them, unless another worker
 * could start the job.
 */

import { setTimeout } from 'node:timers/promises'
import type { Priority } from '#schemas/durable-job.ts'
import type { Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import type { ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import { laneSlots, reservedSlots } from '#shared/capacity/slots.ts'

const BATCH_MIN = 8
/** Pause of polling in ms after this worker has returned a call because it cannot run the call. Another worker then takes the call. */
const POLL_PAUSE_MS = 50
const LANE_BUSY_MS = 1_000
/**
 * Interval in ms at which a full worker checks again for slots. A slot may become available although no job ended, for example when the interactive
 * lane no longer counts as busy.
 */
const FULL_CHECK_INTERVAL_MS = 250
const ATTACHED_EXPECTED_MS = 10_000

export interface Lane {
  readonly priority: Priority
  readonly consumer: QueueConsumer
  running: number
  busyAtMs: number
  /** Number of records that the pending poll requests. 0 if no poll is pending. */
  requested: number
  abort: AbortController
}

interface PollerOptions {
  readonly slots: number
  /**
   * Returns the number of jobs that may run beyond `slots` ({@link ModelBulkheads.extra}). If calls of one model hold all slots, then another model
   * can still start a job. Default: 0.
   *
   * @param free Free slots
   */
  readonly extra?: (free: number) => number
  /** Whether another worker could start queued jobs. Default: no worker could. */
  readonly hasFreePeer?: () => boolean
  /** Called for each record. If the job needs a slot, then the callee calls {@link Poller.enter}. */
  onDelivery(lane: Lane, delivery: Delivery): void
  /** Called when a slot was freed or may have become available. */
  onSlotReleased(): void
}

export class Poller {
  readonly lanes: Lane[] = []
  readonly #options: PollerOptions
  readonly #stop = new AbortController()
  #loop: Promise<unknown> = Promise.resolve()
  #freed: PromiseWithResolvers<void> | undefined
  #lastTurnMs = Date.now()
  #taken = 0
  /** Number of attached calls that occupy a slot. */
  #attached = 0
  /** Number of attached calls on this worker, including those that wait for a permit. */
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

  /** Time in ms since the last iteration of the loop, at most about a second while slots are free. 0 if the worker is full. */
  get idleMs(): number {
    return this.running >= this.#options.slots ? 0 : Date.now() - this.#lastTurnMs
  }

  get hasFreeSlot(): boolean {
    return this.lanes.some((lane) => this.freeOf(lane) > 0 || this.#extraOf(lane) > 0)
  }

  slotsFor(lane: Lane): number {
    const free = this.freeOf(lane)
    if (free > 0) return free
    const extra = this.#extraOf(lane)
    return extra > 0 && !this.#options.hasFreePeer?.() ? extra : 0
  }

  /**
   * Whether a call that was taken from the queue may stay on this worker instead of being requeued. If more jobs run than this worker has slots,
   * then the call waits here until a slot is free.
   */
  canKeep(lane: Lane): boolean {
    return this.slotsFor(lane) > 0 || (!this.#isDrained && this.running > this.#options.slots)
  }

  /** Returns the free slots of a lane. Negative while more jobs run than the worker has slots. */
  freeOf(lane: Lane): number {
    if (this.#isDrained) return Number.NEGATIVE_INFINITY
    const { slots } = this.#options
    const [interactive, batch] = this.lanes
    if (!interactive || !batch) return slots - this.running
    const isInteractiveBusy = Date.now() - interactive.busyAtMs < LANE_BUSY_MS
    const free = laneSlots(lane.priority, { slots, running: this.running, batch: batch.running, isInteractiveBusy })
    // Extra slots are slots beyond `slots`. A batch job on an extra slot makes the number of free slots negative, but occupies no slot that is
    // reserved for the interactive lane. For the interactive lane, such jobs are therefore not subtracted.
    return lane === interactive ? free + Math.max(0, batch.running - (slots - reservedSlots(slots))) : free
  }

  get isAttachedExpected(): boolean {
    return this.#attachedHere > 0 || performance.now() - this.#attachedAtMs < ATTACHED_EXPECTED_MS
  }

  /**
   * Number of further slots that durable jobs may take while attached calls wait: half of all slots, minus the slots
   * that durable jobs already use.
   */
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
    // Both lanes poll at the same time. When one lane has received jobs, the poll of the other lane must not request more than the remaining slots.
    for (const one of this.lanes) if (one.requested > 0 && one.requested > this.slotsFor(one)) abortPoll(one)
  }

  /** Releases slots. Afterwards, the caller must call {@link free}, which offers the slots to waiting work. */
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

  /** Stops polling. Resolves when pending polls have returned. A second call waits as well. */
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

  /**
   * Waits until a slot is released or the check interval has passed. Resolves with false for a release, and with true
   * for the interval.
   */
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
