/**
 * The broker port on Kafka. Share groups and classic groups differ only in queues ({@link QueueGroups}). The view of the cluster, the producer, the
 * receivers of channels, and the checks of topics are the same for both.
 *
 * kafkajs reads queues of classic groups, and nothing else. A client of kafkajs waits for a hung broker until a request timeout. If kafkajs also sent
 * records and received channels, then one hung broker of three would delay all calls for that time.
 */
import type { Broker, ChannelRecord, Closable, HistoryRecord, QueueConsumer, Receiver } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { PlatformaticAdmin } from './admin.ts'
import { ChannelReceiver } from './channel.ts'
import { KafkaCluster } from './cluster.ts'
import { isTransient } from './errors.ts'
import { type StoredOffsets, storedOffsets } from './offsets.ts'
import { KAFKA_DEFAULTS, type KafkaOptions, pause, within } from './options.ts'
import { KafkaProducer } from './producer.ts'
import { batchBytesMax, CoalescingSender, overloaded } from './sender.ts'
import { type BootProblem, TopicKeeper } from './topics.ts'

/** The consumers of queues, in share groups or in classic groups. Topic names include the prefix. */
export interface QueueGroups {
  readonly name: string
  /** Checks topics and groups, creates missing topics, and returns every remaining problem. */
  check(admin: PlatformaticAdmin): Promise<BootProblem[]>
  /** @param queue Name of the queue without the prefix, for {@link Delivery.position}. */
  consumer(queue: string, topic: string): QueueConsumer & { open(): QueueConsumer }
  /**
   * Returns the number of records of a topic that its group has not processed.
   *
   * @throws Error if a broker is unreachable or refuses
   */
  lag(topic: string): Promise<number>
  /** Called after a topic was deleted and recreated. The offsets of the new topic start at 0. */
  recreated(topic: string): void
  close(): void
}

/** Implements the broker port. `close` also closes the given cluster and groups. */
export class KafkaBroker implements Broker {
  readonly #cluster: KafkaCluster
  readonly #groups: QueueGroups
  readonly #options: KafkaOptions
  readonly #sender: CoalescingSender
  readonly #keeper: TopicKeeper<PlatformaticAdmin>
  readonly #open = new Set<Closable>()
  readonly #turns = new Map<string, number>()
  readonly #onLoss = new Set<(name: string) => void>()
  #closed: Promise<void> | undefined

