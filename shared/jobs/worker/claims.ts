import type { JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Delivery } from '#shared/broker/broker.ts'
import type { Pauses } from '#shared/jobs/pauses.ts'
import { workKey } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import type { QueuedOf } from '#shared/store/store.ts'
import { every } from '#shared/ticks.ts'
import { Attempt } from './attempt.ts'
import type { Attempts } from './attempts.ts'
import type { ModelBulkhead, ModelBulkheads } from './bulkheads/bulkheads.ts'
import { fewestFirst } from './bulkheads/lending.ts'
import type { ClaimedJob, DurableRuns } from './durable-runs.ts'
import type { Lane, Poller } from './poller.ts'

/** How long a durable job waits for a worker that knows its model, while none does. */
const UNKNOWN_MODEL_MS = 300_000
/** Waiting jobs claimed in one statement at most: each may have a body of 64 KiB. */
const PULL_MAX = 64
/** Kinds, models and lanes that are remembered of which jobs are held back; more are told of by the scheduler. */
const HELD_MAX = 1_000
/** How often it is looked whether waiting jobs can be claimed, beside each time a job ends. */
const PULL_MS = 1_000
/** How long slots beyond the share of durable jobs are left to attached calls: some times what it takes to ask the broker. */
const OFFER_MS = 25
/** The same while none have come of late, and how often: so the first is seen, for at most a twentieth of the time of all slots. */
const FIRST_OFFER_MS = 100
const FIRST_OFFER_EVERY_MS = 1_000

/** What {@link Claims} need. */
export interface ClaimsOptions {
  readonly pool: PoolName
  readonly kinds: Readonly<Record<string, Handler>>
  readonly log: Log
  readonly presence: Presence
  readonly runs: DurableRuns
  readonly rooms: ModelBulkheads
  readonly taking: Poller
  readonly attempts: Attempts
  /** Jobs that stay in the store for now; default: none. */
  readonly pauses?: Pauses | undefined
}

/** Slots that were freed together and are taken already, for waiting jobs that are alike. */
interface Pull {
  readonly lane: Lane
  readonly room: ModelBulkhead
  readonly kind: Handler
  count: number
}

/** Records that came together, of jobs that are alike: so many may be claimed, in slots that are taken already. */
interface Hints {
  readonly lane: Lane
  readonly room: ModelBulkhead
  readonly kind: Handler
  readonly deliveries: Delivery[]
}

/**
 * Which durable jobs one worker claims and when, each in a slot.
 *
 * A job that there is no room for stays in the store, where this worker, or another, takes it in turn of its tenant as soon as
 * there is room (`bulkheads/bulkheads.ts`): its record is dropped, and nothing is spent.
 *
 * Attached calls come from the broker, and wait there while slots are filled from the store. So durable jobs take at once what
 * fills half of the slots, and of the others what the broker has nothing for (docs/design.md, Turns).
 */
export class Claims {
  readonly #options: ClaimsOptions
  readonly #stopPulling: () => void
  readonly #hints: Hints[] = []
  readonly #pulls: Pull[] = []
  /** Of what jobs wait that none could be claimed of, since their tenants run as much as they may. */
  readonly #held = new Map<string, QueuedOf>()
  #offer: NodeJS.Timeout | undefined
  /** By the monotonic clock of this process. */
  #offeredAtMs = Number.NEGATIVE_INFINITY
  #pulledLast: ModelBulkhead | undefined

  constructor(options: ClaimsOptions) {
    this.#options = options
    this.#stopPulling = every(PULL_MS, () => this.#pullHeld())
  }

