/**
 * Configures kafkajs for production on Node 24. Log messages are passed to `onProblem`. kafkajs itself retries only briefly, because the
 * adapters retry forever. Patches of kafkajs prevent timer warnings, and change how a consumer joins its group.
 */

import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs, {
  type Kafka,
  type KafkaConfig,
  type LogEntry,
  type PartitionAssigner,
  PartitionAssigners,
} from 'kafkajs'
import { TOKEN_UNAVAILABLE } from '#shared/broker/kafka/credentials.ts'
import type { KafkaOptions, KafkaSasl } from '#shared/broker/kafka/options.ts'
import { groupRemedy, isDenied } from '#shared/broker/kafka/topics.ts'
import type { BrokerSockets } from './sockets.ts'

const CONNECTION_TIMEOUT_MS = 1_000
const REQUEST_TIMEOUT_MS = 8_000

/** Retries of a single request by kafkajs. Times are in ms. */
const RETRY = { retries: 2, initialRetryTime: 50, maxRetryTime: 500, restartOnFailure: async () => false } as const

/**
 * Retries of a consumer before it ends: at least 5 s in sum. Within this time, the controller fences a dead broker, and the consumer
 * continues with the new leaders. If the consumer ended earlier, then its group would rebalance.
 */
export const CONSUMER_RETRY = { ...RETRY, retries: 14 } as const

const TRANSIENT = new Set([
  'KafkaJSConnectionError',
  'KafkaJSConnectionClosedError',
  'KafkaJSRequestTimeoutError',
  'KafkaJSTimeout',
  'KafkaJSBrokerNotFound',
  'KafkaJSNoBrokerAvailableError',
  'KafkaJSGroupCoordinatorNotFound',
  'KafkaJSMetadataNotLoaded',
  'KafkaJSLockTimeout',
])

/** @param sockets Opens the connections, so that the caller can close those to hung brokers. Default: the connections of kafkajs */
export function createKafkaJs(options: KafkaOptions, sockets?: BrokerSockets): Kafka {
  patchTimer()
  patchGroup()
  const config: KafkaConfig = {
    clientId: options.clientId,
    brokers: [...options.brokers],
    connectionTimeout: CONNECTION_TIMEOUT_MS,
    authenticationTimeout: REQUEST_TIMEOUT_MS,
    requestTimeout: REQUEST_TIMEOUT_MS,
    enforceRequestTimeout: true,
    retry: RETRY,
    logLevel: kafkajs.logLevel.ERROR,
    logCreator: () => (entry) => report(entry, options),
  }
  if (options.tls) config.ssl = { ...options.tls }
  if (options.sasl) config.sasl = saslOf(options.sasl)
  if (sockets) config.socketFactory = sockets.factory
  return new kafkajs.Kafka(config)
}

function saslOf(sasl: KafkaSasl): NonNullable<KafkaConfig['sasl']> {
  if (sasl.mechanism === 'OAUTHBEARER') {
    const { token } = sasl
    return { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: await token() }) }
  }
  const { mechanism, username, password } = sasl
  const name = mechanism.toLowerCase() as 'plain' | 'scram-sha-256' | 'scram-sha-512'
  return { mechanism: name, username, password } as NonNullable<KafkaConfig['sasl']>
}

export function isTransientInKafkaJs(thrown: unknown): boolean {
  const error = thrown as (Partial<Error> & { readonly retriable?: boolean; readonly code?: unknown }) | null
  if (!error) return false
  if (error.code === TOKEN_UNAVAILABLE) return true
  if (error.cause) return isTransientInKafkaJs(error.cause)
  return error.retriable === true || TRANSIENT.has(error.name ?? '')
}

/**
 * Reports an error that kafkajs logs. Under the namespace `Connection`, kafkajs logs each failed request, whose error the caller also receives and
 * retries or reports. After a rebalance or the loss of a broker, there are hundreds of such entries. From this namespace, only a missing permission
 * is therefore reported.
 */
function report({ namespace, log }: LogEntry, options: KafkaOptions): void {
  if (namespace === 'Connection' && !isDenied(log.error)) return
  const details = { namespace, error: log.message, detail: log.error, ...groupRemedy(log.error, options) }
  options.onProblem('kafkajs reported an error', details)
}

interface RequestQueue {
  readonly pending: readonly unknown[]
  readonly throttledUntil: number
  scheduleCheckPendingRequests(): void
}
const repaired = Symbol('sluice.mended')

/**
 * Removes a needless timer of kafkajs, which is set after each request that leaves the queue empty. The delay of the timer is negative, so Node 24
 * prints a TimeoutNegativeWarning (kafkajs #1751, fix never merged).
 */
