import { type Work, workKey } from '#shared/jobs/peers.ts'
import { FairQueue, type TurnTaker } from './fair-queue.ts'
import { RateMeter } from './rate-meter.ts'

/** Age from which a job that was sent and still waits, while workers have nothing to do, is taken for lost. */
const LOST_AFTER_MS = 2_000
/** How long it takes until a free slot has the next job, mostly: what starts in that time must be in the queue already. */
const DISPATCH_LATENCY_MS = 50
/** Jobs of one model that may be with the workers beside those that run: each waits in line for the next place. */
const PREFETCH_MIN = 2

/** How far a tenant may go beyond what there is room for that has nothing with the workers: by as much again. */
const IDLE_TENANT_BURST = 2
/** Such tenants that are looked at for one turn: those at the front may wait for models that are full. */
const IDLE_TENANTS_PER_TURN = 32
/** Rounds that a tenant rests at most, at however many ingresses it waits. */
const SKIPPED_ROUNDS_MAX = 15

const NONE: ReadonlyMap<string, number> = new Map()

/** Jobs of one kind and model that wait in other ingresses. */
export interface WaitingElsewhere {
  readonly work: Work
  readonly calls: number
}

/** What {@link Turns} need to know of a pool. */
export interface TurnsView {
  /** Jobs that slots of the pool's workers can begin with soon, of this ingress, with a fraction; undefined while nothing can be sent. */
  room(): number | undefined
  /** Slots of the pool's workers. */
  slots(): number
  /** Jobs of one kind and model that the workers can have running at once; undefined where only their slots bound them. */
  capacityOf(work: Work): number | undefined
  /** Jobs that wait for their turn in other ingresses, by {@link workKey}. */
  waitingElsewhere(): ReadonlyMap<string, WaitingElsewhere>
  /** The part of that which is for this ingress, above 0 and at most 1. */
  shareOf(work: Work): number
  /** At how many ingresses jobs of a tenant wait, this one counted. */
  spreadOf(tenant: string): number
  /** Whether workers of the pool wait for work. */
  isIdle(): boolean
}

/** Jobs of one kind and model. */
interface Model {
  readonly work: Work
  /** Jobs that wait for their turn. */
  waiting: number
  /** Jobs that had it, and wait or run. */
  held: number
  /** How quickly they leave: as many must be on their way. */
  readonly ends: RateMeter
}

/**
 * Fair turns of tenants at one pool: only so many jobs wait in the pool's queue, which is first come first served, as keep
 * its workers busy, and of each model only so many are with the workers as they can start soon. The others wait here, and
 * go one of each tenant after the other. So a call of one tenant waits behind that room and one call of each other tenant,
 * however many those have sent before (docs/design.md, Turns), and not at all behind calls of a model that is busy. One model may
 * have all slots; if others wait for them too, each has a max-min fair part ({@link maxMinPart}). A tenant
 * whose calls wait at n ingresses gets a turn in one of n rounds.
 */
export class TenantTurns<Job extends TurnTaker> {
  readonly #view: TurnsView
  /** What was let go and that no worker has, with the time of its turn; oldest first. */
  readonly #sent = new Map<Job, number>()
  /** What was let go and has not left. */
  readonly #held = new Set<Job>()
  /** How much of that each tenant has. */
  readonly #heldBy = new Map<string, number>()
  /** Tenants who have nothing of it and wait, those first who have waited longest. */
  readonly #fresh = new Set<string>()
  readonly #round = new FairQueue<Job>()
  /** Rounds in which a tenant gets no turn here, since it gets them elsewhere. */
  readonly #rests = new Map<string, number>()
  readonly #models = new Map<string, Model>()
  readonly #starts = new RateMeter()

  constructor(view: TurnsView) {
    this.#view = view
  }

  /** Whether some job waits for its turn. */
  get hasWaiting(): boolean {
    return this.#round.size > 0
  }

  /** Jobs that workers have: they run, or wait there for a place of their model. */
  get running(): number {
    return this.#held.size - this.#sent.size
  }

