/**
 * Wire format of share groups: four requests that no JavaScript client supports, built on the protocol primitives of `@platformatic/kafka`. All
 * functions are stateless. The versions are those of Kafka 4.2, the first release with share groups enabled.
 *
 * The notation is that of the Kafka protocol guide: `[x]` is an array, and `?` may be null. All versions here are flexible: strings and arrays are
 * compact, and every structure ends in tagged fields, none of which is used. Sources: KIP-932 (share groups), KIP-1206 (acquire mode), KIP-1226
 * (lag), and the message classes of Kafka 4.3.1.
 */
import { createAPI, type KafkaRecord, Reader, readRecordsBatches, Writer } from '@platformatic/kafka'

/** Special values of a member epoch (heartbeat) and of a session epoch (fetch, acknowledge). */
export const EPOCH = { first: 0, leaving: -1 } as const

interface Status {
  readonly errorCode: number
  readonly errorMessage: string | null
}

/** Partitions of one topic that a member may fetch from, possibly together with other members. */
export interface AssignedTopic {
  readonly topicId: string
  readonly partitions: readonly number[]
}

function readStatus(r: Reader): Status {
  r.readInt32() // Skips throttle_time_ms. The broker itself has already delayed the response.
  return { errorCode: r.readInt16(), errorMessage: r.readNullableString() }
}

function readInt32Array(r: Reader): number[] {
  return r.readArray(() => r.readInt32(), true, false)
}

/** Wire form of share group requests: membership (KIP-932) and lag (KIP-1226). */

const GROUP_API_KEYS = { heartbeat: 76, describeOffsets: 90 } as const

interface HeartbeatRequest {
  readonly group: string
  readonly member: string
  readonly memberEpoch: number
  /** Subscribed topics. Null if unchanged since the last heartbeat. */
  readonly topics: readonly string[] | null
}

