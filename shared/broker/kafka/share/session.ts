/**
 * One share session (KIP-932): this member at one node, for the partitions which that node leads.
 *
 * `idle ⇄ busy`, one request at a time, numbered by the session's epoch. A fetch takes the waiting acknowledgements along;
 * without a fetch they go by themselves. They cannot overtake a fetch on a second connection: the broker takes them, but
 * then refuses the fetch's answer for its epoch and leaves its records locked (Kafka 4.3.1, tried). So that an
 * acknowledgement never waits for a long poll, a poll is long only while nothing is out (`#waitMs`).
 *
 * When the connection breaks the broker gives everything held here to others at once. The deliveries of that time are then
 * void: acknowledging them does nothing.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Connection } from '@platformatic/kafka'
import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { CODE, isTransient, KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import type { KafkaOptions, OnProblem } from '#shared/broker/kafka/options.ts'
import { Supervisor } from '#shared/broker/kafka/supervision.ts'
import { keyOf, type PendingAck, topicsOf, toTopics } from './partitions.ts'
import { EPOCH } from './wire/parts.ts'
import { ACK, type FetchedPartition, shareAcknowledge, shareFetch } from './wire/records.ts'

const LONG_POLL_MS = 500
const FIRST_POLL_MS = 20
const SHORT_POLL_MIN_MS = 5
const REQUEST_TIMEOUT_MS = LONG_POLL_MS + 5_000
const FETCH_BYTES_MAX = 16 * 1024 * 1024
const EPOCH_MAX = 2 ** 31 - 1
const SESSION_LOST: readonly number[] = [CODE.shareSessionNotFound, CODE.invalidShareSessionEpoch]

/** Who fetches. */
export interface ShareMember {
  readonly group: string
  readonly member: string
}

/** One record that the broker has locked for this member. */
export interface AcquiredRecord {
  readonly session: ShareSession
  readonly topicId: string
  readonly partition: number
  readonly offset: number
  readonly deliveryCount: number
  readonly value: Buffer
  readonly since: number
}

/** A member's session at one node. The member decides when it fetches; `close` ends it. */
export class ShareSession {
  readonly node: number
  readonly supervisor: Supervisor
  readonly #cluster: KafkaCluster
  readonly #member: ShareMember
  readonly #lane: string
  readonly #onProblem: OnProblem
  /** What this node should serve, and what the broker's session knows of, as `topicId partition`. */
  #wanted = new Set<string>()
  readonly #known = new Set<string>()
  /** Handed to this member and not settled yet, oldest first. */
  readonly #out = new Set<AcquiredRecord>()
  #pending: PendingAck[] = []
  #epoch: number = EPOCH.first
  /** Records asked for by the request under way. */
  #asked = 0
  /** Polls in a row that brought nothing and handed in nothing. */
  #emptyPolls = 0
  #isBusy = false
  #isCarrying = false
  #connection: Connection | undefined

  constructor(node: number, cluster: KafkaCluster, member: ShareMember, options: KafkaOptions) {
    this.node = node
    this.supervisor = new Supervisor(`share session of ${member.group} at node ${node}`, options, isTransient)
    this.#cluster = cluster
    this.#member = member
    this.#lane = `share ${member.member}`
    this.#onProblem = options.onProblem
  }

  get isBusy(): boolean {
    return this.#isBusy
  }

  /** How many records the request under way may still bring. */
  get asked(): number {
    return this.#asked
  }

  /** True when acknowledgements wait and there is a session to send them in. */
  get hasPending(): boolean {
    return this.#pending.length > 0 && this.#epoch !== EPOCH.first
  }

  /** True while records are out or acknowledgements wait: only this session can hand them in. */
  get isOwed(): boolean {
    return this.#out.size > 0 || this.hasPending
  }

  /** True when there is something to fetch from. */
  get isWanted(): boolean {
    return this.#wanted.size > 0
  }

  /** Sets the partitions to fetch from; what is no longer among them is forgotten with the next fetch. */
  want(partitions: Iterable<string>): void {
    this.#wanted = new Set(partitions)
  }

