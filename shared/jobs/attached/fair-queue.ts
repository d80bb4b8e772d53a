import { type Work, workKey } from '#shared/jobs/peers.ts'
import { TenantCounts } from './tenant-counts.ts'

/** A job that waits for its turn. */
export interface TurnTaker {
  readonly envelope: Work & { readonly tenant: string }
}

/** The jobs of one tenant that wait, by their model; the oldest first. */
interface Own<Job> {
  /** Who has a lower one comes first. */
  rank: number
  readonly jobs: Map<string, Set<Job>>
}

/** Those who wait for one model. */
interface Line {
  /** Of the tenants, in order. */
  readonly ranks: number[]
  readonly counts: TenantCounts
}

/**
 * The jobs that wait, and the order in which their tenants have turns. Each model has a line of its own, so that nobody looks
 * through those who wait for one that is busy: what a turn costs does not depend on how many tenants wait.
 */
export class FairQueue<Job extends TurnTaker> {
  readonly #tenants = new Map<string, Own<Job>>()
  readonly #byRank = new Map<number, Own<Job>>()
  readonly #lines = new Map<string, Line>()
  /** The order in which jobs came; those that come again have negative numbers. */
  readonly #order = new WeakMap<Job, number>()
  #last = 0
  #first = 0
  /** Of all models but these. */
  #others: { readonly without: ReadonlySet<string>; readonly counts: TenantCounts } | undefined

  /** Tenants of whom jobs wait. */
  get size(): number {
    return this.#tenants.size
  }

  has(tenant: string): boolean {
    return this.#tenants.has(tenant)
  }

  /** A job waits, as the last one of its tenant. */
  add(job: Job): void {
    this.#order.set(job, ++this.#last)
    const key = workKey(job.envelope)
    const own = this.#ownOf(job.envelope.tenant)
    const same = own.jobs.get(key)
    if (same) same.add(job)
    else this.#open(own, key, [job])
    this.#count(key, job.envelope.tenant, 1)
  }

  /** A job waits, before all others. */
  addFirst(job: Job): void {
    this.#order.set(job, --this.#first)
    const key = workKey(job.envelope)
    const own = this.#ownOf(job.envelope.tenant)
    this.#move(own, --this.#first)
    const same = own.jobs.get(key)
    if (same) own.jobs.set(key, new Set([job, ...same]))
    else this.#open(own, key, [job])
    this.#count(key, job.envelope.tenant, 1)
  }

  /** A job waits no more. @returns Whether it did */
  delete(job: Job): boolean {
    const { tenant } = job.envelope
    const key = workKey(job.envelope)
    const own = this.#tenants.get(tenant)
    const same = own?.jobs.get(key)
    if (!own || !same?.delete(job)) return false
    this.#count(key, tenant, -1)
    if (same.size > 0) return true
    own.jobs.delete(key)
    this.#leaveLine(own, key)
    if (own.jobs.size > 0) return true
    this.#tenants.delete(tenant)
    this.#byRank.delete(own.rank)
    return true
  }

  /** A tenant comes last in the round. */
  toEnd(tenant: string): void {
    const own = this.#tenants.get(tenant)
    if (own) this.#move(own, ++this.#last)
  }

  /** The oldest job for one of these models of the tenant that comes first. */
  next(open: ReadonlySet<string>): Job | undefined {
    let rank = Number.POSITIVE_INFINITY
    for (const key of open) rank = Math.min(rank, this.#lines.get(key)?.ranks[0] ?? rank)
    const own = this.#byRank.get(rank)
    return own && this.#oldestOf(own, open)
  }

  /** The same of one tenant. */
  nextOf(tenant: string, open: ReadonlySet<string>): Job | undefined {
    const own = this.#tenants.get(tenant)
    return own && this.#oldestOf(own, open)
  }

  /** Who waits for a model, by {@link workKey}. */
  countsOf(key: string): TenantCounts {
    return this.#lines.get(key)?.counts ?? new TenantCounts()
  }

  /** Who waits for any model but some. Cheap while these are the same as the time before. */
  countsWithout(keys: ReadonlySet<string>): TenantCounts {
    if (this.#others && isSame(this.#others.without, keys)) return this.#others.counts
    const counts = new TenantCounts()
    for (const [key, line] of this.#lines) if (!keys.has(key)) counts.addAll(line.counts)
    this.#others = { without: new Set(keys), counts }
    return counts
  }

  #ownOf(tenant: string): Own<Job> {
    const known = this.#tenants.get(tenant)
    if (known) return known
    const own = { rank: ++this.#last, jobs: new Map<string, Set<Job>>() }
    this.#tenants.set(tenant, own)
    this.#byRank.set(own.rank, own)
    return own
  }

  #open(own: Own<Job>, key: string, jobs: Job[]): void {
    own.jobs.set(key, new Set(jobs))
    const line = this.#lines.get(key) ?? { ranks: [], counts: new TenantCounts() }
    this.#lines.set(key, line)
    line.ranks.splice(placeOf(line.ranks, own.rank), 0, own.rank)
  }

  #leaveLine({ rank }: Own<Job>, key: string): void {
    const line = this.#lines.get(key)
    if (!line) return
    line.ranks.splice(placeOf(line.ranks, rank), 1)
    if (line.ranks.length === 0) this.#lines.delete(key)
  }

  #move(own: Own<Job>, rank: number): void {
    this.#byRank.delete(own.rank)
    for (const key of own.jobs.keys()) {
      const ranks = this.#lines.get(key)?.ranks ?? []
      ranks.splice(placeOf(ranks, own.rank), 1)
      ranks.splice(placeOf(ranks, rank), 0, rank)
    }
    own.rank = rank
    this.#byRank.set(rank, own)
  }

  #oldestOf({ jobs }: Own<Job>, open: ReadonlySet<string>): Job | undefined {
    let first: Job | undefined
    for (const [key, [job]] of jobs) {
      if (!job || !open.has(key)) continue
      if (!first || (this.#order.get(job) ?? 0) < (this.#order.get(first) ?? 0)) first = job
    }
    return first
  }

  #count(key: string, tenant: string, by: 1 | -1): void {
    this.#lines.get(key)?.counts.change(tenant, by)
    if (this.#others && !this.#others.without.has(key)) this.#others.counts.change(tenant, by)
  }
}

/** Where a rank is among others, or would be. Most are new, and last. */
function placeOf(ranks: readonly number[], rank: number): number {
  if (rank > (ranks.at(-1) ?? Number.NEGATIVE_INFINITY)) return ranks.length
  let [from, to] = [0, ranks.length]
  while (from < to) {
    const middle = (from + to) >>> 1
    if ((ranks[middle] ?? 0) < rank) from = middle + 1
    else to = middle
  }
  return from
}

function isSame(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  return a.size === b.size && a.isSubsetOf(b)
}
