import { ServiceError } from '#shared/error.ts'
import type { Broker, ChannelRecord, Closable, Delivery, KeptRecord, QueueConsumer, Topic } from './broker.ts'

/** How many bytes a queue holds before `submit` refuses. */
const QUEUE_BYTES_MAX = 256 * 1024 * 1024
/** How long an empty `take` waits; short enough that a forgotten signal does no harm. */
const TAKE_WAIT_MS = 1_000

/**
 * The broker inside one process: every promise of the port but durability, which ends with the process.
 *
 * @param options.topics What exists. A name that is not in it is a mistake of ours and throws.
 */
export async function openMemoryBroker(options: { topics: readonly Topic[] }): Promise<Broker> {
  return new MemoryBroker(options.topics)
}

class MemoryBroker implements Broker {
  readonly name = 'memory'
  readonly #queues = new Map<string, MemoryQueue>()
  readonly #channels = new Map<string, Set<(record: ChannelRecord) => void>[]>()
  readonly #kept = new Map<string, Kept>()
  #isClosed = false

  constructor(topics: readonly Topic[]) {
    for (const topic of topics) {
      if (topic.keptMax !== undefined) this.#kept.set(topic.name, { max: topic.keptMax, records: [], next: 0 })
      if (topic.kind === 'queue') this.#queues.set(topic.name, new MemoryQueue(topic.name))
      else
        this.#channels.set(
          topic.name,
          Array.from({ length: topic.partitions }, () => new Set()),
        )
    }
  }

  get isReachable(): boolean {
    return !this.#isClosed
  }

  async submit(queue: string, value: Buffer): Promise<void> {
    this.#refuseWhenClosed()
    this.#queue(queue).put(value)
  }

  async openQueue(queue: string): Promise<QueueConsumer> {
    return new MemoryConsumer(this.#queue(queue))
  }

  async send(channel: string, partition: number, key: string, value: Buffer): Promise<void> {
    this.#refuseWhenClosed()
    const receivers = this.#partition(channel, partition)
    const kept = this.#kept.get(channel)
    if (kept) keep(kept, { key, value })
    // Later than the caller's own steps, as with a broker in between, yet in the order of the calls.
    await Promise.resolve()
    for (const receive of receivers) {
      try {
        receive({ key, value })
      } catch (error) {
        // The receiver's failure is not the sender's: by the port's word it ends the process.
        setImmediate(() => {
          throw error
        })
      }
    }
  }

  async receive(channel: string, partition: number, onRecord: (record: ChannelRecord) => void): Promise<Closable> {
    const receivers = this.#partition(channel, partition)
    // A function of its own, so that one callback may receive twice.
    const receive = (record: ChannelRecord) => onRecord(record)
    receivers.add(receive)
    return {
      close: async () => {
        receivers.delete(receive)
      },
    }
  }

  async history(
    channel: string,
    _partition: number,
    { before = Number.POSITIVE_INFINITY, max }: { before?: number | undefined; max: number },
    onRecord: (record: KeptRecord) => void,
  ): Promise<{ hasMore: boolean }> {
    this.#refuseWhenClosed()
    const older = this.#kept.get(channel)?.records.filter(({ offset }) => offset < before) ?? []
    for (const record of older.slice(-max)) onRecord(record)
    return { hasMore: older.length > max }
  }

  async lag(queue: string): Promise<number | undefined> {
    return this.#queue(queue).unacknowledged
  }

  async close(): Promise<void> {
    this.#isClosed = true
    for (const partitions of this.#channels.values()) for (const receivers of partitions) receivers.clear()
  }

  #queue(name: string): MemoryQueue {
    const queue = this.#queues.get(name)
    if (!queue) throw new Error(`no queue ${name}`)
    return queue
  }

  #partition(channel: string, partition: number): Set<(record: ChannelRecord) => void> {
    const receivers = this.#channels.get(channel)?.[partition]
    if (!receivers) throw new Error(`no channel ${channel}/${partition}`)
    return receivers
  }

  #refuseWhenClosed(): void {
    if (this.#isClosed) throw new ServiceError('overloaded', 'The broker is closed.')
  }
}

