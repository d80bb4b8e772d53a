/**
 * What a classic consumer remembers of one partition: which records wait, which are out, which are done, and so up to where
 * the group may commit. A record is `waiting → out → done`, and back to waiting when it is released.
 *
 * After a rebalance kafkajs starts again at the committed offset. What still runs here comes a second time and is
 * recognised by its offset; what only waited is forgotten first, because it comes again.
 */

/** A record as this consumer holds it. */
export interface ClassicRecord {
  readonly partition: number
  readonly offset: number
  readonly value: Buffer
  deliveryCount: number
}

type State = 'waiting' | 'out' | 'done'

/** The bookkeeping of one partition. Pure: it calls nobody. */
export class ClassicPartition {
  readonly #states = new Map<number, State>()
  #waiting: ClassicRecord[] = []
  #waitingBytes = 0
  /** Everything below is done: the offset to commit. Unknown until the first record after an assignment. */
  #low = -1
  /** Everything between `#low` and this was seen since the assignment; an offset without a state is a gap. */
  #seen = -1
  #committed = -1

  /** The offset after the last record since the assignment; negative before the first. */
  get seen(): number {
    return this.#seen
  }

  get waitingBytes(): number {
    return this.#waitingBytes
  }

  get waitingCount(): number {
    return this.#waiting.length
  }

  /** The offset to commit; undefined when it is committed already. */
  get toCommit(): number | undefined {
    return this.#low > this.#committed ? this.#low : undefined
  }

  /** The broker has it. */
  committed(offset: number): void {
    this.#committed = Math.max(this.#committed, offset)
  }

  /** The group assigned partitions anew: reading starts again at the committed offset. */
  restart(): void {
    for (const record of this.#waiting) this.#states.delete(record.offset)
    this.#waiting = []
    this.#waitingBytes = 0
    this.#low = -1
    this.#seen = -1
    this.#committed = -1
  }

  /** Takes over what was fetched, in order; drops what is already out or done here. */
  add(records: readonly ClassicRecord[]): void {
    for (const record of records) {
      if (record.offset < this.#seen) continue
      if (this.#low < 0) this.#begin(record.offset)
      this.#seen = record.offset + 1
      if (this.#states.has(record.offset)) continue
      this.#states.set(record.offset, 'waiting')
      this.#wait(record, 'last')
    }
    this.#advance()
  }

  /** Hands out at most `max`, oldest first. */
  take(max: number): ClassicRecord[] {
    const taken = this.#waiting.splice(0, max)
    for (const { offset, value } of taken) {
      this.#states.set(offset, 'out')
      this.#waitingBytes -= value.length
    }
    return taken
  }

  /** The record is dealt with. */
  finish(offset: number): void {
    if (this.#states.get(offset) !== 'out') return
    this.#states.set(offset, 'done')
    this.#advance()
  }

  /** Nobody else can have a single record of a classic partition: this member's next taker gets it. */
  putBack(record: ClassicRecord): void {
    if (this.#states.get(record.offset) !== 'out') return
    this.#states.set(record.offset, 'waiting')
    this.#wait({ ...record, deliveryCount: record.deliveryCount + 1 }, 'first')
  }

  #wait(record: ClassicRecord, place: 'first' | 'last'): void {
    this.#waitingBytes += record.value.length
    if (place === 'first') this.#waiting.unshift(record)
    else this.#waiting.push(record)
  }

  /** What is below the committed offset somebody finished. */
  #begin(offset: number): void {
    this.#low = offset
    this.#committed = offset
    for (const known of this.#states.keys()) if (known < offset) this.#states.delete(known)
  }

  #advance(): void {
    while (this.#low < this.#seen) {
      const state = this.#states.get(this.#low)
      if (state === 'waiting' || state === 'out') return
      this.#states.delete(this.#low++)
    }
  }
}