  /**
   * Claims a job like that of a record, which is a hint that one waits: the next in turn. The record is acknowledged in any case,
   * for what still waits is claimed when there is room, or told of again; so the broker never reaches its own limit of
   * deliveries.
   */
  onDelivery(lane: Lane, delivery: Delivery, envelope: JobEnvelope, kind: Handler): void {
    const { presence, rooms } = this.#options
    const room = rooms.of(envelope)
    if (!this.#mustWait(lane, room)) return this.#hint({ lane, room, kind, deliveries: [delivery] })
    delivery.acknowledge()
    // Calls may stand behind it.
    if (this.#offer) this.#offerSlots()
    if (room.wait(lane.priority)) presence.publishCapacity()
    this.pull()
  }

  /** Claims what waits in the store, as far as there is room. */
  pull(): void {
    const { rooms, taking } = this.#options
    const [first] = rooms.waiting()
    if (!first || taking.stopped.aborted || !taking.hasRoom) return
    const now = performance.now()
    const isOffered = this.#isOffered || now - this.#offeredAtMs >= FIRST_OFFER_EVERY_MS
    this.#pullAll(isOffered)
    if (!isOffered || this.#offer) return
    this.#offeredAtMs = now
    this.#offerSlots()
  }

  /** The same, and what was held back looks again whether it may be claimed. */
  #pullHeld(): void {
    for (const { kind, model, priority } of this.#held.values()) this.#options.rooms.of({ kind, model }).wait(priority)
    this.#held.clear()
    this.pull()
  }

  /** Claims nothing more by itself. */
  stop(): void {
    this.#stopPulling()
    clearTimeout(this.#offer)
  }

  /** Whether slots beyond the share of durable jobs are left to attached calls. */
  get #isOffered(): boolean {
    return this.#offer !== undefined || this.#options.taking.isAttachedExpected
  }

  /** Leaves slots to attached calls for a while from now on. */
  #offerSlots(): void {
    clearTimeout(this.#offer)
    const ms = this.#options.taking.isAttachedExpected ? OFFER_MS : FIRST_OFFER_MS
    this.#offer = setTimeout(() => {
      this.#offer = undefined
      this.#pullAll(false)
    }, ms)
  }

  /** @param isOffered What is not the share of durable jobs is left to attached calls. */
  #pullAll(isOffered: boolean): void {
    const { rooms, taking } = this.#options
    if (taking.stopped.aborted) return
    const waiting = [...rooms.waiting()]
    const next = this.#pulledLast ? waiting.indexOf(this.#pulledLast) + 1 : 0
    // Models that hold as many slots as each other take turns: the first one would have every slot that is freed.
    for (const room of fewestFirst([...waiting.slice(next), ...waiting.slice(0, next)])) {
      for (const lane of taking.lanes) if (room.isWaiting(lane.priority)) this.#pullFor(lane, room, isOffered)
    }
  }

  /**
   * Whether a job stays in the store: there is no room for it; others wait already, and a pull takes all in turn; or another worker may know
   * its model, which this one does not. When none does for long it is run here all the same, and fails.
   */
  #mustWait(lane: Lane, room: ModelBulkhead): boolean {
    const { pool, presence, rooms } = this.#options
    if (this.#claimable(lane, room, this.#isOffered) <= 0) return true
    if (rooms.knows(room.model)) return room.isWaiting(lane.priority)
    const isNew = rooms.unknownForMs(room.model) < UNKNOWN_MODEL_MS
    return isNew || presence.hasModel(pool, room.model)
  }

  /** Takes a slot for a record at once; those that come with it are claimed in one go. */
  #hint(hint: Hints): void {
    const { lane, room, deliveries } = hint
    this.#enter(lane, room)
    if (this.#hints.length === 0) queueMicrotask(() => this.#claimHinted())
    const same = this.#hints.find((one) => one.lane === lane && one.room === room)
    if (same) same.deliveries.push(...deliveries)
    else this.#hints.push(hint)
  }

  #claimHinted(): void {
    for (const hints of this.#hints.splice(0)) void this.#claimFor(hints)
  }

