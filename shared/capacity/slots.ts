import type { Priority } from '#schemas/durable-job.ts'

export interface SlotUse {
  readonly slots: number
  readonly running: number
  readonly batch: number
  /** True if the interactive lane had work recently. */
  readonly isInteractiveBusy: boolean
}

/**
 * Slots that a lane may take now (docs/internals/design.md, Fairness). The interactive lane may take any free slot. The batch lane gets a
 * quarter of all slots while the other lane is busy, and otherwise three quarters. The last quarter stays free, so that the first
 * call after a quiet time does not wait for a long batch job.
 */
export function laneSlots(lane: Priority, { slots, running, batch, isInteractiveBusy }: SlotUse): number {
  const free = slots - running
  if (lane === 'normal') return free
  const most = isInteractiveBusy ? quarterOf(slots) : slots - reservedSlots(slots)
  return Math.min(free, most - batch)
}

/** Number of slots that the batch lane always leaves free. */
export function reservedSlots(slots: number): number {
  return Math.min(quarterOf(slots), slots - quarterOf(slots))
}

export function quarterOf(slots: number): number {
  return Math.ceil(slots / 4)
}

/**
 * Slots that one model lends to another, and how they are given back (docs/internals/design.md, Bulkheads).
 *
 * The problem: a worker's slots are shared by all of its models. A fixed part for each leaves slots idle while calls wait for the
 * one busy model. Without parts, a model whose upstream hangs holds every slot until its calls reach their deadlines.
 *
 * Rules:
 * 1. A free slot is for any model. One busy model alone uses all of them.
 * 2. A freed slot goes to the waiting model that holds the fewest ({@link fewestFirst}). Thus models converge to equal parts
 *   (max-min fairness). A second model begins as soon as any job of the first one ends.
 * 3. A model that holds more than an equal part has borrowed the rest. Each borrowed slot whose job has run for {@link BORROWED_MS}
 *   is replaced by an extra one, at most {@link extraMax} of them.
 * 4. Only models below an equal part use extra slots, and each leaves one for every three that it holds. See dynamic thresholds:
 *   Choudhury and Hahne, IEEE/ACM ToN 6:2, 1998.
 * 5. No free slot is refilled until the number of jobs is below the number of slots again.
 *
 * Example: 256 slots, 4 models. The first one hangs with 256 calls. After 0.5 s the second may run 48 calls, the third 12, the
 * fourth 3. A busy worker runs at most 320 jobs.
 *
 * A slot limits concurrent jobs that mostly wait for an upstream, so a quarter more is affordable. Engines that compute in this
 * process have their own limit (`parallel`, `concurrency`), which these rules do not raise.
 *
 * Rejected: a reserve that is always kept free (three quarters for one model). With it, 256 streams ran 167 at a time although
 * nothing else ran. Rejected: aborting the borrower's jobs, since output that a caller has received cannot be taken back.
 */

/** Time in ms after which a borrowed slot that was not given back is replaced. */
export const BORROWED_MS = 500
/** Extra slots available to one model, per extra slot that stays free for others. */
const EXTRA_PER_LEFT = 3

export interface SlotHolder {
  readonly held: number
  /** Number of jobs that have run for at least `ms`, counted up to `max`. */
  countOlder(ms: number, max: number): number
}

/** Maximum number of jobs beyond a worker's slots, for each lane. */
export function extraMax(slots: number): number {
  return quarterOf(slots)
}

/**
 * Number of jobs that a model may start beyond the slots.
 *
 * @param own The model
 * @param others All other models that hold slots
 * @param free Free slots: 0, or negative by the number of extra slots in use
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

/** Models in the order in which they receive slots: fewest held first. The sort is stable. */
export function fewestFirst<Holder extends Pick<SlotHolder, 'held'>>(holders: Iterable<Holder>): Holder[] {
  return [...holders].sort((a, b) => a.held - b.held)
}

/** Maximum number of parked calls, each with a body of at most 64 KiB; further ones are handed back. */
const PARKED_MAX = 1_024

/** The bulkhead of a model. */
interface PermitHolder extends Pick<SlotHolder, 'held'> {
  readonly hasFreePermit: boolean
}

export interface ParkedCall<Lane> {
  readonly lane: Lane
  readonly tenant: string
  /** Called synchronously when the call may start; takes a permit and a slot. */
  enter(): void
}

/** Waiting calls of one model: tenant → FIFO of calls. Tenants are ordered least-recently-served first. */
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

  /** @param slotsFor Slots of a lane that a model may take now */
  constructor(slotsFor: (bulkhead: Bulkhead, lane: Lane) => number) {
    this.#slotsFor = slotsFor
  }

  get size(): number {
    return this.#size
  }

  get isFull(): boolean {
    return this.#size >= PARKED_MAX
  }

  /** True if a call may take a slot at once: its model has a permit, and no other call waits for one. */
  canStart(lane: Lane, bulkhead: Bulkhead): boolean {
    return !this.#waiting.has(bulkhead) && this.#hasPermit(lane, bulkhead)
  }

  /** Parks a call, and resolves when the call has a permit and a slot. @throws The signal's reason */
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
      // The tenant moves to the end of the round of its model, and the model to the end of all models.
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
