/**
 * The wire grammar of share groups: four requests that no JavaScript client supports, built on the protocol primitives of `@platformatic/kafka`.
 * Requests of groups are in group.ts, those of records in records.ts. All functions are stateless. The versions are those of Kafka 4.2, the first
 * with share groups enabled.
 *
 * Notation of the Kafka protocol guide: `[x]` is an array, `?` may be null. All versions here are flexible: strings and arrays are compact, and every
 * structure ends in tagged fields, none of which is used. Sources: KIP-932 (share groups), KIP-1206 (acquire mode), KIP-1226 (lag), and the message
 * classes of Kafka 4.3.1.
 */
import type { Reader } from '@platformatic/kafka'

/** Special values of an epoch, both for members (heartbeat) and for sessions (fetch, acknowledge). */
export const EPOCH = { first: 0, leaving: -1 } as const

export interface Status {
  readonly errorCode: number
  readonly errorMessage: string | null
}

/** Partitions of one topic that a member may fetch from, possibly together with other members. */
export interface AssignedTopic {
  readonly topicId: string
  readonly partitions: readonly number[]
}

export function readStatus(r: Reader): Status {
  r.readInt32() // throttle_time_ms: the broker has already waited
  return { errorCode: r.readInt16(), errorMessage: r.readNullableString() }
}

export function readInt32Array(r: Reader): number[] {
  return r.readArray(() => r.readInt32(), true, false)
}
