/**
 * Receives partitions of a channel without a consumer group. The receiver tracks its positions itself, commits nothing, and runs one long poll per
 * leading broker. A rebalance can therefore never interrupt the receiver, which starts within milliseconds.
 *
 * All partitions that a broker leads share one poll. Rejected: one poll per partition. One produce call with records of eight partitions then caused
 * eight responses, and an idle process woke 16 times per second.
 */
import { fetchV13 } from '@platformatic/kafka'
import type { HistoryRecord, Receiver } from '#shared/broker/broker.ts'
import type { KafkaCluster } from './cluster.ts'
import { CODE, isTransient, KafkaRefusal, NodeUnknown, responseOf } from './errors.ts'
import { EARLIEST, LATEST, offsetAt } from './offsets.ts'
import { deliver, fetchGapMs, type KafkaOptions, pause, Supervisor } from './options.ts'

/**
 * Maximum wait of a poll without records, in ms. The wait is long, because each empty poll wakes the process. A failover is not delayed: a broker
 * that no longer leads a partition ends the poll at once.
 */
const LONG_POLL_MS = 2_000
const REQUEST_TIMEOUT_MS = LONG_POLL_MS + 5_000
/** If a poll takes this many ms longer than its maximum wait, then the broker may be hung. */
const SLOW_MS = 500
const FETCH_BYTES_MAX = 4 * 1024 * 1024
let receivers = 0

type FetchedPartition = fetchV13.FetchResponsePartition

interface Position {
  readonly partition: number
  position: bigint
}

interface Poll {
  readonly node: number
  /**
   * Partitions of this poll. Each partition belongs to exactly one poll. Only that poll may pass the partition to
   * another poll.
   */
  positions: Position[]
  requestedAtMs: number
  readonly loop: Promise<void>
}

export class ChannelReceiver implements Receiver {
  readonly #cluster: KafkaCluster
  readonly #options: KafkaOptions
  readonly #topic: string
  readonly #positions: readonly Position[]
  readonly #onRecord: (record: HistoryRecord) => void
  readonly #gapMs: number
  #topicId: string | undefined
  #stretch = 1
  readonly #closing = new AbortController()
  readonly #connectionName = `receive ${receivers++}`
  readonly #polls = new Map<number, Poll>()

  constructor(
    cluster: KafkaCluster,
    options: KafkaOptions,
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
    from?: number,
  ) {
    this.#cluster = cluster
    this.#options = options
    this.#topic = topic
    const position = from === undefined ? LATEST : BigInt(from)
    this.#positions = partitions.map((partition) => ({ partition, position }))
    this.#onRecord = onRecord
    this.#gapMs = fetchGapMs(options, topic)
  }

