/**
 * A member of a share group (KIP-932): the queue half of the broker port on Kafka 4.2 or later.
 *
 * Two loops that share nothing but the assignment. **Membership** (membership.ts) learns the assigned partitions.
 * **Fetching** runs only while somebody takes: a session for each node that leads
 * an assigned partition (session.ts), together never asked for more records than the taker wants.
 *
 * A taker that gives up cannot call back a fetch under way. What it brings is kept for the next taker for `KEEP_MS`, then
 * released. Not done here: renewing locks. Records are acknowledged when they are claimed, within the lock's 30 s.
 */
import { randomUUID } from 'node:crypto'
import type { Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { type KafkaCluster, NO_LEADER } from '#shared/broker/kafka/cluster.ts'
import { KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import { KAFKA_DEFAULTS, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import { untilWoken, within } from '#shared/broker/kafka/supervision.ts'
import { untilTick } from '#shared/ticks.ts'
import { Membership } from './membership.ts'
import { keyOf } from './partitions.ts'
import { type AcquiredRecord, ShareSession } from './session.ts'
import type { AssignedTopic } from './wire/parts.ts'
import { ACK } from './wire/records.ts'

/** How long `take` waits for a first record at most: until the process wakes for others as well. */
const TAKE_WAIT_MS = 1_000
/** How long records without a taker are kept. */
const ACQUIRED_TTL_MS = 500
/** With several leaders polls are short: a taker's slots are split among them until their polls end. */
const SPLIT_POLL_MS = 100
/** With fewer slots than leaders they are even shorter: the slots go from leader to leader. */
const ROTATING_POLL_MS = 25

interface Taker {
  readonly max: number
  readonly wake: () => void
}

/** One member of the group that shares a queue. Call `open` once. */
export class ShareConsumer implements QueueConsumer {
  readonly #cluster: KafkaCluster
  readonly #queue: string
  readonly #topic: string
  readonly #options: KafkaOptions
  readonly #member: { readonly group: string; readonly member: string }
  readonly #closing = new AbortController()
  readonly #membership: Membership
  readonly #sessions = new Map<number, ShareSession>()
  /** Sessions that failed and wait before they try again. */
  readonly #resting = new Set<ShareSession>()
  readonly #requests = new Set<Promise<void>>()
  #assigned: readonly AssignedTopic[] = []
  #kept: AcquiredRecord[] = []
  #taker: Taker | undefined
  /** Fetches in a row, over all sessions, that brought nothing. */
  #emptyFetches = 0
  #keepTimer: NodeJS.Timeout | undefined
  #isFlushScheduled = false
  #isFollowing = false
  #closed: Promise<void> | undefined

  /** @param queue The queue's own name, for positions. @param topic Its topic, and the name of its group. */
  constructor(cluster: KafkaCluster, queue: string, topic: string, options: KafkaOptions) {
    this.#cluster = cluster
    this.#queue = queue
    this.#topic = topic
    this.#options = options
    this.#member = { group: topic, member: randomUUID() }
    this.#membership = new Membership(cluster, this.#member, options, (assigned) => {
      this.#assigned = assigned
      this.#follow()
    })
  }

  /** Starts to join; records come as soon as the group has assigned partitions. */
  open(): this {
    this.#membership.join()
    return this
  }

  async take(max: number, signal: AbortSignal): Promise<Delivery[]> {
    if (signal.aborted || this.#closing.signal.aborted) return []
    if (this.#kept.length === 0) await this.#wait(max, signal)
    clearTimeout(this.#keepTimer)
    const records = signal.aborted ? [] : this.#kept.splice(0, max)
    if (this.#kept.length > 0) this.#keepTimer = setTimeout(() => this.#releaseKept(), ACQUIRED_TTL_MS)
    return records.map((record) => this.#toDelivery(record))
  }

  /** Releases what was not acknowledged, and leaves the group. */
  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #wait(max: number, signal: AbortSignal): Promise<void> {
    await untilWoken(untilTick(TAKE_WAIT_MS), signal, (wake) => {
      this.#taker = { max, wake }
      this.#pump()
    })
    this.#taker = undefined
  }

  /** Gives every idle session something to do: a share of what the taker wants, or acknowledgements to hand in. */
  #pump(): void {
    if (this.#closing.signal.aborted) return
    const idle = [...this.#sessions.values()].filter((session) => !session.isBusy && !this.#resting.has(session))
    let room = (this.#taker?.max ?? 0) - this.#kept.length
    for (const session of this.#sessions.values()) room -= session.asked
    for (const [index, session] of idle.entries()) {
      const share = session.isWanted ? Math.ceil(Math.max(room, 0) / (idle.length - index)) : 0
      room -= share
      if (share > 0) this.#run(session, () => this.#fetch(session, share))
      else if (session.hasPending) this.#run(session, () => session.flush())
    }
  }

  async #fetch(session: ShareSession, max: number): Promise<void> {
    const records = await session.fetch(max, this.#pollMs())
    this.#emptyFetches = records.length > 0 ? 0 : this.#emptyFetches + 1
    // Next time another session comes first, so that fewer slots than leaders still see all of them.
    if (this.#sessions.delete(session.node)) this.#sessions.set(session.node, session)
    this.#keep(records)
  }

  /** While one leader has records, the others must not hold slots for long: their polls start at a millisecond. */
  #pollMs(): number | undefined {
    const leaders = this.#sessions.size
    if (leaders < 2) return undefined
    return Math.min(leaders > (this.#taker?.max ?? 0) ? ROTATING_POLL_MS : SPLIT_POLL_MS, 2 ** this.#emptyFetches)
  }

  #run(session: ShareSession, request: () => Promise<void>): void {
    const done = request()
      .then(() => session.supervisor.progress())
      .catch((error: unknown) => this.#rest(session, error))
      .finally(() => {
        this.#requests.delete(done)
        this.#dropUnused(session)
        this.#pump()
      })
    this.#requests.add(done)
  }

  #rest(session: ShareSession, error: unknown): void {
    if (this.#closing.signal.aborted) return
    const delayMs = session.supervisor.failed(error)
    this.#resting.add(session)
    setTimeout(() => {
      this.#resting.delete(session)
      this.#pump()
    }, delayMs).unref()
    if (!(error instanceof KafkaRefusal)) {
      this.#cluster.suspect()
      // The broker has given these to others.
      this.#kept = this.#kept.filter((record) => record.session !== session)
    }
    this.#followAfresh()
  }

  #keep(records: readonly AcquiredRecord[]): void {
    if (records.length === 0) return
    this.#kept.push(...records)
    if (this.#taker) return this.#taker.wake()
    clearTimeout(this.#keepTimer)
    this.#keepTimer = setTimeout(() => this.#releaseKept(), ACQUIRED_TTL_MS)
  }

  #releaseKept(): void {
    for (const record of this.#kept.splice(0)) this.#settle(record, ACK.release)
  }

  #toDelivery(record: AcquiredRecord): Delivery {
    return {
      value: record.value,
      deliveryCount: record.deliveryCount,
      position: `${this.#queue}/${record.partition}@${record.offset}`,
      acknowledge: () => this.#settle(record, ACK.accept),
      release: () => this.#settle(record, ACK.release),
    }
  }

  /** Hands in at the end of the turn what one turn of the event loop settled, unless a fetch takes it along. */
  #settle(record: AcquiredRecord, type: number): void {
    record.session.settle(record, type)
    if (this.#isFlushScheduled) return
    this.#isFlushScheduled = true
    setImmediate(() => {
      this.#isFlushScheduled = false
      this.#pump()
    })
  }

  /** Asks who leads what, then goes there. */
  #followAfresh(): void {
    if (this.#isFollowing || this.#closing.signal.aborted) return
    this.#isFollowing = true
    void this.#cluster.refresh().then(() => {
      this.#isFollowing = false
      this.#follow()
    })
  }

  /** Gives each assigned partition to the session of its leader. */
  #follow(): void {
    if (this.#closing.signal.aborted) return
    const byLeader = new Map<number, string[]>()
    for (const { topicId, partitions } of this.#assigned) {
      for (const partition of partitions) {
        const leader = this.#cluster.leader(this.#topic, partition)
        byLeader.set(leader, [...(byLeader.get(leader) ?? []), keyOf(topicId, partition)])
      }
    }
    // A partition without a leader belongs to no session that could fail and ask again.
    if (byLeader.delete(NO_LEADER)) this.#followAfresh()
    for (const node of byLeader.keys()) {
      if (this.#sessions.has(node)) continue
      this.#sessions.set(node, new ShareSession(node, this.#cluster, this.#member, this.#options))
    }
    for (const session of this.#sessions.values()) {
      session.want(byLeader.get(session.node) ?? [])
      this.#dropUnused(session)
    }
    this.#pump()
  }

  /** A node that has nothing for this member any more keeps its session until all it gave is acknowledged. */
  #dropUnused(session: ShareSession): void {
    if (session.isWanted || session.isBusy || session.isOwed || this.#closing.signal.aborted) return
    this.#sessions.delete(session.node)
    void session.close().catch(() => session.hangUp())
  }

  async #close(): Promise<void> {
    this.#closing.abort()
    this.#membership.stop()
    this.#kept = []
    clearTimeout(this.#keepTimer)
    this.#taker?.wake()
    await within(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs, this.#leave())
    // Whatever did not end in time is cut: a broken connection gives its records to others as well.
    await Promise.all([...this.#sessions.values()].map((session) => session.hangUp()))
    await this.#membership.hangUp()
  }

  async #leave(): Promise<void> {
    await Promise.all([...this.#sessions.values()].map((session) => session.cutLongPoll()))
    await Promise.all(this.#requests)
    await Promise.allSettled([...this.#sessions.values()].map((session) => session.close()))
    await this.#membership.leave()
  }
}
