import type { Priority } from '#schemas/durable-job.ts'
import type { ControlRecord } from '#schemas/event.ts'
import { type Work, workKey } from './fair-queue.ts'
import { extraOf, quarterOf, type SlotHolder } from './slots.ts'

const BUSY_MS = 1_000
/** Time in ms after which a worker forgets an announcement of waiting jobs whose model it no longer has. */
const ANNOUNCEMENT_TTL_MS = 10_000
/**
 * Time in ms without a job for a model that this worker does not have. After this time, the next job for the model counts as its first one again. The
 * time since the first job is the result of {@link ModelBulkheads.unknownForMs}.
 */
const UNKNOWN_MODEL_TTL_MS = 900_000
/** Maximum number of bulkheads. At the maximum, bulkheads without jobs are dropped. */
const BULKHEADS_MAX = 1_000

export type Capacity = Omit<Extract<ControlRecord, { type: 'capacity' }>, 'type' | 'boot'>

/** Maximum concurrent jobs of one kind and model, if below the number of slots. */
export interface ConcurrencyLimit extends Work {
  readonly capacity: number
  /** Returns the current limit if the engine adapts it at run time. Undefined if `capacity` is constant. */
  readonly currentLimit?: () => number | undefined
  /** Permits that only jobs of normal priority may use. Default: 1. Jobs of low priority can always use at least one permit. */
  readonly interactive?: number
}

const NO_SLOTS_HELD: SlotHolder = { held: 0, countOlder: () => 0 }

export interface BulkheadsOptions {
  readonly slots?: number
  /** Ids and aliases of the worker's models. If undefined, then the worker accepts any model. */
  readonly models?: Iterable<string> | undefined
  readonly concurrencyLimits?: readonly ConcurrencyLimit[] | undefined
  readonly modelCount?: number | undefined
}

/**
 * Bulkhead: the limit on concurrent jobs of one model on one worker. The class also records whether durable jobs of the model wait in the
 * store.
 *
 * The problem: without a limit per model, calls of one slow model occupy all slots of the worker, and no other model can run.
 *
 * How it works: a model has as many permits as its engine supports concurrent calls. Attached calls and durable jobs share the permits, and
 * each group can always get half of them. Durable jobs may be claimed up to a quarter beyond the permits, so that the engine never waits
 * for the store between two jobs.
 *
 * Jobs of low priority leave `interactive` permits free, even while no call runs. Otherwise a call would wait until a job of low priority
 * ends.
 *
 * Example: capacity 8. Durable jobs alone may claim 10, or 7 if they have low priority. With 8 attached calls running, 4 durable jobs may
 * still be claimed, which then wait briefly in the engine's queue.
 */
export class ModelBulkhead implements Work, SlotHolder {
  readonly kind: string
  readonly model: string
  bound: ConcurrencyLimit | undefined
  readonly #running: Record<Priority, number> = { normal: 0, low: 0 }
  readonly #waiting = new Map<Priority, number>()
  readonly #pulling = new Set<Priority>()
  readonly #started = new Set<{ readonly atMs: number }>()
  #attached = 0
  #busyAtMs = 0

  constructor({ kind, model }: Work, bound?: ConcurrencyLimit) {
    this.kind = kind
    this.model = model
    this.bound = bound
  }

  get isIdle(): boolean {
    return this.held + this.#pulling.size + this.#waiting.size === 0
  }

  get held(): number {
    return this.#attached + this.#running.normal + this.#running.low
  }

  /** Current number of permits. 0 if a shared upstream limit gives all permits to other workers. */
  get permitsMax(): number {
    return this.#capacity ?? Number.POSITIVE_INFINITY
  }

