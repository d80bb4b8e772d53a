import type { Topic } from '#shared/broker/broker.ts'

/** What an adapter noticed and went on from: one constant sentence, and the facts in snake_case. The caller logs it. */
export type OnProblem = (message: string, fields: Record<string, unknown>) => void

/** How to reach a Kafka cluster, and what must exist there. */
export interface KafkaOptions {
  /** Bootstrap addresses, `host:port`. */
  readonly brokers: readonly string[]
  /** `share`: share groups, Kafka 4.2 or later. `classic`: kafkajs and consumer groups. `auto`: the first that works. */
  readonly client: 'auto' | 'share' | 'classic'
  /** Put before every topic and group name, such as `sluice.`; empty for none. */
  readonly prefix: string
  readonly topics: readonly Topic[]
  readonly clientId: string
  /** Partitions of each queue with classic groups, which are as many workers as can share it. Default: 16. */
  readonly queuePartitions?: number
  /** Of topics made here. Default: 3, or as many as there are brokers. */
  readonly replicationFactor?: number
  readonly tls?: boolean
  readonly sasl?: KafkaSasl
  /** Longest a submit may take, in milliseconds. Default 30 s: Kafka needs 9 to 12 s to replace a dead broker as it is set up. */
  readonly sendTimeoutMs?: number
  /** Bound of what waits to be sent, in this process. Default 32 MiB. */
  readonly sendBufferBytesMax?: number
  /** Bound of `close`. Default 5 s. */
  readonly closeTimeoutMs?: number
  readonly onProblem: OnProblem
  /** Called when a consumer failed five times in a row without progress: the process should end. */
  readonly onFatal?: (error: unknown) => void
}

/** Credentials, in Kafka's words. */
export interface KafkaSasl {
  readonly mechanism: 'PLAIN' | 'SCRAM-SHA-256' | 'SCRAM-SHA-512'
  readonly username: string
  readonly password: string
}

/**
 * The classic group of a queue. Not its topic's own name, which its share group has: the broker keeps one kind of group a
 * name, and members of the other kind are refused for ever.
 */
export function classicGroup(topic: string): string {
  return `${topic}.classic`
}

/** Partitions that a topic must have, by its name with the prefix; 0 for a topic that is not of the options. */
export function partitionsNeeded({ topics, prefix }: KafkaOptions, topic: string): number {
  const found = topics.find(({ name }) => prefix + name === topic)
  return found?.partitionsMin ?? found?.partitions ?? 0
}

/** The {@link Topic.fetchGapMs} of a channel, by its name with the prefix; 0 where it has none. */
export function fetchGapMs({ topics, prefix }: KafkaOptions, topic: string): number {
  return topics.find(({ name }) => prefix + name === topic)?.fetchGapMs ?? 0
}

/** The defaults of what {@link KafkaOptions} leaves open. */
export const KAFKA_DEFAULTS = {
  sendTimeoutMs: 30_000,
  sendBufferBytesMax: 32 * 1024 * 1024,
  closeTimeoutMs: 5_000,
} as const
