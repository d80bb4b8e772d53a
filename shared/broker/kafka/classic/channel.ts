/**
 * Receives partitions of a channel through kafkajs, which reads in groups only. Each receiver uses a group with a random name, and an assigner that
 * gives its single member these partitions. The receiver holds its own positions and commits nothing, so Kafka forgets the group without members.
 */
import { randomUUID } from 'node:crypto'
import { type Admin, AssignerProtocol, type EachBatchPayload, type Kafka, type PartitionAssigner } from 'kafkajs'
import type { Closable, HistoryRecord } from '#shared/broker/broker.ts'
import { fetchGapMs, KAFKA_DEFAULTS, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import { deliver, pause, Supervisor, within } from '#shared/broker/kafka/supervision.ts'
import { isTransientInKafkaJs } from './client.ts'

const LONG_POLL_MS = 250
const SESSION_TIMEOUT_MS = 10_000
const HEARTBEAT_INTERVAL_MS = 3_000
const FETCH_BYTES_MAX = 4 * 1024 * 1024

export class ClassicReceiver implements Closable {
  onRemade: () => void = () => undefined
  readonly #kafka: Kafka
  readonly #admin: Admin
  readonly #options: KafkaOptions
  readonly #topic: string
  readonly #partitions: readonly number[]
  readonly #onRecord: (record: HistoryRecord) => void
  readonly #supervisor: Supervisor
  readonly #closing = new AbortController()
  readonly #positions = new Map<number, bigint>()
  readonly #lastAtMs = new Map<number, number>()
  readonly #openedAtMs = Date.now()
  /** True after a consumer has ended. The topic may have been recreated, so the positions are checked before the next consumer starts. */
  #isSuspect = false
  #loop: Promise<void> = Promise.resolve()

  constructor(
    kafka: Kafka,
    admin: Admin,
    options: KafkaOptions,
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
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

  /** Determines the start positions, by default the ends of the partitions, and starts to receive. Waits for the broker if needed. */
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
    if (missing !== undefined) throw retriable(`${this.#topic} has no partition ${missing}`)
    for (const { partition, high } of offsets) this.#positions.set(partition, BigInt(high))
  }

  /**
   * Corrects positions that the topic does not have any more. kafkajs has no topic ids, so timestamps decide.
   *
   * 1. The topic was recreated if its first record is newer than our last one: read from its start.
   *
   * 2. Otherwise, if it ends before our position, then a leader lost its last records: continue at its end.
   */
  async #checkPositions(): Promise<void> {
    const kept = await this.#admin.fetchTopicOffsets(this.#topic)
    for (const partition of this.#partitions) {
      const position = this.#positions.get(partition) ?? 0n
      const found = kept.find((one) => one.partition === partition)
      if (!found) throw retriable(`${this.#topic} has no partition ${partition}`)
      const [low, high] = [BigInt(found.low), BigInt(found.high)]
      const afterMs = (this.#lastAtMs.get(partition) ?? this.#openedAtMs) + 1
      const young = await this.#admin.fetchTopicOffsetsByTimestamp(this.#topic, afterMs)
      const firstYoung = BigInt(young.find((one) => one.partition === partition)?.offset ?? high)
      if (position > low && (high === 0n || firstYoung <= low)) {
        this.#jump(partition, low, 'Kafka channel was recreated; reading from its start')
        this.onRemade()
      } else if (position > high) {
        this.#jump(partition, high, 'channel records were deleted before they were received')
      }
    }
  }

  #jump(partition: number, to: bigint, message: string): void {
    const from = this.#positions.get(partition)
    this.#positions.set(partition, to)
    this.#options.onProblem(message, { topic: this.#topic, partition, from: String(from), to: String(to) })
  }

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
    // kafkajs reset the position to the start, because the broker has no record at this position.
    if (isBefore) throw retriable(`${this.#topic} ends before its position`)
    for (const { offset, key, value, timestamp } of batch.messages) {
      const at = BigInt(offset)
      if (at < (this.#positions.get(batch.partition) ?? 0n) || this.#closing.signal.aborted) continue
      this.#positions.set(batch.partition, at + 1n)
      this.#lastAtMs.set(batch.partition, Number(timestamp))
      deliver(this.#onRecord, {
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

function retriable(message: string): Error {
  return Object.assign(new Error(message), { retriable: true })
}

/** Assigns some partitions of the topic, rather than all, to the group's only member. */
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