  /** Determines the start positions, by default the ends of the partitions, and starts to receive. Waits for the broker if needed. */
  async open(): Promise<this> {
    await this.#until(async () => {
      this.#topicId = this.#cluster.topicId(this.#topic)
      for (const place of this.#positions) {
        if (place.position === LATEST) place.position = await this.#offsetAt(place, LATEST)
      }
      return true
    })
    if (!this.#closing.signal.aborted) this.#assign(this.#positions)
    return this
  }

  stretch(times: number): void {
    this.#stretch = times
  }

  async close(): Promise<void> {
    this.#closing.abort()
    const polls = [...this.#polls.values()]
    await Promise.all(polls.map(({ node }) => this.#cluster.hangUp(node, this.#connectionName)))
    await Promise.all(polls.map(({ loop }) => loop))
  }

  #until(step: () => Promise<boolean>): Promise<void> {
    const supervisor = new Supervisor(`receiver of ${this.#topic}`, this.#options, isTransient)
    return supervisor.until(step, this.#closing.signal, () => void this.#cluster.refresh())
  }

  #assign(places: readonly Position[]): void {
    for (const place of places) {
      const node = this.#cluster.leader(this.#topic, place.partition)
      const existing = this.#polls.get(node)
      if (existing) existing.positions.push(place)
      else this.#begin(node, [place])
    }
  }

  #begin(node: number, places: Position[]): void {
    const poll: Poll = {
      node,
      positions: places,
      requestedAtMs: Number.NEGATIVE_INFINITY,
      // The poll starts in a later microtask, so that all partitions are added to the poll before its first request.
      loop: Promise.resolve().then(() => this.#until(() => this.#poll(poll))),
    }
    this.#polls.set(node, poll)
  }

  async #poll(poll: Poll): Promise<boolean> {
    const restMs = this.#gapMs * this.#stretch - (performance.now() - poll.requestedAtMs)
    if (restMs > 0) await pause(restMs, this.#closing.signal)
    const isHere = ({ partition }: Position) => this.#cluster.leader(this.#topic, partition) === poll.node
    const moved = poll.positions.filter((place) => !isHere(place))
    poll.positions = poll.positions.filter(isHere)
    if (poll.positions.length === 0) this.#polls.delete(poll.node)
    this.#assign(moved)
    if (poll.positions.length === 0) {
      await this.#cluster.hangUp(poll.node, this.#connectionName)
      return true
    }
    if (poll.node < 0) throw new NodeUnknown(`${this.#topic} has partitions without a leader`)
    // The minimum time between two fetches is measured from request to request. After a fetch that takes longer, the next fetch follows at once.
    poll.requestedAtMs = performance.now()
    const answers = await this.#fetch(poll)
    // Rotates the order of the partitions. A response has a maximum size, so it may lack the last partitions of the order, which must not always be
    // the same.
    poll.positions.push(...poll.positions.splice(0, 1))
    await this.#take(poll.positions, answers)
    return false
  }

  /**
   * Delivers fetched records. If the broker refused one partition, then the records of all other partitions are delivered before the refusal is
   * thrown.
   *
   * @throws KafkaRefusal
   */
  async #take(places: readonly Position[], answers: readonly FetchedPartition[]): Promise<void> {
    let refusal: KafkaRefusal | undefined
    for (const answer of answers) {
      const place = places.find(({ partition }) => partition === answer.partitionIndex)
      if (!place) continue
      if (answer.errorCode === CODE.offsetOutOfRange) await this.#jump(place, answer)
      else if (answer.errorCode !== CODE.none) refusal ??= new KafkaRefusal(`Fetching ${this.#topic}`, answer.errorCode)
      else this.#deliver(place, answer)
    }
    if (refusal) throw refusal
  }

  #deliver(place: Position, { records }: FetchedPartition): void {
    for (const batch of records ?? []) {
      for (const record of batch.records) {
        // A fetch returns whole batches, so the first batch may contain records before the position. These records were
        // delivered earlier and are skipped.
        const offset = batch.firstOffset + BigInt(record.offsetDelta)
        if (offset < place.position || this.#closing.signal.aborted) continue
        deliver(this.#onRecord, {
          key: record.key?.toString() ?? '',
          value: record.value ?? Buffer.alloc(0),
          offset: Number(offset),
          sentAtMs: Number(batch.firstTimestamp + record.timestampDelta),
        })
      }
      place.position = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n
    }
  }

  async #fetch({ node, positions: places }: Poll): Promise<readonly FetchedPartition[]> {
    const topicId = this.#cluster.topicId(this.#topic)
    if (!topicId) throw new NodeUnknown(`Topic ${this.#topic} is not known`)
    this.#beginAgainIn(topicId)
    const connection = await this.#cluster.connection(node, this.#connectionName, REQUEST_TIMEOUT_MS)
    const partitions = places.map(({ partition, position }) => ({
      partition,
      currentLeaderEpoch: -1,
      fetchOffset: position,
      lastFetchedEpoch: -1,
      partitionMaxBytes: FETCH_BYTES_MAX,
    }))
    const wanted = [{ topicId, partitions }]
    const request = fetchV13.api.async(connection, LONG_POLL_MS, 1, FETCH_BYTES_MAX, 0, 0, -1, wanted, [], '')
    const response = await this.#cluster.watchRequest(request, LONG_POLL_MS + SLOW_MS).catch((error: unknown) => {
      const refused = responseOf<fetchV13.FetchResponse>(error)
      if (refused?.responses[0]?.partitions[0]) return refused
      throw error
    })
    return response.responses[0]?.partitions ?? []
  }

  /**
   * Handles a recreated topic, whose offsets start at 0. All of its records are new, so reading starts at the
   * beginning.
   */
  #beginAgainIn(topicId: string): void {
    if (this.#topicId === topicId) return
    if (this.#topicId !== undefined) {
      for (const place of this.#positions) place.position = 0n
      this.#options.onProblem('Kafka channel topic was recreated; reading it from the start', { topic: this.#topic })
    }
    this.#topicId = topicId
  }

  /**
   * Handles a position that no longer exists at the broker. If retention has deleted the record at this position, then reading continues at the
   * oldest stored record. Otherwise a leader has lost its last records, and reading continues at the end.
   */
  async #jump(place: Position, { logStartOffset }: FetchedPartition): Promise<void> {
    const from = place.position
    place.position = await this.#offsetAt(place, from < logStartOffset ? EARLIEST : LATEST)
    const { partition } = place
    const fields = { topic: this.#topic, partition, from: String(from), to: String(place.position) }
    this.#options.onProblem('Kafka channel records were deleted before they were received; skipping them', fields)
  }

  #offsetAt({ partition }: Position, timestamp: bigint): Promise<bigint> {
    const connection = { name: this.#connectionName, timeoutMs: REQUEST_TIMEOUT_MS }
    return offsetAt(this.#cluster, this.#topic, partition, timestamp, connection)
  }
}
