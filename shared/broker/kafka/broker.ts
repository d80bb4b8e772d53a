import type { Broker, ChannelRecord, Closable, HistoryRecord, QueueConsumer, Receiver } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { KAFKA_DEFAULTS, type KafkaOptions, pause, within } from './options.ts'
import { batchBytesMax, CoalescingSender, overloaded, type Produce } from './sender.ts'

/** Port for the operations in which the Kafka clients differ. Topic names include the prefix. */
export interface KafkaClient {
  readonly name: string
  /** Start of the current outage by the monotonic clock, in ms. Undefined while a broker answers. */
  readonly unreachableSinceMs: number | undefined
  readonly missing: readonly string[]
  readonly produce: Produce
  /** @param onLoss Called with the name of a topic that was deleted and recreated. A later listener replaces an earlier one. */
  onLoss(onLoss: (topic: string) => void): void
  /** Checks whether a broker answers, and which nodes lead the partitions. Called after a slow or refused request. */
  suspect(): void
  isTransient(error: unknown): boolean
  partitions(topic: string): number
  /** Number of the node that leads a partition. Negative if none does. */
  leader(topic: string, partition: number): number
  /** @param queue Name of the queue without the prefix, for {@link Delivery.position}. */
  consumer(queue: string, topic: string): QueueConsumer & { open(): QueueConsumer }
  /** @param from Offset of the first record in each partition. Default: the current end. */
  receiver(
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
    from?: number,
  ): Receiver & { open(): Promise<Receiver> }
  /** Returns the range of a partition's stored offsets. @throws Error if a broker is unreachable or refuses */
  storedOffsets(topic: string, partition: number): Promise<StoredOffsets>
  lag(queue: string, topic: string): Promise<number | undefined>
  /** Closes the client. All of its consumers and receivers must be closed before. */
  close(): Promise<void>
}

/** Implements the broker port on Kafka, except for the operations of {@link KafkaClient}. Closes the given client. */
export class KafkaBroker implements Broker {
  readonly #client: KafkaClient
  readonly #options: KafkaOptions
  readonly #sender: CoalescingSender
  readonly #open = new Set<Closable>()
  readonly #turns = new Map<string, number>()
  readonly #onLoss = new Set<(name: string) => void>()
  #closed: Promise<void> | undefined

  constructor(client: KafkaClient, options: KafkaOptions) {
    this.#client = client
    this.#options = options
    this.#sender = new CoalescingSender(
      client.produce,
      (topic, partition) => client.leader(topic, partition),
      options.sendBufferBytesMax ?? KAFKA_DEFAULTS.sendBufferBytesMax,
      () => client.suspect(),
    )
    client.onLoss((topic) => {
      const name = topic.slice(options.prefix.length)
      options.onProblem('Kafka topic was deleted and recreated', { topic })
      for (const onLoss of this.#onLoss) onLoss(name)
    })
  }

  get name(): string {
    return this.#client.name
  }

  get isReachable(): boolean {
    return this.#client.unreachableSinceMs === undefined && this.#closed === undefined
  }

  get unreachableMs(): number {
    const { unreachableSinceMs: sinceMs } = this.#client
    return sinceMs === undefined ? 0 : performance.now() - sinceMs
  }

  get missing(): readonly string[] {
    return this.#client.missing
  }

  onLoss(onLoss: (name: string) => void): () => void {
    this.#onLoss.add(onLoss)
    return () => void this.#onLoss.delete(onLoss)
  }

