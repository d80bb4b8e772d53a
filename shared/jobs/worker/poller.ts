import { setTimeout } from 'node:timers/promises'
import type { Priority } from '#schemas/durable-job.ts'
import type { Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { laneRoom, slotsKept } from './bulkheads/lanes.ts'

/** Jobs that may be taken at once, and beyond that a quarter of the free slots: a burst spreads over the workers. */
const TAKE_MIN = 8
/** How long a worker takes nothing after a call that it had to hand back: it comes again, and is to meet another one. */
const POLL_PAUSE_MS = 50
/** How long after its last job the interactive lane still counts as having work. */
const LANE_BUSY_MS = 1_000
/** Interval at which a full worker checks whether time alone has opened slots: a lane borrows, or borrowed slots are replaced. */
const FULL_CHECK_MS = 250
/** How long after the last attached call more of them are expected. */
const ATTACHED_MS = 10_000

/** One queue of a pool, as this worker takes from it. */
export interface Lane {
  readonly priority: Priority
  readonly consumer: QueueConsumer
  running: number
  /** When it last gave a job. */
  busyAtMs: number
  /** How many jobs are asked for now; 0: none. */
  asked: number
  /** Stops asking. It serves for many times, until it is used. */
  abort: AbortController
}

/** What {@link Poller} needs. */
export interface PollerOptions {
  readonly slots: number
  /** Jobs beyond the slots that models without any may start now ({@link ModelBulkheads.extra}); default: none. */
  readonly extra?: (free: number) => number
  /** Whether another worker could start what waits in the queue; default: none could. */
  readonly hasFreePeer?: () => boolean
  /** A record was taken: whoever uses a slot for it enters the lane. */
  onDelivery(lane: Lane, delivery: Delivery): void
  /** A slot was freed, or may have opened. */
  onFree(): void
}

/** The consume loop of a worker: takes no more records than there are free slots, from each lane what it may fill. */
export class Poller {
  readonly lanes: Lane[] = []
  readonly #options: PollerOptions
  readonly #stop = new AbortController()
  #loop: Promise<unknown> = Promise.resolve()
  #freed: PromiseWithResolvers<void> | undefined
  #lastTurnMs = Date.now()
  #taken = 0
  /** Attached calls in slots, and all that are here. */
  #attached = 0
  #attachedHere = 0
  /** By the monotonic clock of this process. */
  #attachedAtMs = Number.NEGATIVE_INFINITY
  #asideMs = 0
  #isOnHold = false

  constructor(options: PollerOptions) {
    this.#options = options
  }

  /** Begins to take. @param onFatal The loop broke for good. */
  start(lanes: readonly Pick<Lane, 'priority' | 'consumer'>[], onFatal: (error: unknown) => void): void {
    for (const lane of lanes)
      this.lanes.push({ ...lane, running: 0, busyAtMs: 0, asked: 0, abort: new AbortController() })
    this.#loop = Promise.all(this.lanes.map((lane) => this.#takeForEver(lane))).catch(onFatal)
  }

  /** Aborts when nothing more is taken. */
  get stopped(): AbortSignal {
    return this.#stop.signal
  }

  /** Nothing is taken now, be it for good or while an operator drains the worker. */
  get isHeld(): boolean {
    return this.#isOnHold || this.stopped.aborted
  }

  /** Takes nothing new, or takes jobs again; what runs goes on. */
  hold(isOnHold: boolean): void {
    this.#isOnHold = isOnHold
    for (const lane of this.lanes) stopAsking(lane)
    this.free()
  }

  /** Slots in use. */
  get running(): number {
    let running = 0
    for (const lane of this.lanes) running += lane.running
    return running
  }

  /** Records taken so far. */
  get taken(): number {
    return this.#taken
  }

  /** Milliseconds since the loop last came round. With free slots this stays near a second. */
  get idleMs(): number {
    return this.running >= this.#options.slots ? 0 : Date.now() - this.#lastTurnMs
  }

  /** Whether a job may start: a slot is free, or an extra one is open. */
  get hasRoom(): boolean {
    return this.lanes.some((lane) => this.freeOf(lane) > 0 || this.#extraOf(lane) > 0)
  }

  /** Records of a lane that may be taken now. Extra slots count only if no other worker could start what is taken. */
  roomOf(lane: Lane): number {
    const free = this.freeOf(lane)
    if (free > 0) return free
    const extra = this.#extraOf(lane)
    return extra > 0 && !this.#options.hasFreePeer?.() ? extra : 0
  }

  /** Whether a call that was taken stays here. Beside extra jobs it waits without a slot: a call of another model may be behind it. */
  mayKeep(lane: Lane): boolean {
    return this.roomOf(lane) > 0 || (!this.#isOnHold && this.running > this.#options.slots)
  }

  /** Slots that a lane may fill now; below 0 by the extra ones in use. */
  freeOf(lane: Lane): number {
    if (this.#isOnHold) return Number.NEGATIVE_INFINITY
    const { slots } = this.#options
    const [interactive, batch] = this.lanes
    if (!interactive || !batch) return slots - this.running
    const isInteractiveBusy = Date.now() - interactive.busyAtMs < LANE_BUSY_MS
    const free = laneRoom(lane.priority, { slots, running: this.running, batch: batch.running, isInteractiveBusy })
    // Extra jobs of the batch lane take nothing from the slots that are kept for the interactive one.
    return lane === interactive ? free + Math.max(0, batch.running - (slots - slotsKept(slots))) : free
  }

  /** Whether attached calls are here, or came of late: more of them may wait in the queue. */
  get isAttachedExpected(): boolean {
    return this.#attachedHere > 0 || performance.now() - this.#attachedAtMs < ATTACHED_MS
  }

  /** Slots that durable jobs may take although attached calls wait: half of all are theirs. */
  get durableShare(): number {
    return Math.ceil(this.#options.slots / 2) - (this.running - this.#attached)
  }

  /** An attached call has come, which may wait for a slot, or has left. */
  countAttached(count: 1 | -1): void {
    this.#attachedHere += count
    this.#attachedAtMs = performance.now()
  }

  /** Jobs take slots, be it that they run or that they are about to be claimed. */
  enter(lane: Lane, count = 1, isAttached = false): void {
    lane.running += count
    if (isAttached) this.#attached += count
    // Both lanes ask for jobs at once: what one has got, the other must not ask for any longer.
    for (const one of this.lanes) if (one.asked > 0 && one.asked > this.roomOf(one)) stopAsking(one)
  }

  /** They need them no more; whoever has left for good {@link free frees} them. */
  leave(lane: Lane, count = 1, isAttached = false): void {
    lane.running -= count
    if (isAttached) this.#attached -= count
  }

  /** Slots are free for others. */
  free(): void {
    this.#freed?.resolve()
    this.#freed = undefined
    this.#options.onFree()
  }

  /** It is better if another worker takes the next job: nothing is taken for so long. */
  pause(ms = POLL_PAUSE_MS): void {
    this.#asideMs = Math.max(this.#asideMs, ms)
    for (const lane of this.lanes) stopAsking(lane)
  }

  /** Takes nothing new; resolves when what was asked for has come. A second call waits as well. */
  async stop(): Promise<void> {
    this.#stop.abort()
    for (const lane of this.lanes) stopAsking(lane)
    this.free()
    await this.#loop
  }

  /** Resolves when no slot is in use. @param isEmpty And this holds as well, which is asked each time a job has ended */
  async untilEmpty(isEmpty = () => true): Promise<void> {
    while (this.running > 0 || !isEmpty()) await this.#untilFreed()
  }

  /** Leaves the queues. */
  async close(): Promise<void> {
    await Promise.all(this.lanes.map((lane) => lane.consumer.close()))
  }

  async #takeForEver(lane: Lane): Promise<void> {
    while (!this.stopped.aborted) {
      if (lane.priority === 'normal') this.#lastTurnMs = Date.now()
      const room = this.roomOf(lane)
      if (room > 0) await this.#take(lane, room)
      else if (await this.#untilFreedOrLate()) this.#options.onFree()
    }
  }

  /** Resolves when a slot was freed, or to true when only time has passed. */
  async #untilFreedOrLate(): Promise<boolean> {
    const late = setTimeout(FULL_CHECK_MS, true, { ref: false })
    return await Promise.race([this.#untilFreed().then(() => false), late])
  }

  #extraOf(lane: Lane): number {
    return this.#options.extra?.(Math.min(0, this.freeOf(lane))) ?? 0
  }

  async #take(lane: Lane, room: number): Promise<void> {
    if (lane.abort.signal.aborted) lane.abort = new AbortController()
    lane.asked = shareOf(room)
    const deliveries = await lane.consumer.take(lane.asked, lane.abort.signal)
    lane.asked = 0
    for (const delivery of deliveries) {
      lane.busyAtMs = Date.now()
      this.#taken++
      this.#options.onDelivery(lane, delivery)
    }
    if (this.#asideMs > 0) await setTimeout(this.#asideMs, undefined, { ref: false })
    this.#asideMs = 0
  }

  #untilFreed(): Promise<void> {
    this.#freed ??= Promise.withResolvers<void>()
    return this.#freed.promise
  }
}

function stopAsking(lane: Lane): void {
  if (lane.asked > 0) lane.abort.abort()
}

function shareOf(free: number): number {
  return Math.max(Math.min(free, TAKE_MIN), Math.ceil(free / 4))
}
