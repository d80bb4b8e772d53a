import {
  Admin,
  ConfigResourceTypes,
  type ConfigResourceTypeValue,
  describeConfigsV4,
  IncrementalAlterConfigOperationTypes,
} from '@platformatic/kafka'
import type { Broker, ChannelRecord, Closable, QueueConsumer } from '#shared/broker/broker.ts'
import { ChannelReceiver } from '#shared/broker/kafka/channel.ts'
import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { isTopicExists, isTransient } from '#shared/broker/kafka/errors.ts'
import { KAFKA_DEFAULTS, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import { KafkaProducer } from '#shared/broker/kafka/producer.ts'
import { batchBytesMax, CoalescingSender, overloaded } from '#shared/broker/kafka/sender.ts'
import { pause } from '#shared/broker/kafka/supervision.ts'
import {
  checkShareGroups,
  checkTopics,
  KafkaUnfitError,
  type NewTopic,
  type ShareGroupAdmin,
} from '#shared/broker/kafka/topics.ts'
import { ShareConsumer } from './consumer.ts'
import { readShareLag } from './lag.ts'

const READY_TIMEOUT_MS = 10_000
const READY_INTERVAL_MS = 100
const APPLIED_INTERVAL_MS = 20
const BOOT_LANE = 'boot'

/**
 * The broker on Kafka 4.2 or later: share groups for queues, group-less readers for channels. Owns the cluster it is given.
 *
 * @throws KafkaUnfitError with everything that is wrong
 */
export async function openShareBroker(cluster: KafkaCluster, options: KafkaOptions): Promise<Broker> {
  const admin = new PlatformaticAdmin(cluster, options)
  try {
    const problems = [...(await checkTopics(admin, options)), ...(await checkShareGroups(admin, options))]
    if (problems.length > 0) throw new KafkaUnfitError(problems)
  } finally {
    await admin.close()
  }
  await untilLed(cluster, options)
  return new ShareBroker(cluster, options)
}

/** New topics have no leaders for a moment. */
async function untilLed(cluster: KafkaCluster, options: KafkaOptions): Promise<void> {
  const names = options.topics.map(({ name }) => options.prefix + name)
  await cluster.follow(names)
  const timeout = AbortSignal.timeout(READY_TIMEOUT_MS)
  while (names.some((name) => cluster.leader(name, 0) < 0)) {
    if (timeout.aborted) {
      const missing = names.filter((name) => cluster.leader(name, 0) < 0).join(', ')
      throw new KafkaUnfitError([{ problem: `No broker leads ${missing}`, fix: 'Check the state of the brokers' }])
    }
    await pause(READY_INTERVAL_MS, timeout)
    await cluster.follow(names)
  }
}

class ShareBroker implements Broker {
  readonly name = 'kafka (share groups)'
  readonly #cluster: KafkaCluster
  readonly #options: KafkaOptions
  readonly #sender: CoalescingSender
  readonly #open = new Set<Closable>()
  readonly #turns = new Map<string, number>()
  #closed: Promise<void> | undefined

  constructor(cluster: KafkaCluster, options: KafkaOptions) {
    this.#cluster = cluster
    this.#options = options
    const producer = new KafkaProducer(cluster)
    this.#sender = new CoalescingSender(
      (batches) => producer.produce(batches),
      options.sendBufferBytesMax ?? KAFKA_DEFAULTS.sendBufferBytesMax,
      () => cluster.suspect(),
    )
  }

  get isReachable(): boolean {
    return this.#cluster.isReachable && this.#closed === undefined
  }

  async submit(queue: string, value: Buffer): Promise<void> {
    if (!this.isReachable) throw overloaded('The job queue cannot be reached.')
    const topic = this.#options.prefix + queue
    const timeoutMs = this.#options.sendTimeoutMs ?? KAFKA_DEFAULTS.sendTimeoutMs
    const options = { timeoutMs, batchBytesMax: batchBytesMax.queue }
    await this.#sender.send(topic, this.#nextPartition(topic), { key: undefined, value }, options)
  }

  async send(channel: string, partition: number, key: string, value: Buffer): Promise<void> {
    const record = { key: Buffer.from(key), value }
    await this.#sender.send(this.#options.prefix + channel, partition, record, { batchBytesMax: batchBytesMax.channel })
  }

  async openQueue(queue: string): Promise<QueueConsumer> {
    const consumer = new ShareConsumer(this.#cluster, queue, this.#options.prefix + queue, this.#options)
    this.#open.add(consumer)
    return consumer.open()
  }

  async receive(channel: string, partition: number, onRecord: (record: ChannelRecord) => void): Promise<Closable> {
    const topic = this.#options.prefix + channel
    const receiver = new ChannelReceiver(this.#cluster, this.#options, topic, partition, onRecord)
    this.#open.add(receiver)
    return receiver.open()
  }

  async lag(queue: string): Promise<number | undefined> {
    const topic = this.#options.prefix + queue
    try {
      return await readShareLag(this.#cluster, topic)
    } catch (error) {
      if (!isTransient(error))
        this.#options.onProblem('the lag of a queue is not known', { queue, error: String(error) })
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
    await this.#cluster.close()
  }

  /** Round robin over the partitions that somebody leads; any, when nobody leads one. */
  #nextPartition(topic: string): number {
    const count = Math.max(this.#cluster.partitions(topic), 1)
    const turn = this.#turns.get(topic) ?? 0
    const order = Array.from({ length: count }, (_, index) => (turn + index) % count)
    const chosen = order.find((partition) => this.#cluster.leader(topic, partition) >= 0) ?? turn
    this.#turns.set(topic, (chosen + 1) % count)
    return chosen
  }
}

/** The boot check's view of a cluster. */
class PlatformaticAdmin implements ShareGroupAdmin {
  readonly #cluster: KafkaCluster
  readonly #admin: Admin
  #classicGroups: ReturnType<Admin['listGroups']> | undefined

  constructor(cluster: KafkaCluster, options: KafkaOptions) {
    this.#cluster = cluster
    this.#admin = new Admin({
      clientId: options.clientId,
      bootstrapBrokers: [...options.brokers],
      ...(options.tls ? { tls: {} } : {}),
      ...(options.sasl ? { sasl: { ...options.sasl } } : {}),
    })
  }

  async brokerCount(): Promise<number> {
    return this.#cluster.nodeIds.length
  }

  async partitions(topics: readonly string[]): Promise<ReadonlyMap<string, number>> {
    await this.#cluster.follow(topics)
    const counts = topics.map((topic) => [topic, this.#cluster.partitions(topic)] as const)
    return new Map(counts.filter(([, count]) => count > 0))
  }

  topicSettings(topic: string): Promise<ReadonlyMap<string, string>> {
    return this.#settings(ConfigResourceTypes.TOPIC, topic)
  }

  brokerSettings(): Promise<ReadonlyMap<string, string>> {
    return this.#settings(ConfigResourceTypes.BROKER, String(this.#cluster.nodeIds[0]))
  }

  groupSettings(group: string): Promise<ReadonlyMap<string, string>> {
    return this.#settings(ConfigResourceTypes.GROUP, group)
  }

  async createTopic({ name, partitions, replicas, settings }: NewTopic): Promise<void> {
    const configs = Object.entries(settings).map(([key, value]) => ({ name: key, value }))
    await this.#admin.createTopics({ topics: [name], partitions, replicas, configs }).catch((error: unknown) => {
      if (!isTopicExists(error)) throw error
    })
  }

  async setTopic(topic: string, settings: Readonly<Record<string, string>>): Promise<void> {
    const configs = Object.entries(settings).map(([name, value]) => {
      return { name, configOperation: IncrementalAlterConfigOperationTypes.SET, value }
    })
    const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: topic, configs }
    await this.#admin.incrementalAlterConfigs({ resources: [resource] })
  }

  async addPartitions(topic: string, partitions: number): Promise<void> {
    const topics = [{ name: topic, count: partitions, assignments: null }]
    await this.#admin.createPartitions({ topics }).catch(async (error: unknown) => {
      // Another process that starts at the same time was faster.
      if (((await this.partitions([topic])).get(topic) ?? 0) < partitions) throw error
    })
  }

  async setGroup(group: string, setting: string, value: string): Promise<void> {
    const config = { name: setting, configOperation: IncrementalAlterConfigOperationTypes.SET, value }
    const resource = { resourceType: ConfigResourceTypes.GROUP, resourceName: group, configs: [config] }
    await this.#admin.incrementalAlterConfigs({ resources: [resource] })
    await this.#untilApplied(group, setting, value)
  }

  async classicGroupState(group: string): Promise<string | undefined> {
    this.#classicGroups ??= this.#admin.listGroups({ types: ['classic', 'consumer'] })
    return (await this.#classicGroups).get(group)?.state.toUpperCase()
  }

  async deleteGroup(group: string): Promise<void> {
    await this.#admin.deleteGroups({ groups: [group] })
  }

  async close(): Promise<void> {
    await this.#admin.close()
    await Promise.all(this.#cluster.nodeIds.map((node) => this.#cluster.hangUp(node, BOOT_LANE)))
  }

  /** A setting reaches the brokers one by one, and a group that starts before it goes by the old one for good. */
  async #untilApplied(group: string, setting: string, value: string): Promise<void> {
    const timeout = AbortSignal.timeout(READY_TIMEOUT_MS)
    for (const node of this.#cluster.nodeIds) {
      while ((await this.#settingAt(node, group, setting)) !== value) {
        if (timeout.aborted) throw new Error(`broker ${node} does not apply ${setting}=${value}`)
        await pause(APPLIED_INTERVAL_MS, timeout)
      }
    }
  }

  async #settingAt(node: number, group: string, setting: string): Promise<string | null | undefined> {
    const connection = await this.#cluster.connection(node, BOOT_LANE, READY_TIMEOUT_MS)
    const resource = { resourceType: ConfigResourceTypes.GROUP, resourceName: group, configurationKeys: [setting] }
    const { results } = await describeConfigsV4.api.async(connection, [resource], false, false)
    return results[0]?.configs.find(({ name }) => name === setting)?.value
  }

  async #settings(resourceType: ConfigResourceTypeValue, resourceName: string): Promise<ReadonlyMap<string, string>> {
    const [found] = await this.#admin.describeConfigs({ resources: [{ resourceType, resourceName }] })
    return new Map((found?.configs ?? []).map((config) => [config.name, config.value ?? '']))
  }
}
