import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import { type Work, workKey } from '#shared/jobs/peers.ts'
import { hashOf } from '#shared/jobs/topics.ts'
import type { WaitingElsewhere } from './turns.ts'

/** How long a call waits until others hear of it, and how often they hear again: most wait for less. */
const PUBLISH_INTERVAL_MS = 200
/** Age from which what an ingress told says nothing any more: it has ended, or cannot be heard. */
const STALE_MS = 2_000
/** How long a share serves that was computed: the tenants that wait change with every call. */
const SHARE_MS = 50
/** What is told of at most: queues, and tenants of each. The tenants beyond are counted. */
const QUEUES_MAX = 32
const TENANTS_MAX = 32

const NONE: ReadonlyMap<string, WaitingElsewhere> = new Map()

type WaitingRecord = Extract<ControlRecord, { type: 'calls_waiting' }>

/** Calls of one kind and model that wait in this ingress for their turn, and whose they are. */
export interface WaitingCalls {
  readonly pool: PoolName
  readonly work: Work
  readonly calls: number
  readonly tenants: ReadonlySet<string>
}

/** What {@link Shares} need. */
export interface SharesOptions {
  /** Boot id of this ingress. */
  readonly boot: string
  readonly publish: (record: WaitingRecord) => void
  /** What waits here now. */
  readonly waiting: () => Iterable<WaitingCalls>
  /** Others have told what waits with them: shares may have grown. */
  readonly onShares: () => void
}

/** What waits in other ingresses for one pool, or for one kind and model of it. */
interface Others {
  calls: number
  /** By kind and model. */
  readonly works: Map<string, WaitingElsewhere>
  /** At how many of them calls of a tenant wait, by its hash. */
  readonly tenants: Map<string, number>
  /** Tenants that were only counted. */
  unlisted: number
}

/**
 * How the ingresses divide a pool: each has as much of its queue as it has of the tenants that wait, where one that waits at
 * several counts for a part at each. So it makes no difference to a tenant how many ingresses it or others use
 * (docs/design.md, Turns).
 *
 * An ingress that has calls waiting tells so on `control`. One alone has everything; nobody has less than one place. What is
 * known of others is up to a fifth of a second old: until then more is in the queue than has to be, or less.
 */
export class Shares {
  readonly #options: SharesOptions
  readonly #told = new Map<string, { readonly atMs: number; readonly record: WaitingRecord }>()
  /** By pool, and by pool, kind and model. Undefined: to be made anew. */
  #others: Map<string, Others> | undefined
  readonly #shares = new Map<string, { readonly atMs: number; readonly share: number }>()
  #hasTold = false
  #timer: NodeJS.Timeout | undefined

  constructor(options: SharesOptions) {
    this.#options = options
  }

  /** Something waits here: the others hear of it soon, and again for as long as it does. */
  changed(): void {
    this.#timer ??= setTimeout(() => this.#tell(), PUBLISH_INTERVAL_MS)
  }

  /** Another ingress told what waits there. */
  receive(record: WaitingRecord): void {
    if (record.boot === this.#options.boot) return
    if (record.queues.length > 0) this.#told.set(record.boot, { atMs: Date.now(), record })
    else if (!this.#told.delete(record.boot)) return
    this.#forget()
    this.#options.onShares()
  }

  /** The part of a pool, or of what it runs of one kind and model, that is for this ingress: above 0, 1 where no other waits. */
  of(pool: PoolName, work?: Work): number {
    const others = this.#othersOf(pool, work)
    if (!others) return 1
    const key = keyOf(pool, work)
    const known = this.#shares.get(key)
    if (known && Date.now() - known.atMs < SHARE_MS) return known.share
    const share = this.#compute(others, this.#tenantsHere(pool, work))
    this.#shares.set(key, { atMs: Date.now(), share })
    return share
  }

  /** At how many ingresses calls of a tenant wait for a pool, this one counted. */
  spread(pool: PoolName, tenant: string): number {
    const others = this.#othersOf(pool)
    return 1 + (others?.tenants.get(hashed(tenant)) ?? 0)
  }

  /** Calls that wait for a pool in other ingresses. */
  callsElsewhere(pool: PoolName): number {
    return this.#othersOf(pool)?.calls ?? 0
  }

  /** Calls that wait for a pool in other ingresses, by {@link workKey}. */
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
    // Nothing of it waits here at this moment: what comes next has the share of one tenant.
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
    if (this.#told.size === 0) return undefined
    for (const [boot, { atMs }] of this.#told) {
      if (Date.now() - atMs <= STALE_MS) continue
      this.#told.delete(boot)
      this.#forget()
    }
    this.#others ??= othersIn([...this.#told.values()].map(({ record }) => record))
    return this.#others.get(keyOf(pool, work))
  }

  #forget(): void {
    this.#others = undefined
    this.#shares.clear()
  }

  #tell(): void {
    this.#timer = undefined
    const queues = [...this.#options.waiting()].slice(0, QUEUES_MAX).map(told)
    if (queues.length > 0 || this.#hasTold)
      this.#options.publish({ type: 'calls_waiting', boot: this.#options.boot, queues })
    this.#hasTold = queues.length > 0
    if (this.#hasTold) this.changed()
  }
}

function told({ pool, work, calls, tenants }: WaitingCalls): WaitingRecord['queues'][number] {
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
    /** A tenant counts once for an ingress, for however many models its calls wait. */
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

/** Who reads the channel need not learn whose calls they are. */
function hashed(tenant: string): string {
  return hashOf(tenant).toString(36)
}
