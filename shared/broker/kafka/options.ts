import type { Topic } from '#shared/broker/broker.ts'

/** Reports a problem from which the adapter recovers: a constant event name, and the facts in snake_case. The caller logs it. */
export type OnProblem = (message: string, fields: Record<string, unknown>) => void

export interface KafkaOptions {
  readonly brokers: readonly string[]
  /**
   * `share`: share groups, Kafka 4.2 or later. `classic`: kafkajs and consumer groups. `auto`: share groups if the cluster
   * supports them, otherwise classic groups.
   */
  readonly client: 'auto' | 'share' | 'classic'
  /** Prefix of every topic and group name, such as `sluice.`; may be empty. */
  readonly prefix: string
  readonly topics: readonly Topic[]
  readonly clientId: string
  /** Number of partitions of each queue with classic groups, which limits the number of workers that can share it. Default: 16. */
  readonly queuePartitions?: number
  /** Replicas of created topics. Default: 3, or the number of brokers if there are fewer. */
  readonly replicationFactor?: number
  readonly tls?: boolean
  readonly sasl?: KafkaSasl
  /** Maximum time of a submit, in ms. Default 30 s: with its default settings, Kafka needs 9 to 12 s to replace a dead broker. */
  readonly sendTimeoutMs?: number
  /** Maximum bytes that wait to be sent in this process. Default 32 MiB. */
  readonly sendBufferBytesMax?: number
  /** Maximum time of `close`, in ms. Default 5 s. */
  readonly closeTimeoutMs?: number
  readonly onProblem: OnProblem
  /** Called after five consecutive failures of a consumer without progress: the process should exit. */
  readonly onFatal?: (error: unknown) => void
}

export interface KafkaSasl {
  readonly mechanism: 'PLAIN' | 'SCRAM-SHA-256' | 'SCRAM-SHA-512'
  readonly username: string
  readonly password: string
}

/**
 * The classic group of a queue. A suffix is needed, because the topic's own name belongs to its share group. The broker permits one kind of group per
 * name and refuses members of the other kind forever.
 */
export function classicGroup(topic: string): string {
  return `${topic}.classic`
}

export function partitionsNeeded({ topics, prefix }: KafkaOptions, topic: string): number {
  const found = topics.find(({ name }) => prefix + name === topic)
  return found?.partitionsMin ?? found?.partitions ?? 0
}

export function fetchGapMs({ topics, prefix }: KafkaOptions, topic: string): number {
  return topics.find(({ name }) => prefix + name === topic)?.fetchGapMs ?? 0
}

export const KAFKA_DEFAULTS = {
  sendTimeoutMs: 30_000,
  sendBufferBytesMax: 32 * 1024 * 1024,
  closeTimeoutMs: 5_000,
} as const
