/**
 * Receives partitions of a channel without a group: positions of its own, no commits, and one long poll to each broker that leads
 * some of them. Nothing can rebalance it, and it starts in milliseconds.
 *
 * All partitions that a broker leads share its poll: with one for each, what a single call of the sender brings cost eight
 * answers, and an idle process woke sixteen times a second for nothing.
 */
import { fetchV17, listOffsetsV7 } from '@platformatic/kafka'
import type { KeptRecord, Receiver } from '#shared/broker/broker.ts'
import type { KafkaCluster } from './cluster.ts'
import { CODE, isTransient, KafkaRefusal, NodeUnknown, responseOf } from './errors.ts'
import { fetchGapMs, type KafkaOptions } from './options.ts'
import { handOver, pause, Supervisor } from './supervision.ts'

/** A poll that finds nothing wakes the process for nothing; one whose broker leads no more is answered at once. */
const LONG_POLL_MS = 2_000
const REQUEST_TIMEOUT_MS = LONG_POLL_MS + 5_000
const FETCH_BYTES_MAX = 4 * 1024 * 1024
const LATEST = -1n
const EARLIEST = -2n
let lanes = 0

type FetchedPartition = fetchV17.FetchResponsePartition

/** One partition that is received. */
interface Place {
  readonly partition: number
  /** The offset of the next record, or {@link LATEST} until that is known. */
  position: bigint
}

/** What is received from one broker. */
interface Poll {
  readonly node: number
  /** Each place is in one poll at a time, which alone moves it to another. */
  places: Place[]
  askedAtMs: number
  readonly loop: Promise<void>
}

/** One receiver of some partitions. Call `open` once. */
export class ChannelReceiver implements Receiver {
  readonly #cluster: KafkaCluster
  readonly #options: KafkaOptions
  readonly #topic: string
  readonly #places: readonly Place[]
  readonly #onRecord: (record: KeptRecord) => void
  readonly #gapMs: number
  /** Of the topic that the positions are of. */
  #topicId: string | undefined
  #stretch = 1
  readonly #closing = new AbortController()
  readonly #lane = `receive ${lanes++}`
  readonly #polls = new Map<number, Poll>()

  /** @param from The offset of the first record in each partition; default: the end as it is when the receiver opens. */
  constructor(
    cluster: KafkaCluster,
    options: KafkaOptions,
    topic: string,
    partitions: readonly number[],
    onRecord: (record: KeptRecord) => void,
    from?: number,
  ) {
    this.#cluster = cluster
    this.#options = options
    this.#topic = topic
    const position = from === undefined ? LATEST : BigInt(from)
    this.#places = partitions.map((partition) => ({ partition, position }))
    this.#onRecord = onRecord
    this.#gapMs = fetchGapMs(options, topic)
  }

