/**
 * State of one partition in a classic consumer. Each record moves `waiting → out → done`, or back to `waiting` when released. `out` means
 * delivered to the caller.
 *
 * After a rebalance, kafkajs restarts at the committed offset, so unfinished records arrive again. Records that are `out` are recognised by
 * their offsets and skipped. Records that are `waiting` are removed at the restart, because they arrive again too.
 */

export interface ClassicRecord {
  readonly partition: number
  readonly offset: number
  readonly value: Buffer
  deliveryCount: number
}

type State = 'waiting' | 'out' | 'done'

export class ClassicPartition {
  readonly #states = new Map<number, State>()
  #waiting: ClassicRecord[] = []
  #waitingBytes = 0
  /**
   * Offset to commit. All records below this offset are processed. Negative until the first record after an assignment.
   */
  #low = -1
  /** Offset after the last record received since the assignment. Offsets between `#low` and `#seen` without a state are gaps in the topic. */
  #seen = -1
  #committed = -1

  get seen(): number {
    return this.#seen
  }

  get waitingBytes(): number {
    return this.#waitingBytes
  }

  get waitingCount(): number {
    return this.#waiting.length
  }

  /** Records that are delivered but not acknowledged. */
  get outCount(): number {
    return [...this.#states.values()].filter((state) => state === 'out').length
  }

  get toCommit(): number | undefined {
    return this.#low > this.#committed ? this.#low : undefined
  }

  committed(offset: number): void {
    this.#committed = Math.max(this.#committed, offset)
  }

  /** Prepares for reading again from the committed offset. Called when the group has reassigned partitions. */
  restart(): void {
    for (const record of this.#waiting) this.#states.delete(record.offset)
    this.#waiting = []
    this.#waitingBytes = 0
    this.#low = -1
    this.#seen = -1
    this.#committed = -1
  }

  /** Adds fetched records, in order. Records that are already delivered or processed are skipped. */
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

  take(max: number): ClassicRecord[] {
    const taken = this.#waiting.splice(0, max)
    for (const { offset, value } of taken) {
      this.#states.set(offset, 'out')
      this.#waitingBytes -= value.length
    }
    return taken
  }

  finish(offset: number): void {
    if (this.#states.get(offset) !== 'out') return
    this.#states.set(offset, 'done')
    this.#advance()
  }

  /**
   * Returns a record to the waiting records. A classic partition cannot pass one record to another member, so this member delivers the record again.
   */
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

  /** Starts at the committed offset, below which all records are processed. */
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
