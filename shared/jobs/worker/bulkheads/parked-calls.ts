import type { Lane, Poller } from '#shared/jobs/worker/poller.ts'
import type { ModelBulkhead, ModelBulkheads } from './bulkheads.ts'
import { fewestFirst } from './lending.ts'

/** Calls that one worker keeps aside, each with a body of 64 KiB at most; more are handed back. */
const ASIDE_MAX = 1_024

/** One call that waits for a place of its model. */
export interface ParkedCall {
  readonly lane: Lane
  readonly tenant: string
  /** Takes the place and a slot, at once. */
  enter(): void
}

/** Those of one model by their tenant, each tenant's as they came; whose last turn is longest ago comes first. */
type Line = Map<string, Set<ParkedCall>>

/**
 * Attached calls that a worker has taken and whose model has no place for them now (docs/design.md, Bulkheads). They hold no
 * slot, so that those of other models run meanwhile. A model's next place is for the tenant of whom the fewest calls run there,
 * and a freed slot is for the model that holds the fewest; models that hold as many take turns.
 */
export class ParkedCalls {
  readonly #rooms: ModelBulkheads
  readonly #taking: Poller
  readonly #waiting = new Map<ModelBulkhead, Line>()
  /** Attached calls that run, by model and tenant. */
  readonly #running = new Map<ModelBulkhead, Map<string, number>>()
  #size = 0

  constructor(rooms: ModelBulkheads, taking: Poller) {
    this.#rooms = rooms
    this.#taking = taking
  }

  /** Calls that wait now. */
  get size(): number {
    return this.#size
  }

  /** Whether no further call can be kept. */
  get isFull(): boolean {
    return this.#size >= ASIDE_MAX
  }

  /** Whether a call may take a slot at once: its model has a place, and no other call waits for it. */
  mayStart(lane: Lane, room: ModelBulkhead): boolean {
    return !this.#waiting.has(room) && this.#hasPlace(lane, room)
  }

  /** Resolves when a call has entered, in its turn. @throws The signal's reason */
  async wait(room: ModelBulkhead, { lane, tenant, enter }: ParkedCall, signal: AbortSignal): Promise<void> {
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
      this.#remove(room, call)
      reject(signal.reason)
    }
    this.#add(room, call)
    signal.addEventListener('abort', leave, { once: true })
    await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  /** A call runs, or has ended. */
  count(room: ModelBulkhead, tenant: string, change: 1 | -1): void {
    const own = this.#running.get(room) ?? new Map<string, number>()
    const left = (own.get(tenant) ?? 0) + change
    if (left > 0) own.set(tenant, left)
    else own.delete(tenant)
    if (own.size > 0) this.#running.set(room, own)
    else this.#running.delete(room)
  }

  /** Places or slots may have become free. */
  letIn(): void {
    for (let first = this.#next(); first; first = this.#next()) {
      const [room, call] = first
      this.#remove(room, call)
      const line = this.#waiting.get(room)
      // To the end of the round, the tenant of its model and the model of all.
      if (line) {
        toEnd(line, call.tenant)
        toEnd(this.#waiting, room)
      }
      call.enter()
    }
  }

  /** The next call to start, and its model. */
  #next(): [ModelBulkhead, ParkedCall] | undefined {
    for (const room of fewestFirst(this.#waiting.keys())) {
      const line = this.#waiting.get(room)
      const call = line && this.#firstOf(room, line)
      if (call && this.#hasPlace(call.lane, room)) return [room, call]
    }
    return undefined
  }

  #firstOf(room: ModelBulkhead, line: Line): ParkedCall | undefined {
    const running = this.#running.get(room)
    let [first, fewest]: [ParkedCall | undefined, number] = [undefined, Number.POSITIVE_INFINITY]
    for (const [tenant, [call]] of line) {
      const runs = running?.get(tenant) ?? 0
      if (runs < fewest) [first, fewest] = [call, runs]
    }
    return first
  }

  #hasPlace(lane: Lane, room: ModelBulkhead): boolean {
    return room.hasPlace && this.#rooms.roomOf(room, this.#taking.freeOf(lane)) > 0
  }

  #add(room: ModelBulkhead, call: ParkedCall): void {
    const line: Line = this.#waiting.get(room) ?? new Map()
    this.#waiting.set(room, line.set(call.tenant, (line.get(call.tenant) ?? new Set()).add(call)))
    this.#size++
  }

  #remove(room: ModelBulkhead, call: ParkedCall): void {
    const line = this.#waiting.get(room)
    const own = line?.get(call.tenant)
    if (!line || !own?.delete(call)) return
    this.#size--
    if (own.size === 0) line.delete(call.tenant)
    if (line.size === 0) this.#waiting.delete(room)
  }
}

function toEnd<Key, Value>(map: Map<Key, Value>, key: Key): void {
  const value = map.get(key)
  if (value !== undefined && map.delete(key)) map.set(key, value)
}
