import {
  Admin,
  ConfigResourceTypes,
  type ConfigResourceTypeValue,
  describeConfigsV4,
  IncrementalAlterConfigOperationTypes,
} from '@platformatic/kafka'
import type { Topic } from '#shared/broker/broker.ts'
import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { isTopicExists } from '#shared/broker/kafka/errors.ts'
import { type KafkaOptions, pause } from '#shared/broker/kafka/options.ts'
import {
  type BootProblem,
  checkInternalTopic,
  type InternalTopic,
  isDenied,
  type KafkaAdmin,
  messageOf,
  type NewTopic,
  permitGroups,
  readable,
} from '#shared/broker/kafka/topics.ts'

const APPLIED_TIMEOUT_MS = 10_000
const APPLIED_INTERVAL_MS = 20
const BOOT_LANE = 'boot'

export class PlatformaticAdmin implements ShareGroupAdmin {
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
    await Promise.all(this.#cluster.nodeIds.map((node) => this.#cluster.hangUp(node, BOOT_LANE)))
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
    const connection = await this.#cluster.connection(node, BOOT_LANE, APPLIED_TIMEOUT_MS)
    const resource = { resourceType: ConfigResourceTypes.GROUP, resourceName: group, configurationKeys: [setting] }
    const { results } = await describeConfigsV4.api.async(connection, [resource], false, false)
    return results[0]?.configs.find(({ name }) => name === setting)?.value
  }

  async #settings(resourceType: ConfigResourceTypeValue, resourceName: string): Promise<ReadonlyMap<string, string>> {
    const [found] = await this.#admin.describeConfigs({ resources: [{ resourceType, resourceName }] })
    return new Map((found?.configs ?? []).map((config) => [config.name, config.value ?? '']))
  }
}

/** Check of share groups at the start: state topic, group names, and start offsets. */

const STATE_TOPIC: InternalTopic = {
  name: '__share_group_state',
  settings: ['share.coordinator.state.topic.replication.factor', 'share.coordinator.state.topic.min.isr'],
}
/**
 * Preferred group settings. The delivery count limit, after which Kafka silently drops a record, is twice the default. New members receive partitions
 * at once (Kafka 4.3).
 */
const GROUP_SETTINGS = { 'share.delivery.count.limit': 10, 'share.assignment.interval.ms': 0 } as const

export interface ShareGroupAdmin extends KafkaAdmin {
  groupSettings(group: string): Promise<ReadonlyMap<string, string>>
  setGroup(group: string, setting: string, value: string): Promise<void>
  classicGroupState(group: string): Promise<string | undefined>
  deleteGroup(group: string): Promise<void>
}

/**
 * Checks the requirements of share groups: the state topic, the names, and the start offset of each group. A group must start at the oldest record
 * for which a caller may still wait. Kafka's default is the end of the queue. The offset must be set before the first member joins.
 */
export async function checkShareGroups(admin: ShareGroupAdmin, options: KafkaOptions): Promise<BootProblem[]> {
  const queues = options.topics.filter(({ kind }) => kind === 'queue')
  const checks = queues.map((queue) => prepareGroup(admin, options.prefix + queue.name, startOf(queue), options))
  return (await Promise.all([checkInternalTopic(admin, STATE_TOPIC, options), ...checks])).flat()
}

/**
 * Returns the start offset of a new group: the first record that is younger than the maximum wait. After a migration from classic groups, the older
 * records are processed already.
 */
function startOf({ retentionMsMin }: Topic): string {
  return retentionMsMin === undefined ? 'earliest' : `by_duration:PT${Math.ceil(retentionMsMin / 1_000)}S`
}

/**
 * Deletes an empty classic group with the name of the share group, which earlier versions created. Otherwise Kafka would refuse all members of the
 * share group.
 */
async function freeName(admin: ShareGroupAdmin, group: string, options: KafkaOptions): Promise<BootProblem[]> {
  const server = `--bootstrap-server ${options.brokers[0]}`
  try {
    const state = await admin.classicGroupState(group)
    if (state === undefined) return []
    if (state === 'EMPTY') {
      await admin.deleteGroup(group)
      options.onProblem('empty classic group deleted; its name is needed for a share group', { group })
      return []
    }
    const remediation = `Stop the workers with KAFKA_CLIENT=classic, or set KAFKA_CLIENT=classic here too (kafka-consumer-groups.sh ${server} --describe --members --group ${group} names them)`
    return [
      {
        problem: `Group ${group} has members of a classic consumer group, so members of a share group cannot join`,
        remediation,
      },
    ]
  } catch (error) {
    options.onProblem('Kafka groups could not be checked; the start continues', { group, error: messageOf(error) })
    return []
  }
}

async function prepareGroup(
  admin: ShareGroupAdmin,
  group: string,
  start: string,
  options: KafkaOptions,
): Promise<BootProblem[]> {
  const taken = await freeName(admin, group, options)
  if (taken.length > 0) return taken
  const settings = await readable(admin.groupSettings(group), group, options)
  for (const [name, value] of Object.entries(GROUP_SETTINGS)) {
    const current = settings.get(name)
    if (current === undefined || Number(current) === value) continue
    await admin.setGroup(group, name, String(value)).catch(() => {
      // The settings are optional. A broker may refuse these values, and the group also works with the defaults.
    })
  }
  if (settings.get('share.auto.offset.reset') === start) return []
  try {
    await admin.setGroup(group, 'share.auto.offset.reset', start).catch(async (error: unknown) => {
      // A broker may refuse the change, for example because durations are unsupported. The group then starts at the oldest record, so that no
      // record is skipped.
      if (settings.get('share.auto.offset.reset') === 'earliest') return
      if (start === 'earliest') throw error
      await admin.setGroup(group, 'share.auto.offset.reset', 'earliest')
    })
    return []
  } catch (error) {
    const message = messageOf(error)
    if (isDenied(message)) {
      const remediation = permitGroups(options, ['Read', 'DescribeConfigs', 'AlterConfigs'])
      return [{ problem: `The settings of group ${group} cannot be read or changed: ${message}`, remediation }]
    }
    const entity = `--entity-type groups --entity-name ${group}`
    const remediation = `kafka-configs.sh --bootstrap-server ${options.brokers[0]} ${entity} --alter --add-config share.auto.offset.reset=${start}`
    const problem = `Group ${group} would miss jobs submitted before its first worker, and that could not be changed: ${message}`
    return [{ problem, remediation }]
  }
}
