/**
 * Start offsets of a classic group in partitions without a committed position. The start is where the group of an earlier version stopped, or the
 * oldest record that may still be waited for. If a share group served the queue before, then the beginning would be days of processed records.
 */
import type { Admin } from 'kafkajs'
import { classicGroup } from '#shared/broker/kafka/options.ts'

/** Partitions of a queue without a committed position. @throws Errors of kafkajs */
export async function unplaced(admin: Admin, topic: string): Promise<number[]> {
  const positions = await positionsOf(admin, classicGroup(topic), topic)
  return [...positions].flatMap(([partition, offset]) => (offset < 0 ? [partition] : []))
}

/**
 * Start offsets for those partitions that still have no position.
 *
 * @param waitMsMax Age after which a record is not waited for any more; undefined: all records count.
 * @throws Errors of kafkajs
 */
export async function startsOf(
  admin: Admin,
  topic: string,
  partitions: readonly number[],
  waitMsMax: number | undefined,
): Promise<Map<number, number>> {
  const open = new Set(await unplaced(admin, topic))
  // If the name belongs to a share group now, then there are no positions of a classic group.
  const before = await positionsOf(admin, topic, topic).catch(() => new Map<number, number>())
  const young = waitMsMax === undefined ? [] : await admin.fetchTopicOffsetsByTimestamp(topic, Date.now() - waitMsMax)
  const youngest = new Map(young.map(({ partition, offset }) => [partition, Number(offset)]))
  const starts = new Map<number, number>()
  for (const partition of partitions.filter((each) => open.has(each))) {
    starts.set(partition, Math.max(before.get(partition) ?? -1, youngest.get(partition) ?? 0))
  }
  return starts
}

async function positionsOf(admin: Admin, groupId: string, topic: string): Promise<Map<number, number>> {
  const [group] = await admin.fetchOffsets({ groupId, topics: [topic] })
  return new Map(group?.partitions.map(({ partition, offset }) => [partition, Number(offset)]))
}
