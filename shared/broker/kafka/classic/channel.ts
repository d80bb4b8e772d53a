/**
 * Receives partitions of a channel through kafkajs, which reads in groups only: a group of its own with a throw-away
 * name, an assigner that gives its one member these partitions, positions of its own, and no commits. Kafka forgets a
 * group without members and commits by itself.
 */
import { randomUUID } from 'node:crypto'
import { type Admin, AssignerProtocol, type EachBatchPayload, type Kafka, type PartitionAssigner } from 'kafkajs'
import type { Closable, KeptRecord } from '#shared/broker/broker.ts'
import { fetchGapMs, KAFKA_DEFAULTS, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import { handOver, pause, Supervisor, within } from '#shared/broker/kafka/supervision.ts'
import { isTransientInKafkaJs } from './client.ts'

const LONG_POLL_MS = 250
const SESSION_TIMEOUT_MS = 10_000
const HEARTBEAT_INTERVAL_MS = 3_000
const FETCH_BYTES_MAX = 4 * 1024 * 1024

/** One receiver of some partitions. Call `open` once. */
export class ClassicReceiver implements Closable {
  /** Called when the topic turns out to be another one than before. */
  onRemade: () => void = () => undefined
  readonly #kafka: Kafka
  readonly #admin: Admin
  readonly #options: KafkaOptions
  readonly #topic: string
  readonly #partitions: readonly number[]
  readonly #onRecord: (record: KeptRecord) => void
  readonly #supervisor: Supervisor
  readonly #closing = new AbortController()
  /** The offset of the next record of each partition, as far as it is known. */
  readonly #positions = new Map<number, bigint>()
  /** Time of the last record of each partition that was received, in unix milliseconds. */
  readonly #lastAtMs = new Map<number, number>()
  readonly #openedAtMs = Date.now()
  /** A consumer ended, so the positions may be of a topic that is gone. */
  #isSuspect = false
  #loop: Promise<void> = Promise.resolve()

  constructor(
    kafka: Kafka,
    admin: Admin,
    options: KafkaOptions,
    topic: string,
    partitions: readonly number[],
    onRecord: (record: KeptRecord) => void,
    from?: number,
  ) {
    this.#kafka = kafka
    this.#admin = admin
    this.#options = options
    this.#topic = topic
    this.#partitions = partitions
    this.#onRecord = onRecord
    if (from !== undefined) for (const partition of partitions) this.#positions.set(partition, BigInt(from))
    this.#supervisor = new Supervisor(`receiver of ${topic}`, options, isTransientInKafkaJs)
  }

  /** Fixes the positions, at the ends of the partitions unless it was given one, waiting for the broker if need be, and starts. */
  async open(): Promise<this> {
    await this.#supervisor.until(async () => {
      if (this.#positions.size === 0) await this.#findEnds()
      return true
    }, this.#closing.signal)
    this.#loop = this.#supervisor.until(() => this.#runOnce(), this.#closing.signal)
    return this
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await within(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs, this.#loop)
  }

  async #findEnds(): Promise<void> {
    const offsets = await this.#admin.fetchTopicOffsets(this.#topic)
    const missing = this.#partitions.find((wanted) => !offsets.some(({ partition }) => partition === wanted))
    if (missing !== undefined) throw passing(`${this.#topic} has no partition ${missing}`)
    for (const { partition, high } of offsets) this.#positions.set(partition, BigInt(high))
  }

  /**
   * Moves positions that do not fit the topic any more. kafkajs knows no topic ids, so the times of records show what happened:
   *
   * - Its first record is younger than our last one: the topic was made again, and is read from its start.
   * - It ends before our position otherwise: a leader lost what came last, and its end is where others write on.
   */
  async #checkPositions(): Promise<void> {
    const kept = await this.#admin.fetchTopicOffsets(this.#topic)
    for (const partition of this.#partitions) {
      const position = this.#positions.get(partition) ?? 0n
      const found = kept.find((one) => one.partition === partition)
      if (!found) throw passing(`${this.#topic} has no partition ${partition}`)
      const [low, high] = [BigInt(found.low), BigInt(found.high)]
      const afterMs = (this.#lastAtMs.get(partition) ?? this.#openedAtMs) + 1
      const young = await this.#admin.fetchTopicOffsetsByTimestamp(this.#topic, afterMs)
      const firstYoung = BigInt(young.find((one) => one.partition === partition)?.offset ?? high)
      if (position > low && (high === 0n || firstYoung <= low)) {
        this.#jump(partition, low, 'a channel was made anew, and is read from its start')
        this.onRemade()
      } else if (position > high) {
        this.#jump(partition, high, 'records of a channel were deleted before they were received')
      }
    }
  }

  #jump(partition: number, to: bigint, message: string): void {
    const from = this.#positions.get(partition)
    this.#positions.set(partition, to)
    this.#options.onProblem(message, { topic: this.#topic, partition, from: String(from), to: String(to) })
  }

  /** Runs one kafkajs consumer until it crashes, which throws, or this is closed. */
  async #runOnce(): Promise<boolean> {
    if (this.#isSuspect) await this.#checkPositions()
    this.#isSuspect = true
    const consumer = this.#kafka.consumer({
      groupId: `${this.#topic}-${this.#partitions.join('-')}-${randomUUID()}`,
      partitionAssigners: [assignOnly(this.#topic, this.#partitions)],
      sessionTimeout: SESSION_TIMEOUT_MS,
      heartbeatInterval: HEARTBEAT_INTERVAL_MS,
      maxWaitTimeInMs: LONG_POLL_MS,
      maxBytesPerPartition: FETCH_BYTES_MAX,
      allowAutoTopicCreation: false,
      readUncommitted: true,
    })
    const ended = Promise.withResolvers<boolean>()
    const end = () => ended.resolve(true)
    this.#closing.signal.addEventListener('abort', end, { once: true })
    consumer.on(consumer.events.CRASH, ({ payload }) => ended.reject(payload.error))
    consumer.on(consumer.events.GROUP_JOIN, () => {
      for (const partition of this.#partitions) {
        consumer.seek({ topic: this.#topic, partition, offset: String(this.#positions.get(partition)) })
      }
      this.#supervisor.progress()
    })
    try {
      await consumer.connect()
      await consumer.subscribe({ topics: [this.#topic], fromBeginning: true })
      await consumer.run({ autoCommit: false, eachBatch: (payload) => this.#onBatch(payload) })
      return await ended.promise
    } finally {
      this.#closing.signal.removeEventListener('abort', end)
      await consumer.disconnect().catch(() => undefined)
    }
  }

  async #onBatch({ batch }: EachBatchPayload): Promise<void> {
    const isBefore = BigInt(batch.lastOffset()) < (this.#positions.get(batch.partition) ?? 0n)
    // kafkajs went back to the start by itself, because the broker has nothing at this position.
    if (isBefore) throw passing(`${this.#topic} ends before its position`)
    for (const { offset, key, value, timestamp } of batch.messages) {
      const at = BigInt(offset)
      if (at < (this.#positions.get(batch.partition) ?? 0n) || this.#closing.signal.aborted) continue
      this.#positions.set(batch.partition, at + 1n)
      this.#lastAtMs.set(batch.partition, Number(timestamp))
      handOver(this.#onRecord, {
        key: key?.toString() ?? '',
        value: value ?? Buffer.alloc(0),
        offset: Number(at),
        sentAtMs: Number(timestamp),
      })
    }
    const restMs = fetchGapMs(this.#options, this.#topic)
    if (restMs > 0) await pause(restMs, this.#closing.signal)
  }
}

/** The topic is about to be made, or to get its partitions. */
function passing(message: string): Error {
  return Object.assign(new Error(message), { retriable: true })
}

/** Gives the group's only member some partitions of the topic, instead of all. */
function assignOnly(topic: string, partitions: readonly number[]): PartitionAssigner {
  const name = 'OnlyOne'
  const version = 0
  return () => ({
    name,
    version,
    protocol: ({ topics }) => ({
      name,
      metadata: AssignerProtocol.MemberMetadata.encode({ version, topics, userData: Buffer.alloc(0) }),
    }),
    assign: async ({ members }) =>
      members.map(({ memberId }) => ({
        memberId,
        memberAssignment: AssignerProtocol.MemberAssignment.encode({
          version,
          assignment: { [topic]: [...partitions] },
          userData: Buffer.alloc(0),
        }),
      })),
  })
}
