/** Joins a delta to the one before it; undefined when the two must stay apart. */
export type MergeDeltas<Delta = unknown> = (previous: Delta, next: Delta) => Delta | undefined

/** Deltas that wait for their reader, in order, merged where they can be, with their size in bytes (an estimate). */
export class DeltaBuffer<Delta = unknown> {
  readonly #merge: MergeDeltas<Delta>
  #deltas: Delta[] = []
  #bytes = 0

  constructor(merge: MergeDeltas<Delta>) {
    this.#merge = merge
  }

  get isEmpty(): boolean {
    return this.#deltas.length === 0
  }

  get bytes(): number {
    return this.#bytes
  }

  push(delta: Delta): void {
    this.#bytes += sizeOf(delta)
    const last = this.#deltas.length - 1
    const merged = last >= 0 ? this.#merge(this.#deltas[last] as Delta, delta) : undefined
    if (merged === undefined) this.#deltas.push(delta)
    else this.#deltas[last] = merged
  }

  takeAll(): Delta[] {
    const deltas = this.#deltas
    if (deltas.length > 0) this.#deltas = []
    this.#bytes = 0
    return deltas
  }
}

/**
 * Size of a delta, near enough for bounds: the length of its strings and a little for all else. Its JSON has at most six
 * times as many bytes (all control characters), mostly about as many.
 */
export function sizeOf(value: unknown): number {
  if (typeof value === 'string') return value.length
  let size = 8
  if (typeof value !== 'object' || value === null) return size
  for (const key in value) size += 8 + sizeOf((value as Record<string, unknown>)[key])
  return size
}
