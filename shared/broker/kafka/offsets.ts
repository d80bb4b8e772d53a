import { listOffsetsV7, offsetFetchV8 } from '@platformatic/kafka'
import type { KafkaCluster } from './cluster.ts'
import { CODE, KafkaRefusal, NodeUnknown } from './errors.ts'

const REQUEST_TIMEOUT_MS = 5_000
const CONNECTION_NAME = 'offsets'
/** Special timestamps in a ListOffsets request: LATEST selects the end of a partition, EARLIEST its beginning. */
export const LATEST = -1n
export const EARLIEST = -2n

/** Range of a partition's stored offsets. `end` is the offset of the next record. */
export interface StoredOffsets {
  readonly first: number
  readonly end: number
}

/** @throws Error if a broker is unreachable or refuses */
export async function storedOffsets(cluster: KafkaCluster, topic: string, partition: number): Promise<StoredOffsets> {
  const [earliest, latest] = await Promise.all([
    offsetAt(cluster, topic, partition, EARLIEST),
    offsetAt(cluster, topic, partition, LATEST),
  ])
  return { first: Number(earliest), end: Number(latest) }
}

/**
 * Returns the offset of the first record whose timestamp is not before `timestamp`. -1 if there is none.
 *
 * @param connection Name of the connection and its request timeout, see {@link KafkaCluster}. The first use of a name sets the timeout.
 * @throws Error if the partition has no leader, or if the leader is unreachable or refuses
 */
export async function offsetAt(
  cluster: KafkaCluster,
  topic: string,
  partition: number,
  timestamp: bigint,
  { name, timeoutMs } = { name: CONNECTION_NAME, timeoutMs: REQUEST_TIMEOUT_MS },
): Promise<bigint> {
  const leader = cluster.leader(topic, partition)
  if (leader < 0) throw new NodeUnknown(`${topic}/${partition} has no leader`)
  const connection = await cluster.connection(leader, name, timeoutMs)
  const wanted = { partitionIndex: partition, currentLeaderEpoch: -1, timestamp }
  const { topics } = await listOffsetsV7.api.async(connection, -1, 0, [{ name: topic, partitions: [wanted] }])
  const offset = topics[0]?.partitions[0]?.offset
  if (offset === undefined) throw new NodeUnknown(`No offset of ${topic}/${partition}`)
  return offset
}

/**
 * Returns the committed offsets of a classic group, by partition. A partition without one is absent.
 *
 * @throws Error if the coordinator is unreachable or refuses
 */
export async function committedOffsets(
  cluster: KafkaCluster,
  group: string,
  topic: string,
): Promise<ReadonlyMap<number, number>> {
  const partitionIndexes = Array.from({ length: cluster.partitions(topic) }, (_, index) => index)
  const connection = await cluster.connection(await cluster.coordinator(group), CONNECTION_NAME, REQUEST_TIMEOUT_MS)
  const wanted = [{ groupId: group, memberEpoch: -1, topics: [{ name: topic, partitionIndexes }] }]
  const { groups } = await offsetFetchV8.api.async(connection, wanted, false)
  const code = groups[0]?.errorCode ?? CODE.none
  if (code !== CODE.none) throw new KafkaRefusal(`Reading the offsets of ${group}`, code)
  const found = groups[0]?.topics[0]?.partitions ?? []
  return new Map(
    found.flatMap(({ partitionIndex, committedOffset }) =>
      committedOffset >= 0n ? [[partitionIndex, Number(committedOffset)] as const] : [],
    ),
  )
}