function patchTimer(): void {
  const Queue = createRequire(import.meta.url)('kafkajs/src/network/requestQueue') as {
    readonly prototype: RequestQueue
  }
  const prototype = Queue.prototype as RequestQueue & { [repaired]?: true }
  if (prototype[repaired]) return
  const original = prototype.scheduleCheckPendingRequests
  prototype.scheduleCheckPendingRequests = function scheduleCheckPendingRequests() {
    if (this.pending.length > 0 || this.throttledUntil > Date.now()) original.call(this)
  }
  prototype[repaired] = true
}

/** Id of a member of a group. The id remains valid after the consumer of kafkajs that joined with it has ended. Null before the first join. */
export interface Membership {
  id: string | null
}
interface JoiningAssigner extends ReturnType<PartitionAssigner> {
  beforeJoin?(): Promise<void>
  readonly membership?: Membership
}
interface ConsumerGroup {
  readonly assigners: readonly JoiningAssigner[]
  readonly groupId: string
  readonly cluster: {
    findGroupCoordinator(group: { readonly groupId: string }): Promise<object>
    refreshMetadata(): Promise<void>
  }
  readonly offsetManager: { coordinator: object } | null
  coordinator: object
  memberId: string | null
  joinAndSync(): Promise<void>
  heartbeat(options: { readonly interval: number }): Promise<void>
  recoverFromFetch(error: { readonly type?: string }): Promise<void>
}

/**
 * Assigns partitions round robin, and calls `beforeJoin` each time before the member joins its group.
 *
 * kafkajs itself joins a group again as soon as a rebalance begins, so a member has no time for a last commit. The broker accepts commits until all
 * members have joined. `beforeJoin` commits the processed records, so that the next owner of their partitions does not receive them again.
 *
 * If a consumer of kafkajs ends after an error, then it does not leave the group. The next consumer joins with the same id, which
 * is in `membership`. With a new id, the group would wait for the old member until the session timeout, and no member would receive records.
 */
export function assignAfter(beforeJoin: () => Promise<void>, membership: Membership): PartitionAssigner {
  return (config) => Object.assign(PartitionAssigners.roundRobin(config), { beforeJoin, membership })
}

/**
 * Changes three methods of the consumer groups of kafkajs. `joinAndSync` runs `beforeJoin` and joins with the earlier member id.
 * `heartbeat` looks for the new coordinator after the loss of the old one. Without this change, the consumer would end, and a new consumer
 * would need seconds to join. `recoverFromFetch` does not join again after a partition has moved to another leader, because the members
 * keep their partitions.
 */
function patchGroup(): void {
  const Group = createRequire(import.meta.url)('kafkajs/src/consumer/consumerGroup') as {
    readonly prototype: ConsumerGroup
  }
  const prototype = Group.prototype as ConsumerGroup & { [repaired]?: true }
  if (prototype[repaired]) return
  const original = prototype.joinAndSync
  prototype.joinAndSync = async function joinAndSync() {
    for (const assigner of this.assigners) await assigner.beforeJoin?.()
    const membership = this.assigners.find((assigner) => assigner.membership)?.membership
    // If the coordinator does not know the id any more, then kafkajs joins again without an id.
    if (membership) this.memberId ??= membership.id
    try {
      await original.call(this)
    } finally {
      // The id is also stored after an error. The broker may have accepted the join before the error, and then knows the member by this id.
      if (membership) membership.id = this.memberId
    }
  }
  const { heartbeat } = prototype
  prototype.heartbeat = async function beat(options) {
    try {
      await heartbeat.call(this, options)
    } catch (error) {
      if (!isCoordinatorLost(error)) throw error
      const found = await this.cluster.findGroupCoordinator(this).catch(() => undefined)
      if (!found) throw error
      this.coordinator = found
      if (this.offsetManager) this.offsetManager.coordinator = found
    }
  }
  const { recoverFromFetch } = prototype
  prototype.recoverFromFetch = async function recover(error) {
    if (!LEADER_MOVED.has(error.type ?? '')) return await recoverFromFetch.call(this, error)
    // Until the new leader is known, each fetch is refused at once.
    await sleep(LEADER_RETRY_MS)
    await this.cluster.refreshMetadata()
  }
  prototype[repaired] = true
}

const LEADER_RETRY_MS = 100
const LEADER_MOVED = new Set(['LEADER_NOT_AVAILABLE', 'NOT_LEADER_FOR_PARTITION', 'REPLICA_NOT_AVAILABLE'])
const COORDINATOR_LOST = new Set([
  'KafkaJSConnectionError',
  'KafkaJSConnectionClosedError',
  'KafkaJSRequestTimeoutError',
  'NOT_COORDINATOR_FOR_GROUP',
  'GROUP_COORDINATOR_NOT_AVAILABLE',
  'GROUP_LOAD_IN_PROGRESS',
])

function isCoordinatorLost(thrown: unknown): boolean {
  const { name = '', type = '' } = (thrown ?? {}) as { readonly name?: string; readonly type?: string }
  return COORDINATOR_LOST.has(name) || COORDINATOR_LOST.has(type)
}
