import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import { hashOf } from '#shared/lib/id.ts'
import { type Work, workKey } from './fair-queue.ts'
import type { WaitingElsewhere } from './tenant-dispatcher.ts'

/** Interval at which this ingress reports its waiting calls. Most calls start sooner, so they are never reported. */
const PUBLISH_INTERVAL_MS = 200
/** A report of another ingress expires at this age, because that ingress has ended or is unreachable. */
const STALE_MS = 2_000
/** Cache lifetime of a computed share. The waiting tenants change with every call, so the share is not computed each time. */
const PARTITION_TTL_MS = 50
const QUEUES_MAX = 32
const TENANTS_MAX = 32

const NONE: ReadonlyMap<string, WaitingElsewhere> = new Map()

type WaitingRecord = Extract<ControlRecord, { type: 'calls_waiting' }>

export interface WaitingCalls {
  readonly pool: PoolName
  readonly work: Work
  readonly calls: number
  readonly tenants: ReadonlySet<string>
}

export interface SlotPartitionOptions {
  readonly boot: string
  readonly publish: (record: WaitingRecord) => void
  readonly waiting: () => Iterable<WaitingCalls>
  readonly onChange: () => void
}

/** Calls that wait in other ingresses for one pool, or for one kind and model of a pool. */
interface Others {
  calls: number
  readonly works: Map<string, WaitingElsewhere>
  /** Hash of a tenant → number of other ingresses at which calls of that tenant wait. */
  readonly tenants: Map<string, number>
  unlisted: number
}

/**
 * How several ingresses divide the queue of a pool (docs/internals/design.md, Fairness).
 *
 * The problem: each ingress is fair only to its own tenants. If every ingress had the same share, then a tenant alone on one
 * ingress would get more than ten tenants together on another.
 *
 * How it works: an ingress with waiting calls publishes hashes of its tenants on `control` every 200 ms. The share of an ingress is
 * its number of waiting tenants divided by that of all ingresses. A tenant that waits at n ingresses counts 1/n at each of them, so
 * it gains nothing by using several.
 *
 * Example: tenants A and B wait at the first ingress, B and C at the second. Each ingress counts 1.5 of 3 tenants, so each share
 * is 1/2.
 *
 * A single ingress has a share of 1. Every ingress may send at least one job. Reports are up to 200 ms old, so the workers' queue
 * may briefly be longer or shorter than intended.
 */
export class SlotPartition {
  readonly #options: SlotPartitionOptions
  readonly #reports = new Map<string, { readonly atMs: number; readonly record: WaitingRecord }>()
  /** Sums of the other ingresses' reports, by pool and by pool with work key; undefined if they must be computed again. */
  #others: Map<string, Others> | undefined
  readonly #parts = new Map<string, { readonly atMs: number; readonly share: number }>()
  #hasReported = false
  #timer: NodeJS.Timeout | undefined

  constructor(options: SlotPartitionOptions) {
    this.#options = options
  }

  changed(): void {
    this.#timer ??= setTimeout(() => this.#report(), PUBLISH_INTERVAL_MS)
  }

