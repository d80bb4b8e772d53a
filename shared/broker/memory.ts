import { ServiceError } from '#shared/lib/error.ts'
import type { Broker, ChannelRecord, Closable, HistoryRecord, QueueConsumer, Topic } from './broker.ts'
import { MemoryConsumer, MemoryQueue, QueuedRecord } from './memory-queue.ts'

/**
 * The broker inside one process. Keeps every promise of the port except durability, which ends with the process.
 *
 * @param options.topics All topics. Any other name is a programming error and throws.
 */
export async function openMemoryBroker(options: { topics: readonly Topic[] }): Promise<Broker> {
  return new MemoryBroker(options.topics)
}

class MemoryBroker implements Broker {
  readonly name = 'memory'
  readonly #queues = new Map<string, MemoryQueue>()
  readonly #channels = new Map<string, Set<(record: ChannelRecord) => void>[]>()
  readonly #kept = new Map<string, PartitionHistory>()
  #isClosed = false

  constructor(topics: readonly Topic[]) {
    for (const topic of topics) {
      if (topic.historyMax !== undefined) this.#kept.set(topic.name, { max: topic.historyMax, records: [], next: 0 })
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
    this.#queue(queue).put(new QueuedRecord(value.length, value))
  }

  enqueueLocal(queue: string, payload: object, bytes: number): void {
    this.#refuseWhenClosed()
    this.#queue(queue).put(new QueuedRecord(bytes, undefined, payload))
  }

  async openQueue(queue: string): Promise<QueueConsumer> {
    return new MemoryConsumer(this.#queue(queue))
  }

  async send(channel: string, partition: number, key: string, value: Buffer): Promise<void> {
    this.#refuseWhenClosed()
    const receivers = this.#partition(channel, partition)
    const kept = this.#kept.get(channel)
    if (kept) keep(kept, { key, value })
    await Promise.resolve()
    deliver(receivers, { key, value })
  }

  deliverLocal(channel: string, partition: number, key: string, payload: object): void {
    if (this.#isClosed) return
    const receivers = this.#partition(channel, partition)
    queueMicrotask(() => deliver(receivers, new PassedRecord(key, payload)))
  }

  async receive(
    channel: string,
    partitions: readonly number[],
    onRecord: (record: ChannelRecord) => void,
  ): Promise<Closable> {
    const received = partitions.map((partition) => this.#partition(channel, partition))
    // A new function per subscription, so that a callback can subscribe more than once.
    const receive = (record: ChannelRecord) => onRecord(record)
    for (const receivers of received) receivers.add(receive)
    return {
      close: async () => {
        for (const receivers of received) receivers.delete(receive)
      },
    }
  }

  async history(
    channel: string,
    _partition: number,
    { before = Number.POSITIVE_INFINITY, max }: { before?: number | undefined; max: number },
    onRecord: (record: HistoryRecord) => void,
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
    if (this.#isClosed) throw new ServiceError('overloaded', 'The server is shutting down: the broker is closed.')
  }
}

interface PartitionHistory {
  readonly max: number
  readonly records: HistoryRecord[]
  next: number
}

function keep(kept: PartitionHistory, record: ChannelRecord): void {
  kept.records.push({ ...record, offset: kept.next++, sentAtMs: Date.now() })
  if (kept.records.length > kept.max) kept.records.shift()
}

class PassedRecord implements ChannelRecord {
  readonly key: string
  readonly payload: object

  constructor(key: string, payload: object) {
    this.key = key
    this.payload = payload
  }

  get value(): Buffer {
    return Buffer.from(JSON.stringify(this.payload))
  }
}

function deliver(receivers: ReadonlySet<(record: ChannelRecord) => void>, record: ChannelRecord): void {
  for (const receive of receivers) {
    try {
      receive(record)
    } catch (error) {
      // An error of a receiver must not fail the sender. The error is thrown in another event-loop iteration, so that it ends the
      // process.
      setImmediate(() => {
        throw error
      })
    }
  }
}
