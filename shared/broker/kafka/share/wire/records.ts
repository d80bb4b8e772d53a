/** Wire form of record requests: fetching and acknowledging (KIP-932, KIP-1206). */
import { createAPI, type KafkaRecord, Reader, readRecordsBatches, Writer } from '@platformatic/kafka'
import { type AssignedTopic, readStatus, type Status } from './parts.ts'

const API_KEYS = { fetch: 78, acknowledge: 79 } as const

/** Values of `acknowledge_types`. 0 is a gap: the offset holds no record. */
export const ACK = { gap: 0, accept: 1, release: 2 } as const

/** `share_acquire_mode` 1, record limit: at most the requested number of records, even if that splits a batch (KIP-1206). */
const ACQUIRE_RECORD_LIMIT = 1

export interface AckBatch {
  readonly first: number
  readonly last: number
  readonly type: number
}

export interface SharePartition {
  readonly partition: number
  readonly acks: readonly AckBatch[]
}

export interface ShareTopic {
  readonly topicId: string
  readonly partitions: readonly SharePartition[]
}

export interface ShareFetchRequest {
  readonly group: string
  readonly member: string
  readonly sessionEpoch: number
  readonly maxWaitMs: number
  readonly maxRecords: number
  readonly maxBytes: number
  readonly topics: readonly ShareTopic[]
  readonly forgotten: readonly AssignedTopic[]
}

export interface ShareFetchResponse extends Status {
  readonly lockMs: number
  readonly partitions: readonly FetchedPartition[]
}

/** One partition of a fetch. Only the `records` within `acquired` belong to this member. */
export interface FetchedPartition extends Status {
  readonly topicId: string
  readonly partition: number
  readonly ackErrorCode: number
  readonly records: ReadonlyMap<number, KafkaRecord>
  readonly acquired: readonly AcquiredRange[]
}

export interface AcquiredRange {
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
          first_offset, last_offset => INT64       acknowledge_types => INT8, one for the run or one an offset
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
  API_KEYS.fetch,
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
  const bytes = r.readUnsignedVarInt() - 1 // compact: 0 is null, 1 is empty
  if (bytes <= 0) return records
  for (const batch of readRecordsBatches(Reader.from(r.buffer.subarray(r.position, r.position + bytes)))) {
    for (const record of batch.records) records.set(Number(batch.firstOffset) + record.offsetDelta, record)
  }
  r.skip(bytes)
  return records
}

export interface ShareAcknowledgeRequest {
  readonly group: string
  readonly member: string
  readonly sessionEpoch: number
  readonly topics: readonly ShareTopic[]
}

export interface ShareAcknowledgeResponse extends Status {
  readonly partitions: readonly {
    readonly topicId: string
    readonly partition: number
    readonly ackErrorCode: number
  }[]
}

/*
  ```
  ShareAcknowledge Request (Version: 2) => group_id? member_id? share_session_epoch is_renew_ack [topics]
    as in ShareFetch; share_session_epoch -1 closes the session and releases what it still holds
  ShareAcknowledge Response (Version: 2) => throttle_time_ms error_code error_message? acquisition_lock_timeout_ms
                                            [responses] [node_endpoints]
    responses => topic_id [partitions]
      partitions => partition_index error_code error_message? current_leader
  ```
*/
export const shareAcknowledge = createAPI<[ShareAcknowledgeRequest], ShareAcknowledgeResponse>(
  API_KEYS.acknowledge,
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