  /** Fixes the positions, at the ends of the partitions unless it was given one, waiting for the broker if need be, and starts. */
  async open(): Promise<this> {
    await this.#until(async () => {
      this.#topicId = this.#cluster.topicId(this.#topic)
      for (const place of this.#places) {
        if (place.position === LATEST) place.position = await this.#offsetAt(place, LATEST)
      }
      return true
    })
    if (!this.#closing.signal.aborted) this.#assign(this.#places)
    return this
  }

  stretch(times: number): void {
    this.#stretch = times
  }

  async close(): Promise<void> {
    this.#closing.abort()
    const polls = [...this.#polls.values()]
    await Promise.all(polls.map(({ node }) => this.#cluster.hangUp(node, this.#lane)))
    await Promise.all(polls.map(({ loop }) => loop))
  }

  #until(step: () => Promise<boolean>): Promise<void> {
    const supervisor = new Supervisor(`receiver of ${this.#topic}`, this.#options, isTransient)
    return supervisor.until(step, this.#closing.signal, () => void this.#cluster.refresh())
  }

  /** Gives each place to the poll of its leader, which begins when there is none. */
  #assign(places: readonly Place[]): void {
    for (const place of places) {
      const node = this.#cluster.leader(this.#topic, place.partition)
      const existing = this.#polls.get(node)
      if (existing) existing.places.push(place)
      else this.#begin(node, [place])
    }
  }

  #begin(node: number, places: Place[]): void {
    const poll: Poll = {
      node,
      places,
      askedAtMs: Number.NEGATIVE_INFINITY,
      // Later, when all places are in it.
      loop: Promise.resolve().then(() => this.#until(() => this.#poll(poll))),
    }
    this.#polls.set(node, poll)
  }

  /** @returns True when nothing is left to receive from this broker. */
  async #poll(poll: Poll): Promise<boolean> {
    const restMs = this.#gapMs * this.#stretch - (performance.now() - poll.askedAtMs)
    if (restMs > 0) await pause(restMs, this.#closing.signal)
    const isHere = ({ partition }: Place) => this.#cluster.leader(this.#topic, partition) === poll.node
    const moved = poll.places.filter((place) => !isHere(place))
    poll.places = poll.places.filter(isHere)
    if (poll.places.length === 0) this.#polls.delete(poll.node)
    this.#assign(moved)
    if (poll.places.length === 0) {
      await this.#cluster.hangUp(poll.node, this.#lane)
      return true
    }
    if (poll.node < 0) throw new NodeUnknown(`${this.#topic} has partitions without a leader`)
    // From here on, and not from the answer: what waited for the broker longer than the gap goes on without a timer.
    poll.askedAtMs = performance.now()
    const answers = await this.#fetch(poll)
    // What comes last in a full answer comes first in the next.
    poll.places.push(...poll.places.splice(0, 1))
    await this.#take(poll.places, answers)
    return false
  }

  /** Takes over what there is of each partition before it says what was refused of another. @throws KafkaRefusal */
  async #take(places: readonly Place[], answers: readonly FetchedPartition[]): Promise<void> {
    let refusal: KafkaRefusal | undefined
    for (const answer of answers) {
      const place = places.find(({ partition }) => partition === answer.partitionIndex)
      if (!place) continue
      if (answer.errorCode === CODE.offsetOutOfRange) await this.#jump(place, answer)
      else if (answer.errorCode !== CODE.none) refusal ??= new KafkaRefusal(`Fetching ${this.#topic}`, answer.errorCode)
      else this.#hand(place, answer)
    }
    if (refusal) throw refusal
  }

  #hand(place: Place, { records }: FetchedPartition): void {
    for (const batch of records ?? []) {
      for (const record of batch.records) {
        // A fetch gives whole batches, so the first may begin before the position.
        const offset = batch.firstOffset + BigInt(record.offsetDelta)
        if (offset < place.position || this.#closing.signal.aborted) continue
        handOver(this.#onRecord, {
          key: record.key?.toString() ?? '',
          value: record.value ?? Buffer.alloc(0),
          offset: Number(offset),
          sentAtMs: Number(batch.firstTimestamp + record.timestampDelta),
        })
      }
      place.position = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n
    }
  }

  /** @returns What there is; a long poll that ended without anything names no partition. */
  async #fetch({ node, places }: Poll): Promise<readonly FetchedPartition[]> {
    const topicId = this.#cluster.topicId(this.#topic)
    if (!topicId) throw new NodeUnknown(`Topic ${this.#topic} is not known`)
    this.#beginAgainIn(topicId)
    const connection = await this.#cluster.connection(node, this.#lane, REQUEST_TIMEOUT_MS)
    const partitions = places.map(({ partition, position }) => ({
      partition,
      currentLeaderEpoch: -1,
      fetchOffset: position,
      lastFetchedEpoch: -1,
      partitionMaxBytes: FETCH_BYTES_MAX,
    }))
    const response = await fetchV17.api
      .async(connection, LONG_POLL_MS, 1, FETCH_BYTES_MAX, 0, 0, -1, [{ topicId, partitions }], [], '')
      .catch((error: unknown) => {
        const refused = responseOf<fetchV17.FetchResponse>(error)
        if (refused?.responses[0]?.partitions[0]) return refused
        throw error
      })
    return response.responses[0]?.partitions ?? []
  }

  /** A topic that was made anew, because Kafka lost it, counts from 0: what is there was sent since, and is read from its start. */
  #beginAgainIn(topicId: string): void {
    if (this.#topicId === topicId) return
    if (this.#topicId !== undefined) {
      for (const place of this.#places) place.position = 0n
      this.#options.onProblem('a channel was made anew, and is read from its start', { topic: this.#topic })
    }
    this.#topicId = topicId
  }

  /** The position is gone: retention passed it, and what is left is read; or a leader lost what came last, and others wrote on. */
  async #jump(place: Place, { logStartOffset }: FetchedPartition): Promise<void> {
    const from = place.position
    place.position = await this.#offsetAt(place, from < logStartOffset ? EARLIEST : LATEST)
    const { partition } = place
    const fields = { topic: this.#topic, partition, from: String(from), to: String(place.position) }
    this.#options.onProblem('records of a channel were deleted before they were received', fields)
  }

  async #offsetAt({ partition }: Place, timestamp: bigint): Promise<bigint> {
    const leader = this.#cluster.leader(this.#topic, partition)
    if (leader < 0) throw new NodeUnknown(`${this.#topic}/${partition} has no leader`)
    const connection = await this.#cluster.connection(leader, this.#lane, REQUEST_TIMEOUT_MS)
    const wanted = { partitionIndex: partition, currentLeaderEpoch: -1, timestamp }
    const { topics } = await listOffsetsV7.api.async(connection, -1, 0, [{ name: this.#topic, partitions: [wanted] }])
    const offset = topics[0]?.partitions[0]?.offset
    if (offset === undefined) throw new NodeUnknown(`No offset of ${this.#topic}/${partition}`)
    return offset
  }
}
