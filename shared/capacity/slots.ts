import type { Priority } from '#schemas/durable-job.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import { hashOf } from '#shared/lib/id.ts'
import { type Work, workKey } from './fair-queue.ts'
import type { WaitingElsewhere } from './tenant-dispatcher.ts'

export interface SlotUse {
  readonly slots: number
  readonly running: number
  readonly batch: number
  readonly isInteractiveBusy: boolean
}

/**
 * Returns the slots that a lane may take now (docs/internals/design.md, Fairness). The interactive lane may take any free slot. The batch lane may
 * use a quarter of all slots while the interactive lane is busy, and otherwise three quarters. The last quarter stays free, so that the first
 * interactive call after a quiet time does not wait for a long batch job.
 */
export function laneSlots(lane: Priority, { slots, running, batch, isInteractiveBusy }: SlotUse): number {
  const free = slots - running
  if (lane === 'normal') return free
  const most = isInteractiveBusy ? quarterOf(slots) : slots - reservedSlots(slots)
  return Math.min(free, most - batch)
}

export function reservedSlots(slots: number): number {
  return Math.min(quarterOf(slots), slots - quarterOf(slots))
}

export function quarterOf(slots: number): number {
  return Math.ceil(slots / 4)
}

/**
 * Sharing of a worker's slots among its models (docs/internals/design.md, Bulkheads).
 *
 * The problem: all models of a worker share its slots. With a fixed part per model, slots would be idle while calls wait for a busy model. Without
 * parts, a model whose upstream hangs would hold every slot until its calls time out.
 *
 * Rules:
 * 1. Any model may take a free slot. One busy model alone may use all slots.
 * 2. A slot that becomes free goes to the waiting model that holds the fewest slots ({@link fewestFirst}), so models converge to equal parts (max-min
 *    fairness). A second model can start as soon as any job of the first model ends.
 * 3. Slots that a model holds beyond an equal part are borrowed. For each borrowed slot whose job has run for {@link BORROWED_MS}, the worker may run
 *    one more job of the other models (an extra slot). There are at most {@link extraMax} extra slots.
 * 4. Only models that hold less than an equal part may use extra slots. Such a model may hold at most three slots per extra slot that is still free, so
 *    that further models find free extra slots. See dynamic thresholds: Choudhury and Hahne, IEEE/ACM ToN 6:2, 1998.
 * 5. While more jobs run than the worker has slots, a slot that becomes free is not given to the next job.
 *
 * Example: 256 slots and 4 models. The first model hangs with 256 calls. After 0.5 s, the second model may run 48 calls, the third 12 and the fourth
 * 3. A busy worker runs at most 320 jobs.
 *
 * A slot limits concurrent jobs that mostly wait for an upstream, so the worker can run a quarter more. Engines that compute in this process have
 * their own limits (`parallel`, `concurrency`), which extra slots do not raise.
 *
 * Rejected: a quarter of the slots that always stays free. A single model then ran only 167 of 256 streams at a time. Rejected: aborting jobs on
 * borrowed slots, because output that a caller has received cannot be taken back.
 */

/** Time in ms for which a job runs on a borrowed slot before other models get an extra slot (rule 3). */
export const BORROWED_MS = 500
/** A model that uses extra slots may hold this number of slots in total for each extra slot that stays free for other models (rule 4). */
const EXTRA_PER_LEFT = 3

export interface SlotHolder {
  readonly held: number
  countOlder(ms: number, max: number): number
}

/** Maximum number of extra slots: jobs that a worker may run beyond its slots (rule 3). */
function extraMax(slots: number): number {
  return quarterOf(slots)
}

/**
 * Returns the number of jobs that a model may start beyond the worker's slots.
 *
 * @param own The model
 * @param others All other models that hold slots
 * @param free Free slots. Negative if jobs already use extra slots
 */
export function extraOf(own: SlotHolder, others: readonly SlotHolder[], slots: number, free: number): number {
  const max = extraMax(slots)
  const part = slots / (others.length + 1)
  if (max + free <= 0 || own.held >= part) return 0
  let lent = 0
  for (const other of others) {
    if (other.held > part) lent += Math.min(Math.ceil(other.held - part), other.countOlder(BORROWED_MS, max))
  }
  const left = Math.min(lent, max) + free
  if (left <= 0) return 0
  const most = Math.floor((EXTRA_PER_LEFT * left - own.held) / (EXTRA_PER_LEFT + 1))
  return Math.min(Math.ceil(part - own.held), most > 0 || own.held > 0 ? Math.max(0, most) : 1)
}

