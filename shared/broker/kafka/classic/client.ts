/**
 * Configures kafkajs for production on Node 24. Log messages are passed to `onProblem`. kafkajs itself retries only briefly, because the adapters
 * retry forever. A patch of kafkajs prevents timer warnings.
 */

import { randomUUID } from 'node:crypto'
import { createRequire } from 'node:module'
import kafkajs, {
  type Admin,
  AssignerProtocol,
  type EachBatchPayload,
  type Kafka,
  type KafkaConfig,
  type LogEntry,
  type PartitionAssigner,
  PartitionAssigners,
} from 'kafkajs'
import type { Closable, HistoryRecord } from '#shared/broker/broker.ts'
import { TOKEN_UNAVAILABLE } from '#shared/broker/kafka/credentials.ts'
import {
  deliver,
  fetchGapMs,
  KAFKA_DEFAULTS,
  type KafkaOptions,
  type KafkaSasl,
  pause,
  Supervisor,
  within,
} from '#shared/broker/kafka/options.ts'
import { isDenied, permitGroups } from '#shared/broker/kafka/topics.ts'

const CONNECTION_TIMEOUT_MS = 1_000
const REQUEST_TIMEOUT_MS = 8_000

const RETRY = { retries: 2, initialRetryTime: 50, maxRetryTime: 500, restartOnFailure: async () => false } as const

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

/**
 * Errors that kafkajs logs although it retries the request. Causes are a new or moving group coordinator, or a deleted topic, which TopicKeeper
 * reports. Permanent errors are not in this list, because the consumer throws them.
 */
const TRANSIENT_ERRORS: ReadonlySet<string> = new Set([
  'This server does not host this topic-partition',
  'The group coordinator is not available',
  "The coordinator is loading and hence can't process requests for this group",
  'This is not the correct coordinator for this group',
])

