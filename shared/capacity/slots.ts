import type { Priority } from '#schemas/durable-job.ts'

export interface SlotUse {
  readonly slots: number
  readonly running: number
  readonly batch: number
  readonly isInteractiveBusy: boolean
}

/**
 * Slots that a lane may take now (docs/internals/design.md, Fairness). The interactive lane may take any free slot. The batch lane gets a
 * quarter of all slots while the interactive lane is busy, and otherwise three quarters. The last quarter stays free, so that the first
 * call after a quiet time does not wait for a long batch job.
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
 * Slots that one model lends to another, and how they are given back (docs/internals/design.md, Bulkheads).
 *
 * The problem: all models of a worker share its slots. If each model had a fixed part, then slots would be idle while calls wait
 * for a busy model. Without parts, a model whose upstream hangs holds every slot until its calls time out.
 *
 * Rules:
 * 1. A free slot is for any model. One busy model alone uses all of them.
 * 2. A freed slot goes to the waiting model that holds the fewest ({@link fewestFirst}). Thus models converge to equal parts
 *   (max-min fairness). A second model begins as soon as any job of the first one ends.
 * 3. A model that holds more than an equal part has borrowed the rest. If the job on a borrowed slot has run for
 *    {@link BORROWED_MS}, then other models get an extra slot. At most {@link extraMax} slots are extra.
 * 4. Only models below an equal part use extra slots. A model may hold three slots per extra slot that it leaves free for
 *    other models. See dynamic thresholds: Choudhury and Hahne, IEEE/ACM ToN 6:2, 1998.
 * 5. While more jobs run than the worker has slots, a slot that becomes free is not given to the next job.
 *
 * Example: 256 slots, 4 models. The first one hangs with 256 calls. After 0.5 s the second may run 48 calls, the third 12, the
 * fourth 3. A busy worker runs at most 320 jobs.
 *
 * A slot limits concurrent jobs that mostly wait for an upstream, so the worker can run a quarter more. Engines that compute in
 * this process have their own limits (`parallel`, `concurrency`), which extra slots do not raise.
 *
 * Rejected: always keeping a quarter of the slots free. A model that was alone then ran only 167 of 256 streams at a time.
 * Rejected: aborting the borrower's jobs, since output that a caller has received cannot be taken back.
 */

/** A borrowed slot that is still in use after this time, in ms, is replaced by an extra one. */
export const BORROWED_MS = 500
/** Number of slots that a model may hold per extra slot that remains free for other models. */
const EXTRA_PER_LEFT = 3

export interface SlotHolder {
  readonly held: number
  countOlder(ms: number, max: number): number
}

/** Maximum number of jobs that a lane may run beyond the worker's slots. */
export function extraMax(slots: number): number {
  return quarterOf(slots)
}

/**
 * Number of jobs that a model may start beyond the worker's slots.
 *
 * @param own The model
 * @param others All other models that hold slots
 * @param free Free slots; a negative number if jobs already use extra slots
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

/** Models in the order in which they receive slots: the model with the fewest comes first, ties keep their order. */
export function fewestFirst<Holder extends Pick<SlotHolder, 'held'>>(holders: Iterable<Holder>): Holder[] {
  return [...holders].sort((a, b) => a.held - b.held)
}

/** Maximum number of parked calls, each with a body of at most 64 KiB. Further calls are returned to the queue. */
const PARKED_MAX = 1_024

interface PermitHolder extends Pick<SlotHolder, 'held'> {
  readonly hasFreePermit: boolean
}

export interface ParkedCall<Lane> {
  readonly lane: Lane
  readonly tenant: string
  enter(): void
}

/** Waiting calls of one model, by tenant; oldest call first. The tenant that was served longest ago comes first. */
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
      // Round robin: the tenant becomes the last one of its model, and the model the last one of all models.
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
