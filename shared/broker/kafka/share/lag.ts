import { listOffsetsV7 } from '@platformatic/kafka'
import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { CODE, KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import type { KeptOffsets } from '#shared/broker/kafka/history.ts'
import { describeShareGroupOffsets } from './wire/group.ts'

const REQUEST_TIMEOUT_MS = 5_000
const LANE = 'lag'
const LATEST = -1n
const EARLIEST = -2n

/**
 * Number of unacknowledged records of a topic in its share group (KIP-1226).
 *
 * The group has state in a partition after its first acknowledgement there. Before that, all records of the partition count, because the groups start
 * at the earliest.
 *
 * @throws Error if a broker is unreachable or refuses
 */
export async function readShareLag(cluster: KafkaCluster, topic: string): Promise<number> {
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
  if (answer.errorCode === CODE.groupIdNotFound) return new Map() // The group has no members yet.
  if (answer.errorCode !== CODE.none) throw new KafkaRefusal(`Asking for the lag of ${topic}`, answer.errorCode)
  return answer.lags
}

async function countRecords(cluster: KafkaCluster, topic: string, partition: number): Promise<number> {
  const { first, end } = await keptOffsets(cluster, topic, partition)
  return end - first
}

/** Range of a partition's stored offsets. @throws Error if a broker is unreachable or refuses */
export async function keptOffsets(cluster: KafkaCluster, topic: string, partition: number): Promise<KeptOffsets> {
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