/**
 * Returns models in the order in which they receive slots: the model that holds the fewest comes first. Ties keep their
 * order.
 */
export function fewestFirst<Holder extends Pick<SlotHolder, 'held'>>(holders: Iterable<Holder>): Holder[] {
  return [...holders].sort((a, b) => a.held - b.held)
}

/**
 * Maximum number of parked calls, which wait on this worker for a permit of their model ({@link ParkedCalls}). Further calls are returned to their
 * ingress. The maximum limits memory, because each call has a body of at most 64 KiB.
 */
const PARKED_MAX = 1_024

interface PermitHolder extends Pick<SlotHolder, 'held'> {
  readonly hasFreePermit: boolean
}

interface ParkedCall<Lane> {
  readonly lane: Lane
  readonly tenant: string
  enter(): void
}

/** Waiting calls of one model, by tenant, oldest first. The tenant that was served longest ago comes first. */
type TenantQueues<Lane> = Map<string, Set<ParkedCall<Lane>>>

/**
 * Parked calls: attached calls that a worker has taken, but whose model has no free permit now (docs/internals/design.md, Bulkheads).
 *
 * A parked call holds no slot, so calls of other models run in the meantime. A free permit goes to the waiting tenant with the
 * fewest running calls of that model. A free slot goes to the model that holds the fewest slots. Ties are broken round robin.
 */
export class ParkedCalls<Lane, Bulkhead extends PermitHolder> {
  readonly #slotsFor: (bulkhead: Bulkhead, lane: Lane) => number
  readonly #waiting = new Map<Bulkhead, TenantQueues<Lane>>()
  readonly #running = new Map<Bulkhead, Map<string, number>>()
  #size = 0

  constructor(slotsFor: (bulkhead: Bulkhead, lane: Lane) => number) {
    this.#slotsFor = slotsFor
  }

  get size(): number {
    return this.#size
  }

  get isFull(): boolean {
    return this.#size >= PARKED_MAX
  }

  canStart(lane: Lane, bulkhead: Bulkhead): boolean {
    return !this.#waiting.has(bulkhead) && this.#hasPermit(lane, bulkhead)
  }

  /**
   * Parks a call, and resolves when the call has a permit and a slot.
   *
   * @throws The signal's reason
   */
  async wait(bulkhead: Bulkhead, { lane, tenant, enter }: ParkedCall<Lane>, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const call: ParkedCall<Lane> = {
      lane,
      tenant,
      enter() {
        enter()
        resolve()
      },
    }
    const leave = () => {
      this.#remove(bulkhead, call)
      reject(signal.reason)
    }
    this.#add(bulkhead, call)
    signal.addEventListener('abort', leave, { once: true })
    await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  count(bulkhead: Bulkhead, tenant: string, change: 1 | -1): void {
    const own = this.#running.get(bulkhead) ?? new Map<string, number>()
    const left = (own.get(tenant) ?? 0) + change
    if (left > 0) own.set(tenant, left)
    else own.delete(tenant)
    if (own.size > 0) this.#running.set(bulkhead, own)
    else this.#running.delete(bulkhead)
  }

  admitNext(): void {
    for (let first = this.#next(); first; first = this.#next()) {
      const [bulkhead, call] = first
      this.#remove(bulkhead, call)
      const line = this.#waiting.get(bulkhead)
      // Round robin: the served tenant moves behind the other tenants of its model, and the model behind the other
      // models.
      if (line) {
        toEnd(line, call.tenant)
        toEnd(this.#waiting, bulkhead)
      }
      call.enter()
    }
  }

  #next(): [Bulkhead, ParkedCall<Lane>] | undefined {
    for (const bulkhead of fewestFirst(this.#waiting.keys())) {
      const line = this.#waiting.get(bulkhead)
      const call = line && this.#firstOf(bulkhead, line)
      if (call && this.#hasPermit(call.lane, bulkhead)) return [bulkhead, call]
    }
    return undefined
  }

  #firstOf(bulkhead: Bulkhead, line: TenantQueues<Lane>): ParkedCall<Lane> | undefined {
    const running = this.#running.get(bulkhead)
    let [first, fewest]: [ParkedCall<Lane> | undefined, number] = [undefined, Number.POSITIVE_INFINITY]
    for (const [tenant, [call]] of line) {
      const runs = running?.get(tenant) ?? 0
      if (runs < fewest) [first, fewest] = [call, runs]
    }
    return first
  }

  #hasPermit(lane: Lane, bulkhead: Bulkhead): boolean {
    return bulkhead.hasFreePermit && this.#slotsFor(bulkhead, lane) > 0
  }

  #add(bulkhead: Bulkhead, call: ParkedCall<Lane>): void {
    const line: TenantQueues<Lane> = this.#waiting.get(bulkhead) ?? new Map()
    this.#waiting.set(bulkhead, line.set(call.tenant, (line.get(call.tenant) ?? new Set()).add(call)))
    this.#size++
  }

