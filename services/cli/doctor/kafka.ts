import { PoolName } from '#schemas/job.ts'
import { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import type { KafkaConfig } from '#shared/config/config.ts'
import { topicsFor } from '#shared/jobs/topics.ts'
import { type Check, type Finding, failed, ok, skipped, warned } from './check.ts'

/** ShareFetch as the share adapter speaks it, and the feature that turns it on (Kafka 4.2, KIP-932, KIP-1206). */
const SHARE_FETCH = { key: 78, version: 2 }
const SHARE_FEATURE = 'share.version'

/** Kafka, where KAFKA_BROKERS names one: there, new enough, with share groups, with its topics. */
export const kafkaCheck: Check = {
  name: 'kafka',
  fix: 'Start Kafka, or mend KAFKA_BROKERS, KAFKA_TLS or the KAFKA_SASL_MECHANISM, KAFKA_USERNAME and KAFKA_PASSWORD.',
  async run(config) {
    const { kafka } = config
    if (!kafka) return [skipped('kafka', 'not needed: without KAFKA_BROKERS the queue lives in the process')]
    const topics = topicsFor(PoolName.options, Math.max(config.requestTimeoutMs, config.jobDeadlineMaxMs))
    const cluster = new KafkaCluster({
      brokers: kafka.brokers,
      client: kafka.client,
      prefix: kafka.prefix,
      topics,
      clientId: 'sluice-doctor',
      tls: kafka.tls,
      ...(kafka.sasl && { sasl: kafka.sasl }),
      onProblem: () => undefined,
    })
    try {
      const names = topics.map(({ name }) => kafka.prefix + name)
      await cluster.follow(names)
      const missing = names.filter((name) => cluster.partitions(name) === 0)
      const made = missing.length > 0 ? `; ${missing.length} topics are made at the next start` : ''
      const brokers = `${cluster.nodeIds.length} ${cluster.nodeIds.length === 1 ? 'broker' : 'brokers'}${made}`
      return [groupsFinding(kafka, await hasShareGroups(cluster), brokers)]
    } finally {
      await cluster.close()
    }
  },
}

function groupsFinding({ client }: KafkaConfig, hasShare: boolean, brokers: string): Finding {
  if (client === 'classic') return ok('kafka', `${brokers}; classic groups, as KAFKA_CLIENT says`)
  if (hasShare) return ok('kafka', `${brokers}; 4.2 or later, with share groups`)
  const fix = 'Upgrade to Kafka 4.2 or later, then: kafka-features.sh upgrade --feature share.version=1'
  if (client === 'share') return failed('kafka', `${brokers}; no share groups, but KAFKA_CLIENT=share`, fix)
  return warned('kafka', `${brokers}; no share groups, so the weaker classic groups are used`, fix)
}

/** Known and turned on: a cluster upgraded from before 4.2 knows the requests but keeps them off. */
async function hasShareGroups(cluster: KafkaCluster): Promise<boolean> {
  const { apiKeys, finalizedFeatures } = await cluster.versions()
  const { key, version } = SHARE_FETCH
  const isKnown = apiKeys.some(({ apiKey, maxVersion }) => apiKey === key && maxVersion >= version)
  return isKnown && (finalizedFeatures?.find(({ name }) => name === SHARE_FEATURE)?.maxVersionLevel ?? 0) > 0
}
