/*
 * The broker inside one process. All guarantees of the port hold except durability, because records are lost when the process ends.
 *
 * A queue contains at most 256 MiB of unacknowledged records. A released record returns to the head of the queue. Records are passed as objects,
 * which are serialized only if their bytes are read.
 */

import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Broker, ChannelRecord, Closable, Delivery, HistoryRecord, QueueConsumer, Topic } from './broker.ts'

/** @param options.topics All topics. Any other name is a programming error and throws. */
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
    this.#queue(queue).put(value.length, { value })
  }

  enqueueLocal(queue: string, payload: object, bytes: number): void {
    this.#refuseWhenClosed()
    this.#queue(queue).put(bytes, { payload })
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
    // Each subscription adds a new function to the set, so that one callback can subscribe more than once.
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
    if (this.#isClosed)
      throw new ServiceError('overloaded', 'The server is shutting down: the broker is closed.', { reason: 'draining' })
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
      // An error of a receiver must not be thrown to the sender. The error is thrown in a later event-loop iteration instead, where it ends the
      // process.
      setImmediate(() => {
        throw error
      })
    }
  }
}

const QUEUE_BYTES_MAX = 256 * 1024 * 1024
/** Maximum wait of `take` without records, in ms. The value also limits the delay that a lost wakeup would cause. */
const TAKE_WAIT_MS = 1_000

interface QueuedRecord {
  readonly bytes: number
  readonly content: { readonly value: Buffer } | { readonly payload: object }
  offset: number
  deliveryCount: number
}

class MemoryQueue {
  readonly name: string
  readonly #waiting: QueuedRecord[] = []
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

  put(bytes: number, content: QueuedRecord['content']): void {
    if (this.#bytes + bytes > QUEUE_BYTES_MAX) {
      throw new ServiceError(
        'overloaded',
        `The job queue is at its maximum of ${QUEUE_BYTES_MAX} bytes. Try again later.`,
        {
          retryAfterMs: 5_000,
          reason: 'queue_full',
        },
      )
    }
    this.#bytes += bytes
    this.#waiting.push({ bytes, content, offset: this.#nextOffset++, deliveryCount: 0 })
    this.#wake()
  }

  take(max: number): QueuedRecord[] {
    const taken = this.#waiting.slice(this.#head, this.#head + max)
    this.#head += taken.length
    // Consumed records are removed from the array only occasionally, so that `take` and `put` have constant cost on
    // average.
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

  settle(record: QueuedRecord): void {
    this.#out--
    this.#bytes -= record.bytes
  }

  putBack(record: QueuedRecord): void {
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
  readonly #held = new Set<QueuedRecord>()
  /** Stops the timer that ends expired waits of `take`. Undefined until the first wait has started the timer. */
  #stopTicking: (() => void) | undefined
  #isClosed = false
  /** Signal of the last `take`. Consumers pass the same signal to many calls, so its abort listener is added only once. */
  #signal: AbortSignal | undefined
  #resolveWait: (() => void) | undefined
  readonly #wakeUp = () => {
    this.#forget?.()
    this.#forget = undefined
    this.#resolveWait?.()
    this.#resolveWait = undefined
  }
  #forget: (() => void) | undefined

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
    this.#stopTicking?.()
    this.#wakeUp()
    for (const record of [...this.#held].reverse()) this.#release(record)
  }

  #waitForRecord(signal: AbortSignal): Promise<void> {
    if (signal !== this.#signal) {
      this.#signal?.removeEventListener('abort', this.#wakeUp)
      this.#signal = signal
      signal.addEventListener('abort', this.#wakeUp, { once: true })
    }
    this.#stopTicking ??= atAlignedInterval(TAKE_WAIT_MS, this.#wakeUp)
    // Waiting members are woken in the order in which they began to wait.
    this.#forget = this.#queue.onPut(this.#wakeUp)
    return new Promise((resolve) => {
      this.#resolveWait = resolve
    })
  }

  #deliver(record: QueuedRecord): Delivery {
    this.#held.add(record)
    const { content } = record
    return {
      ...('payload' in content && { payload: content.payload }),
      get value() {
        return 'value' in content ? content.value : Buffer.from(JSON.stringify(content.payload))
      },
      deliveryCount: record.deliveryCount,
      position: `${this.#queue.name}/0@${record.offset}`,
      acknowledge: () => {
        if (this.#held.delete(record)) this.#queue.settle(record)
      },
      release: () => this.#release(record),
    }
  }

  #release(record: QueuedRecord): void {
    if (this.#held.delete(record)) this.#queue.putBack(record)
  }
}
