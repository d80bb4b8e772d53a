/** A kind of job for one model. Jobs with equal kind and model compete for the same permits of a worker. */
export interface Work {
  readonly kind: string
  readonly model: string
}

export function workKey({ kind, model }: Work): string {
  return `${kind} ${model}`
}

export interface FairQueueItem {
  readonly envelope: Work & { readonly tenant: string }
}

interface TenantQueue<Job> {
  /** Position of the tenant in the round robin. The tenant with the lowest rank is served next. */
  rank: number
  readonly jobs: Map<string, Set<Job>>
}

interface ModelOrder {
  /** Ranks of the tenants that wait for the model, in ascending order. */
  readonly ranks: number[]
  readonly counts: TenantCounts
}

/**
 * Fair queue: round robin over tenants, first in first out within a tenant.
 *
 * The problem: in a plain FIFO, a tenant that sends 1,000 calls delays every other tenant by 1,000 calls. A scan over all waiting
 * jobs would also pass thousands of jobs whose model has no free capacity.
 *
 * How it works: each tenant has a rank, and the tenant with the lowest rank is served next. An index per model (kind and model) lists the
 * ranks of the tenants that wait for it. The next job is found by comparing only the
 * lowest rank of each model with free capacity. The cost therefore does not depend on the number of waiting tenants.
 *
 * Example: tenant A has 1,000 calls waiting, then B adds one. The order is A, B, A, A and so on: B waits behind at most one call
 * of A.
 */
export class FairQueue<Job extends FairQueueItem> {
  readonly #tenants = new Map<string, TenantQueue<Job>>()
  readonly #byRank = new Map<number, TenantQueue<Job>>()
  readonly #orders = new Map<string, ModelOrder>()
  /** Arrival number of each job. A job that `addFirst` added has a number below all other jobs, 0 or negative. */
  readonly #order = new WeakMap<Job, number>()
  #last = 0
  #first = 0
  #others: { readonly without: ReadonlySet<string>; readonly counts: TenantCounts } | undefined

  get size(): number {
    return this.#tenants.size
  }

  has(tenant: string): boolean {
    return this.#tenants.has(tenant)
  }

  add(job: Job): void {
    this.#order.set(job, ++this.#last)
    const key = workKey(job.envelope)
    const own = this.#queueOf(job.envelope.tenant)
    const same = own.jobs.get(key)
    if (same) same.add(job)
    else this.#open(own, key, [job])
    this.#count(key, job.envelope.tenant, 1)
  }

  /** Inserts a job before all other jobs of its tenant, and makes the tenant the next one to be served. */
  addFirst(job: Job): void {
    this.#order.set(job, --this.#first)
    const key = workKey(job.envelope)
    const own = this.#queueOf(job.envelope.tenant)
    this.#move(own, --this.#first)
    const same = own.jobs.get(key)
    if (same) own.jobs.set(key, new Set([job, ...same]))
    else this.#open(own, key, [job])
    this.#count(key, job.envelope.tenant, 1)
  }

  delete(job: Job): boolean {
    const { tenant } = job.envelope
    const key = workKey(job.envelope)
    const own = this.#tenants.get(tenant)
    const same = own?.jobs.get(key)
    if (!own || !same?.delete(job)) return false
    this.#count(key, tenant, -1)
    if (same.size > 0) return true
    own.jobs.delete(key)
    this.#leaveOrder(own, key)
    if (own.jobs.size > 0) return true
    this.#tenants.delete(tenant)
    this.#byRank.delete(own.rank)
    return true
  }

  toEnd(tenant: string): void {
    const own = this.#tenants.get(tenant)
    if (own) this.#move(own, ++this.#last)
  }