  async submit(queue: string, value: Buffer, withinMs = Number.POSITIVE_INFINITY): Promise<void> {
    if (!this.isReachable) throw overloaded('The job queue is unreachable.')
    if (this.missing.includes(queue)) throw overloaded(`The job queue ${queue} is missing in Kafka.`)
    const topic = this.#options.prefix + queue
    const timeoutMs = Math.min(withinMs, this.#options.sendTimeoutMs ?? KAFKA_DEFAULTS.sendTimeoutMs)
    const options = { timeoutMs, batchBytesMax: batchBytesMax.queue }
    await this.#sender.send(topic, this.#nextPartition(topic), { key: undefined, value }, options)
  }

  async send(channel: string, partition: number, key: string, value: Buffer): Promise<void> {
    const record = { key: Buffer.from(key), value }
    await this.#sender.send(this.#options.prefix + channel, partition, record, { batchBytesMax: batchBytesMax.channel })
  }

  async openQueue(queue: string): Promise<QueueConsumer> {
    const consumer = this.#client.consumer(queue, this.#options.prefix + queue)
    this.#open.add(consumer)
    return consumer.open()
  }

  async receive(
    channel: string,
    partitions: readonly number[],
    onRecord: (record: ChannelRecord) => void,
  ): Promise<Receiver> {
    const receiver = this.#client.receiver(this.#options.prefix + channel, partitions, onRecord)
    this.#open.add(receiver)
    return await receiver.open()
  }

  async history(
    channel: string,
    partition: number,
    range: { readonly before?: number | undefined; readonly max: number },
    onRecord: (record: HistoryRecord) => void,
  ): Promise<{ hasMore: boolean }> {
    if (!this.isReachable) throw overloaded('The broker is unreachable.')
    return await readHistory(this.#client, this.#options.prefix + channel, partition, range, onRecord)
  }

  async lag(queue: string): Promise<number | undefined> {
    return await this.#client.lag(queue, this.#options.prefix + queue)
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    await this.#sender.close(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs)
    await Promise.allSettled([...this.#open].map((open) => open.close()))
    await this.#client.close()
  }

  /**
   * Returns the next partition, round robin over the partitions that have a leader, or over all partitions if none has.
   */
  #nextPartition(topic: string): number {
    const count = Math.max(this.#client.partitions(topic), 1)
    const turn = this.#turns.get(topic) ?? 0
    const order = Array.from({ length: count }, (_, index) => (turn + index) % count)
    const chosen = order.find((partition) => this.#client.leader(topic, partition) >= 0) ?? turn
    this.#turns.set(topic, (chosen + 1) % count)
    return chosen
  }
}

/** Timeout of reading the history, in ms. The value is long because forming a classic group takes some seconds. */
const READ_TIMEOUT_MS = 15_000
const LEADERLESS_MS = 10_000
const RETRY_DELAY_MS = 100

/** Range of a partition's stored offsets. `end` is the offset of the next record. */
export interface StoredOffsets {
  readonly first: number
  readonly end: number
}

interface HistoryClient {
  isTransient(error: unknown): boolean
  suspect(): void
  storedOffsets(topic: string, partition: number): Promise<StoredOffsets>
  receiver(
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
    from: number,
  ): Closable & { open(): Promise<Closable> }
}

/** Reads the last `max` records before an offset. Like {@link Broker.history}, for a topic name with its prefix. */
async function readHistory(
  client: HistoryClient,
  topic: string,
  partition: number,
  { before = Number.POSITIVE_INFINITY, max }: { readonly before?: number | undefined; readonly max: number },
  onRecord: (record: HistoryRecord) => void,
): Promise<{ hasMore: boolean }> {
  const { first, end } = await offsetsWithRetry(client, topic, partition)
  const to = Math.min(before, end)
  const from = Math.max(first, to - max)
  if (from >= to) return { hasMore: false }
  const { promise, resolve } = Promise.withResolvers<void>()
  const receiver = client.receiver(
    topic,
    [partition],
    (record) => {
      if (record.offset < to) onRecord(record)
      if (record.offset >= to - 1) resolve()
    },
    from,
  )
  try {
    const isRead = await within(
      READ_TIMEOUT_MS,
      receiver.open().then(() => promise),
    )
    if (isRead) return { hasMore: from > first }
    throw new ServiceError('overloaded', `The broker did not return its records within ${READ_TIMEOUT_MS / 1_000} s.`, {
      reason: 'kafka',
    })
  } finally {
    await receiver.close()
  }
}

/** Reads stored offsets, with retries, because a newly elected leader refuses requests at first. */
async function offsetsWithRetry(client: HistoryClient, topic: string, partition: number): Promise<StoredOffsets> {
  const timeout = AbortSignal.timeout(LEADERLESS_MS)
  for (;;) {
    try {
      return await client.storedOffsets(topic, partition)
    } catch (cause) {
      if (timeout.aborted || !client.isTransient(cause)) {
        throw new ServiceError('overloaded', 'The broker did not return the range of its record offsets.', {
          cause,
          reason: 'kafka',
        })
      }
      client.suspect()
      await pause(RETRY_DELAY_MS, timeout)
    }
  }
}
