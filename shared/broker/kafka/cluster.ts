/**
 * Current view of a Kafka cluster: nodes, partition leaders, and whether a broker answers.
 *
 * **Connections.** Each component has its own connection to a node, identified by the parameter `connectionName`. A broker answers one request per
 * connection at a time, so a long poll on a shared connection would delay a heartbeat.
 *
 * **Reachability.** The cluster is reachable if some broker answers a metadata request. Such a request is sent when a connection breaks or a call
 * is slow. The death of one broker of three is no outage, because all other known addresses are tried before the cluster counts as unreachable.
 * An unreachable cluster is tried four times per second.
 *
 * **Hung brokers.** The controller fences a broker whose heartbeats are missing, and metadata then lacks the broker. All connections to this broker
 * are closed at once, so that pending requests move to the new leaders instead of waiting for their timeouts.
 *
 * **Topic ids.** A recreated topic has another id. Former ids are remembered, because a lagging broker may still report one. A receiver that
 * accepted a former id as new would later read the current topic from its start a second time.
 *
 * The consumers of classic groups are an exception: kafkajs has its own view of the cluster.
 */

import { isIP } from 'node:net'
import {
  apiVersionsV3,
  Connection,
  type ConnectionOptions,
  findCoordinatorV4,
  initProducerIdV4,
  metadataV12,
} from '@platformatic/kafka'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import { CODE, NodeUnknown, responseOf } from './errors.ts'
import { type KafkaOptions, partitionsNeeded, pause } from './options.ts'

/**
 * Timeout of a connection with its TLS and SASL handshakes, in ms. Doubles for each address after each timeout, up to the maximum. Otherwise a busy
 * broker, to which many processes reconnect at the same time, would complete no handshake in time.
 */
const CONNECT_TIMEOUT_MS = { min: 1_000, max: 4_000 }
const METADATA_TIMEOUT_MS = 1_000
const PROBE_INTERVAL_MS = 250
const SLOW_INTERVAL_MS = 500
/** Minimum time between two metadata requests, in ms. Callers within this time share the pending request. */
const REFRESH_INTERVAL_MS = 100
const GROUP_KEY_TYPE = 0
/** Interval of metadata requests while no request fails, in ms. Only these requests detect the deletion of a topic without consumers. */
const WATCH_INTERVAL_MS = 5_000
const FORMER_IDS_MAX = 16
const FENCED_MAX = 64

export const NO_LEADER = -1

interface Address {
  readonly host: string
  readonly port: number
}

interface TopicState {
  readonly id: string
  readonly leaders: readonly number[]
}

export interface TopicChanges {
  /** Topics that are missing or have too few partitions. */
  readonly lacking: readonly string[]
  readonly recreated: readonly string[]
}

export class KafkaCluster {
  readonly #options: KafkaOptions
  readonly #closing = new AbortController()
  readonly #connections = new Map<string, Promise<Connection>>()
  #topicNames: readonly string[] = []
  #bootstrap: Address[]
  #nodes = new Map<number, Address>()
  /** Addresses of nodes that an earlier metadata response contained, but that the latest response lacks. */
  #fenced: readonly string[] = []
  #topics = new Map<string, TopicState>()
  readonly #ids = new Map<string, string[]>()
  #control: Connection | undefined
  #dialing: Promise<Connection> | undefined
  /**
   * Index of the address to try first. Incremented after a failure, so that the next attempt skips a broker that
   * accepts connections but does not answer.
   */
  #addressTurn = 0
  #refreshing: Promise<void> | undefined
  readonly #connectTimeouts = new Map<string, number>()
  #isProbing = false
  #unreachableSinceMs: number | undefined
  #onReturn: () => void = () => undefined
  #onChanges: (changes: TopicChanges) => void = () => undefined
  #stopWatching: () => void = () => undefined

  constructor(options: KafkaOptions) {
    this.#options = options
    this.#bootstrap = options.brokers.map(parseAddress)
  }