export interface HeartbeatResponse extends Status {
  readonly memberEpoch: number
  readonly intervalMs: number
  /** Assigned partitions. Null if unchanged since the last heartbeat. */
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
  GROUP_API_KEYS.heartbeat,
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

interface DescribeOffsetsRequest {
  readonly group: string
  readonly topic: string
  readonly partitions: readonly number[]
}

/** Number of unacknowledged records by partition. -1 before the first acknowledgement. */
interface DescribeOffsetsResponse extends Status {
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
  GROUP_API_KEYS.describeOffsets,
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

/** Wire form of record requests: fetching and acknowledging (KIP-932, KIP-1206). */

const RECORD_API_KEYS = { fetch: 78, acknowledge: 79 } as const

/** Values of `acknowledge_types`. `gap` means that no record exists at the offset. */
export const ACK = { gap: 0, accept: 1, release: 2 } as const

/** Value of `share_acquire_mode`: the broker returns at most the requested number of records, and splits a batch if necessary (KIP-1206). */
const ACQUIRE_RECORD_LIMIT = 1

export interface AckBatch {
  readonly first: number
  readonly last: number
  readonly type: number
}

interface SharePartition {
  readonly partition: number
  readonly acks: readonly AckBatch[]
}

export interface ShareTopic {
  readonly topicId: string
  readonly partitions: readonly SharePartition[]
}

interface ShareFetchRequest {
  readonly group: string
  readonly member: string
  readonly sessionEpoch: number
  readonly maxWaitMs: number
  readonly maxRecords: number
  readonly maxBytes: number
  readonly topics: readonly ShareTopic[]
  readonly forgotten: readonly AssignedTopic[]
}

interface ShareFetchResponse extends Status {
  readonly lockMs: number
  readonly partitions: readonly FetchedPartition[]
}

/** Response for one partition of a fetch. Only the `records` within the `acquired` ranges belong to this member. */
export interface FetchedPartition extends Status {
  readonly topicId: string
  readonly partition: number
  readonly ackErrorCode: number
  readonly records: ReadonlyMap<number, KafkaRecord>
  readonly acquired: readonly AcquiredRange[]
}

interface AcquiredRange {
  readonly first: number
  readonly last: number
  readonly deliveryCount: number
}

/*
  ```
  ShareFetch Request (Version: 2) => group_id? member_id? share_session_epoch max_wait_ms min_bytes max_bytes max_records
                                     batch_size share_acquire_mode is_renew_ack [topics] [forgotten_topics_data]
    group_id, member_id => STRING      share_session_epoch => INT32, 0 opens, -1 closes
    max_wait_ms, min_bytes, max_bytes, max_records, batch_size => INT32
    share_acquire_mode => INT8, 0 whole batches, 1 record limit        is_renew_ack => BOOLEAN
    topics => topic_id [partitions]
      topic_id => UUID
      partitions => partition_index [acknowledgement_batches]
        partition_index => INT32
        acknowledgement_batches => first_offset last_offset [acknowledge_types]
          first_offset, last_offset => INT64       acknowledge_types => INT8, one for the whole range or one per offset
    forgotten_topics_data => topic_id [partitions]       partitions => INT32
  ShareFetch Response (Version: 2) => throttle_time_ms error_code error_message? acquisition_lock_timeout_ms [responses]
                                      [node_endpoints]
    responses => topic_id [partitions]
      partitions => partition_index error_code error_message? acknowledge_error_code acknowledge_error_message?
                    current_leader records [acquired_records]
        current_leader => leader_id leader_epoch    (INT32 both)
        records => RECORDS?
        acquired_records => first_offset last_offset delivery_count      (INT64, INT64, INT16)
    node_endpoints => node_id host port rack?, unused
  ```
*/
export const shareFetch = createAPI<[ShareFetchRequest], ShareFetchResponse>(
  RECORD_API_KEYS.fetch,
  2,
  (request: ShareFetchRequest) => {
    const w = Writer.create()
      .appendString(request.group)
      .appendString(request.member)
      .appendInt32(request.sessionEpoch)
      .appendInt32(request.maxWaitMs)
      .appendInt32(1)
      .appendInt32(request.maxBytes)
      .appendInt32(request.maxRecords)
      .appendInt32(request.maxRecords)
      .appendInt8(ACQUIRE_RECORD_LIMIT)
      .appendBoolean(false)
    return writeTopics(w, request.topics)
      .appendArray(request.forgotten as AssignedTopic[], (w, topic) => {
        w.appendUUID(topic.topicId).appendArray(topic.partitions as number[], (w, p) => w.appendInt32(p), true, false)
      })
      .appendTaggedFields()
  },
  (_correlationId, _apiKey, _apiVersion, r) => {
    const status = readStatus(r)
    return { ...status, lockMs: r.readInt32(), partitions: readTopics(r, readFetchedPartition) }
  },
)

function readFetchedPartition(r: Reader, topicId: string): FetchedPartition {
  const partition = r.readInt32()
  const errorCode = r.readInt16()
  const errorMessage = r.readNullableString()
  const ackErrorCode = r.readInt16()
  r.readNullableString()
  skipLeader(r)
  const records = readRecords(r)
  const acquired = r.readArray(() => ({
    first: Number(r.readInt64()),
    last: Number(r.readInt64()),
    deliveryCount: r.readInt16(),
  }))
  return { topicId, partition, errorCode, errorMessage, ackErrorCode, records, acquired }
}

function readRecords(r: Reader): Map<number, KafkaRecord> {
  const records = new Map<number, KafkaRecord>()
  const bytes = r.readUnsignedVarInt() - 1 // In the compact format, length 0 means null and length 1 means empty.
  if (bytes <= 0) return records
  for (const batch of readRecordsBatches(Reader.from(r.buffer.subarray(r.position, r.position + bytes)))) {
    for (const record of batch.records) records.set(Number(batch.firstOffset) + record.offsetDelta, record)
  }
  r.skip(bytes)
  return records
}

interface ShareAcknowledgeRequest {
  readonly group: string
  readonly member: string
  readonly sessionEpoch: number
  readonly topics: readonly ShareTopic[]
}

interface ShareAcknowledgeResponse extends Status {
  readonly partitions: readonly {
    readonly topicId: string
    readonly partition: number
    readonly ackErrorCode: number
  }[]
}

/*
  ```
  ShareAcknowledge Request (Version: 2) => group_id? member_id? share_session_epoch is_renew_ack [topics]
    as in ShareFetch; share_session_epoch -1 closes the session and releases its unacknowledged records
  ShareAcknowledge Response (Version: 2) => throttle_time_ms error_code error_message? acquisition_lock_timeout_ms
                                            [responses] [node_endpoints]
    responses => topic_id [partitions]
      partitions => partition_index error_code error_message? current_leader
  ```
*/
export const shareAcknowledge = createAPI<[ShareAcknowledgeRequest], ShareAcknowledgeResponse>(
  RECORD_API_KEYS.acknowledge,
  2,
  (request: ShareAcknowledgeRequest) => {
    const w = Writer.create()
      .appendString(request.group)
      .appendString(request.member)
      .appendInt32(request.sessionEpoch)
      .appendBoolean(false)
    return writeTopics(w, request.topics).appendTaggedFields()
  },
  (_correlationId, _apiKey, _apiVersion, r) => {
    const status = readStatus(r)
    r.readInt32()
    return {
      ...status,
      partitions: readTopics(r, (r, topicId) => {
        const partition = { topicId, partition: r.readInt32(), ackErrorCode: r.readInt16() }
        r.readNullableString()
        skipLeader(r)
        return partition
      }),
    }
  },
)

function writeTopics(w: Writer, topics: readonly ShareTopic[]): Writer {
  return w.appendArray(topics as ShareTopic[], (w, topic) => {
    w.appendUUID(topic.topicId).appendArray(topic.partitions as SharePartition[], (w, { partition, acks }) => {
      w.appendInt32(partition).appendArray(acks as AckBatch[], (w, { first, last, type }) => {
        w.appendInt64(BigInt(first)).appendInt64(BigInt(last))
        w.appendArray([type], (w, type) => w.appendInt8(type), true, false)
      })
    })
  })
}

function readTopics<P>(r: Reader, readPartition: (r: Reader, topicId: string) => P): P[] {
  const topics = r.readArray(() => {
    const topicId = r.readUUID()
    return r.readArray(() => readPartition(r, topicId))
  })
  return topics.flat()
}

/** Skips the leader in a response. Leaders are read from the metadata, which includes their addresses. */
function skipLeader(r: Reader): void {
  r.readInt32()
  r.readInt32()
  r.readTaggedFields()
}
