/**
 * A queue on a classic consumer group. Each partition is assigned to one member of the group. The member prefetches within a bound, pauses the
 * partition at that bound, and commits up to the first unacknowledged record.
 *
 * A classic group is weaker than a share group in four ways.
 * 1. A record waits for the member to which its partition is assigned, even if other members are free.
 * 2. A released record is redelivered to the same member.
 * 3. Deliveries of a dead member are not counted.
 * 4. A joining member may receive records that other members have taken but not yet acknowledged. When a rebalance begins, members therefore take
 *    no more records, and wait up to half a second for acknowledgements.
 */
import type { Consumer, EachBatchPayload, Kafka } from 'kafkajs'
import type { Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { isTransient } from '#shared/broker/kafka/errors.ts'
import { committedOffsets, LATEST, offsetAt } from '#shared/broker/kafka/offsets.ts'
import {
  classicGroup,
  KAFKA_DEFAULTS,
  type KafkaOptions,
  pause,
  Supervisor,
  untilWoken,
  within,
} from '#shared/broker/kafka/options.ts'
import { groupRemedy, messageOf } from '#shared/broker/kafka/topics.ts'
import { assignAfter, CONSUMER_RETRY, isTransientInKafkaJs, type Membership } from './client.ts'
import { ClassicPartition, type ClassicRecord } from './partition.ts'

const TAKE_WAIT_MS = 900
const SESSION_TIMEOUT_MS = 10_000
const HEARTBEAT_INTERVAL_MS = 1_000
const REBALANCE_TIMEOUT_MS = 15_000
/** Maximum wait of a fetch without records, in ms. kafkajs also sleeps for this time when all partitions are paused. */
const LONG_POLL_MS = 500
/** Maximum age in ms of the metadata of a consumer, after which new partitions of the topic are assigned. The default of kafkajs is 5 minutes. */
const METADATA_AGE_MS_MAX = 5_000
const FETCH_BYTES_MAX = 1024 * 1024
/** A partition is paused at WAITING_BYTES_MAX bytes of waiting records, and is read again below WAITING_BYTES_RESUME. */
const WAITING_BYTES_MAX = 2 * 1024 * 1024
const WAITING_BYTES_RESUME = 1024 * 1024
const WAITING_COUNT_MAX = 1_000
/**
 * Number of checks for unacknowledged records before a member joins again, and the wait before each in ms. A call is acknowledged some milliseconds
 * after it was taken. A record that waits for a free slot stays unacknowledged for longer, and is then also delivered to another member.
 */
const SETTLE_WAITS = 50
const SETTLE_WAIT_MS = 10

export class ClassicConsumer implements QueueConsumer {
  readonly #kafka: Kafka
  readonly #cluster: KafkaCluster
  readonly #queue: string
  readonly topic: string
  readonly #options: KafkaOptions
  readonly #supervisor: Supervisor
  readonly #membership: Membership = { id: null }
  readonly #closing = new AbortController()
  readonly #partitions = new Map<number, ClassicPartition>()
  readonly #paused = new Set<number>()
  #assigned: readonly number[] = []
  /** True from the start of a rebalance until this member has joined again. In this time, `take` returns no records. */
  #isRebalancing = false
  /** Partitions that had no committed position when this member joined. A start offset is determined before they are read. */
  #unplaced: readonly number[] = []
  /** Paused partitions whose start offsets are being determined. */
  #placing: readonly number[] = []
  #consumer: Consumer | undefined
  /** Ends the current consumer of kafkajs, after which the next one starts. */
  #endRun: () => void = () => undefined
  #loop: Promise<void> = Promise.resolve()
  #wake: (() => void) | undefined
  #committing: Promise<void> | undefined
  #closed: Promise<void> | undefined

  constructor(kafka: Kafka, cluster: KafkaCluster, queue: string, topic: string, options: KafkaOptions) {
    this.#kafka = kafka
    this.#cluster = cluster
    this.#queue = queue
    this.topic = topic
    this.#options = options
    this.#supervisor = new Supervisor(
      `classic consumer of ${topic}`,
      options,
      (error) => isTransient(error) || isTransientInKafkaJs(error),
    )
  }

  open(): this {
    this.#loop = this.#supervise()
    return this
  }

  /**
   * Starts again with a new consumer of kafkajs, after the topic was recreated. The current consumer would continue at its old offset if
   * the new topic has already reached this offset, and would skip all earlier records.
   */
  restart(): void {
    // Remembered offsets belong to the deleted topic. If they were kept, then records of the new topic with the same offsets would be skipped.
    this.#partitions.clear()
    this.#paused.clear()
    this.#endRun()
  }

  async take(max: number, signal: AbortSignal): Promise<Delivery[]> {
    if (signal.aborted || this.#closing.signal.aborted) return []
    if (!this.#hasWaiting()) await this.#wait(signal)
    if (signal.aborted || this.#closing.signal.aborted || this.#isRebalancing) return []
    const taken: ClassicRecord[] = []
    for (const [number, partition] of this.#partitions) {
      if (taken.length < max) taken.push(...partition.take(max - taken.length))
      if (this.#paused.has(number) && partition.waitingBytes < WAITING_BYTES_RESUME) this.#resume(number)
    }
    this.#rotate()
    return taken.map((record) => this.#toDelivery(record))
  }

  /** Commits acknowledged records and leaves the group, so that other members receive the remaining records at once. */
  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  #hasWaiting(): boolean {
    return !this.#isRebalancing && [...this.#partitions.values()].some(({ waitingCount }) => waitingCount > 0)
  }

  async #wait(signal: AbortSignal): Promise<void> {
    await untilWoken(TAKE_WAIT_MS, signal, (wake) => {
      this.#wake = wake
    })
    this.#wake = undefined
  }

  #rotate(): void {
    const [first] = this.#partitions
    if (!first || !this.#partitions.delete(first[0])) return
    this.#partitions.set(...first)
  }

  #toDelivery(record: ClassicRecord): Delivery {
    const partition = this.#partition(record.partition)
    return {
      value: record.value,
      deliveryCount: record.deliveryCount,
      position: `${this.#queue}/${record.partition}@${record.offset}`,
      acknowledge: () => {
        partition.finish(record.offset)
        this.#commitSoon()
      },
      release: () => {
        partition.putBack(record)
        this.#wake?.()
      },
    }
  }

  #partition(number: number): ClassicPartition {
    const existing = this.#partitions.get(number)
    if (existing) return existing
    const partition = new ClassicPartition()
    this.#partitions.set(number, partition)
    return partition
  }

  async #supervise(): Promise<void> {
    while (!this.#closing.signal.aborted) {
      try {
        await this.#runOnce()
      } catch (error) {
        if (this.#closing.signal.aborted) return
        const details = { error: messageOf(error), ...groupRemedy(error, this.#options) }
        await pause(this.#supervisor.failed(error, details), this.#closing.signal)
      }
    }
  }

  async #runOnce(): Promise<void> {
    const consumer = this.#kafka.consumer({
      groupId: classicGroup(this.topic),
      partitionAssigners: [assignAfter(() => this.#settle(), this.#membership)],
      sessionTimeout: SESSION_TIMEOUT_MS,
      heartbeatInterval: HEARTBEAT_INTERVAL_MS,
      rebalanceTimeout: REBALANCE_TIMEOUT_MS,
      maxWaitTimeInMs: LONG_POLL_MS,
      maxBytesPerPartition: FETCH_BYTES_MAX,
      allowAutoTopicCreation: false,
      readUncommitted: true,
      retry: CONSUMER_RETRY,
      metadataMaxAge: METADATA_AGE_MS_MAX,
    })
    this.#consumer = consumer
    this.#unplaced = await unplaced(this.#cluster, this.topic)
    // A partition without a committed position may belong to a recreated topic, in which offsets start again. The
    // offsets of the deleted topic are therefore discarded.
    for (const number of this.#unplaced) this.#partitions.delete(number)
    const ended = Promise.withResolvers<void>()
    const end = () => ended.resolve()
    this.#endRun = end
    this.#closing.signal.addEventListener('abort', end, { once: true })
    consumer.on(consumer.events.CRASH, ({ payload }) => ended.reject(payload.error))
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
      this.#onJoin(payload.memberAssignment[this.topic] ?? [], consumer),
    )
    try {
      await consumer.connect()
      await consumer.subscribe({ topics: [this.topic], fromBeginning: true })
      await consumer.run({ autoCommit: false, eachBatch: async (payload) => this.#onBatch(payload) })
      await ended.promise
    } finally {
      this.#closing.signal.removeEventListener('abort', end)
      if (this.#closing.signal.aborted) await this.#commit()
      await consumer.disconnect().catch(() => undefined)
    }
  }

  /**
   * Runs before this member joins the group again. The next owner of a partition starts at the committed offset, and receives all later records
   * again. Until the join, this member therefore takes no new records, waits for the acknowledgements of all taken records, and commits them.
   */
  async #settle(): Promise<void> {
    this.#isRebalancing = true
    const isSettled = () => [...this.#partitions.values()].every(({ outCount }) => outCount === 0)
    for (let waits = 0; waits < SETTLE_WAITS && !isSettled(); waits++) {
      await pause(SETTLE_WAIT_MS, this.#closing.signal)
    }
    await this.#commit()
  }

  #onJoin(assigned: readonly number[], consumer: Consumer): void {
    this.#supervisor.progress()
    this.#assigned = assigned
    this.#isRebalancing = false
    const before = this.#placing
    this.#placing = []
    this.#setFetching(true, before, consumer)
    for (const partition of this.#partitions.values()) partition.restart()
    for (const number of this.#paused) this.#resume(number)
    const fresh = assigned.filter((number) => this.#unplaced.includes(number))
    if (fresh.length > 0) void this.#place(consumer, fresh)
  }

  /**
   * Commits start offsets for partitions without a position, before reading. If the commit fails, then the next join
   * retries. If this member joins again meanwhile, then nothing is committed, because the new owner of a partition may have
   * committed a later offset.
   */
  async #place(consumer: Consumer, partitions: number[]): Promise<void> {
    const topic = this.topic
    this.#placing = partitions
    this.#setFetching(false, partitions, consumer)
    try {
      const { retentionMsMin } = this.#options.topics.find(({ name }) => name === this.#queue) ?? {}
      const starts = await startsOf(this.#cluster, topic, partitions, retentionMsMin)
      if (this.#placing !== partitions) return
      const offsets = [...starts].map(([partition, offset]) => ({ topic, partition, offset: String(offset) }))
      for (const offset of offsets) consumer.seek(offset)
      if (offsets.length > 0) await consumer.commitOffsets(offsets)
      this.#unplaced = this.#unplaced.filter((number) => !partitions.includes(number))
    } catch (error) {
      if (this.#closing.signal.aborted) return
      this.#options.onProblem('start position of a Kafka queue could not be set; old records may be read', {
        topic,
        partitions,
        error: String(error),
      })
    } finally {
      if (this.#placing === partitions) {
        this.#placing = []
        this.#setFetching(true, partitions, consumer)
      }
    }
  }

  #onBatch({ batch }: EachBatchPayload): void {
    // If the batch ends before an offset that was already received, then the topic was recreated, and kafkajs has reset its position to the
    // start. The state of the old partition is dropped.
    if (Number(batch.lastOffset()) < this.#partition(batch.partition).seen) this.#partitions.delete(batch.partition)
    const partition = this.#partition(batch.partition)
    partition.add(
      batch.messages.map(({ offset, value }) => ({
        partition: batch.partition,
        offset: Number(offset),
        value: value ?? Buffer.alloc(0),
        deliveryCount: 1,
      })),
    )
    this.#supervisor.progress()
    const isFull = partition.waitingBytes > WAITING_BYTES_MAX || partition.waitingCount > WAITING_COUNT_MAX
    if (isFull) this.#pause(batch.partition)
    this.#wake?.()
  }

  #pause(number: number): void {
    this.#paused.add(number)
    this.#setFetching(false, [number])
  }

  #resume(number: number): void {
    this.#paused.delete(number)
    this.#setFetching(true, [number])
  }

  /**
   * Pauses or resumes partitions. If the consumer is stopping, then kafkajs throws. The error is ignored, because the next consumer starts with all
   * partitions resumed.
   */
  #setFetching(isFetching: boolean, partitions: readonly number[], consumer = this.#consumer): void {
    if (partitions.length === 0) return
    try {
      consumer?.[isFetching ? 'resume' : 'pause']([{ topic: this.topic, partitions: [...partitions] }])
    } catch (error) {
      if ((error as Error).name !== 'KafkaJSNonRetriableError') throw error
    }
  }

  #commitSoon(): void {
    this.#committing ??= new Promise<void>((resolve) => setImmediate(resolve))
      .then(() => this.#commit())
      .finally(() => {
        this.#committing = undefined
        if (this.#toCommit().length > 0 && !this.#closing.signal.aborted) this.#commitSoon()
      })
  }

  #toCommit() {
    return this.#assigned.flatMap((number) => {
      const offset = this.#partitions.get(number)?.toCommit
      return offset === undefined ? [] : [{ topic: this.topic, partition: number, offset: String(offset) }]
    })
  }

  /**
   * Commits processed offsets. Never rejects. During a rebalance, the broker refuses a commit, so some records are redelivered and a later commit
   * succeeds.
   */
  async #commit(): Promise<void> {
    const offsets = this.#toCommit()
    if (offsets.length === 0) return
    try {
      await this.#consumer?.commitOffsets(offsets)
      for (const { partition, offset } of offsets) this.#partition(partition).committed(Number(offset))
    } catch (error) {
      this.#options.onProblem('Kafka commit refused; records may be redelivered', { error: String(error) })
      await pause(HEARTBEAT_INTERVAL_MS, this.#closing.signal)
    }
  }

  async #close(): Promise<void> {
    this.#closing.abort()
    this.#wake?.()
    await within(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs, this.#loop)
  }
}

async function unplaced(cluster: KafkaCluster, topic: string): Promise<number[]> {
  const committed = await committedOffsets(cluster, classicGroup(topic), topic)
  return Array.from({ length: cluster.partitions(topic) }, (_, index) => index).filter((each) => !committed.has(each))
}

/**
 * Returns a start offset for each given partition without a committed position. The start is the last position of the group that an earlier
 * version used, or the oldest record for which a caller may still wait. Reading from the beginning of the topic would repeat all records that a
 * share group has processed before.
 *
 * @param waitMsMax Age after which no caller waits for a record any more. If undefined, then all records are needed.
 * @throws Error if a broker is unreachable or refuses
 */
async function startsOf(
  cluster: KafkaCluster,
  topic: string,
  partitions: readonly number[],
  waitMsMax: number | undefined,
): Promise<Map<number, number>> {
  const open = new Set(await unplaced(cluster, topic))
  // Earlier versions used the topic's name for the group. If a share group has this name now, then no positions are
  // found.
  const before = await committedOffsets(cluster, topic, topic).catch(() => new Map<number, number>())
  const starts = new Map<number, number>()
  for (const partition of partitions.filter((each) => open.has(each))) {
    const read = (timestamp: bigint) => offsetAt(cluster, topic, partition, timestamp)
    const young = waitMsMax === undefined ? 0 : await youngestOrEnd(read, Date.now() - waitMsMax)
    starts.set(partition, Math.max(before.get(partition) ?? -1, young))
  }
  return starts
}

/**
 * Returns the offset of the first record that is not older than a time, or the end of the partition if all are older.
 *
 * @param read Returns the offset of a partition at a timestamp, like {@link offsetAt}. The end is read first, because a record that is appended
 *   between the two requests would otherwise be skipped.
 */
export async function youngestOrEnd(read: (timestamp: bigint) => Promise<bigint>, fromMs: number): Promise<number> {
  const end = await read(LATEST)
  const young = await read(BigInt(fromMs))
  return Number(young < 0n ? end : young)
}
