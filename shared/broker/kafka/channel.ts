/**
 * Receives one partition of a channel without a group: its own position, a long poll to whoever leads it, no commits.
 * Nothing can rebalance it, and it starts in milliseconds.
 */
import { fetchV17, listOffsetsV7 } from '@platformatic/kafka'
import type { KeptRecord, Receiver } from '#shared/broker/broker.ts'
import type { KafkaCluster } from './cluster.ts'
import { CODE, isTransient, KafkaRefusal, NodeUnknown, responseOf } from './errors.ts'
import { fetchGapMs, type KafkaOptions } from './options.ts'
import { handOver, pause, Supervisor } from './supervision.ts'

const LONG_POLL_MS = 500
const REQUEST_TIMEOUT_MS = LONG_POLL_MS + 5_000
const FETCH_BYTES_MAX = 4 * 1024 * 1024
const LATEST = -1n
const EARLIEST = -2n
let lanes = 0

type FetchedPartition = fetchV17.FetchResponsePartition

/** One receiver of one partition. Call `open` once. */
export class ChannelReceiver implements Receiver {
  readonly #cluster: KafkaCluster
  readonly #options: KafkaOptions
  readonly #topic: string
  readonly #partition: number
  readonly #onRecord: (record: KeptRecord) => void
  readonly #supervisor: Supervisor
  readonly #gapMs: number
  #stretch = 1
  readonly #closing = new AbortController()
  readonly #lane = `receive ${lanes++}`
  #node = -1
  #position: bigint
  #fetchedAtMs = Number.NEGATIVE_INFINITY
  #loop: Promise<void> = Promise.resolve()

  constructor(
    cluster: KafkaCluster,
    options: KafkaOptions,
    topic: string,
    partition: number,
    onRecord: (record: KeptRecord) => void,
    from?: number,
  ) {
    this.#cluster = cluster
    this.#options = options
    this.#topic = topic
    this.#partition = partition
    this.#onRecord = onRecord
    this.#position = from === undefined ? LATEST : BigInt(from)
    this.#gapMs = fetchGapMs(options, topic)
    this.#supervisor = new Supervisor(`receiver of ${topic}/${partition}`, options, isTransient)
  }

  /** Fixes the position, at the end of the partition unless it was given one, waiting for the broker if need be, and starts. */
  async open(): Promise<this> {
    await this.#until(async () => {
      if (this.#position === LATEST) this.#position = await this.#offsetAt(LATEST)
      return true
    })
    this.#loop = this.#until(() => this.#poll())
    return this
  }

  stretch(times: number): void {
    this.#stretch = times
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#cluster.hangUp(this.#node, this.#lane)
    await this.#loop
  }

  #until(step: () => Promise<boolean>): Promise<void> {
    return this.#supervisor.until(step, this.#closing.signal, () => void this.#cluster.refresh())
  }

  async #poll(): Promise<boolean> {
    const restMs = this.#gapMs * this.#stretch - (performance.now() - this.#fetchedAtMs)
    if (restMs > 0) await pause(restMs, this.#closing.signal)
    const answer = await this.#fetch()
    this.#fetchedAtMs = performance.now()
    if (answer.errorCode === CODE.offsetOutOfRange) await this.#jump(answer)
    else if (answer.errorCode !== CODE.none) throw new KafkaRefusal(`Fetching ${this.#topic}`, answer.errorCode)
    for (const batch of answer.records ?? []) {
      for (const record of batch.records) {
        // A fetch gives whole batches, so the first may begin before the position.
        const offset = batch.firstOffset + BigInt(record.offsetDelta)
        if (offset < this.#position || this.#closing.signal.aborted) continue
        handOver(this.#onRecord, {
          key: record.key?.toString() ?? '',
          value: record.value ?? Buffer.alloc(0),
          offset: Number(offset),
          sentAtMs: Number(batch.firstTimestamp + record.timestampDelta),
        })
      }
      this.#position = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n
    }
    return false
  }

  async #fetch(): Promise<FetchedPartition> {
    const topicId = this.#cluster.topicId(this.#topic)
    if (!topicId) throw new NodeUnknown(`Topic ${this.#topic} is not known`)
    const connection = await this.#connection()
    const wanted = {
      partition: this.#partition,
      currentLeaderEpoch: -1,
      fetchOffset: this.#position,
      lastFetchedEpoch: -1,
      partitionMaxBytes: FETCH_BYTES_MAX,
    }
    const topics = [{ topicId, partitions: [wanted] }]
    const response = await fetchV17.api
      .async(connection, LONG_POLL_MS, 1, FETCH_BYTES_MAX, 0, 0, -1, topics, [], '')
      .catch((error: unknown) => {
        const refused = responseOf<fetchV17.FetchResponse>(error)
        if (refused?.responses[0]?.partitions[0]) return refused
        throw error
      })
    const answer = response.responses[0]?.partitions[0]
    return answer ?? { ...EMPTY, partitionIndex: this.#partition }
  }

  /** The position is gone: retention passed it, or the topic is a new one. What is left is read from its start. */
  async #jump({ logStartOffset }: FetchedPartition): Promise<void> {
    const from = this.#position
    this.#position = await this.#offsetAt(from < logStartOffset ? EARLIEST : LATEST)
    const fields = { topic: this.#topic, partition: this.#partition, from: String(from), to: String(this.#position) }
    this.#options.onProblem('records of a channel were deleted before they were received', fields)
  }

  async #offsetAt(timestamp: bigint): Promise<bigint> {
    const connection = await this.#connection()
    const wanted = { partitionIndex: this.#partition, currentLeaderEpoch: -1, timestamp }
    const { topics } = await listOffsetsV7.api.async(connection, -1, 0, [{ name: this.#topic, partitions: [wanted] }])
    const offset = topics[0]?.partitions[0]?.offset
    if (offset === undefined) throw new NodeUnknown(`No offset of ${this.#topic}/${this.#partition}`)
    return offset
  }

  #connection() {
    const leader = this.#cluster.leader(this.#topic, this.#partition)
    if (leader < 0) throw new NodeUnknown(`${this.#topic}/${this.#partition} has no leader`)
    if (leader !== this.#node) void this.#cluster.hangUp(this.#node, this.#lane)
    this.#node = leader
    return this.#cluster.connection(leader, this.#lane, REQUEST_TIMEOUT_MS)
  }
}

/** A long poll that ended without anything names no partition. */
const EMPTY: Omit<FetchedPartition, 'partitionIndex'> = {
  errorCode: CODE.none,
  highWatermark: -1n,
  lastStableOffset: -1n,
  logStartOffset: -1n,
  abortedTransactions: null,
  preferredReadReplica: -1,
}