  /** Jobs that wait for their turn. */
  get waiting(): number {
    let count = 0
    for (const { waiting } of this.#models.values()) count += waiting
    return count
  }

  /** A job asks for its turn. It is given by {@link next}, maybe at once. */
  enter(job: Job): void {
    this.#round.add(job)
    this.#noteFresh(job.envelope.tenant)
    this.#modelOf(job.envelope).waiting++
  }

  /** A job that had its turn asks again: before all others. */
  enterFirst(job: Job): void {
    this.#round.addFirst(job)
    this.#rests.delete(job.envelope.tenant)
    this.#noteFresh(job.envelope.tenant)
    this.#modelOf(job.envelope).waiting++
  }

  /** A worker has the job. @returns Whether that made room for the next */
  start(job: Job): boolean {
    if (!this.#sent.delete(job)) return false
    this.#starts.add()
    return true
  }

  /** A job waits and runs no more: it ended, or its attempt did. @returns Whether that made room for the next */
  leave(job: Job): boolean {
    this.start(job)
    if (this.#release(job)) return true
    if (!this.#round.delete(job)) return false
    const { tenant } = job.envelope
    if (!this.#round.has(tenant)) {
      this.#rests.delete(tenant)
      this.#fresh.delete(tenant)
    }
    const model = this.#modelOf(job.envelope)
    model.waiting--
    if (model.waiting + model.held === 0) this.#models.delete(workKey(job.envelope))
    return false
  }

  /** The job whose turn it is now; undefined when none waits that there is room for. */
  next(): Job | undefined {
    if (this.#round.size === 0) return undefined
    const room = this.#room()
    if (this.#sent.size < room) {
      const open = this.#openModels(1)
      // A tenant that rests comes again at the end of the round: where no other has a turn, it has it after all.
      let job = open.size > 0 ? this.#round.next(open) : undefined
      while (job && this.#hasToRest(job.envelope.tenant)) job = this.#round.next(open)
      if (job) return this.#send(job)
    }
    return this.#sent.size < IDLE_TENANT_BURST * room ? this.#nextOfFresh() : undefined
  }

  /** The same of a tenant that has nothing with the workers: it need not wait until those have left who have. */
  #nextOfFresh(): Job | undefined {
    if (this.#fresh.size === 0) return undefined
    const open = this.#openModels(IDLE_TENANT_BURST)
    if (open.size === 0) return undefined
    let seen = 0
    for (const tenant of this.#fresh) {
      if (++seen > IDLE_TENANTS_PER_TURN) return undefined
      const job = this.#rests.has(tenant) ? undefined : this.#round.nextOf(tenant, open)
      if (job) return this.#send(job)
    }
    return undefined
  }

  #noteFresh(tenant: string): void {
    if (!this.#heldBy.has(tenant) && this.#round.has(tenant)) this.#fresh.add(tenant)
  }

  /** What waits, by what it is. */
  *calls(): Generator<{ work: Work; calls: number; tenants: ReadonlySet<string> }> {
    for (const [key, { work, waiting }] of this.#models) {
      if (waiting > 0) yield { work, calls: waiting, tenants: new Set(this.#round.countsOf(key).tenants()) }
    }
  }

  /**
   * Jobs that would be run before a new one of a tenant: those of its model where that has a bound, else those of all models
   * that have none.
   *
   * @param reserved Jobs of each tenant that are expected before it.
   * @param own Those of its own tenant, where it is not before all of these.
   */
  ahead(
    tenant: string,
    work: Work,
    reserved: ReadonlyMap<string, number> = NONE,
    own = reserved.get(tenant) ?? 0,
  ): number {
    const isBounded = this.#view.capacityOf(work) !== undefined
    let ahead = isBounded ? (this.#models.get(workKey(work))?.held ?? 0) : this.#sent.size
    if (this.#round.size + reserved.size === 0) return ahead
    const counts = isBounded ? this.#round.countsOf(workKey(work)) : this.#round.countsWithout(this.#bounded())
    // Of each other tenant one for each of ours, and one more where it comes first in the round.
    const most = counts.of(tenant) + own + 1
    ahead += counts.sum(most)
    for (const [each, all] of reserved) {
      const count = each === tenant ? own : all
      const waiting = counts.of(each)
      ahead += Math.min(waiting + count, most) - Math.min(waiting, most)
    }
    return ahead
  }

  /** Jobs of a model that wait for their turn. */
  waitingOf(model: string): number {
    let count = 0
    for (const { work, waiting } of this.#models.values()) if (work.model === model) count += waiting
    return count
  }

  #bounded(): ReadonlySet<string> {
    const keys = new Set<string>()
    for (const [key, { work }] of this.#models) if (this.#view.capacityOf(work) !== undefined) keys.add(key)
    return keys
  }

  #modelOf({ kind, model }: Work): Model {
    const key = workKey({ kind, model })
    let known = this.#models.get(key)
    if (!known) {
      known = { work: { kind, model }, waiting: 0, held: 0, ends: new RateMeter() }
      this.#models.set(key, known)
    }
    return known
  }

  /** Models with waiting jobs, of which the workers can start some soon. @param times How many times what they can start */
  #openModels(times: number): ReadonlySet<string> {
    const open = new Set<string>()
    const most = this.#mostOfEach()
    for (const [key, { work, waiting, held, ends }] of this.#models) {
      if (waiting === 0) continue
      const capacity = this.#view.capacityOf(work)
      const share = capacity === undefined ? Infinity : Math.ceil(Math.min(capacity, most) * this.#view.shareOf(work))
      if (held < times * (share + Math.max(PREFETCH_MIN, ends.in(DISPATCH_LATENCY_MS)))) open.add(key)
    }
    return open
  }

  /** Jobs that one model may have with the workers while others wait for the same slots; all of them while none does. */
  #mostOfEach(): number {
    const elsewhere = this.#view.waitingElsewhere()
    if (this.#models.size + elsewhere.size < 2) return Number.POSITIVE_INFINITY
    const wanted: number[] = []
    const add = (work: Work, jobs: number) => {
      const capacity = this.#view.capacityOf(work)
      if (capacity !== undefined) wanted.push(Math.min(capacity, jobs))
    }
    for (const [key, { work, waiting, held }] of this.#models) {
      add(work, held + waiting + (elsewhere.get(key)?.calls ?? 0))
    }
    for (const [key, { work, calls }] of elsewhere) if (!this.#models.has(key)) add(work, calls)
    return maxMinPart(wanted, this.#view.slots())
  }

  /** Goes to the end of the round where it rests. */
  #hasToRest(tenant: string): boolean {
    const rounds = this.#rests.get(tenant) ?? 0
    if (rounds === 0) return false
    this.#round.toEnd(tenant)
    if (rounds > 1) this.#rests.set(tenant, rounds - 1)
    else this.#rests.delete(tenant)
    return true
  }

  #send(job: Job): Job {
    const { tenant } = job.envelope
    this.#round.delete(job)
    this.#round.toEnd(tenant)
    const rounds = this.#round.has(tenant) ? Math.min(SKIPPED_ROUNDS_MAX, this.#view.spreadOf(tenant) - 1) : 0
    if (rounds > 0) this.#rests.set(tenant, rounds)
    else this.#rests.delete(tenant)
    const model = this.#modelOf(job.envelope)
    model.waiting--
    model.held++
    this.#held.add(job)
    this.#heldBy.set(tenant, (this.#heldBy.get(tenant) ?? 0) + 1)
    this.#fresh.delete(tenant)
    this.#sent.set(job, Date.now())
    return job
  }

  /** Gives the place of a job back. False: it held none. */
  #release(job: Job): boolean {
    if (!this.#held.delete(job)) return false
    const { tenant } = job.envelope
    const left = (this.#heldBy.get(tenant) ?? 0) - 1
    if (left > 0) this.#heldBy.set(tenant, left)
    else this.#heldBy.delete(tenant)
    this.#noteFresh(tenant)
    const model = this.#modelOf(job.envelope)
    model.held--
    model.ends.add()
    if (model.waiting + model.held === 0) this.#models.delete(workKey(job.envelope))
    return true
  }

  /** Jobs that may be sent and not yet begun. */
  #room(): number {
    const least = this.#view.room()
    if (least === undefined) return 0
    // The broker may lose everything: what was sent then fails in its time, but must not keep the others waiting.
    for (const [job, sentAtMs] of this.#sent) {
      if (Date.now() - sentAtMs < LOST_AFTER_MS || !this.#view.isIdle()) break
      this.#sent.delete(job)
      this.#release(job)
    }
    // Several ingresses that each rounded up would have a queue between them.
    return Math.max(1, Math.round(least + this.#starts.in(DISPATCH_LATENCY_MS)))
  }
}

/**
 * Maximum that each of several may have of a number of slots, so that none can have more without taking from one that has fewer
 * (max-min fairness). Infinity while there is enough for all.
 *
 * @example maxMinPart([256, 10], 256) // 246: the one that wants 10 gets them, the other the rest
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
