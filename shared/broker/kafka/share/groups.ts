import type { Topic } from '#shared/broker/broker.ts'
import type { QueueGroups } from '#shared/broker/kafka/broker.ts'
import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { CODE, KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import { storedOffsets } from '#shared/broker/kafka/offsets.ts'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'
import {
  type BootProblem,
  checkInternalTopic,
  checkTopics,
  type InternalTopic,
  isDenied,
  type KafkaAdmin,
  messageOf,
  permitGroups,
  readable,
} from '#shared/broker/kafka/topics.ts'
import { ShareConsumer } from './consumer.ts'
import { describeShareGroupOffsets } from './wire.ts'

const REQUEST_TIMEOUT_MS = 5_000
const CONNECTION_NAME = 'lag'

/** Queues on share groups (KIP-932), with Kafka 4.2 or later. */
export function shareGroups(cluster: KafkaCluster, options: KafkaOptions): QueueGroups {
  return {
    name: 'kafka (share groups)',
    // Groups are checked before topics, because an existing group must be configured before its topic is read.
    check: async (admin) => {
      const ofGroups = await checkShareGroups(admin, options)
      return [...(await checkTopics(admin, options)), ...ofGroups]
    },
    consumer: (queue, topic) => new ShareConsumer(cluster, queue, topic, options),
    lag: (topic) => readShareLag(cluster, topic),
    // Kafka keeps the position of a share group by topic id, so the group starts at the beginning of the new topic.
    recreated: () => undefined,
    close: () => undefined,
  }
}

/**
 * Returns the number of unacknowledged records of a topic in its share group (KIP-1226).
 *
 * Before its first acknowledgement in a partition, the group has no state there, so all records of this partition count.
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
  const connection = await cluster.connection(await cluster.coordinator(topic), CONNECTION_NAME, REQUEST_TIMEOUT_MS)
  const answer = await describeShareGroupOffsets.async(connection, { group: topic, topic, partitions })
  if (answer.errorCode === CODE.groupIdNotFound) return new Map() // The group does not exist yet, so all records of each partition count.
  if (answer.errorCode !== CODE.none) throw new KafkaRefusal(`Reading the lag of ${topic}`, answer.errorCode)
  return answer.lags
}

async function countRecords(cluster: KafkaCluster, topic: string, partition: number): Promise<number> {
  const { first, end } = await storedOffsets(cluster, topic, partition)
  return end - first
}

const STATE_TOPIC: InternalTopic = {
  name: '__share_group_state',
  settings: ['share.coordinator.state.topic.replication.factor', 'share.coordinator.state.topic.min.isr'],
}
/**
 * Preferred group settings. The delivery count limit, after which Kafka silently drops a record, is twice the default. With an assignment interval of
 * 0, new members receive partitions at once (Kafka 4.3).
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
 * Deletes an empty classic group that an earlier version created under the name of the share group. Otherwise Kafka would refuse all members of the
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
