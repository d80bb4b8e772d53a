import type { Priority } from '#schemas/durable-job.ts'
import type { Capacity } from '#shared/jobs/peers.ts'
import { type Work, workKey } from '#shared/jobs/peers.ts'
import { quarterOf } from './lanes.ts'
import { extraOf, type SlotHolder } from './lending.ts'

/** How long after its last interactive job a model still counts as having such work. */
const BUSY_MS = 1_000
/** How long jobs of a model that this worker does not know are told of, after the last one came by. */
const FOREIGN_MS = 10_000
/** How long after the last job of a model that this worker does not know the next one is the first again. */
const UNKNOWN_FORGET_MS = 900_000
/** Models with waiting jobs that are remembered; more are found again by the scheduler. */
const ROOMS_MAX = 1_000

/** Most jobs of one kind and model at once, where these are fewer than the worker has slots. */
export interface ModelBound extends Work {
  readonly capacity: number
  /** How many its engine bears now, where that changes; undefined: as many. */
  readonly now?: () => number | undefined
}

/** A model that holds nothing yet. */
const NEWCOMER: SlotHolder = { held: 0, countOlder: () => 0 }

/** What {@link ModelBulkheads} need to know of their worker. */
export interface RoomsOptions {
  /** Jobs the worker runs at once; default: no end of them. */
  readonly slots?: number
  /** Ids and aliases of the models it can run; undefined: whichever is asked for. */
  readonly models?: Iterable<string> | undefined
  /** Of those that cannot fill its slots. */
  readonly bounds?: readonly ModelBound[] | undefined
  /** Models that share its slots; default: one. */
  readonly modelCount?: number | undefined
}

/**
 * One model on one worker: how many of its jobs may run, and whether durable ones wait in the store.
 *
 * A few more durable ones are claimed than can run, so that the model never waits for the store between two jobs. Each sort leaves
 * half of its places to the other, which it meets in the engine's line.
 */
export class ModelBulkhead implements Work, SlotHolder {
  readonly kind: string
  readonly model: string
  /** What bounds it; undefined: the worker's slots alone. */
  bound: ModelBound | undefined
  readonly #running: Record<Priority, number> = { normal: 0, low: 0 }
  readonly #waiting = new Map<Priority, number>()
  readonly #pulling = new Set<Priority>()
  /** Start times of its running jobs, the oldest first. */
  readonly #started = new Set<{ readonly atMs: number }>()
  #attached = 0
  #busyAtMs = 0

  constructor({ kind, model }: Work, bound?: ModelBound) {
    this.kind = kind
    this.model = model
    this.bound = bound
  }

  /** Nothing runs and nothing is known to wait. */
  get isIdle(): boolean {
    return this.held + this.#pulling.size + this.#waiting.size === 0
  }

  /** Slots that its jobs hold. */
  get held(): number {
    return this.#attached + this.#running.normal + this.#running.low
  }

  /** Jobs that its engine runs at once now; 0 where its few places are other workers'. */
  get most(): number {
    return this.#capacity ?? Number.POSITIVE_INFINITY
  }