  get unreachableSinceMs(): number | undefined {
    return this.#unreachableSinceMs
  }

  /** @param onReturn Called at the end of each outage. A later listener replaces an earlier one. */
  onReturn(onReturn: () => void): void {
    this.#onReturn = onReturn
  }

  /**
   * Requests metadata every {@link WATCH_INTERVAL_MS}, and calls `onChanges` after each response with changed topics.
   */
  watch(onChanges: (changes: TopicChanges) => void): void {
    this.#onChanges = onChanges
    this.#stopWatching = atAlignedInterval(WATCH_INTERVAL_MS, () => void this.refresh(), { keepsAlive: false })
  }

  /**
   * Sets the topics whose leaders are tracked, and reads the leaders.
   *
   * @throws Error if no broker answers
   */
  async follow(topicNames: readonly string[]): Promise<void> {
    this.#topicNames = topicNames
    await this.#refreshOnce()
  }

  leader(topic: string, partition: number): number {
    return this.#topics.get(topic)?.leaders[partition] ?? NO_LEADER
  }

  partitions(topic: string): number {
    return this.#topics.get(topic)?.leaders.length ?? 0
  }

  get nodeIds(): readonly number[] {
    return [...this.#nodes.keys()]
  }

  /**
   * Returns the requests and features that the brokers support.
   *
   * @throws Error if no broker answers
   */
  async versions(): Promise<apiVersionsV3.ApiVersionsResponse> {
    return await this.#ask((connection) => apiVersionsV3.api.async(connection, 'sluice', '1'))
  }

  /** Whether a broker was in the cluster earlier, and is fenced now. */
  isFenced(host: string, port: number): boolean {
    return this.#fenced.includes(addressOf({ host, port }))
  }

  topicId(topic: string): string | undefined {
    return this.#topics.get(topic)?.id
  }

  /** Refreshes the leaders. Never rejects, because callers retry anyway. A failure starts a check whether any broker answers ({@link suspect}). */
  refresh(): Promise<void> {
    this.#refreshing ??= this.#refreshOnce()
      .catch(() => this.suspect())
      .then(() => pause(REFRESH_INTERVAL_MS, this.#closing.signal))
      .finally(() => {
        this.#refreshing = undefined
      })
    return this.#refreshing
  }

  async coordinator(group: string): Promise<number> {
    const { coordinators } = await this.#ask((connection) =>
      findCoordinatorV4.api.async(connection, GROUP_KEY_TYPE, [group]),
    )
    const [found] = coordinators
    if (!found) throw new NodeUnknown(`No coordinator for group ${group}`)
    this.#nodes.set(found.nodeId, found)
    return found.nodeId
  }

  /**
   * Requests a producer id (KIP-98). Every broker can assign one.
   *
   * @throws Error if no broker answers
   */
  async newProducer(): Promise<{ readonly producerId: bigint; readonly producerEpoch: number }> {
    return await this.#ask((connection) => initProducerIdV4.api.async(connection, null, 0, -1n, -1))
  }

  /**
   * Waits for a request. If the request takes longer than `slowMs`, then its broker may be hung, so metadata is requested every
   * {@link SLOW_INTERVAL_MS}.
   */
  async watchRequest<R>(request: Promise<R>, slowMs: number): Promise<R> {
    let timer = setTimeout(() => {
      timer = setInterval(() => this.suspect(), SLOW_INTERVAL_MS)
    }, slowMs)
    try {
      return await request
    } finally {
      clearInterval(timer)
    }
  }

  connection(nodeId: number, connectionName: string, requestTimeoutMs: number): Promise<Connection> {
    const key = `${connectionName} ${nodeId}`
    const existing = this.#connections.get(key)
    if (existing) return existing
    const address = this.#nodes.get(nodeId)
    if (!address) return Promise.reject(new NodeUnknown(`Node ${nodeId} is not in the cluster`))
    const connecting = this.#dial(address, requestTimeoutMs)
    this.#connections.set(key, connecting)
    const forget = () => {
      if (this.#connections.get(key) === connecting) this.#connections.delete(key)
    }
    connecting.then(
      (connection) => connection.once('close', forget),
      () => {
        forget()
        this.suspect()
      },
    )
    return connecting
  }

  async hangUp(nodeId: number, connectionName: string): Promise<void> {
    const connecting = this.#connections.get(`${connectionName} ${nodeId}`)
    await connecting?.then((connection) => connection.close()).catch(() => undefined)
  }

  /**
   * Closes connections to brokers that the metadata no longer contains. Such a broker may be hung and read nothing, so unsent bytes are discarded.
   */
  #hangUpFenced(): void {
    for (const [key, connecting] of this.#connections) {
      if (this.#nodes.has(Number(key.slice(key.lastIndexOf(' ') + 1)))) continue
      connecting.then((connection) => connection.socket?.destroy()).catch(() => undefined)
    }
  }

  /** Checks whether any broker answers. Called after a failed or unusually slow request. */
  suspect(): void {
    if (this.#isProbing || this.#closing.signal.aborted) return
    this.#isProbing = true
    void this.#probe().finally(() => {
      this.#isProbing = false
    })
  }

  async close(): Promise<void> {
    this.#closing.abort()
    this.#stopWatching()
    const connections = await Promise.allSettled(this.#connections.values())
    const open = connections.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
    if (this.#control) open.push(this.#control)
    await Promise.allSettled(open.map((connection) => connection.close()))
  }

  async #probe(): Promise<void> {
    while (!this.#closing.signal.aborted) {
      try {
        await this.#refreshOnce()
        return this.#setReachable(true)
      } catch (error) {
        this.#setReachable(false, error)
      }
      await pause(PROBE_INTERVAL_MS, this.#closing.signal)
    }
  }

  #setReachable(isReachable: boolean, error?: unknown): void {
    const wasReachable = this.#unreachableSinceMs === undefined
    if (wasReachable === isReachable || this.#closing.signal.aborted) return
    this.#unreachableSinceMs = isReachable ? undefined : performance.now()
    if (isReachable) {
      this.#options.onProblem('Kafka answers again', {})
      this.#onReturn()
    } else this.#options.onProblem('no Kafka broker answers', { error: String(error) })
  }

  async #refreshOnce(): Promise<void> {
    const response = await this.#ask((connection) => requestMetadata(connection, this.#topicNames))
    const changes = this.#update(response)
    if (changes.lacking.length > 0 || changes.recreated.length > 0) this.#onChanges(changes)
  }

  #update(response: metadataV12.MetadataResponse): TopicChanges {
    const former = [...this.#fenced, ...[...this.#nodes.values()].map(addressOf)]
    this.#nodes = new Map(response.brokers.map(({ nodeId, host, port }) => [nodeId, { host, port }]))
    const present = new Set([...this.#nodes.values()].map(addressOf))
    this.#fenced = [...new Set(former)].filter((address) => !present.has(address)).slice(-FENCED_MAX)
    this.#hangUpFenced()
    const [lacking, recreated]: [string[], string[]] = [[], []]
    for (const topic of response.topics) {
      const { name, topicId: id, partitions } = topic
      if (!name) continue
      if (topic.errorCode === CODE.unknownTopicOrPartition) {
        this.#topics.delete(name)
        lacking.push(name)
        continue
      }
      const ids = this.#ids.get(name) ?? []
      if (partitions.length === 0 || ids.slice(0, -1).includes(id)) continue
      if (ids.at(-1) !== id) {
        if (ids.length > 0) recreated.push(name)
        this.#ids.set(name, [...ids, id].slice(-FORMER_IDS_MAX))
      }
      const leaders = Array<number>(partitions.length).fill(NO_LEADER)
      for (const { partitionIndex, leaderId } of partitions) leaders[partitionIndex] = leaderId
      this.#topics.set(name, { id, leaders })
      if (leaders.length < partitionsNeeded(this.#options, name)) lacking.push(name)
    }
    return { lacking, recreated }
  }

  /**
   * Sends a request to one broker after another until one answers.
   *
   * @throws Error if no broker answers, or if one refuses
   */
  async #ask<R>(request: (connection: Connection) => Promise<R>): Promise<R> {
    for (let tries = this.#addresses().length; ; tries--) {
      const connection = await this.#controlConnection()
      try {
        return await request(connection)
      } catch (error) {
        if (responseOf(error) !== undefined || tries <= 0 || this.#closing.signal.aborted) throw error
        if (this.#control === connection) {
          this.#control = undefined
          this.#addressTurn++
        }
        connection.close().catch(() => undefined)
      }
    }
  }

  #addresses(): Address[] {
    return [...this.#nodes.values(), ...this.#bootstrap]
  }

  async #controlConnection(): Promise<Connection> {
    if (this.#control?.isConnected()) return this.#control
    this.#dialing ??= this.#dialAny().finally(() => {
      this.#dialing = undefined
    })
    return await this.#dialing
  }

  async #dialAny(): Promise<Connection> {
    const addresses = this.#addresses()
    let failure: unknown = new NodeUnknown('No broker address is known')
    for (let i = 0; i < addresses.length; i++) {
      const address = addresses[this.#addressTurn % addresses.length]
      if (!address) continue
      try {
        this.#control = await this.#dial(address, METADATA_TIMEOUT_MS)
        return this.#control
      } catch (error) {
        failure = error
        this.#addressTurn++
      }
    }
    throw failure
  }

  async #dial({ host, port }: Address, requestTimeoutMs: number): Promise<Connection> {
    const address = addressOf({ host, port })
    const connectTimeout = this.#connectTimeouts.get(address) ?? CONNECT_TIMEOUT_MS.min
    const options = { ...connectionOptions(this.#options, host, requestTimeoutMs), connectTimeout }
    const connection = new Connection(this.#options.clientId, options)
    // Without a listener, an 'error' event would end the process. Pending requests receive the error as well.
    connection.on('error', () => undefined)
    const startedAt = performance.now()
    try {
      await connection.connect(host, port)
      this.#connectTimeouts.delete(address)
    } catch (error) {
      const isTimeout = performance.now() - startedAt >= connectTimeout
      if (isTimeout) this.#connectTimeouts.set(address, Math.min(2 * connectTimeout, CONNECT_TIMEOUT_MS.max))
      throw error
    }
    connection.once('close', () => this.suspect())
    if (this.#closing.signal.aborted) await connection.close()
    return connection
  }
}

function connectionOptions(options: KafkaOptions, host: string, requestTimeoutMs: number): ConnectionOptions {
  return {
    requestTimeout: requestTimeoutMs,
    // The TLS extension SNI permits host names only (RFC 6066 section 3), so no name is set for an IP address.
    ...(options.tls ? { tls: { ...options.tls }, ...(isIP(host) ? {} : { tlsServerName: host }) } : {}),
    ...(options.sasl ? { sasl: { ...options.sasl } } : {}),
  }
}

async function requestMetadata(
  connection: Connection,
  topics: readonly string[],
): Promise<metadataV12.MetadataResponse> {
  try {
    return await metadataV12.api.async(connection, [...topics], false, false)
  } catch (error) {
    const response = responseOf<metadataV12.MetadataResponse>(error)
    // The response is used although it contains an error, so that a partition without a leader does not hide the valid partitions.
    if (response) return response
    throw error
  }
}

function addressOf({ host, port }: Address): string {
  return `${host}:${port}`
}

function parseAddress(broker: string): Address {
  const at = broker.lastIndexOf(':')
  return { host: broker.slice(0, at).replace(/^\[(.*)\]$/, '$1'), port: Number(broker.slice(at + 1)) }
}
