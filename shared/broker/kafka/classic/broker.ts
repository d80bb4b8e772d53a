import kafkajs, { type Admin, type ConfigResourceTypes, type Kafka, type Producer } from 'kafkajs'
import type { Broker, ChannelRecord, Closable, QueueConsumer, Topic } from '#shared/broker/broker.ts'
import { classicGroup, KAFKA_DEFAULTS, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import {
  type BatchFailure,
  batchBytesMax,
  CoalescingSender,
  type OutgoingBatch,
  overloaded,
  refusedRecord,
} from '#shared/broker/kafka/sender.ts'
import { pause, within } from '#shared/broker/kafka/supervision.ts'
import { checkTopics, type KafkaAdmin, KafkaUnfitError, type NewTopic } from '#shared/broker/kafka/topics.ts'
import { ClassicReceiver } from './channel.ts'
import { createKafkaJs, isTransientInKafkaJs } from './client.ts'
import { ClassicConsumer } from './queue.ts'

const ACKS_ALL = -1
const REPLICATION_TIMEOUT_MS = 5_000
const PROBE_INTERVAL_MS = 500
const PROBE_TIMEOUT_MS = 1_000
const ANY_BROKER = '1'
/** Workers that can share a queue, unless the options say otherwise. */
const QUEUE_PARTITIONS = 16
/** `ConfigSource` of a setting that was made for the topic itself. */
const TOPIC_CONFIG = 1
/** Refusals of a batch for what is in it, as kafkajs names them. */
const REFUSED_RECORD: ReadonlySet<string> = new Set(['MESSAGE_TOO_LARGE', 'RECORD_LIST_TOO_LARGE', 'INVALID_RECORD'])
/** How often, and with what pause, a new topic is looked for until every broker knows it: many partitions take a busy one seconds. */
const SPREAD_ASKS_MAX = 120
const SPREAD_ASK_MS = 250

/**
 * The broker on classic consumer groups, through kafkajs alone: for Kafka before 4.2, and for fleets that have approved
 * only that client.
 *
 * @throws KafkaUnfitError with everything that is wrong
 */
export async function openClassicBroker(options: KafkaOptions): Promise<Broker> {
  const kafka = createKafkaJs(options)
  const admin = kafka.admin()
  // Not idempotent: kafkajs reuses a count after a failed call, and the broker would take the next batch for the lost one.
  const producer = kafka.producer({ allowAutoTopicCreation: false, retry: { retries: 0 } })
  try {
    await admin.connect()
    const checks = new KafkaJsAdmin(admin)
    const problems = await checkTopics(checks, {
      ...options,
      topics: options.topics.map((topic) => withPartitions(topic, options)),
    })
    if (problems.length > 0) throw new KafkaUnfitError(problems)
    const partitions = await checks.partitions(options.topics.map(({ name }) => options.prefix + name))
    await producer.connect()
    return new ClassicBroker(kafka, admin, producer, partitions, options)
  } catch (error) {
    await admin.disconnect()
    throw error
  }
}

/** A partition has one owner: with fewer of them than workers the others stand idle. */
function withPartitions(topic: Topic, { queuePartitions = QUEUE_PARTITIONS }: KafkaOptions): Topic {
  if (topic.kind === 'channel' || topic.partitions >= queuePartitions) return topic
  return { ...topic, partitions: queuePartitions, partitionsMin: topic.partitions }
}

class ClassicBroker implements Broker {
  readonly name = 'kafka (classic groups)'
  readonly #kafka: Kafka
  readonly #admin: Admin
  readonly #producer: Producer
  readonly #partitions: ReadonlyMap<string, number>
  readonly #options: KafkaOptions
  readonly #sender: CoalescingSender
  readonly #closing = new AbortController()
  readonly #probing: Promise<void>
  readonly #open = new Set<Closable>()
  readonly #turns = new Map<string, number>()
  #isReachable = true
  #closed: Promise<void> | undefined

  constructor(
    kafka: Kafka,
    admin: Admin,
    producer: Producer,
    partitions: ReadonlyMap<string, number>,
    options: KafkaOptions,
  ) {
    this.#kafka = kafka
    this.#admin = admin
    this.#producer = producer
    this.#partitions = partitions
    this.#options = options
    const bytesMax = options.sendBufferBytesMax ?? KAFKA_DEFAULTS.sendBufferBytesMax
    // The probe runs all the time, so a slow call tells nothing new.
    this.#sender = new CoalescingSender(
      (batches) => this.#produce(batches),
      bytesMax,
      () => undefined,
    )
    this.#probing = this.#probe()
  }

  get isReachable(): boolean {
    return this.#isReachable && this.#closed === undefined
  }

  async submit(queue: string, value: Buffer): Promise<void> {
    if (!this.isReachable) throw overloaded('The job queue cannot be reached.')
    const topic = this.#options.prefix + queue
    const turn = this.#turns.get(topic) ?? 0
    this.#turns.set(topic, (turn + 1) % (this.#partitions.get(topic) ?? 1))
    const timeoutMs = this.#options.sendTimeoutMs ?? KAFKA_DEFAULTS.sendTimeoutMs
    const options = { timeoutMs, batchBytesMax: batchBytesMax.queue }
    await this.#sender.send(topic, turn, { key: undefined, value }, options)
  }

  async send(channel: string, partition: number, key: string, value: Buffer): Promise<void> {
    const record = { key: Buffer.from(key), value }
    await this.#sender.send(this.#options.prefix + channel, partition, record, { batchBytesMax: batchBytesMax.channel })
  }

  async openQueue(queue: string): Promise<QueueConsumer> {
    const consumer = new ClassicConsumer(this.#kafka, this.#admin, queue, this.#options.prefix + queue, this.#options)
    this.#open.add(consumer)
    return consumer.open()
  }

  async receive(channel: string, partition: number, onRecord: (record: ChannelRecord) => void): Promise<Closable> {
    const topic = this.#options.prefix + channel
    const receiver = new ClassicReceiver(this.#kafka, this.#admin, this.#options, topic, partition, onRecord)
    this.#open.add(receiver)
    return receiver.open()
  }

  async lag(queue: string): Promise<number | undefined> {
    const topic = this.#options.prefix + queue
    try {
      const ends = await this.#admin.fetchTopicOffsets(topic)
      const [group] = await this.#admin.fetchOffsets({ groupId: classicGroup(topic), topics: [topic] })
      const committed = new Map(group?.partitions.map(({ partition, offset }) => [partition, Number(offset)]))
      const behind = ends.map(({ partition, low, high }) => {
        return Number(high) - Math.max(Number(low), committed.get(partition) ?? 0)
      })
      return behind.reduce((sum, lag) => sum + lag, 0)
    } catch {
      return undefined // kafkajs has reported it
    }
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    const closeTimeoutMs = this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs
    await this.#sender.close(closeTimeoutMs)
    await Promise.allSettled([...this.#open].map((open) => open.close()))
    this.#closing.abort()
    await this.#probing
    await within(closeTimeoutMs, Promise.allSettled([this.#producer.disconnect(), this.#admin.disconnect()]))
  }

  async #produce(batches: readonly OutgoingBatch[]): Promise<readonly BatchFailure[]> {
    const failure = await this.#produceOnce(batches)
    if (!failure || failure.canRetry || batches.length === 1) return batches.map(() => failure)
    // kafkajs does not say which partition was refused: each batch by itself finds out.
    const failures: BatchFailure[] = []
    for (const batch of batches) failures.push(await this.#produceOnce([batch]))
    return failures
  }

  async #produceOnce(batches: readonly OutgoingBatch[]): Promise<BatchFailure> {
    const topicMessages = batches.map(({ topic, partition, records }) => ({
      topic,
      messages: records.map(({ key, value }) => ({ key: key ?? null, value, partition })),
    }))
    try {
      await this.#producer.sendBatch({ acks: ACKS_ALL, timeout: REPLICATION_TIMEOUT_MS, topicMessages })
      return undefined
    } catch (error) {
      if (isRefusedRecord(error)) return { error: refusedRecord(error), canRetry: false, isOfRecord: true }
      return { error, canRetry: isTransientInKafkaJs(error) }
    }
  }

  /** kafkajs does not tell when a broker goes away, so one is asked twice a second. */
  async #probe(): Promise<void> {
    while (!this.#closing.signal.aborted) {
      const answer = this.#admin.describeCluster().then(
        () => this.#setReachable(true),
        () => this.#setReachable(false),
      )
      if (!(await within(PROBE_TIMEOUT_MS, answer))) this.#setReachable(false)
      await pause(PROBE_INTERVAL_MS, this.#closing.signal)
    }
  }

  #setReachable(isReachable: boolean): void {
    if (this.#isReachable === isReachable || this.#closing.signal.aborted) return
    this.#isReachable = isReachable
    this.#options.onProblem(isReachable ? 'Kafka answers again' : 'no Kafka broker answers', {})
  }
}

function isRefusedRecord(thrown: unknown): boolean {
  const error = thrown as { readonly type?: string; readonly cause?: unknown } | null
  if (REFUSED_RECORD.has(error?.type ?? '')) return true
  return error?.cause !== undefined && isRefusedRecord(error.cause)
}

/** The boot check's view of a cluster. */
class KafkaJsAdmin implements KafkaAdmin {
  readonly #admin: Admin

  constructor(admin: Admin) {
    this.#admin = admin
  }

  async brokerCount(): Promise<number> {
    return (await this.#admin.describeCluster()).brokers.length
  }

  async partitions(topics: readonly string[]): Promise<ReadonlyMap<string, number>> {
    const existing = new Set(await this.#admin.listTopics())
    const wanted = topics.filter((topic) => existing.has(topic))
    if (wanted.length === 0) return new Map()
    const metadata = await this.#admin.fetchTopicMetadata({ topics: wanted })
    return new Map(metadata.topics.map(({ name, partitions }) => [name, partitions.length]))
  }

  topicSettings(topic: string): Promise<ReadonlyMap<string, string>> {
    return this.#settings(kafkajs.ConfigResourceTypes.TOPIC, topic)
  }

  async brokerSettings(): Promise<ReadonlyMap<string, string>> {
    const { brokers } = await this.#admin.describeCluster()
    return this.#settings(kafkajs.ConfigResourceTypes.BROKER, String(brokers[0]?.nodeId ?? ANY_BROKER))
  }

  async createTopic({ name, partitions, replicas, settings }: NewTopic): Promise<void> {
    const configEntries = Object.entries(settings).map(([key, value]) => ({ name: key, value }))
    const topic = { topic: name, numPartitions: partitions, replicationFactor: replicas, configEntries }
    // Not waitForLeaders: kafkajs fails when the news of the topic has not reached the broker it asks.
    await this.#admin.createTopics({ waitForLeaders: false, topics: [topic] })
    for (let asks = 0; asks < SPREAD_ASKS_MAX; asks++) {
      const known = await this.partitions([name]).catch(() => new Map<string, number>())
      if (known.has(name)) return
      await new Promise((resolve) => setTimeout(resolve, SPREAD_ASK_MS))
    }
    throw new Error(`the brokers do not know the new topic after ${(SPREAD_ASKS_MAX * SPREAD_ASK_MS) / 1_000} s`)
  }

  /** kafkajs only knows the request that sets all of a topic's settings at once: those made before go along. */
  async setTopic(topic: string, settings: Readonly<Record<string, string>>): Promise<void> {
    const type = kafkajs.ConfigResourceTypes.TOPIC
    const { resources } = await this.#admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ type, name: topic }],
    })
    const own = (resources[0]?.configEntries ?? []).filter(({ configSource }) => configSource === TOPIC_CONFIG)
    const before = own.map(({ configName, configValue }) => [configName, configValue] as const)
    const configEntries = Object.entries({ ...Object.fromEntries(before), ...settings })
    await this.#admin.alterConfigs({
      validateOnly: false,
      resources: [{ type, name: topic, configEntries: configEntries.map(([name, value]) => ({ name, value })) }],
    })
  }

  async addPartitions(topic: string, partitions: number): Promise<void> {
    await this.#admin
      .createPartitions({ topicPartitions: [{ topic, count: partitions }] })
      .catch(async (error: unknown) => {
        // Another process that starts at the same time was faster.
        if (((await this.partitions([topic])).get(topic) ?? 0) < partitions) throw error
      })
  }

  async #settings(type: ConfigResourceTypes, name: string): Promise<ReadonlyMap<string, string>> {
    const { resources } = await this.#admin.describeConfigs({ includeSynonyms: false, resources: [{ type, name }] })
    return new Map((resources[0]?.configEntries ?? []).map(({ configName, configValue }) => [configName, configValue]))
  }
}