  get #capacity(): number | undefined {
    if (!this.bound) return undefined
    const { capacity, now } = this.bound
    return Math.max(0, Math.min(capacity, now?.() ?? capacity))
  }

  /** Whether an attached call can run now. */
  get hasPlace(): boolean {
    const capacity = this.#capacity
    if (capacity === undefined) return true
    const durable = this.#running.normal + this.#running.low
    return this.#attached < Math.max(Math.ceil(capacity / 2), capacity - durable)
  }

  /** Durable jobs of a lane that may be claimed now. */
  free(lane: Priority): number {
    const capacity = this.#capacity
    if (capacity === undefined) return Number.POSITIVE_INFINITY
    // Half are theirs, however many attached calls there are.
    const most = Math.max(capacity + quarterOf(capacity) - this.#attached, Math.ceil(capacity / 2))
    if (lane === 'normal') return most - this.#running.normal
    const isBusy = this.#attached + this.#running.normal > 0 || Date.now() - this.#busyAtMs < BUSY_MS
    return (isBusy ? quarterOf(capacity) : most) - this.#running.low
  }

  /** Jobs begin, or are about to be claimed. @param lane Undefined: an attached call */
  enter(lane: Priority | undefined, count = 1): void {
    if (lane === undefined) this.#attached += count
    else this.#running[lane] += count
    if (lane !== 'low') this.#busyAtMs = Date.now()
  }

  /** They have ended, or were not claimed. */
  leave(lane: Priority | undefined, count = 1): void {
    if (lane === undefined) this.#attached -= count
    else this.#running[lane] -= count
  }

  /** One job begins. @param lane Undefined: an attached call @returns Ends it */
  begin(lane: Priority | undefined): () => void {
    const start = { atMs: performance.now() }
    this.#started.add(start)
    this.enter(lane)
    return () => {
      if (this.#started.delete(start)) this.leave(lane)
    }
  }

  countOlder(ms: number, max: number): number {
    const before = performance.now() - ms
    let count = 0
    for (const { atMs } of this.#started) {
      if (count >= max || atMs > before) break
      count++
    }
    return count
  }

  /** Jobs of a lane are queued in the store whose records are gone. @returns Whether that is news */
  wait(lane: Priority): boolean {
    const isNew = !this.#waiting.has(lane)
    this.#waiting.set(lane, Date.now())
    return isNew
  }

  isWaiting(lane: Priority): boolean {
    return this.#waiting.has(lane)
  }

  /** Lanes with waiting jobs. */
  get waiting(): ReadonlyMap<Priority, number> {
    return this.#waiting
  }

  /** Lanes of which jobs wait, or may: the store is being asked. */
  get unsettled(): ReadonlySet<Priority> {
    return new Set([...this.#waiting.keys(), ...this.#pulling])
  }

  /** Forgets waiting jobs that nobody has told of for a while. */
  forgetWaiting(): void {
    for (const [lane, atMs] of this.#waiting) if (Date.now() - atMs > FOREIGN_MS) this.#waiting.delete(lane)
  }

  /** Whether the store is being asked for waiting jobs. */
  isPulling(lane: Priority): boolean {
    return this.#pulling.has(lane)
  }

  /** Asks the store for waiting jobs; one such question at a time. What comes meanwhile counts as waiting again. */
  beginPull(lane: Priority): void {
    this.#pulling.add(lane)
    this.#waiting.delete(lane)
  }

  /** @param hasMore There may be more. */
  endPull(lane: Priority, hasMore: boolean): void {
    this.#pulling.delete(lane)
    if (hasMore) this.wait(lane)
  }
}

/** The models of one worker, and those of which jobs came by. */
export class ModelBulkheads {
  readonly #rooms = new Map<string, ModelBulkhead>()
  readonly #slots: number
  #bounds: readonly ModelBound[] = []
  #models: ReadonlySet<string> | undefined
  #modelCount = 1
  /** Of what was told to wait. */
  #toldWaiting: readonly { readonly room: ModelBulkhead; readonly lane: Priority }[] = []
  /** Rooms of the bounds, and the places that were told of each. */
  #bounded: { readonly room: ModelBulkhead; told: number }[] = []
  /** Models of jobs that came by and that it does not know: since when, and when the last one came. */
  readonly #unknown = new Map<string, { readonly sinceMs: number; readonly lastMs: number }>()

  constructor({ slots = Number.POSITIVE_INFINITY, ...own }: RoomsOptions) {
    this.#slots = slots
    this.change(own)
  }

  /** The worker has other models from now on. What runs goes on. */
  change({ models, bounds = [], modelCount = 1 }: Omit<RoomsOptions, 'slots'>): void {
    this.#models = models && new Set(models)
    this.#bounds = bounds
    this.#modelCount = modelCount
    for (const room of this.#rooms.values()) room.bound = undefined
    this.#bounded = bounds.map((bound) => {
      const room = this.of(bound)
      room.bound = bound
      return { room, told: Number.POSITIVE_INFINITY }
    })
  }

  /** Whether several models share the slots. */
  get isShared(): boolean {
    return this.#modelCount > 1
  }

  /** Whether a worker with these models can run all of this one's. */
  isCoveredBy(models: ReadonlySet<string> | undefined): boolean {
    return !models || this.#models?.isSubsetOf(models) === true
  }

  /** Slots that jobs of a model may take (`lending.ts`). @param free Free slots; below 0 while extra ones are in use */
  roomOf(room: ModelBulkhead, free: number): number {
    return free > 0 || !this.isShared ? Math.max(0, free) : extraOf(room, this.#holders(room), this.#slots, free)
  }

  /** Slots that jobs of a model without any may take beyond those that are free. */
  extra(free: number): number {
    return this.isShared ? extraOf(NEWCOMER, this.#holders(), this.#slots, free) : 0
  }

  #holders(without?: ModelBulkhead): ModelBulkhead[] {
    return [...this.#rooms.values()].filter((room) => room !== without && room.held > 0)
  }

  /** Whether this worker can run a model. */
  knows(model: string): boolean {
    return this.#models?.has(model) !== false
  }

  /** For how long jobs of a model have come by that this worker does not know, in milliseconds. */
  unknownForMs(model: string): number {
    const lastMs = Date.now()
    const known = this.#unknown.get(model)
    const sinceMs = known && lastMs - known.lastMs < UNKNOWN_FORGET_MS ? known.sinceMs : lastMs
    if (known || this.#unknown.size < ROOMS_MAX) this.#unknown.set(model, { sinceMs, lastMs })
    return lastMs - sinceMs
  }

  of(work: Work): ModelBulkhead {
    const key = workKey(work)
    let room = this.#rooms.get(key)
    if (!room) {
      if (this.#rooms.size >= ROOMS_MAX) this.#forgetIdle()
      room = new ModelBulkhead(work)
      this.#rooms.set(key, room)
    }
    return room
  }

  /** Rooms of jobs that wait in the store and that this worker can run. */
  *waiting(): Generator<ModelBulkhead> {
    for (const room of this.#rooms.values()) if (room.waiting.size > 0 && this.knows(room.model)) yield room
  }

  /** Another worker knows of waiting jobs. @returns Whether this one can run some of them */
  hear(waiting: Capacity['waiting']): boolean {
    const own = waiting.filter(({ model }) => this.knows(model))
    for (const { kind, model, priority } of own) this.of({ kind, model }).wait(priority)
    return own.length > 0
  }

  /** What there is to tell others; undefined while it is nothing. */
  tell(): Capacity | undefined {
    this.#forgetIdle()
    const waiting: Capacity['waiting'] = []
    const told: { room: ModelBulkhead; lane: Priority }[] = []
    for (const room of this.#rooms.values()) for (const lane of room.unsettled) told.push({ room, lane })
    for (const { room, lane } of told) waiting.push({ kind: room.kind, model: room.model, priority: lane })
    this.#toldWaiting = told
    const bounds = this.#tellBounds()
    if (this.#models === undefined && bounds.length === 0 && waiting.length === 0) return undefined
    return { models: this.#models ? [...this.#models] : null, bounds, waiting }
  }

  /**
   * Whether some model has a quarter more places than was told last, or fewer; or jobs were told to wait that do so no more: while
   * others believe it nothing is put into the queue for them.
   */
  get hasNews(): boolean {
    if (this.#toldWaiting.some(({ room, lane }) => !room.unsettled.has(lane))) return true
    return this.#bounded.some(({ room, told }) => Math.abs(this.#placesOf(room) - told) > told / 4)
  }

  /** Bounds of models below the slots. Those of models that share the slots are told in any case: each waits in a queue of its own. */
  #tellBounds(): Capacity['bounds'] {
    for (const one of this.#bounded) one.told = this.#placesOf(one.room)
    const below = this.#bounded.filter(({ told }) => this.isShared || told < this.#slots)
    // Older processes know of no worker without a place: a call that comes to it is passed on.
    return below.map(({ room: { kind, model }, told }) => ({ kind, model, capacity: Math.max(1, told) }))
  }

  #placesOf({ most }: ModelBulkhead): number {
    return Math.min(most, this.#slots)
  }

  #forgetIdle(): void {
    const bounded = new Set(this.#bounds.map(workKey))
    for (const [key, room] of this.#rooms) {
      if (!this.knows(room.model)) room.forgetWaiting()
      if (room.isIdle && !bounded.has(key)) this.#rooms.delete(key)
    }
  }
}
