/**
 * A member of a share group (KIP-932), which consumes a queue on Kafka 4.2 or later.
 *
 * A membership loop (membership.ts) receives the assigned partitions. A fetch loop runs only during `take`, with one session per node that leads an
 * assigned partition (session.ts). All sessions together never request more records than the maximum of the call.
 *
 * A fetch in flight cannot be revoked when its caller aborts. The fetched records are buffered for the next caller for {@link ACQUIRED_TTL_MS}, then
 * released. Record locks are not renewed, because a record is acknowledged long before its lock ends (30 s).
 */
import { randomUUID } from 'node:crypto'
import type { Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { type KafkaCluster, NO_LEADER } from '#shared/broker/kafka/cluster.ts'
import { KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import { KAFKA_DEFAULTS, type KafkaOptions, untilWoken, within } from '#shared/broker/kafka/options.ts'
import { untilAligned } from '#shared/lib/aligned-interval.ts'
import { Membership } from './membership.ts'
import { type AcquiredRecord, keyOf, ShareSession } from './session.ts'
import { ACK, type AssignedTopic } from './wire.ts'

/** Maximum wait of `take` for a first record, in ms. The wait ends at a time at which other timers wake the process anyway. */
const TAKE_WAIT_MS = 1_000
/** Time in ms after which fetched records without a waiting `take` call are released. */
const ACQUIRED_TTL_MS = 500
/**
 * Maximum time in ms for which a broker waits for records, if several brokers lead partitions of the topic. Each of these leaders is asked
 * for a part of the requested records, and no other leader can deliver this part until the poll ends. The value is therefore short.
 */
const SPLIT_POLL_MS = 100
/**
 * Maximum time in ms for which a broker waits for records, if the requested records are fewer than the brokers that lead partitions. The value is
 * shorter than {@link SPLIT_POLL_MS}, because leaders are then polled in rotation, and each poll delays the polls of the other leaders.
 */
const ROTATING_POLL_MS = 25

interface PendingTake {
  readonly max: number
  readonly wake: () => void
}

export class ShareConsumer implements QueueConsumer {
  readonly #cluster: KafkaCluster
  readonly #queue: string
  readonly #topic: string
  readonly #options: KafkaOptions
  readonly #member: { readonly group: string; readonly member: string }
  readonly #closing = new AbortController()
  readonly #membership: Membership
  readonly #sessions = new Map<number, ShareSession>()
  readonly #delayed = new Set<ShareSession>()
  readonly #requests = new Set<Promise<void>>()
  #assigned: readonly AssignedTopic[] = []
  #kept: AcquiredRecord[] = []
  #taker: PendingTake | undefined
  #emptyFetches = 0
  #keepTimer: NodeJS.Timeout | undefined
  #isFlushScheduled = false
  #isFollowing = false
  #closed: Promise<void> | undefined

  /**
   * @param queue Name of the queue without the prefix, for {@link Delivery.position}.
   * @param topic Topic of the queue, which is also the name of its group.
   */
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

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #wait(max: number, signal: AbortSignal): Promise<void> {
    await untilWoken(untilAligned(TAKE_WAIT_MS), signal, (wake) => {
      this.#taker = { max, wake }
      this.#pump()
    })
    this.#taker = undefined
  }

  /** Sends a request in every idle session: a fetch for a part of the requested records, or pending acknowledgements. */
  #pump(): void {
    if (this.#closing.signal.aborted) return
    const idle = [...this.#sessions.values()].filter((session) => !session.isBusy && !this.#delayed.has(session))
    let free = (this.#taker?.max ?? 0) - this.#kept.length
    for (const session of this.#sessions.values()) free -= session.asked
    for (const [index, session] of idle.entries()) {
      const share = session.isWanted ? Math.ceil(Math.max(free, 0) / (idle.length - index)) : 0
      free -= share
      if (share > 0) this.#run(session, () => this.#fetch(session, share))
      else if (session.hasPending) this.#run(session, () => session.flush())
    }
  }

  async #fetch(session: ShareSession, max: number): Promise<void> {
    const records = await session.fetch(max, this.#pollMs())
    this.#emptyFetches = records.length > 0 ? 0 : this.#emptyFetches + 1
    // The session is moved to the end, so that all leaders are polled even if fewer records than leaders are requested.
    if (this.#sessions.delete(session.node)) this.#sessions.set(session.node, session)
    this.#buffer(records)
  }

  /**
   * Returns the poll time in ms. The requested records are divided among the leaders, so a poll of a leader without records withholds its part from
   * the other leaders. With several leaders, polls therefore start at 1 ms and double while all are empty.
   */
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
    this.#delayed.add(session)
    setTimeout(() => {
      this.#delayed.delete(session)
      this.#pump()
    }, delayMs).unref()
    if (!(error instanceof KafkaRefusal)) {
      this.#cluster.suspect()
      // The broker has already released the records of this session, so buffered records are dropped.
      this.#kept = this.#kept.filter((record) => record.session !== session)
    }
    this.#followAfresh()
  }

  #buffer(records: readonly AcquiredRecord[]): void {
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

  /** Sends acknowledgements at the end of the event-loop iteration, unless a fetch carries them earlier. */
  #settle(record: AcquiredRecord, type: number): void {
    record.session.settle(record, type)
    if (this.#isFlushScheduled) return
    this.#isFlushScheduled = true
    setImmediate(() => {
      this.#isFlushScheduled = false
      this.#pump()
    })
  }

  #followAfresh(): void {
    if (this.#isFollowing || this.#closing.signal.aborted) return
    this.#isFollowing = true
    void this.#cluster.refresh().then(() => {
      this.#isFollowing = false
      this.#follow()
    })
  }

  #follow(): void {
    if (this.#closing.signal.aborted) return
    const byLeader = new Map<number, string[]>()
    for (const { topicId, partitions } of this.#assigned) {
      for (const partition of partitions) {
        const leader = this.#cluster.leader(this.#topic, partition)
        byLeader.set(leader, [...(byLeader.get(leader) ?? []), keyOf(topicId, partition)])
      }
    }
    // No session polls a partition without a leader, so no failed poll would cause a refresh of the metadata. The
    // refresh is therefore started here.
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

  /**
   * Closes a session whose node leads no partition of this member any more, after all of its records are acknowledged.
   */
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
    // If a connection did not close in time, then it is broken off, so that the broker releases its records too.
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
