import type { Lane, Taking } from '#shared/jobs/worker/taking.ts'
import type { ModelRoom, ModelRooms } from './rooms.ts'

/** Calls that one worker keeps aside, each with a body of 64 KiB at most; more are handed back. */
const ASIDE_MAX = 1_024

/** One call that waits for a place of its model. */
interface Waiting {
  readonly lane: Lane
  /** It has its place: it takes a slot now. */
  enter(): void
}

/**
 * Attached calls that a worker has taken and whose model has no place for them now (docs/design.md, Bulkheads). They hold no
 * slot, so that those of other models run meanwhile. Each model lets its own in as they came; of several models that have a
 * place, one after the other.
 */
export class Aside {
  readonly #rooms: ModelRooms
  readonly #taking: Taking
  readonly #waiting = new Map<ModelRoom, Set<Waiting>>()
  #count = 0

  constructor(rooms: ModelRooms, taking: Taking) {
    this.#rooms = rooms
    this.#taking = taking
  }

  /** Calls that wait now. */
  get count(): number {
    return this.#count
  }

  /** Whether no further call can be kept. */
  get isFull(): boolean {
    return this.#count >= ASIDE_MAX
  }

  /** Whether a call may take a slot at once: its model has a place, and no other call waits for it. */
  mayStart(lane: Lane, room: ModelRoom): boolean {
    return !this.#waiting.has(room) && this.#hasPlace(lane, room)
  }

  /** Waits for a place. @param enter Takes it, at once, when there is one @throws The signal's reason */
  async wait(lane: Lane, room: ModelRoom, enter: () => void, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const waiting: Waiting = {
      lane,
      enter() {
        enter()
        resolve()
      },
    }
    const leave = () => {
      this.#remove(room, waiting)
      reject(signal.reason)
    }
    const own = this.#waiting.get(room) ?? new Set()
    this.#waiting.set(room, own.add(waiting))
    this.#count++
    signal.addEventListener('abort', leave, { once: true })
    await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  /** Places or slots may have become free. */
  letIn(): void {
    for (let room = this.#nextRoom(); room; room = this.#nextRoom()) {
      const own = this.#waiting.get(room)
      const [first] = own ?? []
      if (!own || !first) return
      this.#remove(room, first)
      // To the end of the round.
      if (own.size > 0 && this.#waiting.delete(room)) this.#waiting.set(room, own)
      first.enter()
    }
  }

  #nextRoom(): ModelRoom | undefined {
    for (const [room, [first]] of this.#waiting) if (first && this.#hasPlace(first.lane, room)) return room
    return undefined
  }

  #hasPlace(lane: Lane, room: ModelRoom): boolean {
    const free = this.#taking.roomOf(lane)
    return free > 0 && room.hasPlace && this.#rooms.shareOf(room, free) > 0
  }

  #remove(room: ModelRoom, waiting: Waiting): void {
    const own = this.#waiting.get(room)
    if (!own?.delete(waiting)) return
    this.#count--
    if (own.size === 0) this.#waiting.delete(room)
  }
}
