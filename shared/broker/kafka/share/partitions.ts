import type { AssignedTopic } from './wire/parts.ts'
import type { AckBatch, ShareTopic } from './wire/records.ts'

export interface PendingAck {
  readonly record: { readonly topicId: string; readonly partition: number; readonly offset: number }
  readonly type: number
}

export function keyOf(topicId: string, partition: number): string {
  return `${topicId} ${partition}`
}

/** Groups partitions by topic, as Kafka requests require. */
export function toTopics(keys: readonly string[]): AssignedTopic[] {
  const topics = new Map<string, number[]>()
  for (const key of keys) {
    const [topicId = '', partition] = key.split(' ')
    const partitions = topics.get(topicId)
    if (partitions) partitions.push(Number(partition))
    else topics.set(topicId, [Number(partition)])
  }
  return [...topics].map(([topicId, partitions]) => ({ topicId, partitions }))
}

/** Partitions of a request: those with acknowledgements, and added ones without. */
export function topicsOf(acks: readonly PendingAck[], added: readonly string[]): ShareTopic[] {
  const batches = new Map<string, PendingAck[]>(added.map((key) => [key, []]))
  for (const ack of acks) {
    const key = keyOf(ack.record.topicId, ack.record.partition)
    const own = batches.get(key)
    if (own) own.push(ack)
    else batches.set(key, [ack])
  }
  return toTopics([...batches.keys()]).map(({ topicId, partitions }) => ({
    topicId,
    partitions: partitions.map((partition) => ({
      partition,
      acks: toRuns(batches.get(keyOf(topicId, partition)) ?? []),
    })),
  }))
}

/** Merges adjacent offsets with the same type; the broker requires ascending order. */
function toRuns(acks: readonly PendingAck[]): AckBatch[] {
  const runs: { first: number; last: number; type: number }[] = []
  for (const { record, type } of acks.toSorted((a, b) => a.record.offset - b.record.offset)) {
    const run = runs.at(-1)
    if (run && run.type === type && run.last === record.offset - 1) run.last = record.offset
    else runs.push({ first: record.offset, last: record.offset, type })
  }
  return runs
}
