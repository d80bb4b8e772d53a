/**
 * Receives one partition of a channel through kafkajs, which reads in groups only: a group of its own with a throw-away
 * name, an assigner that gives its one member this one partition, a position of its own, and no commits. Kafka forgets a
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

/** One receiver of one partition. Call `open` once. */
export class ClassicReceiver implements Closable {
  readonly #kafka: Kafka
  readonly #admin: Admin
  readonly #options: KafkaOptions
  readonly #topic: string
  readonly #partition: number
  readonly #onRecord: (record: KeptRecord) => void
  readonly #supervisor: Supervisor
  readonly #closing = new AbortController()
  #position: bigint | undefined
  #loop: Promise<void> = Promise.resolve()

  constructor(
    kafka: Kafka,
    admin: Admin,
    options: KafkaOptions,
    topic: string,
    partition: number,
    onRecord: (record: KeptRecord) => void,
    from?: number,
  ) {
    this.#kafka = kafka
    this.#admin = admin
    this.#options = options
    this.#topic = topic
    this.#partition = partition
    this.#onRecord = onRecord
    this.#position = from === undefined ? undefined : BigInt(from)
    this.#supervisor = new Supervisor(`receiver of ${topic}/${partition}`, options, isTransientInKafkaJs)
  }

  /** Fixes the position, at the end of the partition unless it was given one, waiting for the broker if need be, and starts. */
  async open(): Promise<this> {
    await this.#supervisor.until(async () => {
      this.#position ??= await this.#end()
      return true
    }, this.#closing.signal)
    this.#loop = this.#supervisor.until(() => this.#runOnce(), this.#closing.signal)
    return this
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await within(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs, this.#loop)
  }

  async #end(): Promise<bigint> {
    const offsets = await this.#admin.fetchTopicOffsets(this.#topic)
    const found = offsets.find(({ partition }) => partition === this.#partition)
    if (!found) throw new Error(`${this.#topic} has no partition ${this.#partition}`)
    return BigInt(found.high)
  }

  /** Runs one kafkajs consumer until it crashes, which throws, or this is closed. */
  async #runOnce(): Promise<boolean> {
    const consumer = this.#kafka.consumer({
      groupId: `${this.#topic}-${this.#partition}-${randomUUID()}`,
      partitionAssigners: [assignOnly(this.#topic, this.#partition)],
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
      consumer.seek({ topic: this.#topic, partition: this.#partition, offset: String(this.#position) })
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
    for (const { offset, key, value, timestamp } of batch.messages) {
      const at = BigInt(offset)
      if (at < (this.#position ?? 0n) || this.#closing.signal.aborted) continue
      this.#position = at + 1n
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

/** Gives the group's only member one partition of the topic, instead of all. */
function assignOnly(topic: string, partition: number): PartitionAssigner {
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
          assignment: { [topic]: [partition] },
          userData: Buffer.alloc(0),
        }),
      })),
  })
}