  constructor(cluster: KafkaCluster, groups: QueueGroups, options: KafkaOptions) {
    this.#cluster = cluster
    this.#groups = groups
    this.#options = options
    const producer = new KafkaProducer(cluster)
    this.#sender = new CoalescingSender(
      (batches) => producer.produce(batches),
      (topic, partition) => cluster.leader(topic, partition),
      options.sendBufferBytesMax ?? KAFKA_DEFAULTS.sendBufferBytesMax,
      () => cluster.suspect(),
    )
    this.#keeper = new TopicKeeper(
      (use) => onNewConnection(options, use),
      (admin) => groups.check(admin),
      options,
    )
    cluster.onReturn(() => this.#keeper.verify())
    cluster.watch(({ lacking, recreated }) => {
      if (lacking.length > 0) this.#keeper.verify()
      for (const topic of recreated) {
        groups.recreated(topic)
        this.#lost(topic)
      }
    })
  }

  get name(): string {
    return this.#groups.name
  }

  get isReachable(): boolean {
    return this.#cluster.unreachableSinceMs === undefined && this.#closed === undefined
  }

  get unreachableMs(): number {
    const { unreachableSinceMs: sinceMs } = this.#cluster
    return sinceMs === undefined ? 0 : performance.now() - sinceMs
  }

  get missing(): readonly string[] {
    return this.#keeper.missing
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
    const consumer = this.#groups.consumer(queue, this.#options.prefix + queue)
    this.#open.add(consumer)
    return consumer.open()
  }

  async receive(
    channel: string,
    partitions: readonly number[],
    onRecord: (record: ChannelRecord) => void,
  ): Promise<Receiver> {
    const topic = this.#options.prefix + channel
    const receiver = new ChannelReceiver(this.#cluster, this.#options, topic, partitions, onRecord)
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
    return await readHistory(this.#cluster, this.#options, channel, partition, range, onRecord)
  }

  async lag(queue: string): Promise<number | undefined> {
    try {
      return await this.#groups.lag(this.#options.prefix + queue)
    } catch (error) {
      if (!isTransient(error)) {
        const fields = { queue, error: String(error) }
        this.#options.onProblem('lag of a Kafka queue could not be read; it counts as unknown', fields)
      }
      return undefined
    }
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    await this.#sender.close(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs)
    await Promise.allSettled([...this.#open].map((open) => open.close()))
    await this.#keeper.close()
    this.#groups.close()
    await this.#cluster.close()
  }

  #lost(topic: string): void {
    const name = topic.slice(this.#options.prefix.length)
    this.#options.onProblem('Kafka topic was deleted and recreated', { topic })
    for (const onLoss of this.#onLoss) onLoss(name)
  }

  /**
   * Returns the next partition in rotation. Partitions without a leader are skipped, unless no partition has a leader.
   */
  #nextPartition(topic: string): number {
    const count = Math.max(this.#cluster.partitions(topic), 1)
    const turn = this.#turns.get(topic) ?? 0
    const order = Array.from({ length: count }, (_, index) => (turn + index) % count)
    const chosen = order.find((partition) => this.#cluster.leader(topic, partition) >= 0) ?? turn
    this.#turns.set(topic, (chosen + 1) % count)
    return chosen
  }
}

/** Runs an operation on a new connection, because the existing view of the cluster may be outdated or lack a restarting node. */
async function onNewConnection(options: KafkaOptions, use: (admin: PlatformaticAdmin) => Promise<void>): Promise<void> {
  const cluster = new KafkaCluster(options)
  const admin = new PlatformaticAdmin(cluster, options)
  try {
    await cluster.follow([])
    await use(admin)
  } finally {
    await admin.close()
    await cluster.close()
  }
}

/** Timeout in ms of reading stored records ({@link Broker.history}). */
const READ_TIMEOUT_MS = 15_000
const LEADERLESS_MS = 10_000
const RETRY_DELAY_MS = 100

/** Reads the last `max` records before an offset, for {@link Broker.history}. */
async function readHistory(
  cluster: KafkaCluster,
  options: KafkaOptions,
  channel: string,
  partition: number,
  { before = Number.POSITIVE_INFINITY, max }: { readonly before?: number | undefined; readonly max: number },
  onRecord: (record: HistoryRecord) => void,
): Promise<{ hasMore: boolean }> {
  const topic = options.prefix + channel
  const { first, end } = await offsetsWithRetry(cluster, topic, partition)
  const to = Math.min(before, end)
  const from = Math.max(first, to - max)
  if (from >= to) return { hasMore: false }
  const { promise, resolve } = Promise.withResolvers<void>()
  const onEach = (record: HistoryRecord) => {
    if (record.offset < to) onRecord(record)
    if (record.offset >= to - 1) resolve()
  }
  const receiver = new ChannelReceiver(cluster, options, topic, [partition], onEach, from)
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

/** Reads the first and the last offset of a partition, with retries, because a newly elected leader refuses requests at first. */
async function offsetsWithRetry(cluster: KafkaCluster, topic: string, partition: number): Promise<StoredOffsets> {
  const timeout = AbortSignal.timeout(LEADERLESS_MS)
  for (;;) {
    try {
      return await storedOffsets(cluster, topic, partition)
    } catch (cause) {
      if (timeout.aborted || !isTransient(cause)) {
        throw new ServiceError('overloaded', 'The broker did not return the first and last offset of its records.', {
          cause,
          reason: 'kafka',
        })
      }
      cluster.suspect()
      await pause(RETRY_DELAY_MS, timeout)
    }
  }
}
