import type { JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Delivery } from '#shared/broker/broker.ts'
import type { Pauses } from '#shared/jobs/pauses.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import { Attempt } from './attempt.ts'
import type { Attempts } from './attempts.ts'
import type { ClaimedJob, DurableRuns } from './durable-runs.ts'
import type { ModelRoom, ModelRooms } from './model-rooms.ts'
import type { Lane, Taking } from './taking.ts'

/** How long a durable job waits for a worker that knows its model, while none does. */
const UNKNOWN_MODEL_MS = 300_000
/** Waiting jobs claimed in one statement at most: each may have a body of 64 KiB. */
const PULL_MAX = 64
/** How often it is looked whether waiting jobs can be claimed, beside each time a job ends. */
const PULL_MS = 1_000

/** What {@link Claims} need. */
export interface ClaimsOptions {
  readonly pool: PoolName
  readonly kinds: Readonly<Record<string, Handler>>
  readonly log: Log
  readonly presence: Presence
  readonly runs: DurableRuns
  readonly rooms: ModelRooms
  readonly taking: Taking
  readonly attempts: Attempts
  /** Jobs that stay in the store for now; default: none. */
  readonly pauses?: Pauses | undefined
}

/**
 * Which durable jobs one worker claims and when, each in a slot.
 *
 * A job that there is no room for stays in the store, where this worker, or another, takes the oldest one as soon as it has
 * room (`model-rooms.ts`): its record is dropped, and nothing is spent.
 */
export class Claims {
  readonly #options: ClaimsOptions
  readonly #timer: NodeJS.Timeout

  constructor(options: ClaimsOptions) {
    this.#options = options
    this.#timer = setInterval(() => this.pull(), PULL_MS)
  }

  /**
   * Claims the job of a record, which is a hint: the store says who may run the job. A record that could not be used is
   * acknowledged all the same, for what still waits is claimed when there is room, or published again; so the broker never
   * reaches its own limit of deliveries.
   */
  async onDelivery(lane: Lane, delivery: Delivery, envelope: JobEnvelope, kind: Handler): Promise<void> {
    const { presence, rooms, runs, taking } = this.#options
    const room = rooms.of(envelope)
    if (this.#mustWait(lane, room)) {
      delivery.acknowledge()
      if (room.wait(lane.priority)) presence.tellCapacity()
      return this.pull()
    }
    this.#enter(lane, room)
    const claimed = await runs.claim(envelope, kind)
    this.#leave(lane, room)
    delivery.acknowledge()
    if (claimed) await this.#run(lane, kind, claimed)
    else taking.free()
  }

  /** Claims what waits in the store, as far as there is room. */
  pull(): void {
    const { rooms, taking } = this.#options
    if (taking.stopped.aborted) return
    for (const room of rooms.waiting()) {
      for (const lane of taking.lanes) if (room.isWaiting(lane.priority)) void this.#pullFor(lane, room)
    }
  }

  /** Claims nothing more by itself. */
  stop(): void {
    clearInterval(this.#timer)
  }

  /**
   * Whether a job stays in the store: there is no room for it; others wait already, which are older; or another worker may know
   * its model, which this one does not. When none does for long it is run here all the same, and fails.
   */
  #mustWait(lane: Lane, room: ModelRoom): boolean {
    const { pool, presence, rooms } = this.#options
    if (this.#claimable(lane, room) <= 0) return true
    if (rooms.knows(room.model)) return room.isWaiting(lane.priority)
    const isNew = rooms.unknownForMs(room.model) < UNKNOWN_MODEL_MS
    return isNew || presence.hasModel(pool, room.model)
  }

  async #pullFor(lane: Lane, room: ModelRoom): Promise<void> {
    const { kinds, pool, runs, taking } = this.#options
    const { priority } = lane
    const { model } = room
    const kind = kinds[room.kind]
    const count = Math.min(this.#claimable(lane, room), PULL_MAX)
    if (!kind || count <= 0 || !room.beginPull(priority)) return
    this.#enter(lane, room, count)
    const claimed = await runs.claimNext({ pool, kind: room.kind, model, priority }, kind, count)
    this.#leave(lane, room, count)
    room.endPull(priority, claimed === undefined || claimed.length === count)
    for (const job of claimed ?? []) void this.#run(lane, kind, job)
    // Not when the store failed: the timer tries again.
    if (claimed) taking.free()
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
  }

  /** Durable jobs of a model that may be claimed now. */
  #claimable(lane: Lane, room: ModelRoom): number {
    const { pauses, pool, runs, taking } = this.#options
    if (pauses?.of({ pool, model: room.model })) return 0
    return runs.isLapsed ? 0 : Math.min(taking.roomOf(lane), room.free(lane.priority))
  }

  #enter(lane: Lane, room: ModelRoom, count = 1): void {
    room.enter(lane.priority, count)
    this.#options.taking.enter(lane, count)
  }

  #leave(lane: Lane, room: ModelRoom, count = 1): void {
    this.#options.taking.leave(lane, count)
    room.leave(lane.priority, count)
  }
}
