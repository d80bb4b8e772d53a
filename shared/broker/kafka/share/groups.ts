/** The boot check of share groups: state topic, group names, and start offsets. */
import type { Topic } from '#shared/broker/broker.ts'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'
import {
  type BootProblem,
  checkInternalTopic,
  type InternalTopic,
  type KafkaAdmin,
  messageOf,
  readable,
} from '#shared/broker/kafka/topics.ts'

const STATE_TOPIC: InternalTopic = {
  name: '__share_group_state',
  settings: ['share.coordinator.state.topic.replication.factor', 'share.coordinator.state.topic.min.isr'],
}
/**
 * Preferred settings. The delivery limit is twice the default, after which Kafka silently drops a record. New members receive
 * partitions at once (Kafka 4.3).
 */
const GROUP_SETTINGS = { 'share.delivery.count.limit': 10, 'share.assignment.interval.ms': 0 } as const

export interface ShareGroupAdmin extends KafkaAdmin {
  groupSettings(group: string): Promise<ReadonlyMap<string, string>>
  setGroup(group: string, setting: string, value: string): Promise<void>
  classicGroupState(group: string): Promise<string | undefined>
  deleteGroup(group: string): Promise<void>
}

/**
 * Checks the requirements of share groups: the state topic, the names, and the start offset of each group. A group must start at
 * the oldest record for which a caller may still wait, not at the end of its queue. The offset must be set before the first
 * member joins.
 */
export async function checkShareGroups(admin: ShareGroupAdmin, options: KafkaOptions): Promise<BootProblem[]> {
  const queues = options.topics.filter(({ kind }) => kind === 'queue')
  const checks = queues.map((queue) => prepareGroup(admin, options.prefix + queue.name, startOf(queue), options))
  return (await Promise.all([checkInternalTopic(admin, STATE_TOPIC, options), ...checks])).flat()
}

/**
 * Start offset of a new group: the first record that is younger than the maximum wait. A fleet that migrates from classic groups
 * would otherwise find days of processed records.
 */
function startOf({ retentionMsMin }: Topic): string {
  return retentionMsMin === undefined ? 'earliest' : `by_duration:PT${Math.ceil(retentionMsMin / 1_000)}S`
}

/** Deletes an empty classic group of this name, which earlier versions created. Kafka would refuse all members of the share group. */
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
    const remediation = `Stop the workers with KAFKA_CLIENT=classic, or set it here too (kafka-consumer-groups.sh ${server} --describe --members --group ${group} names them)`
    return [
      {
        problem: `Group ${group} has members of a classic consumer group, so members of a share group cannot join`,
        remediation,
      },
    ]
  } catch (error) {
    options.onProblem('Kafka groups could not be checked', { group, error: messageOf(error) })
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
      // The settings are optional: the broker may refuse these values, and the group also works with the defaults.
    })
  }
  if (settings.get('share.auto.offset.reset') === start) return []
  try {
    await admin.setGroup(group, 'share.auto.offset.reset', start).catch(async (error: unknown) => {
      // If the broker supports no durations or refuses the change, then the group starts at the oldest record. That start skips no record
      // either.
      if (settings.get('share.auto.offset.reset') === 'earliest') return
      if (start === 'earliest') throw error
      await admin.setGroup(group, 'share.auto.offset.reset', 'earliest')
    })
    return []
  } catch (error) {
    const entity = `--entity-type groups --entity-name ${group}`
    const remediation = `kafka-configs.sh --bootstrap-server ${options.brokers[0]} ${entity} --alter --add-config share.auto.offset.reset=${start}`
    const problem = `Group ${group} would miss jobs submitted before its first worker, and that could not be changed: ${messageOf(error)}`
    return [{ problem, remediation }]
  }
}