  get #capacity(): number | undefined {
    if (!this.bound) return undefined
    const { capacity, currentLimit: now } = this.bound
    return Math.max(0, Math.min(capacity, now?.() ?? capacity))
  }

  get hasFreePermit(): boolean {
    const capacity = this.#capacity
    if (capacity === undefined) return true
    const durable = this.#running.normal + this.#running.low
    return this.#attached < Math.max(Math.ceil(capacity / 2), capacity - durable)
  }

  free(lane: Priority): number {
    const capacity = this.#capacity
    if (capacity === undefined) return Number.POSITIVE_INFINITY
    const most = Math.max(capacity + quarterOf(capacity) - this.#attached, Math.ceil(capacity / 2))
    if (lane === 'normal') return most - this.#running.normal
    const interactive = this.bound?.interactive ?? 1
    const lowMax = interactive === 0 ? most : Math.max(1, capacity - interactive)
    const isBusy = this.#attached + this.#running.normal > 0 || Date.now() - this.#busyAtMs < BUSY_MS
    return Math.min(lowMax, isBusy ? quarterOf(capacity) : most) - this.#running.low
  }

  enter(lane: Priority | undefined, count = 1): void {
    if (lane === undefined) this.#attached += count
    else this.#running[lane] += count
    if (lane !== 'low') this.#busyAtMs = Date.now()
  }

  leave(lane: Priority | undefined, count = 1): void {
    if (lane === undefined) this.#attached -= count
    else this.#running[lane] -= count
  }

  /**
   * Takes a permit for one job that starts now.
   *
   * @param lane Lane of a durable job. Undefined for an attached call
   * @returns A function that releases the permit
   */
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

  /**
   * Records that jobs of a lane wait in the store. No queue record delivers these jobs, so the worker must fetch them.
   *
   * @returns True if the lane had no waiting jobs before
   */
  wait(lane: Priority): boolean {
    const isNew = !this.#waiting.has(lane)
    this.#waiting.set(lane, Date.now())
    return isNew
  }

  isWaiting(lane: Priority): boolean {
    return this.#waiting.has(lane)
  }

  get waiting(): ReadonlyMap<Priority, number> {
    return this.#waiting
  }

  /** Lanes in which durable jobs wait, or may still wait because a claim is in progress. */
  get unsettled(): ReadonlySet<Priority> {
    return new Set([...this.#waiting.keys(), ...this.#pulling])
  }

  forgetWaiting(): void {
    for (const [lane, atMs] of this.#waiting) if (Date.now() - atMs > ANNOUNCEMENT_TTL_MS) this.#waiting.delete(lane)
  }

  isPulling(lane: Priority): boolean {
    return this.#pulling.has(lane)
  }

  /**
   * Records that the worker fetches jobs of a lane from the store. Each lane has at most one fetch at a time. If a job is announced during
   * the fetch, then the fetch may miss the job. The lane therefore counts as waiting again after the fetch.
   */
  beginPull(lane: Priority): void {
    this.#pulling.add(lane)
    this.#waiting.delete(lane)
  }

  endPull(lane: Priority, hasMore: boolean): void {
    this.#pulling.delete(lane)
    if (hasMore) this.wait(lane)
  }
}

export class ModelBulkheads {
  readonly #bulkheads = new Map<string, ModelBulkhead>()
  readonly #slots: number
  #limits: readonly ConcurrencyLimit[] = []
  #models: ReadonlySet<string> | undefined
  #modelCount = 1
  #publishedWaiting: readonly { readonly bulkhead: ModelBulkhead; readonly lane: Priority }[] = []
  #bounded: { readonly bulkhead: ModelBulkhead; published: number }[] = []
  readonly #unknown = new Map<string, { readonly sinceMs: number; readonly lastMs: number }>()

  constructor({ slots = Number.POSITIVE_INFINITY, ...own }: BulkheadsOptions) {
    this.#slots = slots
    this.change(own)
  }

  change({ models, concurrencyLimits = [], modelCount = 1 }: Omit<BulkheadsOptions, 'slots'>): void {
    this.#models = models && new Set(models)
    this.#limits = concurrencyLimits
    this.#modelCount = modelCount
    for (const bulkhead of this.#bulkheads.values()) bulkhead.bound = undefined
    this.#bounded = concurrencyLimits.map((bound) => {
      const bulkhead = this.of(bound)
      bulkhead.bound = bound
      return { bulkhead, published: Number.POSITIVE_INFINITY }
    })
  }

  get isShared(): boolean {
    return this.#modelCount > 1
  }

  isCoveredBy(models: ReadonlySet<string> | undefined): boolean {
    return !models || this.#models?.isSubsetOf(models) === true
  }

  /**
   * Returns the number of slots that jobs of a model may take (`slots.ts`).
   *
   * @param free Free slots. Negative while extra slots are in use
   */
  slotsFor(bulkhead: ModelBulkhead, free: number): number {
    return free > 0 || !this.isShared
      ? Math.max(0, free)
      : extraOf(bulkhead, this.#holders(bulkhead), this.#slots, free)
  }

  extra(free: number): number {
    return this.isShared ? extraOf(NO_SLOTS_HELD, this.#holders(), this.#slots, free) : 0
  }

  #holders(without?: ModelBulkhead): ModelBulkhead[] {
    return [...this.#bulkheads.values()].filter((bulkhead) => bulkhead !== without && bulkhead.held > 0)
  }

  get running(): ReadonlyMap<string, number> {
    const running = new Map<string, number>()
    for (const { model, held } of this.#holders()) running.set(model, (running.get(model) ?? 0) + held)
    return running
  }

  hasModel(model: string): boolean {
    return this.#models?.has(model) !== false
  }

  unknownForMs(model: string): number {
    const lastMs = Date.now()
    const known = this.#unknown.get(model)
    const sinceMs = known && lastMs - known.lastMs < UNKNOWN_MODEL_TTL_MS ? known.sinceMs : lastMs
    if (known || this.#unknown.size < BULKHEADS_MAX) this.#unknown.set(model, { sinceMs, lastMs })
    return lastMs - sinceMs
  }

  of(work: Work): ModelBulkhead {
    const key = workKey(work)
    let bulkhead = this.#bulkheads.get(key)
    if (!bulkhead) {
      if (this.#bulkheads.size >= BULKHEADS_MAX) this.#forgetIdle()
      bulkhead = new ModelBulkhead(work)
      this.#bulkheads.set(key, bulkhead)
    }
    return bulkhead
  }

  *waiting(): Generator<ModelBulkhead> {
    for (const bulkhead of this.#bulkheads.values())
      if (bulkhead.waiting.size > 0 && this.hasModel(bulkhead.model)) yield bulkhead
  }

  /**
   * Records waiting jobs that another process announced.
   *
   * @returns True if this worker can run at least one of these jobs
   */
  addWaiting(waiting: Capacity['backlog']): boolean {
    const own = waiting.filter(({ model }) => this.hasModel(model))
    for (const { kind, model, priority } of own) this.of({ kind, model }).wait(priority)
    return own.length > 0
  }

  capacityToPublish(): Capacity | undefined {
    this.#forgetIdle()
    const backlog: Capacity['backlog'] = []
    const published: { bulkhead: ModelBulkhead; lane: Priority }[] = []
    for (const bulkhead of this.#bulkheads.values())
      for (const lane of bulkhead.unsettled) published.push({ bulkhead, lane })
    for (const { bulkhead, lane } of published)
      backlog.push({ kind: bulkhead.kind, model: bulkhead.model, priority: lane })
    this.#publishedWaiting = published
    const limits = this.#limitsToPublish()
    if (this.#models === undefined && limits.length === 0 && backlog.length === 0) return undefined
    return { models: this.#models ? [...this.#models] : null, concurrency_limits: limits, backlog }
  }

  /**
   * True if the capacity that this worker published is outdated. Either the permits of a model changed by more than a quarter, or published waiting
   * jobs no longer wait. As long as jobs of a model are published as waiting, other processes send no records for new jobs of the model. These
   * processes expect this worker to claim the jobs from the store.
   */
  get isOutdated(): boolean {
    if (this.#publishedWaiting.some(({ bulkhead, lane }) => !bulkhead.unsettled.has(lane))) return true
    return this.#bounded.some(
      ({ bulkhead, published }) => Math.abs(this.#permitsOf(bulkhead) - published) > published / 4,
    )
  }

  /**
   * Returns the concurrency limits to publish: those below the number of slots. If several models share the slots, then all limits are published,
   * because the ingresses queue the calls of each model separately and need its limit.
   */
  #limitsToPublish(): Capacity['concurrency_limits'] {
    for (const one of this.#bounded) one.published = this.#permitsOf(one.bulkhead)
    const below = this.#bounded.filter(({ published }) => this.isShared || published < this.#slots)
    // Processes of an older version reject a published capacity of 0, so at least 1 is published. If a call arrives
    // although this worker has no permit, then the call is requeued.
    return below.map(({ bulkhead: { kind, model }, published }) => ({ kind, model, capacity: Math.max(1, published) }))
  }

  #permitsOf({ permitsMax: most }: ModelBulkhead): number {
    return Math.min(most, this.#slots)
  }

  #forgetIdle(): void {
    const bounded = new Set(this.#limits.map(workKey))
    for (const [key, bulkhead] of this.#bulkheads) {
      if (!this.hasModel(bulkhead.model)) bulkhead.forgetWaiting()
      if (bulkhead.isIdle && !bounded.has(key)) this.#bulkheads.delete(key)
    }
  }
}
