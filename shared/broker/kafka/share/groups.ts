/** The boot check of share groups: their state topic, their names, and where each begins. */
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
/** Twice the default of deliveries before Kafka drops a record without a word, and new members served at once (4.3). */
const GROUP_WISHES = { 'share.delivery.count.limit': 10, 'share.assignment.interval.ms': 0 } as const

/** What is asked in addition where there are share groups. */
export interface ShareGroupAdmin extends KafkaAdmin {
  groupSettings(group: string): Promise<ReadonlyMap<string, string>>
  setGroup(group: string, setting: string, value: string): Promise<void>
  /** The state of a group that is no share group, such as `EMPTY` or `STABLE`; undefined when there is none. */
  classicGroupState(group: string): Promise<string | undefined>
  deleteGroup(group: string): Promise<void>
}

/**
 * Checks what share groups need: their state topic, their names, and that each group starts at what somebody may still wait
 * for, not at the end of its queue, which has to be set before its first member.
 */
export async function checkShareGroups(admin: ShareGroupAdmin, options: KafkaOptions): Promise<BootProblem[]> {
  const queues = options.topics.filter(({ kind }) => kind === 'queue')
  const checks = queues.map((queue) => prepareGroup(admin, options.prefix + queue.name, startOf(queue), options))
  return (await Promise.all([checkInternalTopic(admin, STATE_TOPIC, options), ...checks])).flat()
}

/**
 * Where a group starts that has no position yet: not before anybody could still wait, because a fleet that comes from classic
 * groups finds days of records that were dealt with.
 */
function startOf({ retentionMsMin }: Topic): string {
  return retentionMsMin === undefined ? 'earliest' : `by_duration:PT${Math.ceil(retentionMsMin / 1_000)}S`
}

/** A classic group of the name, which versions before had, keeps every member of the share group out, without an end. */
async function freeName(admin: ShareGroupAdmin, group: string, options: KafkaOptions): Promise<BootProblem[]> {
  const server = `--bootstrap-server ${options.brokers[0]}`
  try {
    const state = await admin.classicGroupState(group)
    if (state === undefined) return []
    if (state === 'EMPTY') {
      await admin.deleteGroup(group)
      options.onProblem('a classic group without members stood in the way of a share group, and was deleted', { group })
      return []
    }
    const fix = `Stop the workers with KAFKA_CLIENT=classic, or set it here too (kafka-consumer-groups.sh ${server} --describe --members --group ${group} names them)`
    return [{ problem: `Group ${group} has members of the classic kind, which keep those of a share group out`, fix }]
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
  for (const [name, value] of Object.entries(GROUP_WISHES)) {
    const current = settings.get(name)
    if (current === undefined || Number(current) === value) continue
    await admin.setGroup(group, name, String(value)).catch(() => {
      // A wish: the broker's limits may be tighter, and the group works with its defaults as well.
    })
  }
  if (settings.get('share.auto.offset.reset') === start) return []
  try {
    await admin.setGroup(group, 'share.auto.offset.reset', start).catch(async (error: unknown) => {
      // A broker that knows no durations, or lets us set nothing: from the beginning nothing is missed either.
      if (settings.get('share.auto.offset.reset') === 'earliest') return
      if (start === 'earliest') throw error
      await admin.setGroup(group, 'share.auto.offset.reset', 'earliest')
    })
    return []
  } catch (error) {
    const entity = `--entity-type groups --entity-name ${group}`
    const fix = `kafka-configs.sh --bootstrap-server ${options.brokers[0]} ${entity} --alter --add-config share.auto.offset.reset=${start}`
    const problem = `Group ${group} would miss jobs submitted before its first worker, and that could not be changed: ${messageOf(error)}`
    return [{ problem, fix }]
  }
}