export function createKafkaJs(options: KafkaOptions): Kafka {
  patchTimer()
  patchJoin()
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

function report({ namespace, log }: LogEntry, options: KafkaOptions): void {
  if (namespace === 'Connection' && TRANSIENT_ERRORS.has(String(log.error))) return
  const isGroupDenied = /group/i.test(String(log.error)) && isDenied(log.error)
  const remedy = isGroupDenied && { remediation: permitGroups(options, ['Read']) }
  options.onProblem('kafkajs reported an error', { namespace, error: log.message, detail: log.error, ...remedy })
}

interface RequestQueue {
  readonly pending: readonly unknown[]
  readonly throttledUntil: number
  scheduleCheckPendingRequests(): void
}
const repaired = Symbol('sluice.mended')

/**
 * Removes a needless timer of kafkajs. After each request with an empty queue, kafkajs sets a timer with a negative delay, and Node 24 prints a
 * TimeoutNegativeWarning (kafkajs #1751, fix never merged).
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

interface JoiningAssigner extends ReturnType<PartitionAssigner> {
  beforeJoin?(): Promise<void>
}
interface ConsumerGroup {
  readonly assigners: readonly JoiningAssigner[]
  joinAndSync(): Promise<void>
}

/**
 * Assigns partitions round robin, and calls `beforeJoin` each time before the member joins its group.
 *
 * kafkajs only reports a rebalance, by an event, and joins at once. Until all members have joined, the broker still accepts commits. A member that
 * commits in `beforeJoin` therefore leaves no processed record to the next owner of a partition.
 */
export function assignAfter(beforeJoin: () => Promise<void>): PartitionAssigner {
  return (config) => Object.assign(PartitionAssigners.roundRobin(config), { beforeJoin })
}

function patchJoin(): void {
  const Group = createRequire(import.meta.url)('kafkajs/src/consumer/consumerGroup') as {
    readonly prototype: ConsumerGroup
  }
  const prototype = Group.prototype as ConsumerGroup & { [repaired]?: true }
  if (prototype[repaired]) return
  const original = prototype.joinAndSync
  prototype.joinAndSync = async function joinAndSync() {
    for (const assigner of this.assigners) await assigner.beforeJoin?.()
    await original.call(this)
  }
  prototype[repaired] = true
}

/**
 * Receives partitions of a channel through kafkajs, which can read only as a member of a group. Each receiver therefore uses a group with a random
 * name, and an assigner that gives these partitions to the only member. The receiver tracks its positions itself and commits nothing, so Kafka
 * deletes the group once it has no members.
 */

const LONG_POLL_MS = 250
const SESSION_TIMEOUT_MS = 10_000
const HEARTBEAT_INTERVAL_MS = 3_000
const FETCH_BYTES_MAX = 4 * 1024 * 1024

export class ClassicReceiver implements Closable {
  onRemade: () => void = () => undefined
  readonly #kafka: Kafka
  readonly #admin: Admin
  readonly #options: KafkaOptions
  readonly #topic: string
  readonly #partitions: readonly number[]
  readonly #onRecord: (record: HistoryRecord) => void
  readonly #supervisor: Supervisor
  readonly #closing = new AbortController()
  readonly #positions = new Map<number, bigint>()
  readonly #lastAtMs = new Map<number, number>()
  readonly #openedAtMs = Date.now()
  /** True after a consumer has ended. The topic may have been recreated, so positions are checked before the next consumer starts. */
  #isSuspect = false
  #loop: Promise<void> = Promise.resolve()

  constructor(
    kafka: Kafka,
    admin: Admin,
    options: KafkaOptions,
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
    from?: number,
  ) {
    this.#kafka = kafka
    this.#admin = admin
    this.#options = options
    this.#topic = topic
    this.#partitions = partitions
    this.#onRecord = onRecord
    if (from !== undefined) for (const partition of partitions) this.#positions.set(partition, BigInt(from))
    this.#supervisor = new Supervisor(`receiver of ${topic}`, options, isTransientInKafkaJs)
  }

  /** Determines the start positions, by default the ends of the partitions, and starts to receive. Waits for the broker if needed. */
  async open(): Promise<this> {
    await this.#supervisor.until(async () => {
      if (this.#positions.size === 0) await this.#findEnds()
      return true
    }, this.#closing.signal)
    this.#loop = this.#supervisor.until(() => this.#runOnce(), this.#closing.signal)
    return this
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await within(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs, this.#loop)
  }

  async #findEnds(): Promise<void> {
    const offsets = await this.#admin.fetchTopicOffsets(this.#topic)
    const missing = this.#partitions.find((wanted) => !offsets.some(({ partition }) => partition === wanted))
    if (missing !== undefined) throw retriable(`${this.#topic} has no partition ${missing}`)
    for (const { partition, high } of offsets) this.#positions.set(partition, BigInt(high))
  }

  /**
   * Corrects positions that no longer exist in the topic. kafkajs has no topic ids, so timestamps decide.
   *
   * 1. If the first stored record is newer than the last received one, then the topic was recreated, and reading starts
   *    at its beginning.
   *
   * 2. Otherwise, if the topic ends before the position, then a leader lost its last records, and reading continues at
   *    the end.
   */
  async #checkPositions(): Promise<void> {
    const kept = await this.#admin.fetchTopicOffsets(this.#topic)
    for (const partition of this.#partitions) {
      const position = this.#positions.get(partition) ?? 0n
      const found = kept.find((one) => one.partition === partition)
      if (!found) throw retriable(`${this.#topic} has no partition ${partition}`)
      const [low, high] = [BigInt(found.low), BigInt(found.high)]
      const afterMs = (this.#lastAtMs.get(partition) ?? this.#openedAtMs) + 1
      const young = await this.#admin.fetchTopicOffsetsByTimestamp(this.#topic, afterMs)
      const firstYoung = BigInt(young.find((one) => one.partition === partition)?.offset ?? high)
      if (position > low && (high === 0n || firstYoung <= low)) {
        this.#jump(partition, low, 'Kafka channel topic was recreated; reading it from the start')
        this.onRemade()
      } else if (position > high) {
        this.#jump(partition, high, 'Kafka channel records were deleted before they were received; skipping them')
      }
    }
  }

  #jump(partition: number, to: bigint, message: string): void {
    const from = this.#positions.get(partition)
    this.#positions.set(partition, to)
    this.#options.onProblem(message, { topic: this.#topic, partition, from: String(from), to: String(to) })
  }

  async #runOnce(): Promise<boolean> {
    if (this.#isSuspect) await this.#checkPositions()
    this.#isSuspect = true
    const consumer = this.#kafka.consumer({
      groupId: `${this.#topic}-${this.#partitions.join('-')}-${randomUUID()}`,
      partitionAssigners: [assignOnly(this.#topic, this.#partitions)],
      sessionTimeout: SESSION_TIMEOUT_MS,
      heartbeatInterval: HEARTBEAT_INTERVAL_MS,
      maxWaitTimeInMs: LONG_POLL_MS,
      maxBytesPerPartition: FETCH_BYTES_MAX,
      allowAutoTopicCreation: false,
      readUncommitted: true,
    })
    const ended = Promise.withResolvers<boolean>()
    const end = () => ended.resolve(true)
    this.#closing.signal.addEventListener('abort', end, { once: true })
    consumer.on(consumer.events.CRASH, ({ payload }) => ended.reject(payload.error))
    consumer.on(consumer.events.GROUP_JOIN, () => {
      for (const partition of this.#partitions) {
        consumer.seek({ topic: this.#topic, partition, offset: String(this.#positions.get(partition)) })
      }
      this.#supervisor.progress()
    })
    try {
      await consumer.connect()
      await consumer.subscribe({ topics: [this.#topic], fromBeginning: true })
      await consumer.run({ autoCommit: false, eachBatch: (payload) => this.#onBatch(payload) })
      return await ended.promise
    } finally {
      this.#closing.signal.removeEventListener('abort', end)
      await consumer.disconnect().catch(() => undefined)
    }
  }

  async #onBatch({ batch }: EachBatchPayload): Promise<void> {
    const isBefore = BigInt(batch.lastOffset()) < (this.#positions.get(batch.partition) ?? 0n)
    // kafkajs has reset the position to the start, because the broker has no record at the previous position.
    if (isBefore) throw retriable(`${this.#topic} ends before its position`)
    for (const { offset, key, value, timestamp } of batch.messages) {
      const at = BigInt(offset)
      if (at < (this.#positions.get(batch.partition) ?? 0n) || this.#closing.signal.aborted) continue
      this.#positions.set(batch.partition, at + 1n)
      this.#lastAtMs.set(batch.partition, Number(timestamp))
      deliver(this.#onRecord, {
        key: key?.toString() ?? '',
        value: value ?? Buffer.alloc(0),
        offset: Number(at),
        sentAtMs: Number(timestamp),
      })
    }
    const restMs = fetchGapMs(this.#options, this.#topic)
    if (restMs > 0) await pause(restMs, this.#closing.signal)
  }
}

function retriable(message: string): Error {
  return Object.assign(new Error(message), { retriable: true })
}

/** Assigns only some partitions of the topic to the group's only member. */
function assignOnly(topic: string, partitions: readonly number[]): PartitionAssigner {
  const name = 'OnlyOne'
  const version = 0
  return () => ({
    name,
    version,
    protocol: ({ topics }) => ({
      name,
      metadata: AssignerProtocol.MemberMetadata.encode({ version, topics, userData: Buffer.alloc(0) }),
    }),
    assign: async ({ members }) =>
      members.map(({ memberId }) => ({
        memberId,
        memberAssignment: AssignerProtocol.MemberAssignment.encode({
          version,
          assignment: { [topic]: [...partitions] },
          userData: Buffer.alloc(0),
        }),
      })),
  })
}
