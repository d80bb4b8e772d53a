import {
  Admin,
  ConfigResourceTypes,
  type ConfigResourceTypeValue,
  describeConfigsV4,
  IncrementalAlterConfigOperationTypes,
} from '@platformatic/kafka'
import type { KafkaCluster } from './cluster.ts'
import { isTopicExists } from './errors.ts'
import { type KafkaOptions, pause } from './options.ts'
import type { KafkaAdmin, NewTopic } from './topics.ts'

const APPLIED_TIMEOUT_MS = 10_000
const APPLIED_INTERVAL_MS = 20
const BOOT_CONNECTION_NAME = 'boot'

export class PlatformaticAdmin implements KafkaAdmin {
  readonly #cluster: KafkaCluster
  readonly #admin: Admin
  #classicGroups: ReturnType<Admin['listGroups']> | undefined

  constructor(cluster: KafkaCluster, options: KafkaOptions) {
    this.#cluster = cluster
    this.#admin = new Admin({
      clientId: options.clientId,
      bootstrapBrokers: [...options.brokers],
      ...(options.tls ? { tls: { ...options.tls } } : {}),
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
    await Promise.all(this.#cluster.nodeIds.map((node) => this.#cluster.hangUp(node, BOOT_CONNECTION_NAME)))
  }

  /** Waits until a setting has reached every broker. A group that starts earlier would use the old value permanently. */
  async #untilApplied(group: string, setting: string, value: string): Promise<void> {
    const timeout = AbortSignal.timeout(APPLIED_TIMEOUT_MS)
    for (const node of this.#cluster.nodeIds) {
      while ((await this.#settingAt(node, group, setting)) !== value) {
        if (timeout.aborted) throw new Error(`broker ${node} does not apply ${setting}=${value}`)
        await pause(APPLIED_INTERVAL_MS, timeout)
      }
    }
  }

  async #settingAt(node: number, group: string, setting: string): Promise<string | null | undefined> {
    const connection = await this.#cluster.connection(node, BOOT_CONNECTION_NAME, APPLIED_TIMEOUT_MS)
    const resource = { resourceType: ConfigResourceTypes.GROUP, resourceName: group, configurationKeys: [setting] }
    const { results } = await describeConfigsV4.api.async(connection, [resource], false, false)
    return results[0]?.configs.find(({ name }) => name === setting)?.value
  }

  async #settings(resourceType: ConfigResourceTypeValue, resourceName: string): Promise<ReadonlyMap<string, string>> {
    const [found] = await this.#admin.describeConfigs({ resources: [{ resourceType, resourceName }] })
    return new Map((found?.configs ?? []).map((config) => [config.name, config.value ?? '']))
  }
}
