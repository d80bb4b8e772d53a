import type { PoolName } from '#schemas/job.ts'
import { FairQueue, type FairQueueItem, type Work, workKey } from './fair-queue.ts'

/**
 * Length in ms of an interval in which job starts are counted. A shorter interval would make a few simultaneous starts
 * look like a high rate.
 */
const SPAN_MS = 250

/** Age in ms at which a sent job that has not started counts as lost, if workers are idle. */
const LOST_AFTER_MS = 2_000
/** Usual time in ms from a free slot to the start of the next job. As many jobs as start within this time are sent in advance. */
const DISPATCH_LATENCY_MS = 50
/** Minimum prefetch per model, in jobs. Prefetched jobs are sent to the workers before a slot is free. */
const PREFETCH_MIN = 2

/** Factor by which a tenant without jobs at the workers may exceed the prefetch and the limit of its model. */
const IDLE_TENANT_BURST = 2
/**
 * Maximum number of tenants without jobs at the workers that one dispatch examines. The bound matters if the first tenants all wait for models
 * without capacity.
 */
const IDLE_TENANTS_PER_DISPATCH = 32
/** Maximum number of consecutive rounds that a tenant skips at this ingress while other ingresses serve it (rule 2 of {@link TenantDispatcher}). */
const SKIPPED_ROUNDS_MAX = 15

export interface WaitingElsewhere {
  readonly work: Work
  readonly calls: number
}

export interface DispatcherView {
  /**
   * Returns the number of jobs that this ingress may send before a slot is free, possibly a fraction. Undefined if nothing can be sent.
   *
   * @param running Number of jobs of this ingress that workers have taken
   */
  prefetch(running: number): number | undefined
  readonly presence: {
    slots(pool: PoolName): number
    freeSlots(pool: PoolName): number
    capacityOf(pool: PoolName, work: Work): number | undefined
  }
  /** How this ingress and the others divide the queue of the pool. */
  readonly partition: {
    of(pool: PoolName, work: Work): number
    waitingElsewhere(pool: PoolName): ReadonlyMap<string, WaitingElsewhere>
    /** Number of ingresses at which calls of a tenant wait. */
    spread(pool: PoolName, tenant: string): number
  }
}

interface Model {
  readonly work: Work
  waiting: number
  inFlight: number
  readonly ends: RateMeter
}

/**
 * Dispatcher of one pool: decides which waiting job is sent next (docs/internals/design.md, Fairness).
 *
 * The problem: a pool's topic is a plain FIFO. If every call were sent on arrival, then one tenant with 1,000 calls would delay all other tenants.
 *
 * The invariant: the topic contains only as many jobs as keep the workers busy (the prefetch). For each model, only as many jobs are sent as its
 * workers can start soon. All other jobs wait here in a {@link FairQueue}.
 *
 * How it works:
 * 1. A job is sent if the prefetch is not used up and its model has capacity.
 * 2. Tenants are served round robin. A tenant that waits at n ingresses skips n − 1 of n rounds here.
 * 3. A tenant without any job at the workers may exceed the prefetch by a factor of two. Long jobs of other tenants therefore do not block this
 *    tenant.
 * 4. If several models compete for the slots, then each gets its max-min fair part ({@link maxMinPart}). A model alone may use all slots.
 *
 * Example: 40 slots, prefetch 10. A new tenant waits behind at most 10 sent jobs and one job of each other tenant. A call of a fast model never waits
 * behind calls of a busy model.
 */
export class TenantDispatcher<Job extends FairQueueItem> {
  readonly #pool: PoolName
  readonly #view: DispatcherView
  /** Send times of the jobs that no worker has started yet, oldest first. */
  readonly #sent = new Map<Job, number>()
  readonly #inFlight = new Set<Job>()
  readonly #inFlightBy = new Map<string, number>()
  /** Tenants that have waiting jobs but no job at the workers. The tenant that waits longest comes first. */
  readonly #idleTenants = new Set<string>()
  readonly #queue = new FairQueue<Job>()
  /** Number of rounds that each tenant still skips here, because other ingresses serve the tenant too. */
  readonly #skippedRounds = new Map<string, number>()
  readonly #models = new Map<string, Model>()
  readonly #starts = new RateMeter()

  constructor(pool: PoolName, view: DispatcherView) {
    this.#pool = pool
    this.#view = view
  }

  get hasWaiting(): boolean {
    return this.#queue.size > 0
  }

  /** Number of jobs that workers have taken. A taken job runs, or waits for the bulkhead of its model. */
  get running(): number {
    return this.#inFlight.size - this.#sent.size
  }

