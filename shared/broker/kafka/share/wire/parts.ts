/**
 * The wire grammar of share groups: the four requests that no JavaScript client has yet, over the protocol primitives of
 * `@platformatic/kafka`, of groups (group.ts) and of records (records.ts). Nothing here keeps state. Versions are those of Kafka 4.2, the first with share groups on.
 *
 * Notation of the Kafka protocol guide: `[x]` is an array, `?` may be null. All versions here are flexible: strings and
 * arrays are compact, every structure ends in tagged fields, of which none is needed.
 * Sources: KIP-932 (share groups), KIP-1206 (acquire mode), KIP-1226 (lag), and the message classes of Kafka 4.3.1.
 */
import type { Reader } from '@platformatic/kafka'

/** The epochs with a meaning of their own, of members (heartbeat) and of sessions (fetch, acknowledge). */
export const EPOCH = { first: 0, leaving: -1 } as const

/** What every response says first. */
export interface Status {
  readonly errorCode: number
  readonly errorMessage: string | null
}

/** The partitions of one topic that a member may fetch from; other members may have them too. */
export interface AssignedTopic {
  readonly topicId: string
  readonly partitions: readonly number[]
}

/** Reads what every response says first. */
export function readStatus(r: Reader): Status {
  r.readInt32() // throttle_time_ms: the broker has already waited
  return { errorCode: r.readInt16(), errorMessage: r.readNullableString() }
}

/** Reads numbers of partitions. */
export function readInt32Array(r: Reader): number[] {
  return r.readArray(() => r.readInt32(), true, false)
}
