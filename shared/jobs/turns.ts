/** Age from which a job that was sent and still waits, while workers have nothing to do, is taken for lost. */
const LOST_AFTER_MS = 2_000
/** How long it may take until a free slot has the next job: what starts in that time must be in the queue already. */
const WAY_MS = 100

/** What the turns need to know of a pool. */
export interface TurnsView {
  /** Slots of the pool's workers; undefined while nothing can be sent. */
  slots(): number | undefined
  /** Whether workers of the pool wait for work. */
  isIdle(): boolean
}

/** A job whose turn is awaited. */
export interface TurnTaker {
  readonly envelope: { readonly tenant: string }
}

/**
 * Fair turns of tenants at one pool: only so many jobs wait in the pool's queue, which is first come first served, as keep
 * its workers busy. The others wait here, and go one of each tenant after the other. So a call of one tenant waits behind
 * that room and one call of each other tenant, however many those have sent before (DESIGN section 5).
 */
export class Turns<Job extends TurnTaker> {
  readonly #view: TurnsView
  /** What was let go and has not left, with the time of its turn; oldest first. */
  readonly #sent = new Map<Job, number>()
  /** By tenant; whose turn is next comes first. */
  #waiting = new Map<string, Set<Job>>()
  readonly #starts = new RecentCount(WAY_MS)

  constructor(view: TurnsView) {
    this.#view = view
  }

  /** Whether some job waits for its turn. */
  get hasWaiting(): boolean {
    return this.#waiting.size > 0
  }

  /** A job asks for its turn. It is given by {@link next}, maybe at once. */
  enter(job: Job): void {
    const { tenant } = job.envelope
    const own = this.#waiting.get(tenant)
    if (own) own.add(job)
    else this.#waiting.set(tenant, new Set([job]))
  }

  /** A job that had its turn asks again: before all others. */
  enterFirst(job: Job): void {
    const { tenant } = job.envelope
    const own = this.#waiting.get(tenant) ?? []
    this.#waiting.delete(tenant)
    this.#waiting = new Map([[tenant, new Set([job, ...own])], ...this.#waiting])
  }

  /** A job waits no more: a worker has it, or it ended. @returns Whether that made room for the next */
  leave(job: Job): boolean {
    if (this.#sent.delete(job)) {
      this.#starts.add()
      return true
    }
    const { tenant } = job.envelope
    const own = this.#waiting.get(tenant)
    if (own?.delete(job) && own.size === 0) this.#waiting.delete(tenant)
    return false
  }

  /** The job whose turn it is now; undefined when none waits, or as many are on their way as there is room for. */
  next(): Job | undefined {
    const [first] = this.#waiting
    if (!first || !this.#hasRoom()) return undefined
    const [tenant, own] = first
    const [job] = own
    this.#waiting.delete(tenant)
    if (!job) return undefined
    own.delete(job)
    // To the end of the round.
    if (own.size > 0) this.#waiting.set(tenant, own)
    this.#sent.set(job, Date.now())
    return job
  }

  /** Jobs that would be run before a new one of a tenant. */
  ahead(tenant: string): number {
    const own = this.#waiting.get(tenant)?.size ?? 0
    let ahead = this.#sent.size
    // Of each other tenant one for each of ours, and one more where it comes first in the round.
    for (const { size } of this.#waiting.values()) ahead += Math.min(size, own + 1)
    return ahead
  }

  #hasRoom(): boolean {
    const slots = this.#view.slots()
    if (slots === undefined) return false
    const room = slots + this.#starts.count
    if (this.#sent.size < room) return true
    // The broker may lose everything: what was sent then fails in its time, but must not keep the others waiting.
    for (const [job, sentAtMs] of this.#sent) {
      if (Date.now() - sentAtMs < LOST_AFTER_MS || !this.#view.isIdle()) break
      this.#sent.delete(job)
    }
    return this.#sent.size < room
  }
}

/** How often something happened in the last `spanMs`, or in the fullest span of the last two. */
class RecentCount {
  readonly #spanMs: number
  #fromMs = 0
  #before = 0
  #now = 0

  constructor(spanMs: number) {
    this.#spanMs = spanMs
  }

  add(): void {
    this.#roll()
    this.#now++
  }

  get count(): number {
    this.#roll()
    return Math.max(this.#before, this.#now)
  }

  #roll(): void {
    const sinceMs = Date.now() - this.#fromMs
    if (sinceMs < this.#spanMs) return
    this.#before = sinceMs < 2 * this.#spanMs ? this.#now : 0
    this.#now = 0
    this.#fromMs = Date.now()
  }
}
