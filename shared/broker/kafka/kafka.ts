/**
 * Opens the broker on Kafka, with share groups or classic groups, and refuses an unsuitable cluster.
 *
 * Only the chosen adapter is loaded, so that an operator who has approved one client library never loads the other
 * library.
 */

import type { Broker } from '#shared/broker/broker.ts'
import { hasShareGroups, unavailable } from './inspect.ts'
import type { KafkaOptions } from './options.ts'
import { KafkaUnsuitableError } from './topics.ts'

export type { KafkaOptions } from './options.ts'

const SHARE_GROUPS_OFF = new KafkaUnsuitableError([
  {
    problem: 'The brokers have no share groups: they are older than Kafka 4.2, or the feature is off',
    remediation: 'Upgrade, then run kafka-features.sh upgrade --feature share.version=1; or set KAFKA_CLIENT=classic',
  },
])

/**
 * Connects, creates missing topics, and checks the existing topics.
 *
 * @returns A broker that the caller closes.
 * @throws KafkaUnsuitableError with every problem and its remedy. ServiceError `overloaded` if no broker answers, with the remedy in its cause
 */
export async function openKafkaBroker(options: KafkaOptions): Promise<Broker> {
  if (options.client === 'classic') return await openClassic(options)
  const { KafkaCluster } = await import('./cluster.ts')
  const cluster = new KafkaCluster(options)
  try {
    await cluster.follow([])
    if (await hasShareGroups(cluster)) {
      const { openShareBroker } = await import('./share/broker.ts')
      return await openShareBroker(cluster, options)
    }
  } catch (error) {
    await cluster.close()
    const { isTransient } = await import('./errors.ts')
    throw unavailable(error, isTransient(error)) ?? error
  }
  await cluster.close()
  if (options.client === 'share') throw SHARE_GROUPS_OFF
  options.onProblem('Kafka has no share groups; using classic groups', {
    weaker: 'jobs wait for their partition, a joining worker may repeat running jobs, a lost worker is detected late',
    remediation: 'Kafka 4.2 or later, with kafka-features.sh upgrade --feature share.version=1',
  })
  return await openClassic(options)
}

async function openClassic(options: KafkaOptions): Promise<Broker> {
  const { openClassicBroker } = await import('./classic/broker.ts')
  return await openClassicBroker(options).catch(async (error: unknown) => {
    const { isTransientInKafkaJs } = await import('./classic/client.ts')
    throw unavailable(error, isTransientInKafkaJs(error)) ?? error
  })
}
