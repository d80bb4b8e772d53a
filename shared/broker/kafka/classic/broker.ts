import kafkajs, { type Admin, type ConfigResourceTypes, type Kafka, type Producer } from 'kafkajs'
import type { Broker, HistoryRecord, Topic } from '#shared/broker/broker.ts'
import { KafkaBroker, type KafkaClient, type StoredOffsets } from '#shared/broker/kafka/broker.ts'
import {
  classicGroup,
  KAFKA_DEFAULTS,
  type KafkaOptions,
  partitionsNeeded,
  pause,
  within,
} from '#shared/broker/kafka/options.ts'
import { type BatchFailure, type OutgoingBatch, refusedRecord } from '#shared/broker/kafka/sender.ts'
import {
  type BootProblem,
  checkTopics,
  type KafkaAdmin,
  KafkaUnsuitableError,
  type NewTopic,
  TopicKeeper,
  warnOfLateFailover,
} from '#shared/broker/kafka/topics.ts'
import { ClassicReceiver, createKafkaJs, isTransientInKafkaJs } from './client.ts'
import { ClassicConsumer } from './queue.ts'

const ANY_BROKER = '1'

/** Value of Kafka's `ConfigSource` for settings of the topic itself, as opposed to defaults. */
const TOPIC_CONFIG = 1

/**
 * Maximum number of checks until every broker has a new topic, and the delay between two checks in ms. With many partitions, a busy broker needs
 * seconds to create a topic.
 */
const SPREAD_ASKS_MAX = 120
const SPREAD_ASK_MS = 250

const ACKS_ALL = -1
const REPLICATION_TIMEOUT_MS = 5_000
const PROBE_INTERVAL_MS = 500
const PROBE_TIMEOUT_MS = 1_000
/** Timeout of the second probe, in ms, which tries all bootstrap addresses in sequence. */
const CONFIRM_TIMEOUT_MS = 4_000
const PROBES_PER_INSPECTION = 10
const TOPIC_MISSING = 'UNKNOWN_TOPIC_OR_PARTITION'
/** Default number of partitions of a queue, which is also the maximum number of workers that share the queue. */
const QUEUE_PARTITIONS = 16
const REFUSED_RECORD: ReadonlySet<string> = new Set(['MESSAGE_TOO_LARGE', 'RECORD_LIST_TOO_LARGE', 'INVALID_RECORD'])
/**
 * Opens the broker on classic consumer groups, with kafkajs as its only client. Used for Kafka before 4.2, and for operators who have approved only
 * kafkajs.
 *
 * @throws KafkaUnsuitableError with every problem
 */
export async function openClassicBroker(options: KafkaOptions): Promise<Broker> {
  const kafka = createKafkaJs(options)
  const admin = kafka.admin()
  // The producer is not idempotent. After a failed call, an idempotent kafkajs producer reuses a sequence number, and the broker would drop the next
  // batch as a duplicate.
  const producer = kafka.producer({ allowAutoTopicCreation: false, retry: { retries: 0 } })
  try {
    await admin.connect()
    const checks = new KafkaJsAdmin(admin)
    const problems = await check(checks, options)
    if (problems.length > 0) throw new KafkaUnsuitableError(problems)
    await warnOfLateFailover(checks, options)
    const partitions = await checks.partitions(options.topics.map(({ name }) => options.prefix + name))
    await producer.connect()
    return new KafkaBroker(new ClassicClient(kafka, admin, producer, partitions, options), options)
  } catch (error) {
    await admin.disconnect()
    throw error
  }
}

async function check(admin: KafkaJsAdmin, options: KafkaOptions): Promise<BootProblem[]> {
  return await checkTopics(admin, { ...options, topics: options.topics.map((topic) => withPartitions(topic, options)) })
}

/** Raises the number of partitions of a queue. Each partition has one owner, so workers in excess of the partitions would be idle. */
function withPartitions(topic: Topic, { queuePartitions = QUEUE_PARTITIONS }: KafkaOptions): Topic {
  if (topic.kind === 'channel' || topic.partitions >= queuePartitions) return topic
  return { ...topic, partitions: queuePartitions, partitionsMin: topic.partitions }
}

