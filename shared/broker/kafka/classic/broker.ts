import type { Admin, Kafka, Producer } from 'kafkajs'
import type { Broker, KeptRecord, Topic } from '#shared/broker/broker.ts'
import { KafkaBroker, type KafkaClient } from '#shared/broker/kafka/broker.ts'
import type { KeptOffsets } from '#shared/broker/kafka/history.ts'
import { remakeLostTopics } from '#shared/broker/kafka/lost-topics.ts'
import { classicGroup, KAFKA_DEFAULTS, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import { type BatchFailure, type OutgoingBatch, refusedRecord } from '#shared/broker/kafka/sender.ts'
import { pause, within } from '#shared/broker/kafka/supervision.ts'
import { type BootProblem, checkTopics, KafkaUnfitError } from '#shared/broker/kafka/topics.ts'
import { KafkaJsAdmin } from './admin.ts'
import { ClassicReceiver } from './channel.ts'
import { createKafkaJs, isTransientInKafkaJs } from './client.ts'
import { ClassicConsumer } from './queue.ts'

const ACKS_ALL = -1
const REPLICATION_TIMEOUT_MS = 5_000
const PROBE_INTERVAL_MS = 500
const PROBE_TIMEOUT_MS = 1_000
/** Workers that can share a queue, unless the options say otherwise. */
const QUEUE_PARTITIONS = 16
/** Refusals of a batch for what is in it, as kafkajs names them. */
const REFUSED_RECORD: ReadonlySet<string> = new Set(['MESSAGE_TOO_LARGE', 'RECORD_LIST_TOO_LARGE', 'INVALID_RECORD'])
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
    const problems = await check(checks, options)
    if (problems.length > 0) throw new KafkaUnfitError(problems)
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

/** A partition has one owner: with fewer of them than workers the others stand idle. */
function withPartitions(topic: Topic, { queuePartitions = QUEUE_PARTITIONS }: KafkaOptions): Topic {
  if (topic.kind === 'channel' || topic.partitions >= queuePartitions) return topic
  return { ...topic, partitions: queuePartitions, partitionsMin: topic.partitions }
}

/** Consumer groups through kafkajs. */
class ClassicClient implements KafkaClient {
  readonly name = 'kafka (classic groups)'
  readonly #kafka: Kafka
  readonly #admin: Admin
  readonly #producer: Producer
  readonly #partitions: ReadonlyMap<string, number>
  readonly #options: KafkaOptions
  readonly #closing = new AbortController()
  readonly #probing: Promise<void>
  #remaking: Promise<void> = Promise.resolve()
  #isReachable = true

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
    this.#probing = this.#probe()
  }

  get isReachable(): boolean {
    return this.#isReachable
  }

  readonly produce = (batches: readonly OutgoingBatch[]) => this.#produce(batches)

  /** The probe runs all the time, so a slow call tells nothing new. */
  suspect(): void {}

  partitions(topic: string): number {
    return this.#partitions.get(topic) ?? 0
  }

  /** kafkajs does not say who leads what. */
  isLed(): boolean {
    return true
  }

  consumer(queue: string, topic: string): ClassicConsumer {
    return new ClassicConsumer(this.#kafka, this.#admin, queue, topic, this.#options)
  }

  receiver(
    topic: string,
    partitions: readonly number[],
    onRecord: (record: KeptRecord) => void,
    from?: number,
  ): ClassicReceiver {
    return new ClassicReceiver(this.#kafka, this.#admin, this.#options, topic, partitions, onRecord, from)
  }

  isTransient(error: unknown): boolean {
    return isTransientInKafkaJs(error)
  }

  async kept(topic: string, partition: number): Promise<KeptOffsets> {
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
      return undefined // kafkajs has reported it
    }
  }

  async close(): Promise<void> {
    const closeTimeoutMs = this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs
    this.#closing.abort()
    await this.#probing
    await this.#remaking
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
    if (isReachable) this.#remaking = this.#remaking.then(() => this.#remake())
  }

  async #remake(): Promise<void> {
    const admin = new KafkaJsAdmin(this.#admin)
    const checks = () => check(admin, this.#options)
    await remakeLostTopics((use) => use(admin), checks, this.#options, this.#closing.signal)
  }
}

function isRefusedRecord(thrown: unknown): boolean {
  const error = thrown as { readonly type?: string; readonly cause?: unknown } | null
  if (REFUSED_RECORD.has(error?.type ?? '')) return true
  return error?.cause !== undefined && isRefusedRecord(error.cause)
}
