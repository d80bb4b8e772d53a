import type { Part } from '#schemas/generate.ts'

export type MadeCall = Extract<Part, { type: 'tool_call' }>

interface Shared {
  readonly calls: MadeCall[]
  /** Index of the first call without a result. */
  next: number
}

/**
 * Calls of one assistant message, with their pending results.
 *
 * Some upstreams give two calls of one answer the same id. Their ids are made unique here, and results are matched in
 * order. A client that stores calls by id sends one result for both. Then the call without a result is removed from the
 * message.
 */
export class OpenCalls {
  readonly #parts: Part[]
  readonly #byWireId = new Map<string, Shared>()
  /** Unique id → id on the wire. */
  readonly #unanswered = new Map<string, string>()
  /** Name → ids of its calls, in reverse order. Built at the first result without an id. */
  #byName: Map<string, string[]> | undefined

  /** @param parts Parts of the message, to which the calls are added */
  constructor(calls: readonly MadeCall[], parts: Part[]) {
    this.#parts = parts
    const taken = new Set(calls.map(({ id }) => id))
    let number = 1
    for (const wire of calls) {
      const shared = this.#byWireId.get(wire.id)
      let { id } = wire
      while (shared && taken.has(id)) id = `${wire.id}_${++number}`
      taken.add(id)
      const call = { ...wire, id }
      parts.push(call)
      if (shared) shared.calls.push(call)
      else this.#byWireId.set(wire.id, { calls: [call], next: 0 })
      this.#unanswered.set(id, wire.id)
    }
  }

  get size(): number {
    return this.#byWireId.size
  }

  answer(wireId: string): MadeCall | undefined {
    const shared = this.#byWireId.get(wireId)
    if (!shared) return undefined
    for (let call = shared.calls[shared.next]; call; call = shared.calls[shared.next]) {
      shared.next += 1
      if (this.#unanswered.delete(call.id)) return call
    }
    return shared.calls[0]
  }

  /** Id of the first unanswered call with a name; undefined if there is none. */
  answerNamed(name: string): string | undefined {
    this.#byName ??= this.#idsByName()
    const ids = this.#byName.get(name) ?? []
    for (let id = ids.pop(); id !== undefined; id = ids.pop()) if (this.#unanswered.delete(id)) return id
    return undefined
  }

  /** Ids of unanswered calls. Calls that share their id with an answered one are removed first. */
  unanswered(): string[] {
    if (this.#unanswered.size === 0) return []
    const removed = new Set<string>()
    for (const [id, wireId] of this.#unanswered) if (this.#byWireId.get(wireId)?.next) removed.add(id)
    for (const id of removed) this.#unanswered.delete(id)
    if (removed.size > 0) this.#remove(removed)
    return [...this.#unanswered.values()]
  }

  #remove(ids: ReadonlySet<string>): void {
    const kept = this.#parts.filter((part) => part.type !== 'tool_call' || !ids.has(part.id))
    this.#parts.length = 0
    for (const part of kept) this.#parts.push(part)
  }

  #idsByName(): Map<string, string[]> {
    const byName = new Map<string, string[]>()
    const calls = [...this.#byWireId.values()].flatMap(({ calls }) => calls)
    for (const { name, id } of calls.reverse()) {
      const ids = byName.get(name)
      if (ids) ids.push(id)
      else byName.set(name, [id])
    }
    return byName
  }
}
