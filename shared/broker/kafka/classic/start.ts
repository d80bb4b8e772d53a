/**
 * Where a classic group begins in partitions that it has no position in: where the group of an earlier version stopped, else
 * at what somebody may still wait for. From the beginning it would be days of records that were dealt with, where a share
 * group had the queue before.
 */
import type { Admin } from 'kafkajs'
import { classicGroup } from '#shared/broker/kafka/options.ts'

/** Partitions of a queue in which its group has no position yet. @throws what kafkajs throws */
export async function unplaced(admin: Admin, topic: string): Promise<number[]> {
  const positions = await positionsOf(admin, classicGroup(topic), topic)
  return [...positions].flatMap(([partition, offset]) => (offset < 0 ? [partition] : []))
}

/**
 * The offsets to begin at, for those of the partitions that still have no position.
 *
 * @param waitMsMax Age from which nobody waits for a record; undefined: every record counts.
 * @throws what kafkajs throws
 */
export async function startsOf(
  admin: Admin,
  topic: string,
  partitions: readonly number[],
  waitMsMax: number | undefined,
): Promise<Map<number, number>> {
  const open = new Set(await unplaced(admin, topic))
  // The name is that of a share group by now, where no classic one has to hand over anything.
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
