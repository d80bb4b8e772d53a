/**
 * A member of a share group (KIP-932): the queue half of the broker port on Kafka 4.2 or later.
 *
 * Two loops that share nothing but the assignment. **Membership** heartbeats to the group's coordinator, follows it when it
 * moves, and learns the assigned partitions. **Fetching** runs only while somebody takes: a session for each node that leads
 * an assigned partition (session.ts), together never asked for more records than the taker wants.
 *
 * A taker that gives up cannot call back a fetch under way. What it brings is kept for the next taker for `KEEP_MS`, then
 * released. Not done here: renewing locks. Records are acknowledged when they are claimed, within the lock's 30 s.
 */
import { randomUUID } from 'node:crypto'
import type { Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { type KafkaCluster, NO_LEADER } from '#shared/broker/kafka/cluster.ts'
import { CODE, isTransient, KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import { KAFKA_DEFAULTS, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import { pause, Supervisor, within } from '#shared/broker/kafka/supervision.ts'
import { ACK, type AssignedTopic, EPOCH, type HeartbeatResponse, shareGroupHeartbeat } from './protocol.ts'
import { type AcquiredRecord, keyOf, ShareSession } from './session.ts'

/** How long `take` waits for a first record. */
const TAKE_WAIT_MS = 900
/** How long records without a taker are kept. */
const KEEP_MS = 500
/** With several leaders polls are short: a taker's slots are split among them until their polls end. */
const SPLIT_POLL_MS = 100
/** With fewer slots than leaders they are even shorter: the slots go from leader to leader. */
const ROTATING_POLL_MS = 25
/** A new member asks this often until it has an assignment, then as often as the coordinator says. */
const JOIN_INTERVAL_MS = 100
/** After this many unanswered asks the group has no partition for this member: it stays, and asks at the usual pace. */
const JOIN_ASKS_MAX = 100
/** A member that the group keeps out asks this often after that. */
const REJOIN_INTERVAL_MS = 1_000
const HEARTBEAT_TIMEOUT_MS = 5_000
const REJOIN: readonly number[] = [CODE.unknownMemberId, CODE.fencedMemberEpoch, CODE.groupIdNotFound]

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
  readonly #membership: Supervisor
  readonly #sessions = new Map<number, ShareSession>()
  /** Sessions that failed and wait before they try again. */
  readonly #resting = new Set<ShareSession>()
  readonly #requests = new Set<Promise<void>>()
  #memberEpoch: number = EPOCH.first
  #assigned: readonly AssignedTopic[] = []
  #coordinator: number | undefined
  #beat: Promise<void> = Promise.resolve()
  #kept: AcquiredRecord[] = []
  #taker: Taker | undefined
  /** Fetches in a row, over all sessions, that brought nothing. */
  #emptyFetches = 0
  #keepTimer: NodeJS.Timeout | undefined
  #isFlushScheduled = false
  #isFollowing = false
  /** The group does not know this member, and did not at its last try either. */
  #isOut = false
  #closed: Promise<void> | undefined

  /** @param queue The queue's own name, for positions. @param topic Its topic, and the name of its group. */
  constructor(cluster: KafkaCluster, queue: string, topic: string, options: KafkaOptions) {
    this.#cluster = cluster
    this.#queue = queue
    this.#topic = topic
    this.#options = options
    this.#member = { group: topic, member: randomUUID() }
    this.#membership = new Supervisor(`member of ${topic}`, options, isTransient)
  }

  /** Starts to join; records come as soon as the group has assigned partitions. */
  open(): this {
    this.#beat = this.#keepMembership()
    return this
  }

  async take(max: number, signal: AbortSignal): Promise<Delivery[]> {
    if (signal.aborted || this.#closing.signal.aborted) return []
    if (this.#kept.length === 0) await this.#wait(max, signal)
    clearTimeout(this.#keepTimer)
    const records = signal.aborted ? [] : this.#kept.splice(0, max)
    if (this.#kept.length > 0) this.#keepTimer = setTimeout(() => this.#releaseKept(), KEEP_MS)
    return records.map((record) => this.#toDelivery(record))
  }

  /** Releases what was not acknowledged, and leaves the group. */
  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #wait(max: number, signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    const timer = setTimeout(resolve, TAKE_WAIT_MS)
    const wake = () => resolve()
    signal.addEventListener('abort', wake, { once: true })
    this.#taker = { max, wake }
    this.#pump()
    await promise
    this.#taker = undefined
    signal.removeEventListener('abort', wake)
    clearTimeout(timer)
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
    this.#keepTimer = setTimeout(() => this.#releaseKept(), KEEP_MS)
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

  async #keepMembership(): Promise<void> {
    let asks = 0
    while (!this.#closing.signal.aborted) {
      let delayMs = JOIN_INTERVAL_MS
      try {
        const { intervalMs } = await this.#heartbeat()
        this.#membership.progress()
        asks = this.#assigned.length > 0 ? 0 : asks + 1
        if (asks === 0 || asks > JOIN_ASKS_MAX) delayMs = intervalMs
      } catch (error) {
        if (this.#closing.signal.aborted) return
        await this.#loseCoordinator()
        delayMs = this.#membership.failed(error)
        this.#cluster.suspect()
      }
      await pause(delayMs, this.#closing.signal)
    }
  }

  async #heartbeat(): Promise<HeartbeatResponse> {
    const isJoining = this.#memberEpoch === EPOCH.first
    const response = await this.#beatOnce(this.#memberEpoch, isJoining ? [this.#topic] : null)
    if (REJOIN.includes(response.errorCode)) {
      // The coordinator forgot this member, after an outage or a pause longer than its session. It joins again.
      this.#memberEpoch = EPOCH.first
      const fields = { group: this.#topic, error: new KafkaRefusal('joining', response.errorCode).message }
      if (!this.#isOut) this.#options.onProblem('a share group forgot this member, which joins again', fields)
      this.#isOut = true
      return { ...response, intervalMs: REJOIN_INTERVAL_MS }
    }
    if (response.errorCode !== CODE.none) {
      throw new KafkaRefusal(`Joining ${this.#topic}`, response.errorCode, response.errorMessage)
    }
    this.#isOut = false
    this.#memberEpoch = response.memberEpoch
    if (response.assignment) {
      this.#assigned = response.assignment
      this.#follow()
    }
    return response
  }

  async #beatOnce(memberEpoch: number, topics: readonly string[] | null): Promise<HeartbeatResponse> {
    this.#coordinator ??= await this.#cluster.coordinator(this.#topic)
    const connection = await this.#cluster.connection(this.#coordinator, this.#beatLane, HEARTBEAT_TIMEOUT_MS)
    return shareGroupHeartbeat.async(connection, { ...this.#member, memberEpoch, topics })
  }

  /** Who coordinates the group is asked again before the next heartbeat. */
  async #loseCoordinator(): Promise<void> {
    if (this.#coordinator !== undefined) await this.#cluster.hangUp(this.#coordinator, this.#beatLane)
    this.#coordinator = undefined
  }

  get #beatLane(): string {
    return `heartbeat ${this.#member.member}`
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
    this.#kept = []
    clearTimeout(this.#keepTimer)
    this.#taker?.wake()
    await within(this.#options.closeTimeoutMs ?? KAFKA_DEFAULTS.closeTimeoutMs, this.#leave())
    // Whatever did not end in time is cut: a broken connection gives its records to others as well.
    await Promise.all([...this.#sessions.values()].map((session) => session.hangUp()))
    await this.#loseCoordinator()
  }

  async #leave(): Promise<void> {
    await Promise.all([...this.#sessions.values()].map((session) => session.cutLongPoll()))
    await Promise.all(this.#requests)
    await Promise.allSettled([...this.#sessions.values()].map((session) => session.close()))
    await this.#beat
    if (this.#memberEpoch === EPOCH.first) return
    await this.#beatOnce(EPOCH.leaving, null).catch((error: unknown) => {
      this.#options.onProblem('a member could not leave its share group', { error: String(error) })
    })
  }
}
