import type { KafkaCluster } from './cluster.ts'
import type { KafkaOptions } from './options.ts'

/** The first version of ShareFetch that gives no more records than asked for (Kafka 4.2, KIP-1206). */
const SHARE_FETCH = { key: 78, version: 2 }
const SHARE_FEATURE = 'share.version'

/** What a cluster is like, before anything is done to it. */
export interface KafkaFacts {
  readonly brokers: number
  /** Topics of the options that are not there. */
  readonly missing: readonly string[]
  readonly hasShareGroups: boolean
}

/** Looks at a cluster and changes nothing. @throws when no broker answers */
export async function inspectKafka(options: KafkaOptions): Promise<KafkaFacts> {
  const { KafkaCluster } = await import('./cluster.ts')
  const cluster = new KafkaCluster(options)
  try {
    const names = options.topics.map(({ name }) => options.prefix + name)
    await cluster.follow(names)
    return {
      brokers: cluster.nodeIds.length,
      missing: names.filter((name) => cluster.partitions(name) === 0),
      hasShareGroups: await hasShareGroups(cluster),
    }
  } finally {
    await cluster.close()
  }
}

/** A cluster upgraded from before 4.2 knows the requests but keeps them off until the feature is raised. */
export async function hasShareGroups(cluster: KafkaCluster): Promise<boolean> {
  const { apiKeys, finalizedFeatures } = await cluster.versions()
  const { key, version } = SHARE_FETCH
  const isKnown = apiKeys.some(({ apiKey, maxVersion }) => apiKey === key && maxVersion >= version)
  const feature = finalizedFeatures?.find(({ name }) => name === SHARE_FEATURE)
  return isKnown && (feature?.maxVersionLevel ?? 0) > 0
}
