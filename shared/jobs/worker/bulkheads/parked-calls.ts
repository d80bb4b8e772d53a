import type { Lane, Poller } from '#shared/jobs/worker/poller.ts'
import type { ModelBulkhead, ModelBulkheads } from './bulkheads.ts'
import { fewestFirst } from './lending.ts'

/** Maximum number of parked calls, each with a body of at most 64 KiB; further ones are handed back. */
const PARKED_MAX = 1_024

export interface ParkedCall {
  readonly lane: Lane
  readonly tenant: string
  /** Called synchronously when the call may start; takes a permit and a slot. */
  enter(): void
}

/** Waiting calls of one model: tenant → FIFO of calls. Tenants are ordered least-recently-served first. */
type TenantQueues = Map<string, Set<ParkedCall>>

/**
 * Parked calls: attached calls that a worker has taken, but whose model has no free permit now (docs/internals/design.md, Bulkheads).
 *
 * A parked call holds no slot, so calls of other models run in the meantime. A free permit goes to the waiting tenant with the
 * fewest running calls of that model. A free slot goes to the model that holds the fewest slots. Ties are broken round robin.
 */
export class ParkedCalls {
  readonly #bulkheads: ModelBulkheads
  readonly #poller: Poller
  readonly #waiting = new Map<ModelBulkhead, TenantQueues>()
  readonly #running = new Map<ModelBulkhead, Map<string, number>>()
  #size = 0

  constructor(bulkheads: ModelBulkheads, poller: Poller) {
    this.#bulkheads = bulkheads
    this.#poller = poller
  }

  get size(): number {
    return this.#size
  }

  get isFull(): boolean {
    return this.#size >= PARKED_MAX
  }

  /** True if a call may take a slot at once: its model has a permit, and no other call waits for one. */
  canStart(lane: Lane, bulkhead: ModelBulkhead): boolean {
    return !this.#waiting.has(bulkhead) && this.#hasPermit(lane, bulkhead)
  }

  /** Parks a call, and resolves when the call has a permit and a slot. @throws The signal's reason */
  async wait(bulkhead: ModelBulkhead, { lane, tenant, enter }: ParkedCall, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const call: ParkedCall = {
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

  count(bulkhead: ModelBulkhead, tenant: string, change: 1 | -1): void {
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

  #next(): [ModelBulkhead, ParkedCall] | undefined {
    for (const bulkhead of fewestFirst(this.#waiting.keys())) {
      const line = this.#waiting.get(bulkhead)
      const call = line && this.#firstOf(bulkhead, line)
      if (call && this.#hasPermit(call.lane, bulkhead)) return [bulkhead, call]
    }
    return undefined
  }

  #firstOf(bulkhead: ModelBulkhead, line: TenantQueues): ParkedCall | undefined {
    const running = this.#running.get(bulkhead)
    let [first, fewest]: [ParkedCall | undefined, number] = [undefined, Number.POSITIVE_INFINITY]
    for (const [tenant, [call]] of line) {
      const runs = running?.get(tenant) ?? 0
      if (runs < fewest) [first, fewest] = [call, runs]
    }
    return first
  }

  #hasPermit(lane: Lane, bulkhead: ModelBulkhead): boolean {
    return bulkhead.hasFreePermit && this.#bulkheads.slotsFor(bulkhead, this.#poller.freeOf(lane)) > 0
  }

  #add(bulkhead: ModelBulkhead, call: ParkedCall): void {
    const line: TenantQueues = this.#waiting.get(bulkhead) ?? new Map()
    this.#waiting.set(bulkhead, line.set(call.tenant, (line.get(call.tenant) ?? new Set()).add(call)))
    this.#size++
  }

  #remove(bulkhead: ModelBulkhead, call: ParkedCall): void {
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