  /**
   * Asks for at most `max` records, for at most `pollMs`, and hands in what is acknowledged.
   *
   * @throws when the node cannot be reached, or refuses
   */
  fetch(max: number, pollMs = LONG_POLL_MS): Promise<AcquiredRecord[]> {
    return this.#exclusively(max, async (connection, acks) => {
      // What is wanted may change while the request is under way: only what this one says is known afterwards.
      const added = [...this.#wanted].filter((key) => !this.#known.has(key))
      const acked = new Set(acks.map(({ record }) => keyOf(record.topicId, record.partition)))
      const forgotten = [...this.#known].filter((key) => !this.#wanted.has(key) && !acked.has(key))
      const [maxWaitMs, sentAt] = [this.#waitMs(pollMs), performance.now()]
      const response = await shareFetch.async(connection, {
        ...this.#member,
        sessionEpoch: this.#epoch,
        maxWaitMs,
        maxRecords: max,
        maxBytes: FETCH_BYTES_MAX,
        topics: topicsOf(acks, added),
        forgotten: toTopics(forgotten),
      })
      if (!this.#accept(response.errorCode, acks)) return []
      for (const key of forgotten) this.#known.delete(key)
      // A partition that was only acknowledged counts as fetched from as well: the next request forgets it.
      for (const key of [...added, ...acked]) this.#known.add(key)
      for (const partition of response.partitions) this.#noteRefusal(partition)
      const records = response.partitions.flatMap((partition) => this.#acquire(partition))
      this.#emptyPolls = records.length > 0 || acks.length > 0 ? 0 : this.#emptyPolls + 1
      const failed = response.partitions.find(({ errorCode }) => errorCode !== CODE.none)
      if (failed && records.length === 0) this.#noteFailure(failed)
      // A broker that answers "nothing" at once must not be asked in a tight loop.
      const earlyMs = sentAt + maxWaitMs - performance.now()
      if (records.length === 0 && acks.length === 0 && earlyMs > 1) await sleep(earlyMs)
      return records
    })
  }

  /** Hands in what is acknowledged, without fetching. @throws as `fetch` does */
  async flush(): Promise<void> {
    await this.#exclusively(0, async (connection, acks) => {
      if (acks.length === 0) return
      const response = await shareAcknowledge.async(connection, {
        ...this.#member,
        sessionEpoch: this.#epoch,
        topics: topicsOf(acks, []),
      })
      if (this.#accept(response.errorCode, acks))
        for (const partition of response.partitions) this.#noteRefusal(partition)
    })
  }

  /** Says what became of a record; goes out with the next request. Does nothing for a record of an earlier connection. */
  settle(record: AcquiredRecord, type: number): void {
    if (!this.#out.delete(record)) return
    this.#pending.push({ record, type })
  }

  /** Ends a long poll that nothing depends on: what it might still bring, the broker gives to others. */
  async cutLongPoll(): Promise<void> {
    if (this.#isBusy && !this.#isCarrying && this.#out.size === 0) await this.hangUp()
  }

  /** Releases what is still out, hands everything in, and ends the session. */
  async close(): Promise<void> {
    for (const record of this.#out) this.settle(record, ACK.release)
    if (this.hasPending) await this.flush()
    if (this.#epoch !== EPOCH.first) {
      const connection = await this.#cluster.connection(this.node, this.#lane, REQUEST_TIMEOUT_MS)
      await shareAcknowledge.async(connection, { ...this.#member, sessionEpoch: EPOCH.leaving, topics: [] })
    }
    await this.hangUp()
  }

  /** Breaks the connection: a request under way fails, and the broker gives what is out to others. */
  async hangUp(): Promise<void> {
    await this.#cluster.hangUp(this.node, this.#lane)
  }

  async #exclusively<R>(asked: number, request: (c: Connection, acks: PendingAck[]) => Promise<R>): Promise<R> {
    this.#isBusy = true
    this.#asked = asked
    try {
      const connection = await this.#cluster.connection(this.node, this.#lane, REQUEST_TIMEOUT_MS)
      // Broken and made anew between two requests.
      if (connection !== this.#connection) this.#forget()
      this.#connection = connection
      // The request that opens a session must not acknowledge anything.
      const acks = this.#epoch === EPOCH.first ? [] : this.#pending.splice(0)
      this.#isCarrying = acks.length > 0
      return await request(connection, acks)
    } catch (error) {
      if (!(error instanceof KafkaRefusal)) {
        this.#forget()
        await this.hangUp()
      }
      throw error
    } finally {
      this.#isBusy = false
      this.#asked = 0
    }
  }

  /** The broker let go of everything that the connection held. */
  #forget(): void {
    this.#out.clear()
    this.#pending = []
    this.#restart()
  }

  #restart(): void {
    this.#epoch = EPOCH.first
    this.#known.clear()
  }

  /** Counts the request, or starts the session over when the broker lost it; then the acknowledgements go again. */
  #accept(errorCode: number, acks: PendingAck[]): boolean {
    if (errorCode === CODE.none) {
      this.#epoch = this.#epoch === EPOCH_MAX ? 1 : this.#epoch + 1
      return true
    }
    this.#pending.unshift(...acks)
    this.#restart()
    if (!SESSION_LOST.includes(errorCode)) throw new KafkaRefusal('Fetching from a share group', errorCode)
    return false
  }

  /**
   * How long the broker may wait for records.
   *
   * Polls start short and double while nothing comes, because the broker misses a record that arrives just as a poll is
   * parked and answers only when the poll ends: 5 calls in 12,000 took the whole 500 ms (Kafka 4.3.1, measured).
   *
   * An acknowledgement that comes meanwhile has to wait as long. With nothing out none can come. Else a poll lasts at most
   * half as long as the oldest record is already out, so that it waits half the time its job took.
   */
  #waitMs(pollMs: number): number {
    const quietMs = Math.min(pollMs, FIRST_POLL_MS * 2 ** this.#emptyPolls)
    const [oldest] = this.#out
    if (!oldest) return quietMs
    const ageMs = performance.now() - oldest.since
    return Math.round(Math.min(quietMs, Math.max(SHORT_POLL_MIN_MS, ageMs / 2)))
  }

  #acquire({ topicId, partition, acquired, records }: FetchedPartition): AcquiredRecord[] {
    const since = performance.now()
    const mine: AcquiredRecord[] = []
    for (const { first, last, deliveryCount } of acquired) {
      for (let offset = first; offset <= last; offset++) {
        const found = records.get(offset)
        const place = { topicId, partition, offset }
        if (!found) {
          this.#pending.push({ record: place, type: ACK.gap })
          continue
        }
        const value = found.value ?? Buffer.alloc(0)
        const record = { ...place, session: this, deliveryCount, value, since }
        this.#out.add(record)
        mine.push(record)
      }
    }
    return mine
  }

  #noteRefusal({ partition, ackErrorCode }: { readonly partition: number; readonly ackErrorCode: number }): void {
    if (ackErrorCode === CODE.none) return
    const { message } = new KafkaRefusal('acknowledging', ackErrorCode)
    const fields = { group: this.#member.group, partition, error: message }
    this.#onProblem('acknowledgements were refused, so these records come again', fields)
  }

  /**
   * The next fetch asks for the partition afresh. A group that is new begins at a time (`by_duration`), and in a partition without
   * a record its leader finds no offset for that: such a queue is empty, for hours perhaps, and nothing is wrong with it.
   *
   * @throws unless it is that
   */
  #noteFailure({ topicId, partition, errorCode, errorMessage }: FetchedPartition): void {
    this.#known.delete(keyOf(topicId, partition))
    if (errorCode === CODE.offsetNotAvailable) return
    throw new KafkaRefusal(`Fetching partition ${partition} from node ${this.node}`, errorCode, errorMessage)
  }
}
