/** Opens the broker on Kafka, with share groups or classic groups, and refuses an unsuitable cluster. */

import type { Broker } from '#shared/broker/broker.ts'
import { PlatformaticAdmin } from './admin.ts'
import { KafkaBroker, type QueueGroups } from './broker.ts'
import { KafkaCluster } from './cluster.ts'
import { isTransient } from './errors.ts'
import { hasShareGroups, unavailable } from './inspect.ts'
import { type KafkaOptions, pause } from './options.ts'
import { KafkaUnsuitableError, warnOfLateFailover } from './topics.ts'

export type { KafkaOptions } from './options.ts'

const READY_TIMEOUT_MS = 10_000
const READY_INTERVAL_MS = 100

const SHARE_GROUPS_OFF = new KafkaUnsuitableError([
  {
    problem: 'The brokers have no share groups: they are older than Kafka 4.2, or the feature is off',
    remediation:
      'Upgrade to Kafka 4.2 or later. Then run kafka-features.sh --bootstrap-server HOST:PORT upgrade --feature share.version=1. Or set KAFKA_CLIENT=classic',
  },
])

/**
 * Connects, creates missing topics, and checks the existing topics.
 *
 * @returns A broker that the caller closes.
 * @throws KafkaUnsuitableError with every problem and its remedy. ServiceError `overloaded` if no broker answers, with the remedy in its cause
 */
export async function openKafkaBroker(options: KafkaOptions): Promise<Broker> {
  const cluster = new KafkaCluster(options)
  let groups: QueueGroups | undefined
  try {
    await cluster.follow([])
    groups = await chooseGroups(cluster, options)
    await prepare(cluster, groups, options)
    return new KafkaBroker(cluster, groups, options)
  } catch (error) {
    groups?.close()
    await cluster.close()
    throw unavailable(error, isTransient(error)) ?? error
  }
}

/** Loads kafkajs only if classic groups are used. */
async function chooseGroups(cluster: KafkaCluster, options: KafkaOptions): Promise<QueueGroups> {
  if (options.client !== 'classic' && (await hasShareGroups(cluster))) {
    const { shareGroups } = await import('./share/groups.ts')
    return shareGroups(cluster, options)
  }
  if (options.client === 'share') throw SHARE_GROUPS_OFF
  if (options.client === 'auto') {
    options.onProblem('Kafka has no share groups; using classic groups', {
      weaker: 'jobs wait for their partition, a joining worker may repeat running jobs, a lost worker is detected late',
      remediation:
        'Upgrade to Kafka 4.2 or later. Then run kafka-features.sh --bootstrap-server HOST:PORT upgrade --feature share.version=1',
    })
  }
  const { classicGroups } = await import('./classic/groups.ts')
  return classicGroups(cluster, options)
}

async function prepare(cluster: KafkaCluster, groups: QueueGroups, options: KafkaOptions): Promise<void> {
  const admin = new PlatformaticAdmin(cluster, options)
  try {
    const problems = await groups.check(admin)
    if (problems.length > 0) throw new KafkaUnsuitableError(problems)
    await warnOfLateFailover(admin, options)
  } finally {
    await admin.close()
  }
  await untilLed(cluster, options)
}

/** Waits until all topics have leaders. New topics have none at first. */
async function untilLed(cluster: KafkaCluster, options: KafkaOptions): Promise<void> {
  const names = options.topics.map(({ name }) => options.prefix + name)
  const timeout = AbortSignal.timeout(READY_TIMEOUT_MS)
  for (;;) {
    await cluster.follow(names)
    const leaderless = names.filter((name) => cluster.leader(name, 0) < 0)
    if (leaderless.length === 0) return
    if (timeout.aborted) {
      const problem = `No broker leads ${leaderless.join(', ')}`
      throw new KafkaUnsuitableError([{ problem, remediation: 'Check the state of the brokers' }])
    }
    await pause(READY_INTERVAL_MS, timeout)
  }
}