  async #claimFor({ lane, room, kind, deliveries }: Hints): Promise<void> {
    const { length: count } = deliveries
    const claimed = await this.#claim(lane, room, kind, count)
    for (const delivery of deliveries) delivery.acknowledge()
    // The store failed: the timer tries again.
    if (claimed === undefined) room.wait(lane.priority)
    if (claimed !== count) this.#options.taking.free()
  }

  /** Takes the slots at once; jobs that end together make room for one claim. */
  #pullFor(lane: Lane, room: ModelBulkhead, isOffered: boolean): void {
    const kind = this.#options.kinds[room.kind]
    const same = this.#pulls.find((pull) => pull.lane === lane && pull.room === room)
    const count = Math.min(this.#claimable(lane, room, isOffered), PULL_MAX - (same?.count ?? 0))
    if (!kind || count <= 0 || room.isPulling(lane.priority)) return
    this.#pulledLast = room
    this.#enter(lane, room, count)
    if (same) same.count += count
    else if (this.#pulls.push({ lane, room, kind, count }) === 1) setImmediate(() => this.#claimPulled())
  }

  #claimPulled(): void {
    for (const pull of this.#pulls.splice(0)) void this.#claimPull(pull)
  }

  async #claimPull({ lane, room, kind, count }: Pull): Promise<void> {
    room.beginPull(lane.priority)
    const claimed = await this.#claim(lane, room, kind, count)
    room.endPull(lane.priority, claimed === undefined || claimed === count)
    // Not when the store failed: the timer tries again.
    if (claimed !== undefined) this.#options.taking.free()
  }

  /** Claims in turn, in slots that were entered. @returns How many; undefined when the store failed */
  async #claim(lane: Lane, room: ModelBulkhead, kind: Handler, count: number): Promise<number | undefined> {
    const { pool, runs } = this.#options
    const { priority } = lane
    const of = { pool, kind: room.kind, model: room.model, priority }
    const claimed = await runs.claimNext(of, kind, count)
    if (claimed && claimed.length < count) void this.#noteHeld(of)
    this.#leave(lane, room, count)
    for (const job of claimed ?? []) void this.#run(lane, kind, job)
    // The lane has work, wherever it came from.
    if (claimed && claimed.length > 0) lane.busyAtMs = Date.now()
    return claimed?.length
  }

  /** Fewer were claimed than there was room for. Where some wait all the same, nobody else would say when they may run. */
  async #noteHeld(of: QueuedOf): Promise<void> {
    if (this.#held.size < HELD_MAX && (await this.#options.runs.isWaiting(of))) {
      this.#held.set(`${of.priority} ${workKey(of)}`, of)
    }
  }

  async #run(lane: Lane, kind: Handler, { job, sink }: ClaimedJob): Promise<void> {
    const { attempts, log, runs } = this.#options
    const attempt = new Attempt(job, kind, sink, log)
    sink.onStop = (reason) => {
      if (reason === 'lost') attempt.lose()
      else if (reason === 'cancelled' || reason === 'partial') attempt.cancel(reason === 'partial')
      else attempt.handBack()
    }
    if (runs.isLapsed) attempt.handBack()
    // A cancel that was faster than the answer to the claim found nothing to stop.
    const cancel = attempts.wasCancelled(job)
    if (cancel) attempt.cancel(cancel === 'partial')
    await attempts.run(lane, attempt)
    runs.release(job)
    // Its tenant may run another one in its place.
    if (this.#held.size > 0) this.#pullHeld()
  }

  /** Durable jobs of a model that may be claimed now. */
  #claimable(lane: Lane, room: ModelBulkhead, isOffered: boolean): number {
    const { pauses, pool, rooms, runs, taking } = this.#options
    if (runs.isLapsed || pauses?.of({ pool, model: room.model })) return 0
    const share = isOffered ? taking.durableShare : Number.POSITIVE_INFINITY
    return Math.min(share, rooms.roomOf(room, taking.freeOf(lane)), room.free(lane.priority))
  }

  #enter(lane: Lane, room: ModelBulkhead, count = 1): void {
    room.enter(lane.priority, count)
    this.#options.taking.enter(lane, count)
  }

  #leave(lane: Lane, room: ModelBulkhead, count = 1): void {
    this.#options.taking.leave(lane, count)
    room.leave(lane.priority, count)
  }
}
