import { PoolName } from '#schemas/job.ts'
import type { KafkaFacts } from '#shared/broker/kafka/inspect.ts'
import type { Config, KafkaConfig } from '#shared/config/config.ts'
import { topicsFor } from '#shared/jobs/topics.ts'
import type { PostgresFacts } from '#shared/store/postgres/inspect.ts'

/* Read-only inspection of Kafka and Postgres for `sluice doctor`, before any adapter is opened. Client libraries are loaded only when used. */

export type { PostgresFacts }

/** Inspects the Kafka cluster of the settings without changing it. @throws Error if no broker answers */
export async function inspectKafka(config: Config, kafka: KafkaConfig): Promise<KafkaFacts> {
  const { inspectKafka } = await import('#shared/broker/kafka/inspect.ts')
  return await inspectKafka({
    brokers: kafka.brokers,
    client: kafka.client,
    prefix: kafka.prefix,
    topics: topicsFor(PoolName.options, config.requestTimeoutMs, config.jobDeadlineMaxMs),
    clientId: 'sluice-doctor',
    tls: kafka.tls,
    ...(kafka.sasl && { sasl: kafka.sasl }),
    onProblem: () => undefined,
  })
}

/** Inspects a Postgres server without changing it. @throws ServiceError if the server does not answer */
export async function inspectPostgres(url: string): Promise<PostgresFacts> {
  const { inspectPostgres } = await import('#shared/store/postgres/inspect.ts')
  return await inspectPostgres(url)
}
