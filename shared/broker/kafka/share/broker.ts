import { listOffsetsV7 } from '@platformatic/kafka'
import type { Broker, HistoryRecord } from '#shared/broker/broker.ts'
import { KafkaBroker, type KafkaClient, type StoredOffsets } from '#shared/broker/kafka/broker.ts'
import { ChannelReceiver } from '#shared/broker/kafka/channel.ts'
import { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { CODE, isTransient, KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import { type KafkaOptions, pause } from '#shared/broker/kafka/options.ts'
import { KafkaProducer } from '#shared/broker/kafka/producer.ts'
import type { OutgoingBatch } from '#shared/broker/kafka/sender.ts'
import {
  type BootProblem,
  checkTopics,
  KafkaUnsuitableError,
  TopicKeeper,
  warnOfLateFailover,
} from '#shared/broker/kafka/topics.ts'
import { checkShareGroups, PlatformaticAdmin } from './admin.ts'
import { ShareConsumer } from './consumer.ts'
import { describeShareGroupOffsets } from './wire.ts'

const REQUEST_TIMEOUT_MS = 5_000
const LANE = 'lag'
const LATEST = -1n
const EARLIEST = -2n

const READY_TIMEOUT_MS = 10_000
const READY_INTERVAL_MS = 100

/**
 * Opens the broker on Kafka 4.2 or later: share groups for queues, and receivers without groups for channels. Owns the given cluster.
 *
 * @throws KafkaUnsuitableError with every problem
 */
export async function openShareBroker(cluster: KafkaCluster, options: KafkaOptions): Promise<Broker> {
  const admin = new PlatformaticAdmin(cluster, options)
  try {
    const problems = await check(admin, options)
    if (problems.length > 0) throw new KafkaUnsuitableError(problems)
    await warnOfLateFailover(admin, options)
  } finally {
    await admin.close()
  }
  await untilLed(cluster, options)
  return new KafkaBroker(new ShareClient(cluster, options), options)
}

/** Checks groups before topics, because an existing group must be configured before its topic is read. */
async function check(admin: PlatformaticAdmin, options: KafkaOptions): Promise<BootProblem[]> {
  const ofGroups = await checkShareGroups(admin, options)
  return [...(await checkTopics(admin, options)), ...ofGroups]
}

/** Runs an operation on a new connection. The current cluster view may be outdated, or lack a node that restarts. */
async function look(options: KafkaOptions, use: (admin: PlatformaticAdmin) => Promise<void>): Promise<void> {
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

/** Waits until all partitions have leaders. New topics have none at first. */
async function untilLed(cluster: KafkaCluster, options: KafkaOptions): Promise<void> {
  const names = options.topics.map(({ name }) => options.prefix + name)
  await cluster.follow(names)
  const timeout = AbortSignal.timeout(READY_TIMEOUT_MS)
  while (names.some((name) => cluster.leader(name, 0) < 0)) {
    if (timeout.aborted) {
      const missing = names.filter((name) => cluster.leader(name, 0) < 0).join(', ')
      throw new KafkaUnsuitableError([
        { problem: `No broker leads ${missing}`, remediation: 'Check the state of the brokers' },
      ])
    }
    await pause(READY_INTERVAL_MS, timeout)
    await cluster.follow(names)
  }
}

class ShareClient implements KafkaClient {
  readonly name = 'kafka (share groups)'
  readonly #cluster: KafkaCluster
  readonly #options: KafkaOptions
  readonly #producer: KafkaProducer
  readonly #keeper: TopicKeeper<PlatformaticAdmin>
  #onLoss: (name: string) => void = () => undefined

  constructor(cluster: KafkaCluster, options: KafkaOptions) {
    this.#cluster = cluster
    this.#options = options
    this.#producer = new KafkaProducer(cluster)
    this.#keeper = new TopicKeeper(
      (use) => look(options, use),
      (admin) => check(admin, options),
      options,
    )
    cluster.onReturn(() => this.#keeper.verify())
    cluster.watch(({ lacking, remade }) => {
      if (lacking.length > 0) this.#keeper.verify()
      for (const topic of remade) this.#onLoss(topic)
    })
  }

  get missing(): readonly string[] {
    return this.#keeper.missing
  }

  onLoss(onLoss: (topic: string) => void): void {
    this.#onLoss = onLoss
  }

  get unreachableSinceMs(): number | undefined {
    return this.#cluster.unreachableSinceMs
  }

  readonly produce = (batches: readonly OutgoingBatch[]) => this.#producer.produce(batches)

  suspect(): void {
    this.#cluster.suspect()
  }

  partitions(topic: string): number {
    return this.#cluster.partitions(topic)
  }

  leader(topic: string, partition: number): number {
    return this.#cluster.leader(topic, partition)
  }

  consumer(queue: string, topic: string): ShareConsumer {
    return new ShareConsumer(this.#cluster, queue, topic, this.#options)
  }

  receiver(
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
    from?: number,
  ): ChannelReceiver {
    return new ChannelReceiver(this.#cluster, this.#options, topic, partitions, onRecord, from)
  }

  isTransient(error: unknown): boolean {
    return isTransient(error)
  }

  async storedOffsets(topic: string, partition: number): Promise<StoredOffsets> {
    return await keptOffsets(this.#cluster, topic, partition)
  }

  async lag(queue: string, topic: string): Promise<number | undefined> {
    try {
      return await readShareLag(this.#cluster, topic)
    } catch (error) {
      if (!isTransient(error))
        this.#options.onProblem('lag of a Kafka queue could not be read; it counts as unknown', {
          queue,
          error: String(error),
        })
      return undefined
    }
  }

  async close(): Promise<void> {
    await this.#keeper.close()
    await this.#cluster.close()
  }
}

/**
 * Returns the number of unacknowledged records of a topic in its share group (KIP-1226).
 *
 * Before its first acknowledgement in a partition, the group has no state there. All records of such a partition count.
 *
 * @throws Error if a broker is unreachable or refuses
 */
async function readShareLag(cluster: KafkaCluster, topic: string): Promise<number> {
  const partitions = Array.from({ length: cluster.partitions(topic) }, (_, index) => index)
  const known = await readKnownLags(cluster, topic, partitions)
  const lags = partitions.map((partition) => {
    const lag = known.get(partition) ?? -1
    return lag >= 0 ? lag : countRecords(cluster, topic, partition)
  })
  return (await Promise.all(lags)).reduce((sum, lag) => sum + lag, 0)
}

async function readKnownLags(
  cluster: KafkaCluster,
  topic: string,
  partitions: readonly number[],
): Promise<ReadonlyMap<number, number>> {
  const connection = await cluster.connection(await cluster.coordinator(topic), LANE, REQUEST_TIMEOUT_MS)
  const answer = await describeShareGroupOffsets.async(connection, { group: topic, topic, partitions })
  if (answer.errorCode === CODE.groupIdNotFound) return new Map() // The group does not exist yet, so all records of each partition count.
  if (answer.errorCode !== CODE.none) throw new KafkaRefusal(`Reading the lag of ${topic}`, answer.errorCode)
  return answer.lags
}

async function countRecords(cluster: KafkaCluster, topic: string, partition: number): Promise<number> {
  const { first, end } = await keptOffsets(cluster, topic, partition)
  return end - first
}

async function keptOffsets(cluster: KafkaCluster, topic: string, partition: number): Promise<StoredOffsets> {
  const [earliest, latest] = await Promise.all([
    offsetAt(cluster, topic, partition, EARLIEST),
    offsetAt(cluster, topic, partition, LATEST),
  ])
  return { first: Number(earliest), end: Number(latest) }
}

async function offsetAt(cluster: KafkaCluster, topic: string, partition: number, timestamp: bigint): Promise<bigint> {
  const connection = await cluster.connection(cluster.leader(topic, partition), LANE, REQUEST_TIMEOUT_MS)
  const wanted = { partitionIndex: partition, currentLeaderEpoch: -1, timestamp }
  const { topics } = await listOffsetsV7.api.async(connection, -1, 0, [{ name: topic, partitions: [wanted] }])
  return topics[0]?.partitions[0]?.offset ?? 0n
}