  receive(record: WaitingRecord): void {
    if (record.boot === this.#options.boot) return
    if (record.queues.length > 0) this.#reports.set(record.boot, { atMs: Date.now(), record })
    else if (!this.#reports.delete(record.boot)) return
    this.#forget()
    this.#options.onChange()
  }

  /** Share of this ingress in a pool, or in one kind and model of it: above 0, and 1 if calls wait at no other ingress. */
  of(pool: PoolName, work?: Work): number {
    const others = this.#othersOf(pool, work)
    if (!others) return 1
    const key = keyOf(pool, work)
    const known = this.#parts.get(key)
    if (known && Date.now() - known.atMs < PARTITION_TTL_MS) return known.share
    const share = this.#compute(others, this.#tenantsHere(pool, work))
    this.#parts.set(key, { atMs: Date.now(), share })
    return share
  }

  spread(pool: PoolName, tenant: string): number {
    const others = this.#othersOf(pool)
    return 1 + (others?.tenants.get(hashed(tenant)) ?? 0)
  }

  callsElsewhere(pool: PoolName): number {
    return this.#othersOf(pool)?.calls ?? 0
  }

  waitingElsewhere(pool: PoolName): ReadonlyMap<string, WaitingElsewhere> {
    return this.#othersOf(pool)?.works ?? NONE
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  #compute({ tenants, unlisted }: Others, here: ReadonlySet<string>): number {
    let own = 0
    for (const tenant of here) own += 1 / (1 + (tenants.get(tenant) ?? 0))
    let theirs = unlisted
    for (const [tenant, ingresses] of tenants) theirs += ingresses / (ingresses + (here.has(tenant) ? 1 : 0))
    // If no call waits here, then the next call is counted as one tenant.
    return own === 0 ? 1 / (1 + theirs) : own / (own + theirs)
  }

  #tenantsHere(pool: PoolName, work: Work | undefined): Set<string> {
    const here = new Set<string>()
    for (const queue of this.#options.waiting()) {
      if (queue.pool !== pool || (work && workKey(queue.work) !== workKey(work))) continue
      for (const tenant of queue.tenants) here.add(hashed(tenant))
    }
    return here
  }

  #othersOf(pool: PoolName, work?: Work): Others | undefined {
    if (this.#reports.size === 0) return undefined
    for (const [boot, { atMs }] of this.#reports) {
      if (Date.now() - atMs <= STALE_MS) continue
      this.#reports.delete(boot)
      this.#forget()
    }
    this.#others ??= othersIn([...this.#reports.values()].map(({ record }) => record))
    return this.#others.get(keyOf(pool, work))
  }

  #forget(): void {
    this.#others = undefined
    this.#parts.clear()
  }

  #report(): void {
    this.#timer = undefined
    const queues = [...this.#options.waiting()].slice(0, QUEUES_MAX).map(reportOf)
    if (queues.length > 0 || this.#hasReported)
      this.#options.publish({ type: 'calls_waiting', boot: this.#options.boot, queues })
    this.#hasReported = queues.length > 0
    if (this.#hasReported) this.changed()
  }
}

function reportOf({ pool, work, calls, tenants }: WaitingCalls): WaitingRecord['queues'][number] {
  const listed: string[] = []
  for (const tenant of tenants) {
    if (listed.length === TENANTS_MAX) break
    listed.push(hashed(tenant))
  }
  return { pool, ...work, calls, tenants: listed, more_tenants: tenants.size - listed.length }
}

function othersIn(records: readonly WaitingRecord[]): Map<string, Others> {
  const others = new Map<string, Others>()
  for (const { queues } of records) {
    /** A tenant counts once per ingress, even if its calls wait for several models. */
    const counted = new Set<string>()
    for (const queue of queues) {
      for (const key of [queue.pool, `${queue.pool} ${workKey(queue)}`]) {
        const sum = others.get(key) ?? { calls: 0, works: new Map(), tenants: new Map(), unlisted: 0 }
        others.set(key, sum)
        sum.calls += queue.calls
        const work = sum.works.get(workKey(queue))
        sum.works.set(workKey(queue), { work: queue, calls: queue.calls + (work?.calls ?? 0) })
        sum.unlisted += queue.more_tenants
        for (const tenant of queue.tenants) {
          if (counted.has(`${key} ${tenant}`)) continue
          counted.add(`${key} ${tenant}`)
          sum.tenants.set(tenant, (sum.tenants.get(tenant) ?? 0) + 1)
        }
      }
    }
  }
  return others
}

function keyOf(pool: PoolName, work: Work | undefined): string {
  return work ? `${pool} ${workKey(work)}` : pool
}

function hashed(tenant: string): string {
  return hashOf(tenant).toString(36)
}
