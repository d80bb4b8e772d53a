import { PoolName } from '#schemas/job.ts'
import type { KafkaFacts } from '#shared/broker/kafka/inspect.ts'
import type { Config, KafkaConfig } from '#shared/config/config.ts'
import { topicsFor } from '#shared/jobs/records.ts'
import type { PostgresFacts } from '#shared/store/postgres/inspect.ts'

/*
 * Inspects Kafka and Postgres for `sluice doctor`. Nothing is changed, and no adapter is opened, because opening one would create topics or tables.
 */

export type { PostgresFacts }

export async function inspectKafka(config: Config, kafka: KafkaConfig): Promise<KafkaFacts> {
  const { inspectKafka } = await import('#shared/broker/kafka/inspect.ts')
  const { connectionOf } = await import('#shared/broker/kafka/credentials.ts')
  return await inspectKafka({
    brokers: kafka.brokers,
    client: kafka.client,
    prefix: kafka.prefix,
    topics: topicsFor(PoolName.options, config.requestTimeoutMs, config.jobDeadlineMaxMs),
    clientId: 'sluice-doctor',
    ...connectionOf(kafka),
    onProblem: () => undefined,
  })
}

export async function inspectPostgres(url: string): Promise<PostgresFacts> {
  const { inspectPostgres } = await import('#shared/store/postgres/inspect.ts')
  return await inspectPostgres(url)
}

/** Returns the id of the blob store of this process. Undefined if its directory has no id yet. */
export async function findBlobsId(config: Config): Promise<string | undefined> {
  if (config.blobs === undefined) return await (await import('#shared/blobs/disk.ts')).findDirectoryId(config.blobDir)
  const { openS3Blobs } = await import('#shared/blobs/s3.ts')
  return await (await openS3Blobs(config.blobs)).identity()
}
