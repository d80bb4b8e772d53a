/** Joins a delta to the one before it; undefined when the two must stay apart. */
export type MergeDeltas = (previous: unknown, next: unknown) => unknown

/** Deltas that wait for their reader, in order, merged where they can be, with their size in bytes (an estimate). */
export class DeltaBuffer {
  readonly #merge: MergeDeltas
  #deltas: unknown[] = []
  #bytes = 0

  constructor(merge: MergeDeltas) {
    this.#merge = merge
  }

  get isEmpty(): boolean {
    return this.#deltas.length === 0
  }

  get bytes(): number {
    return this.#bytes
  }

  push(delta: unknown): void {
    this.#bytes += sizeOf(delta)
    const last = this.#deltas.length - 1
    const merged = last >= 0 ? this.#merge(this.#deltas[last], delta) : undefined
    if (merged === undefined) this.#deltas.push(delta)
    else this.#deltas[last] = merged
  }

  takeAll(): unknown[] {
    const deltas = this.#deltas
    if (deltas.length > 0) this.#deltas = []
    this.#bytes = 0
    return deltas
  }
}

/** Bytes a delta takes, near enough for a bound: its strings, and a little for each delta. */
function sizeOf(delta: unknown): number {
  let bytes = 32
  for (const value of Object.values(delta as object)) {
    if (typeof value === 'string') bytes += value.length
    else if (typeof value === 'object') bytes += 256
  }
  return bytes
}