  /**
   * Returns the oldest startable job of the first tenant that has one. The job stays in the queue.
   *
   * @param open Work keys of models with free capacity
   */
  next(open: ReadonlySet<string>): Job | undefined {
    let rank = Number.POSITIVE_INFINITY
    for (const key of open) rank = Math.min(rank, this.#orders.get(key)?.ranks[0] ?? rank)
    const own = this.#byRank.get(rank)
    return own && this.#oldestOf(own, open)
  }

  nextOf(tenant: string, open: ReadonlySet<string>): Job | undefined {
    const own = this.#tenants.get(tenant)
    return own && this.#oldestOf(own, open)
  }

  /**
   * Returns the number of jobs per tenant that wait for one model.
   *
   * @param key See {@link workKey}
   */
  countsOf(key: string): TenantCounts {
    return this.#orders.get(key)?.counts ?? new TenantCounts()
  }

  /** Returns the number of jobs per tenant that wait for any model except `keys`. The result is cached for the next call with equal keys. */
  countsWithout(keys: ReadonlySet<string>): TenantCounts {
    if (this.#others && isSame(this.#others.without, keys)) return this.#others.counts
    const counts = new TenantCounts()
    for (const [key, line] of this.#orders) if (!keys.has(key)) counts.addAll(line.counts)
    this.#others = { without: new Set(keys), counts }
    return counts
  }

  #queueOf(tenant: string): TenantQueue<Job> {
    const known = this.#tenants.get(tenant)
    if (known) return known
    const own = { rank: ++this.#last, jobs: new Map<string, Set<Job>>() }
    this.#tenants.set(tenant, own)
    this.#byRank.set(own.rank, own)
    return own
  }

  #open(own: TenantQueue<Job>, key: string, jobs: Job[]): void {
    own.jobs.set(key, new Set(jobs))
    const line = this.#orders.get(key) ?? { ranks: [], counts: new TenantCounts() }
    this.#orders.set(key, line)
    line.ranks.splice(positionOf(line.ranks, own.rank), 0, own.rank)
  }

  #leaveOrder({ rank }: TenantQueue<Job>, key: string): void {
    const line = this.#orders.get(key)
    if (!line) return
    line.ranks.splice(positionOf(line.ranks, rank), 1)
    if (line.ranks.length === 0) this.#orders.delete(key)
  }

  #move(own: TenantQueue<Job>, rank: number): void {
    this.#byRank.delete(own.rank)
    for (const key of own.jobs.keys()) {
      const ranks = this.#orders.get(key)?.ranks ?? []
      ranks.splice(positionOf(ranks, own.rank), 1)
      ranks.splice(positionOf(ranks, rank), 0, rank)
    }
    own.rank = rank
    this.#byRank.set(rank, own)
  }

  #oldestOf({ jobs }: TenantQueue<Job>, open: ReadonlySet<string>): Job | undefined {
    let first: Job | undefined
    for (const [key, [job]] of jobs) {
      if (!job || !open.has(key)) continue
      if (!first || (this.#order.get(job) ?? 0) < (this.#order.get(first) ?? 0)) first = job
    }
    return first
  }

  #count(key: string, tenant: string, by: 1 | -1): void {
    this.#orders.get(key)?.counts.change(tenant, by)
    if (this.#others && !this.#others.without.has(key)) this.#others.counts.change(tenant, by)
  }
}

function positionOf(ranks: readonly number[], rank: number): number {
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

/**
 * Number of jobs per tenant. {@link sum} counts at most a given number of jobs per tenant. The cost of a sum does not depend on the number of
 * tenants.
 */
export class TenantCounts {
  readonly #of = new Map<string, number>()
  /**
   * `#above[n]` is the number of tenants with more than n jobs. A sum that counts each tenant up to m jobs is therefore `#above[0]
   * + … + #above[m - 1]`.
   */
  readonly #above: number[] = []
  #total = 0

  of(tenant: string): number {
    return this.#of.get(tenant) ?? 0
  }

  tenants(): Iterable<string> {
    return this.#of.keys()
  }

  change(tenant: string, by: 1 | -1): void {
    const before = this.of(tenant)
    const after = before + by
    if (after > 0) this.#of.set(tenant, after)
    else this.#of.delete(tenant)
    const least = Math.min(before, after)
    this.#above[least] = (this.#above[least] ?? 0) + by
    if (this.#above[least] === 0) this.#above.pop()
    this.#total += by
  }

  addAll(others: TenantCounts): void {
    for (const [tenant, count] of others.#of) for (let n = 0; n < count; n++) this.change(tenant, 1)
  }

  sum(most: number): number {
    if (most >= this.#above.length) return this.#total
    let sum = 0
    for (let n = 0; n < most; n++) sum += this.#above[n] ?? 0
    return sum
  }
}