  #remove(bulkhead: Bulkhead, call: ParkedCall<Lane>): void {
    const line = this.#waiting.get(bulkhead)
    const own = line?.get(call.tenant)
    if (!line || !own?.delete(call)) return
    this.#size--
    if (own.size === 0) line.delete(call.tenant)
    if (line.size === 0) this.#waiting.delete(bulkhead)
  }
}

function toEnd<Key, Value>(map: Map<Key, Value>, key: Key): void {
  const value = map.get(key)
  if (value !== undefined && map.delete(key)) map.set(key, value)
}

/** Interval in ms at which this ingress reports its waiting calls. Most calls start within this time, so most calls are never reported. */
const PUBLISH_INTERVAL_MS = 200
/** Age in ms at which a report of another ingress expires, because that ingress has ended or is unreachable. */
const STALE_MS = 2_000
/**
 * Cache lifetime in ms of the fraction of a queue that this ingress may fill. The waiting tenants change with every call, so the fraction
 * is not computed each time.
 */
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

interface SlotPartitionOptions {
  readonly boot: string
  readonly publish: (record: WaitingRecord) => void
  readonly waiting: () => Iterable<WaitingCalls>
  readonly onChange: () => void
}

/** Calls that wait in other ingresses for one pool, or for one kind and model of a pool. */
interface Others {
  calls: number
  readonly byWork: Map<string, WaitingElsewhere>
  /** Number of other ingresses at which calls of a tenant wait, by the hash of the tenant. */
  readonly tenants: Map<string, number>
  unlisted: number
}

/**
 * How several ingresses divide the queue of a pool (docs/internals/design.md, Fairness).
 *
 * The problem: each ingress is fair only among its own tenants. With equal shares, a single tenant on one ingress would get as many slots as ten
 * tenants together on another ingress.
 *
 * How it works: an ingress with waiting calls publishes hashes of its tenants on `control` every 200 ms. The share of an ingress is its number of
 * waiting tenants divided by that of all ingresses. A tenant that waits at n ingresses counts 1/n at each, so that using several ingresses has no
 * advantage.
 *
 * Example: tenants A and B wait at the first ingress, and B and C at the second. Each ingress counts 1.5 of 3 tenants, so each share is 1/2.
 *
 * A single ingress has a share of 1. Every ingress may send at least one job. Reports are up to 200 ms old, so the queue at the workers may briefly
 * be longer or shorter than intended.
 */
export class SlotPartition {
  readonly #options: SlotPartitionOptions
  readonly #reports = new Map<string, { readonly atMs: number; readonly record: WaitingRecord }>()
  /** Calls that wait at other ingresses, by pool, and by pool with kind and model. Undefined after a new report, until the sums are needed again. */
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

  /**
   * Returns the fraction of a queue that this ingress may fill. The queue is that of a pool, or the part of it for one kind and model. The
   * fraction is greater than 0, and 1 if no calls wait at other ingresses.
   */
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
    return this.#othersOf(pool)?.byWork ?? NONE
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
    // If no call waits here, then the share is computed as if one tenant waited, because the next call will be of one
    // tenant.
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
    /** Tenants that are already counted for this ingress. A tenant counts once per ingress, even if its calls wait for several models. */
    const counted = new Set<string>()
    for (const queue of queues) {
      for (const key of [queue.pool, `${queue.pool} ${workKey(queue)}`]) {
        const sum = others.get(key) ?? { calls: 0, byWork: new Map(), tenants: new Map(), unlisted: 0 }
        others.set(key, sum)
        sum.calls += queue.calls
        const work = sum.byWork.get(workKey(queue))
        sum.byWork.set(workKey(queue), { work: queue, calls: queue.calls + (work?.calls ?? 0) })
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
