import kafkajs, { type Admin, type ConfigResourceTypes } from 'kafkajs'
import type { KafkaAdmin, NewTopic } from '#shared/broker/kafka/topics.ts'

const ANY_BROKER = '1'
/** `ConfigSource` of a setting made for the topic itself. */
const TOPIC_CONFIG = 1
/** Checks, and the delay between them, until every broker has a new topic: many partitions take a busy broker seconds. */
const SPREAD_ASKS_MAX = 120
const SPREAD_ASK_MS = 250

export class KafkaJsAdmin implements KafkaAdmin {
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
    // waitForLeaders makes kafkajs fail if the topic has not reached the broker it asks.
    await this.#admin.createTopics({ waitForLeaders: false, topics: [topic] })
    for (let asks = 0; asks < SPREAD_ASKS_MAX; asks++) {
      const known = await this.partitions([name]).catch(() => new Map<string, number>())
      if (known.has(name)) return
      await new Promise((resolve) => setTimeout(resolve, SPREAD_ASK_MS))
    }
    throw new Error(`the brokers did not report the new topic after ${(SPREAD_ASKS_MAX * SPREAD_ASK_MS) / 1_000} s`)
  }

  /** kafkajs supports only the request that replaces all settings of a topic, so earlier ones are sent too. */
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
