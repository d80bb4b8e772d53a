/** Wire form of share group requests: membership (KIP-932) and lag (KIP-1226). */
import { createAPI, type Reader, Writer } from '@platformatic/kafka'
import { type AssignedTopic, readInt32Array, readStatus, type Status } from './parts.ts'

const API_KEYS = { heartbeat: 76, describeOffsets: 90 } as const

export interface HeartbeatRequest {
  readonly group: string
  readonly member: string
  readonly memberEpoch: number
  /** Null if unchanged since the last heartbeat. */
  readonly topics: readonly string[] | null
}

export interface HeartbeatResponse extends Status {
  readonly memberEpoch: number
  readonly intervalMs: number
  /** Null if unchanged since the last heartbeat. */
  readonly assignment: readonly AssignedTopic[] | null
}

/*
  ```
  ShareGroupHeartbeat Request (Version: 1) => group_id member_id member_epoch rack_id? [subscribed_topic_names]?
    group_id => STRING            member_id => STRING, chosen by the client       member_epoch => INT32, 0 joins, -1 leaves
    rack_id => STRING             subscribed_topic_names => STRING
  ShareGroupHeartbeat Response (Version: 1) => throttle_time_ms error_code error_message? member_id? member_epoch
                                               heartbeat_interval_ms assignment?
    throttle_time_ms => INT32     error_code => INT16     error_message => STRING    member_id => STRING
    member_epoch => INT32         heartbeat_interval_ms => INT32
    assignment => [topic_partitions]
      topic_partitions => topic_id [partitions]      topic_id => UUID      partitions => INT32
  ```
*/
export const shareGroupHeartbeat = createAPI<[HeartbeatRequest], HeartbeatResponse>(
  API_KEYS.heartbeat,
  1,
  (request: HeartbeatRequest) =>
    Writer.create()
      .appendString(request.group)
      .appendString(request.member)
      .appendInt32(request.memberEpoch)
      .appendString(null)
      .appendArray(request.topics as string[] | null, (w, topic) => w.appendString(topic), true, false)
      .appendTaggedFields(),
  (_correlationId, _apiKey, _apiVersion, r) => {
    const status = readStatus(r)
    r.readNullableString()
    return { ...status, memberEpoch: r.readInt32(), intervalMs: r.readInt32(), assignment: readAssignment(r) }
  },
)

function readAssignment(r: Reader): AssignedTopic[] | null {
  return r.readNullableStruct(() => {
    const topics = r.readArray(() => ({ topicId: r.readUUID(), partitions: readInt32Array(r) }))
    r.readTaggedFields()
    return topics
  })
}

export interface DescribeOffsetsRequest {
  readonly group: string
  readonly topic: string
  readonly partitions: readonly number[]
}

/** Unacknowledged records by partition; -1 before the first acknowledgement. */
export interface DescribeOffsetsResponse extends Status {
  readonly lags: ReadonlyMap<number, number>
}

/*
  ```
  DescribeShareGroupOffsets Request (Version: 1) => [groups]
    groups => group_id [topics]?       topics => topic_name [partitions]       partitions => INT32
  DescribeShareGroupOffsets Response (Version: 1) => throttle_time_ms [groups]
    groups => group_id [topics] error_code error_message?
      topics => topic_name topic_id [partitions]
        partitions => partition_index start_offset leader_epoch lag error_code error_message?
          partition_index => INT32   start_offset => INT64   leader_epoch => INT32   lag => INT64 (since version 1)
  ```
*/
export const describeShareGroupOffsets = createAPI<[DescribeOffsetsRequest], DescribeOffsetsResponse>(
  API_KEYS.describeOffsets,
  1,
  (request: DescribeOffsetsRequest) =>
    Writer.create()
      .appendArray([request], (w, { group, topic, partitions }) => {
        w.appendString(group).appendArray([topic], (w, name) => {
          w.appendString(name).appendArray(partitions as number[], (w, p) => w.appendInt32(p), true, false)
        })
      })
      .appendTaggedFields(),
  (_correlationId, _apiKey, _apiVersion, r) => {
    r.readInt32()
    const [group] = r.readArray(readGroupLags)
    return group ?? { errorCode: 0, errorMessage: null, lags: new Map() }
  },
)

function readGroupLags(r: Reader): DescribeOffsetsResponse {
  r.readString()
  const lags = r.readArray(() => {
    r.readString()
    r.readUUID()
    return r.readArray(readPartitionLag)
  })
  return { lags: new Map(lags.flat()), errorCode: r.readInt16(), errorMessage: r.readNullableString() }
}

function readPartitionLag(r: Reader): [partition: number, lag: number] {
  const partition = r.readInt32()
  r.readInt64()
  r.readInt32()
  const lag = Number(r.readInt64())
  r.readInt16()
  r.readNullableString()
  return [partition, lag]
}