class ClassicClient implements KafkaClient {
  readonly name = 'kafka (classic groups)'
  readonly #kafka: Kafka
  readonly #admin: Admin
  readonly #producer: Producer
  #partitions: ReadonlyMap<string, number>
  readonly #options: KafkaOptions
  readonly #closing = new AbortController()
  readonly #probing: Promise<void>
  readonly #checks: KafkaJsAdmin
  readonly #keeper: TopicKeeper<KafkaJsAdmin>
  /** Topics that the last check did not find, or found with too few partitions. */
  readonly #absent = new Set<string>()
  #probes = 0
  /** True if a topic may be missing, so that the next probe checks all topics. */
  #isInspectionDue = false
  #unreachableSinceMs: number | undefined
  #onLoss: (topic: string) => void = () => undefined

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
    this.#checks = new KafkaJsAdmin(admin)
    this.#keeper = new TopicKeeper(
      (use) => withAdmin(kafka, use),
      (checks) => check(checks, options),
      options,
    )
    this.#probing = this.#probe()
  }

  get unreachableSinceMs(): number | undefined {
    return this.#unreachableSinceMs
  }

  get missing(): readonly string[] {
    return this.#keeper.missing
  }

  onLoss(onLoss: (topic: string) => void): void {
    this.#onLoss = onLoss
  }

  readonly produce = (batches: readonly OutgoingBatch[]) => this.#produce(batches)

  /**
   * Requests a check of the topics by the next periodic probe, because a deleted topic may be the reason for a slow
   * call.
   */
  suspect(): void {
    this.#isInspectionDue = true
  }

  partitions(topic: string): number {
    return this.#partitions.get(topic) ?? 0
  }

  /** Counts all partitions as led by one node, because kafkajs does not report the leaders of its own metadata. */
  leader(): number {
    return 0
  }

  consumer(queue: string, topic: string): ClassicConsumer {
    return new ClassicConsumer(this.#kafka, this.#admin, queue, topic, this.#options)
  }

  receiver(
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
    from?: number,
  ): ClassicReceiver {
    const receiver = new ClassicReceiver(this.#kafka, this.#admin, this.#options, topic, partitions, onRecord, from)
    receiver.onRemade = () => this.#onLoss(topic)
    return receiver
  }

  isTransient(error: unknown): boolean {
    return isTransientInKafkaJs(error)
  }

  async storedOffsets(topic: string, partition: number): Promise<StoredOffsets> {
    const found = (await this.#admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition)
    if (!found) throw new Error(`${topic} has no partition ${partition}`)
    return { first: Number(found.low), end: Number(found.high) }
  }

  async lag(_queue: string, topic: string): Promise<number | undefined> {
    try {
      const ends = await this.#admin.fetchTopicOffsets(topic)
      const [group] = await this.#admin.fetchOffsets({ groupId: classicGroup(topic), topics: [topic] })
      const committed = new Map(group?.partitions.map(({ partition, offset }) => [partition, Number(offset)]))
      const behind = ends.map(({ partition, low, high }) => {
        return Number(high) - Math.max(Number(low), committed.get(partition) ?? 0)
      })
      return behind.reduce((sum, lag) => sum + lag, 0)
    } catch {
      return undefined // The kafkajs logger has already reported the error.
    }
  }

  async close(): Promise<void> {
    const closeTimeoutMs = this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs
    this.#closing.abort()
    await this.#probing
    await this.#keeper.close()
    await within(closeTimeoutMs, Promise.allSettled([this.#producer.disconnect(), this.#admin.disconnect()]))
  }

  async #produce(batches: readonly OutgoingBatch[]): Promise<readonly BatchFailure[]> {
    const failure = await this.#produceOnce(batches)
    const isMissing = isOfType(failure?.error, TOPIC_MISSING)
    if (isMissing) this.#isInspectionDue = true
    if (!failure || (failure.canRetry && !isMissing) || batches.length === 1) return batches.map(() => failure)
    // kafkajs does not report which partition was refused, so each batch is sent again alone.
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
      const taken = await this.#producer.sendBatch({ acks: ACKS_ALL, timeout: REPLICATION_TIMEOUT_MS, topicMessages })
      const isTaken = ({ topic, partition }: OutgoingBatch) =>
        taken.some((answer) => answer.topicName === topic && answer.partition === partition)
      if (batches.every(isTaken)) return undefined
      // kafkajs silently drops records for a partition that is missing in its metadata. Only a new connection refreshes that metadata.
      await this.#producer.disconnect()
      await this.#producer.connect()
      return { error: new Error('kafkajs does not know a partition'), canRetry: true }
    } catch (error) {
      if (isRefusedRecord(error)) return { error: refusedRecord(error), canRetry: false, isOfRecord: true }
      return { error, canRetry: isTransientInKafkaJs(error) }
    }
  }

  /** Checks whether a broker answers, twice per second. kafkajs reports neither the loss of a broker nor the deletion of a topic. */
  async #probe(): Promise<void> {
    const { signal } = this.#closing
    while (!signal.aborted) {
      const isAnswered = await answers(this.#admin.describeCluster(), PROBE_TIMEOUT_MS)
      this.#setReachable(isAnswered || (await this.#confirm()))
      const isLookDue = this.#isInspectionDue || ++this.#probes % PROBES_PER_INSPECTION === 0
      if (isLookDue && this.#unreachableSinceMs === undefined) await this.#inspectTopics()
      await pause(PROBE_INTERVAL_MS, signal)
    }
  }

  async #confirm(): Promise<boolean> {
    if (this.#unreachableSinceMs !== undefined) return false
    const admin = this.#kafka.admin({ retry: { retries: this.#options.brokers.length } })
    const asked = admin.connect().then(() => admin.describeCluster())
    const isAnswered = await answers(asked, CONFIRM_TIMEOUT_MS)
    void asked.catch(() => undefined).finally(() => admin.disconnect())
    return isAnswered
  }

  /**
   * Checks whether topics are missing or were recreated. kafkajs has no topic ids. A topic therefore counts as
   * recreated only if an earlier check did not find it.
   */
  async #inspectTopics(): Promise<void> {
    this.#isInspectionDue = false
    const names = this.#options.topics.map(({ name }) => this.#options.prefix + name)
    const found = await this.#checks.partitions(names).catch(() => undefined)
    if (!found) return
    const before = this.#partitions
    this.#partitions = found
    for (const name of names) {
      // A topic with fewer partitions than before was recreated.
      if ((found.get(name) ?? 0) < (before.get(name) ?? 0)) this.#absent.add(name)
      else if (this.#absent.delete(name)) this.#onLoss(name)
    }
    if (names.every((name) => (found.get(name) ?? 0) >= partitionsNeeded(this.#options, name))) return
    this.#isInspectionDue = true
    this.#keeper.verify()
  }

  #setReachable(isReachable: boolean): void {
    const wasReachable = this.#unreachableSinceMs === undefined
    if (wasReachable === isReachable || this.#closing.signal.aborted) return
    this.#unreachableSinceMs = isReachable ? undefined : performance.now()
    this.#isInspectionDue = true
    this.#options.onProblem(isReachable ? 'Kafka answers again' : 'no Kafka broker answers', {})
  }
}

/**
 * Runs an operation with a new admin client. kafkajs requests metadata for all topics that a client ever used. If one topic is missing, then requests
 * for all topics fail.
 */
async function withAdmin(kafka: Kafka, use: (admin: KafkaJsAdmin) => Promise<void>): Promise<void> {
  const admin = kafka.admin()
  try {
    await admin.connect()
    await use(new KafkaJsAdmin(admin))
  } finally {
    await admin.disconnect()
  }
}

async function answers(asked: Promise<unknown>, timeoutMs: number): Promise<boolean> {
  const answered = asked.then(
    () => true,
    () => false,
  )
  return (await within(timeoutMs, answered)) && (await answered)
}

function isRefusedRecord(thrown: unknown): boolean {
  return [...REFUSED_RECORD].some((type) => isOfType(thrown, type))
}

function isOfType(thrown: unknown, type: string): boolean {
  const error = thrown as { readonly type?: string; readonly cause?: unknown } | null | undefined
  return error?.type === type || (error?.cause !== undefined && isOfType(error.cause, type))
}

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
    // With `waitForLeaders`, kafkajs would fail if the broker that answers does not have the topic yet.
    await this.#admin.createTopics({ waitForLeaders: false, topics: [topic] })
    for (let asks = 0; asks < SPREAD_ASKS_MAX; asks++) {
      const known = await this.partitions([name]).catch(() => new Map<string, number>())
      if (known.has(name)) return
      await new Promise((resolve) => setTimeout(resolve, SPREAD_ASK_MS))
    }
    throw new Error(`the brokers did not report the new topic after ${(SPREAD_ASKS_MAX * SPREAD_ASK_MS) / 1_000} s`)
  }

  /**
   * Changes settings of a topic. The only request that kafkajs supports replaces all settings, so the existing settings
   * are also sent.
   */
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
        if (((await this.partitions([topic])).get(topic) ?? 0) < partitions) throw error
      })
  }

  async #settings(type: ConfigResourceTypes, name: string): Promise<ReadonlyMap<string, string>> {
    const { resources } = await this.#admin.describeConfigs({ includeSynonyms: false, resources: [{ type, name }] })
    return new Map((resources[0]?.configEntries ?? []).map(({ configName, configValue }) => [configName, configValue]))
  }
}