  get waiting(): number {
    let count = 0
    for (const { waiting } of this.#models.values()) count += waiting
    return count
  }

  /**
   * Sends a job at once, if no other job waits and its model has capacity.
   *
   * @returns False if the job must {@link enter} the queue
   */
  sendAtOnce(job: Job): boolean {
    if (this.#queue.size > 0 || this.#sent.size >= this.#prefetch()) return false
    const model = this.#modelOf(job.envelope)
    model.waiting++
    const isOpen = this.#hasCapacity(model, 1, this.#mostOfEach())
    model.waiting--
    if (isOpen) this.#send(job, model)
    else this.#forgetUnused(job.envelope, model)
    return isOpen
  }

  enter(job: Job): void {
    this.#queue.add(job)
    this.#noteIdleTenant(job.envelope.tenant)
    this.#modelOf(job.envelope).waiting++
  }

  enterFirst(job: Job): void {
    this.#queue.addFirst(job)
    this.#skippedRounds.delete(job.envelope.tenant)
    this.#noteIdleTenant(job.envelope.tenant)
    this.#modelOf(job.envelope).waiting++
  }

  start(job: Job): boolean {
    if (!this.#sent.delete(job)) return false
    this.#starts.count(1)
    return true
  }

  leave(job: Job): boolean {
    this.start(job)
    if (this.#release(job)) return true
    if (!this.#queue.delete(job)) return false
    const { tenant } = job.envelope
    if (!this.#queue.has(tenant)) {
      this.#skippedRounds.delete(tenant)
      this.#idleTenants.delete(tenant)
    }
    const model = this.#modelOf(job.envelope)
    model.waiting--
    this.#forgetUnused(job.envelope, model)
    return false
  }

  next(): Job | undefined {
    if (this.#queue.size === 0) return undefined
    const room = this.#prefetch()
    if (this.#sent.size < room) {
      const open = this.#openModels(1)
      // A tenant that skips its round moves to the end. If no other tenant has a job to send, then the tenant is served anyway.
      let job = open.size > 0 ? this.#queue.next(open) : undefined
      while (job && this.#skipsRound(job.envelope.tenant)) job = this.#queue.next(open)
      if (job) return this.#sendQueued(job)
    }
    return this.#sent.size < IDLE_TENANT_BURST * room ? this.#nextOfIdleTenant() : undefined
  }

  /** Returns the next job of a tenant that has no job at the workers. Such a tenant does not wait until jobs of other tenants end. */
  #nextOfIdleTenant(): Job | undefined {
    if (this.#idleTenants.size === 0) return undefined
    const open = this.#openModels(IDLE_TENANT_BURST)
    if (open.size === 0) return undefined
    let seen = 0
    for (const tenant of this.#idleTenants) {
      if (++seen > IDLE_TENANTS_PER_DISPATCH) return undefined
      const job = this.#skippedRounds.has(tenant) ? undefined : this.#queue.nextOf(tenant, open)
      if (job) return this.#sendQueued(job)
    }
    return undefined
  }

  #noteIdleTenant(tenant: string): void {
    if (!this.#inFlightBy.has(tenant) && this.#queue.has(tenant)) this.#idleTenants.add(tenant)
  }

  *calls(): Generator<{ work: Work; calls: number; tenants: ReadonlySet<string> }> {
    for (const [key, { work, waiting }] of this.#models) {
      if (waiting > 0) yield { work, calls: waiting, tenants: new Set(this.#queue.countsOf(key).tenants()) }
    }
  }

  /**
   * Returns the number of jobs that would run before a new job of a tenant. For a model with a concurrency limit, only jobs of that model count.
   * Otherwise jobs of all models without a limit count.
   */
  ahead(tenant: string, work: Work): number {
    const isBounded = this.#view.presence.capacityOf(this.#pool, work) !== undefined
    const ahead = isBounded ? (this.#models.get(workKey(work))?.inFlight ?? 0) : this.#sent.size
    if (this.#queue.size === 0) return ahead
    const counts = isBounded ? this.#queue.countsOf(workKey(work)) : this.#queue.countsWithout(this.#bounded())
    // Round robin: until the new job is served, each other tenant gets at most one job more than this tenant has
    // waiting.
    return ahead + counts.sum(counts.of(tenant) + 1)
  }

  waitingOf(model: string): number {
    let count = 0
    for (const { work, waiting } of this.#models.values()) if (work.model === model) count += waiting
    return count
  }

  #bounded(): ReadonlySet<string> {
    const keys = new Set<string>()
    for (const [key, { work }] of this.#models)
      if (this.#view.presence.capacityOf(this.#pool, work) !== undefined) keys.add(key)
    return keys
  }

  #modelOf({ kind, model }: Work): Model {
    const key = workKey({ kind, model })
    let known = this.#models.get(key)
    if (!known) {
      known = { work: { kind, model }, waiting: 0, inFlight: 0, ends: new RateMeter() }
      this.#models.set(key, known)
    }
    return known
  }

  /**
   * Returns the work keys (kind and model) of models with waiting jobs and free capacity.
   *
   * @param times Factor on the capacity
   */
  #openModels(times: number): ReadonlySet<string> {
    const open = new Set<string>()
    const most = this.#mostOfEach()
    for (const [key, model] of this.#models) {
      if (model.waiting > 0 && this.#hasCapacity(model, times, most)) open.add(key)
    }
    return open
  }

  #hasCapacity({ work, inFlight, ends }: Model, times: number, most: number): boolean {
    const capacity = this.#view.presence.capacityOf(this.#pool, work)
    if (capacity === undefined) return true
    const share = Math.ceil(Math.min(capacity, most) * this.#view.partition.of(this.#pool, work))
    return inFlight < times * (share + Math.max(PREFETCH_MIN, ends.count()))
  }

  /** Returns the maximum jobs of one model at the workers. Infinity unless several models compete for the slots. */
  #mostOfEach(): number {
    const elsewhere = this.#view.partition.waitingElsewhere(this.#pool)
    if (this.#models.size + elsewhere.size < 2) return Number.POSITIVE_INFINITY
    const wanted: number[] = []
    const add = (work: Work, jobs: number) => {
      const capacity = this.#view.presence.capacityOf(this.#pool, work)
      if (capacity !== undefined) wanted.push(Math.min(capacity, jobs))
    }
    for (const [key, { work, waiting, inFlight: held }] of this.#models) {
      add(work, held + waiting + (elsewhere.get(key)?.calls ?? 0))
    }
    for (const [key, { work, calls }] of elsewhere) if (!this.#models.has(key)) add(work, calls)
    return maxMinPart(wanted, this.#view.presence.slots(this.#pool))
  }

  #skipsRound(tenant: string): boolean {
    const rounds = this.#skippedRounds.get(tenant) ?? 0
    if (rounds === 0) return false
    this.#queue.toEnd(tenant)
    if (rounds > 1) this.#skippedRounds.set(tenant, rounds - 1)
    else this.#skippedRounds.delete(tenant)
    return true
  }

  #sendQueued(job: Job): Job {
    const { tenant } = job.envelope
    this.#queue.delete(job)
    this.#queue.toEnd(tenant)
    const rounds = this.#queue.has(tenant)
      ? Math.min(SKIPPED_ROUNDS_MAX, this.#view.partition.spread(this.#pool, tenant) - 1)
      : 0
    if (rounds > 0) this.#skippedRounds.set(tenant, rounds)
    else this.#skippedRounds.delete(tenant)
    this.#idleTenants.delete(tenant)
    const model = this.#modelOf(job.envelope)
    model.waiting--
    this.#send(job, model)
    return job
  }

  #send(job: Job, model: Model): void {
    const { tenant } = job.envelope
    model.inFlight++
    this.#inFlight.add(job)
    this.#inFlightBy.set(tenant, (this.#inFlightBy.get(tenant) ?? 0) + 1)
    this.#sent.set(job, Date.now())
  }

  #release(job: Job): boolean {
    if (!this.#inFlight.delete(job)) return false
    const { tenant } = job.envelope
    const left = (this.#inFlightBy.get(tenant) ?? 0) - 1
    if (left > 0) this.#inFlightBy.set(tenant, left)
    else this.#inFlightBy.delete(tenant)
    if (this.#queue.size > 0) this.#noteIdleTenant(tenant)
    const model = this.#modelOf(job.envelope)
    model.inFlight--
    model.ends.count(1)
    this.#forgetUnused(job.envelope, model)
    return true
  }

  #forgetUnused(work: Work, { waiting, inFlight }: Model): void {
    if (waiting + inFlight === 0) this.#models.delete(workKey(work))
  }

  #prefetch(): number {
    const { prefetch, presence } = this.#view
    const least = prefetch(this.running)
    if (least === undefined) return 0
    // The broker may lose records. A lost job fails at its own timeout, but must not block other jobs until then.
    for (const [job, sentAtMs] of this.#sent) {
      if (Date.now() - sentAtMs < LOST_AFTER_MS || presence.freeSlots(this.#pool) === 0) break
      this.#sent.delete(job)
      this.#release(job)
    }
    // The result is rounded to the nearest integer. If every ingress rounded up instead, then all ingresses together
    // would send too many jobs.
    return Math.max(1, Math.round(least + this.#starts.count()))
  }
}

/**
 * Returns the max-min fair part of the slots, which no consumer may exceed while another consumer has fewer slots than it needs. Infinity if the
 * slots suffice for all.
 *
 * @example maxMinPart([256, 10], 256) // 246: the consumer that needs 10 gets 10, the other consumer gets the rest
 */
export function maxMinPart(wanted: readonly number[], slots: number): number {
  let left = slots
  const rising = [...wanted].sort((a, b) => a - b)
  for (const [index, most] of rising.entries()) {
    const part = left / (rising.length - index)
    if (most > part) return part
    left -= most
  }
  return Number.POSITIVE_INFINITY
}

class RateMeter {
  #fromMs = 0
  #before = 0
  #now = 0

  /** Adds events. Returns the expected number of events in {@link DISPATCH_LATENCY_MS}. */
  count(added = 0): number {
    const sinceMs = Date.now() - this.#fromMs
    if (sinceMs >= SPAN_MS) {
      this.#before = sinceMs < 2 * SPAN_MS ? this.#now : 0
      this.#now = 0
      this.#fromMs = Date.now()
    }
    this.#now += added
    return (Math.max(this.#before, this.#now) * DISPATCH_LATENCY_MS) / SPAN_MS
  }
}
