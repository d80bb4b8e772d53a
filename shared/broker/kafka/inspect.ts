import type { KafkaCluster } from './cluster.ts'
import type { KafkaOptions } from './options.ts'
import { type BootProblem, lateFailover, readable } from './topics.ts'
import { orUnavailable } from './unavailable.ts'

/** The first version of ShareFetch that returns no more records than requested (Kafka 4.2, KIP-1206). */
const SHARE_FETCH = { key: 78, version: 2 }
const SHARE_FEATURE = 'share.version'

export interface KafkaFacts {
  readonly brokers: number
  readonly topics: number
  readonly missing: readonly string[]
  readonly hasShareGroups: boolean
  /** Problem of a slow failover; undefined if failover is quick, if there is only one broker, or if the setting cannot be read. */
  readonly lateFailover: BootProblem | undefined
}

export async function inspectKafka(options: KafkaOptions): Promise<KafkaFacts> {
  const { KafkaCluster } = await import('./cluster.ts')
  const { PlatformaticAdmin } = await import('./share/admin.ts')
  const { isTransient } = await import('./errors.ts')
  const cluster = new KafkaCluster(options)
  const admin = new PlatformaticAdmin(cluster, options)
  try {
    const names = options.topics.map(({ name }) => options.prefix + name)
    await orUnavailable(cluster.follow(names), isTransient)
    const settings = await readable(admin.brokerSettings(), 'broker', options)
    return {
      brokers: cluster.nodeIds.length,
      topics: names.length,
      missing: names.filter((name) => cluster.partitions(name) === 0),
      hasShareGroups: await hasShareGroups(cluster),
      lateFailover: lateFailover(cluster.nodeIds.length, settings),
    }
  } finally {
    await admin.close()
    await cluster.close()
  }
}

/** Whether share groups are enabled. A cluster upgraded from before 4.2 supports the requests, but refuses them until the feature is raised. */
export async function hasShareGroups(cluster: KafkaCluster): Promise<boolean> {
  const { apiKeys, finalizedFeatures } = await cluster.versions()
  const { key, version } = SHARE_FETCH
  const isKnown = apiKeys.some(({ apiKey, maxVersion }) => apiKey === key && maxVersion >= version)
  const feature = finalizedFeatures?.find(({ name }) => name === SHARE_FEATURE)
  return isKnown && (feature?.maxVersionLevel ?? 0) > 0
}