/** The last records of a channel. */
interface Kept {
  readonly max: number
  readonly records: KeptRecord[]
  next: number
}

function keep(kept: Kept, record: ChannelRecord): void {
  kept.records.push({ ...record, offset: kept.next++, sentAtMs: Date.now() })
  if (kept.records.length > kept.max) kept.records.shift()
}

interface StoredRecord {
  readonly value: Buffer
  readonly offset: number
  deliveryCount: number
}

/** The records of one queue: waiting ones in order, and how many are out. */
class MemoryQueue {
  readonly name: string
  readonly #waiting: StoredRecord[] = []
  readonly #wakeups = new Set<() => void>()
  #head = 0
  #bytes = 0
  #out = 0
  #nextOffset = 0

  constructor(name: string) {
    this.name = name
  }

  get unacknowledged(): number {
    return this.#waiting.length - this.#head + this.#out
  }

  put(value: Buffer): void {
    if (this.#bytes + value.length > QUEUE_BYTES_MAX) {
      throw new ServiceError('overloaded', 'The queue is full. Try again later.', { retryAfterMs: 5_000 })
    }
    this.#bytes += value.length
    this.#waiting.push({ value, offset: this.#nextOffset++, deliveryCount: 0 })
    this.#wake()
  }

  take(max: number): StoredRecord[] {
    const taken = this.#waiting.slice(this.#head, this.#head + max)
    this.#head += taken.length
    // Dropping the consumed front now and then keeps both take and put constant in time.
    if (this.#head > 1_024 && this.#head * 2 > this.#waiting.length) {
      this.#waiting.splice(0, this.#head)
      this.#head = 0
    }
    if (this.#head === this.#waiting.length) {
      this.#waiting.length = 0
      this.#head = 0
    }
    for (const record of taken) record.deliveryCount++
    this.#out += taken.length
    return taken
  }

  settle(record: StoredRecord): void {
    this.#out--
    this.#bytes -= record.value.length
  }

  putBack(record: StoredRecord): void {
    this.#out--
    this.#waiting.splice(this.#head, 0, record)
    this.#wake()
  }

  onPut(wakeup: () => void): () => void {
    this.#wakeups.add(wakeup)
    return () => this.#wakeups.delete(wakeup)
  }

  #wake(): void {
    for (const wakeup of [...this.#wakeups]) wakeup()
  }
}

class MemoryConsumer implements QueueConsumer {
  readonly #queue: MemoryQueue
  readonly #held = new Set<StoredRecord>()
  #isClosed = false

  constructor(queue: MemoryQueue) {
    this.#queue = queue
  }

  async take(max: number, signal: AbortSignal): Promise<Delivery[]> {
    if (signal.aborted || this.#isClosed) return []
    let taken = this.#queue.take(max)
    if (taken.length === 0) {
      await this.#waitForRecord(signal)
      if (signal.aborted || this.#isClosed) return []
      taken = this.#queue.take(max)
    }
    return taken.map((record) => this.#deliver(record))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    for (const record of [...this.#held].reverse()) this.#release(record)
  }

  #waitForRecord(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer)
        forget()
        signal.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, TAKE_WAIT_MS)
      const forget = this.#queue.onPut(done)
      signal.addEventListener('abort', done)
    })
  }

  #deliver(record: StoredRecord): Delivery {
    this.#held.add(record)
    return {
      value: record.value,
      deliveryCount: record.deliveryCount,
      position: `${this.#queue.name}/0@${record.offset}`,
      acknowledge: () => {
        if (this.#held.delete(record)) this.#queue.settle(record)
      },
      release: () => this.#release(record),
    }
  }

  #release(record: StoredRecord): void {
    if (this.#held.delete(record)) this.#queue.putBack(record)
  }
}
