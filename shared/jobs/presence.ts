/*
 * Failure detector: publishes the heartbeats of this process and detects missing heartbeats of others.
 *
 * The problem: a missing heartbeat may mean a dead peer, a slow peer, or a broken channel. If a channel outage counted as death, then all jobs of
 * the fleet would be repeated at the same time.
 *
 * The invariant: missing heartbeats of a peer count only while this process receives its own heartbeats through the same channel.
 *
 * States of a peer:
 * 1. Alive: the last heartbeat is recent.
 * 2. Suspected (`isSuspected`): no heartbeat for `suspectedMs`. A later heartbeat makes the peer alive again. Only work that is cheap to repeat is
 *    repeated.
 * 3. Dead: no heartbeat for `lostMs`, or a `leave` record of an ingress or scheduler. The peer is removed, and the jobs of a dead worker are retried
 *    or fail.
 *
 * After an interruption of the channel, every peer has the full time again. Both times are longer if a peer has a longer heartbeat interval
 * (`peers.ts`).
 *
 * Example: interval 500 ms, `suspectedMs` 2,000, `lostMs` 10,000. A worker that dies is suspected 2 s after its last heartbeat, and declared dead
 * after 10 s. If the channel fails for 30 s instead, then no peer is suspected.
 */

import type { ControlRecord } from '#schemas/event.ts'
import type { Broker, ChannelRecord, Receiver } from '#shared/broker/broker.ts'
import type { Capacity } from '#shared/capacity/bulkheads.ts'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Log } from '#shared/log/log.ts'
import { type Work, workOnly } from './fleet-work.ts'
import {
  HEARTBEAT_MS,
  heartbeatIntervalOf,
  IDLE_HEARTBEAT_MS,
  IDLE_UNITS,
  type Peer,
  Peers,
  type Role,
  slackMs,
} from './peers.ts'
import { CONTROL, readControl, UnknownRecordLog } from './records.ts'

/** Number of heartbeats after which a worker publishes its capacity again. */
const HEARTBEATS_PER_CAPACITY = 4
/** Minimum interval between two capacity records in ms, at the shortest heartbeat interval. Changes in between share one record. */
const CAPACITY_MS_MIN = 100
/**
 * If the heartbeat of this process itself arrives at least this late, in ms, then the channel counts as late. Missing heartbeats of peers then prove
 * nothing. Must be shorter than `suspectedMs` by more than one interval.
 */
const CHANNEL_LATE_MS = 1_250
/** If the heartbeat of this process itself arrives at least this late, in ms, then the channel counts as broken, and a warning is logged. */
const CHANNEL_SILENCE_MS = 2_500
/**
 * A check that runs this late, in ms, shows that the event loop of this process was blocked. Records may then be unread, so silence does not count as
 * a broken channel.
 */
const CHECK_LATE_MS = 1_000

/**
 * `Presence` objects of this process whose control channel is silent, by broker. The roles of a process share the set. The process logs one message
 * when the first channel falls silent, and one when the last recovers.
 */
const silentChannels = new WeakMap<Broker, Set<Presence>>()

export interface Self {
  readonly boot: string
  readonly role: Role
  readonly version: string
  slots(): number
  running(): number
  isDraining(): boolean
  /** Returns the capacity of a worker. Undefined if there is nothing to publish. Only workers have this method. */
  capacity?(): Capacity | undefined
  /** Returns the waiting and running work of a process that runs no jobs (`fleet-work.ts`). */
  work?(): readonly Work[]
}

export interface PresenceListener {
  /** Called when a peer is suspected: no heartbeat for `suspectedMs`. The peer may be dead or slow. */
  onSuspected?(peer: Peer): void
  /** Called when a peer is dead: no heartbeat for `lostMs`, or the peer is an ingress or scheduler that has left. */
  onLost?(peer: Peer): void
  onCapacity?(peer: Peer): void
  /** Called for each control record about jobs, such as a cancel, a pause or a resume. */
  onControl?(record: ControlRecord): void
}

export class Presence extends Peers {
  readonly #broker: Broker
  readonly #self: Self
  readonly #listener: PresenceListener
  readonly #suspectedMs: number
  readonly #lostMs: number
  readonly #log: Log
  readonly #skipped: UnknownRecordLog
  #stopTicking: (() => void) | undefined
  /** Timer for the time at which the next peer becomes suspected or dead, if that time is before the next periodic check. */
  #checkTimer: NodeJS.Timeout | undefined
  #receiver: Receiver | undefined
  readonly #openedAtMs = Date.now()
  #lastEchoMs = this.#openedAtMs
  #lastCheckMs = this.#openedAtMs
  #blockedAtMs = 0
  #heartbeats = 0
  #interval = 1
  #hadWork = false
  #unitsSinceHeartbeat = 0
  #idle = 0
  #capacitySentMs = 0
  #isIntroducing = false
  #capacityTimer: NodeJS.Timeout | undefined

  private constructor(options: PresenceOptions) {
    super()
    this.#broker = options.broker
    this.#self = options.self
    this.#listener = options.listener
    this.#suspectedMs = options.suspectedMs ?? options.lostMs
    this.#lostMs = options.lostMs
    this.#log = options.log
    this.#skipped = new UnknownRecordLog(options.log)
  }

  static async open(options: PresenceOptions): Promise<Presence> {
    const presence = new Presence(options)
    presence.#receiver = await options.broker.receive(CONTROL, [0], (record) => presence.#onRecord(record))
    presence.#heartbeat()
    presence.#stopTicking = atAlignedInterval(HEARTBEAT_MS, () => {
      presence.#tick()
      presence.#check()
    })
    return presence
  }

  /**
   * Time in ms since this process last received its own heartbeat, minus the part of its heartbeat interval above 500 ms. A small value
   * shows that the channel works, also at a long interval.
   */
  get silenceMs(): number {
    return Math.max(0, Date.now() - this.#lastEchoMs - this.heartbeatMs + HEARTBEAT_MS)
  }

  /** Expected maximum age of the last heartbeat of a healthy peer, in ms. */
  get heartbeatMs(): number {
    return this.#interval * HEARTBEAT_MS
  }

  /** Whether another process is certainly dead, because this process has received none of its heartbeats for `lostMs`. False if that is uncertain. */
  isDead(boot: string): boolean {
    const hasListened =
      Date.now() - this.#openedAtMs > this.#lostMs + slackMs(this.#interval) && this.silenceMs < CHANNEL_SILENCE_MS
    return hasListened && !this.peers.has(boot)
  }

  get hasAllCapacities(): boolean {
    const listenedMs = Date.now() - this.#openedAtMs
    if (listenedMs > this.heartbeatMs * (HEARTBEATS_PER_CAPACITY + 1)) return true
    const isOpen = ({ slots, capacity }: Peer) => slots > 0 && capacity === undefined
    return listenedMs > 1.5 * Math.max(this.heartbeatMs, IDLE_HEARTBEAT_MS) && ![...this.peers.values()].some(isOpen)
  }

  publishCapacity(): void {
    if (!this.#stopTicking) return
    const waitMs = Math.max(0, this.#capacitySentMs + CAPACITY_MS_MIN * this.#interval - Date.now())
    this.#capacityTimer ??= setTimeout(() => this.#sendCapacity(), waitMs)
  }

  /** Publishes a record to every process. A failure is only logged, because each effect of a record has a timeout as a fallback. */
  send(record: ControlRecord): void {
    if (this.#broker.deliverLocal) return this.#broker.deliverLocal(CONTROL, 0, '', record)
    this.#broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(record))).catch((error: unknown) => {
      this.#log.warn(
        { err: error, type: record.type },
        'control message could not be sent; a timeout will have the same effect later',
      )
    })
  }

  async close(): Promise<void> {
    this.#stopTicking?.()
    this.#stopTicking = undefined
    for (const timer of [this.#checkTimer, this.#capacityTimer]) clearTimeout(timer)
    silentChannels.get(this.#broker)?.delete(this)
    if (!this.#receiver) return
    this.send({ type: 'leave', boot: this.#self.boot })
    await this.#receiver.close()
    this.#receiver = undefined
  }

  #tick(): void {
    this.#idle = this.#self.running() > 0 ? 0 : this.#idle + 1
    const interval = heartbeatIntervalOf(this.peers, this.#self.boot, this.#idle >= IDLE_UNITS)
    if (interval !== this.#interval) this.#changeInterval(interval)
    if (++this.#unitsSinceHeartbeat >= interval) this.#heartbeat()
  }

  #changeInterval(interval: number): void {
    this.#interval = interval
    this.#receiver?.stretch?.(interval)
    // The new interval is published at once. A peer that still expects the shorter interval would otherwise suspect
    // this process.
    this.#sendInterval()
  }

  #heartbeat(): void {
    this.#sendHeartbeat()
    if (this.#heartbeats++ % HEARTBEATS_PER_CAPACITY !== 0) return
    this.#sendCapacity()
    this.#sendWork()
    this.#sendInterval()
  }

  #sendHeartbeat(): void {
    const self = this.#self
    this.#unitsSinceHeartbeat = 0
    this.send({
      type: 'heartbeat',
      boot: self.boot,
      role: self.role,
      slots: self.slots(),
      running: self.running(),
      draining: self.isDraining(),
      version: self.version,
    })
  }

  #sendInterval(): void {
    this.send({ type: 'heartbeat_interval', boot: this.#self.boot, interval_ms: this.heartbeatMs })
  }

  #sendCapacity(): void {
    clearTimeout(this.#capacityTimer)
    this.#capacityTimer = undefined
    this.#capacitySentMs = Date.now()
    // Peers ignore a capacity record if they have not received a heartbeat of the process yet, so a heartbeat is sent first.
    if (this.#isIntroducing) this.#sendHeartbeat()
    this.#isIntroducing = false
    const capacity = this.#self.capacity?.()
    if (capacity) this.send({ type: 'capacity', boot: this.#self.boot, ...capacity })
  }

  /** Publishes the work of this process. When no work is left, one record without work is sent, and then none. */
  #sendWork(): void {
    const work = this.#self.work?.() ?? []
    if (work.length > 0 || this.#hadWork) this.send({ type: 'capacity', boot: this.#self.boot, ...workOnly(work) })
    this.#hadWork = work.length > 0
  }

  #onRecord(received: ChannelRecord): void {
    const record = (received.payload as ControlRecord | undefined) ?? readControl(received.value)
    if (record === undefined) return this.#skipped.note('unreadable control record ignored')
    if (typeof record === 'string') return this.#skipped.note('control record of another version ignored', record)
    if (record.type === 'heartbeat') this.#onHeartbeat(record)
    else if (record.type === 'leave') this.#onLeave(record.boot)
    else if (record.type === 'capacity') this.#onCapacity(record)
    else if (record.type === 'heartbeat_interval') this.setHeartbeatInterval(record.boot, record.interval_ms)
    else this.#listener.onControl?.(record)
  }

  #onHeartbeat({ type: _, ...heartbeat }: Extract<ControlRecord, { type: 'heartbeat' }>): void {
    const isOwn = heartbeat.boot === this.#self.boot
    if (isOwn) this.#onEcho(Date.now())
    const isNew = !isOwn && !this.peers.has(heartbeat.boot)
    this.setAlive(heartbeat)
    // The capacity is published at once to a new process, which would otherwise wait up to two seconds for the next
    // capacity record.
    if (!isNew || !this.#self.capacity) return
    this.#isIntroducing = true
    this.publishCapacity()
  }

  #onCapacity({ boot, ...capacity }: Extract<ControlRecord, { type: 'capacity' }>): void {
    const peer = this.setCapacity(boot, capacity)
    if (peer) this.#listener.onCapacity?.(peer)
  }

  #onEcho(now: number): void {
    const wasLate = this.silenceMs > CHANNEL_LATE_MS
    this.#lastEchoMs = now
    if (wasLate) for (const peer of this.peers.values()) peer.lastSeenMs = now
    const others = silentChannels.get(this.#broker)
    if (others?.delete(this) && others.size === 0) this.#log.info({}, 'control channel recovered')
  }

  #check(): void {
    const now = Date.now()
    if (now - this.#lastCheckMs > CHECK_LATE_MS) this.#blockedAtMs = now
    this.#lastCheckMs = now
    const isListening = now - this.#blockedAtMs > CHANNEL_LATE_MS
    if (this.silenceMs > CHANNEL_SILENCE_MS && isListening) this.#reportSilence()
    if (this.silenceMs > CHANNEL_LATE_MS) return
    let nextMs = HEARTBEAT_MS
    for (const peer of this.peers.values()) {
      if (peer.boot === this.#self.boot) continue
      const silenceMs = now - peer.lastSeenMs - slackMs(Math.max(this.#interval, peer.heartbeatInterval ?? 1))
      if (silenceMs > this.#lostMs) this.#declareLost(peer.boot)
      else if (silenceMs > this.#suspectedMs && !peer.isSuspected) {
        peer.isSuspected = true
        this.#listener.onSuspected?.(peer)
      }
      nextMs = Math.min(nextMs, (peer.isSuspected ? this.#lostMs : this.#suspectedMs) + 1 - silenceMs)
    }
    clearTimeout(this.#checkTimer)
    if (nextMs < HEARTBEAT_MS && nextMs > 0) this.#checkTimer = setTimeout(() => this.#check(), nextMs)
  }

  #reportSilence(): void {
    const all = silentChannels.get(this.#broker) ?? new Set<Presence>()
    silentChannels.set(this.#broker, all)
    if (all.size === 0)
      this.#log.warn(
        { silence_ms: this.silenceMs },
        'no records received on the control channel; dead processes are not detected',
      )
    all.add(this)
  }

  /**
   * Called when a peer leaves. An ingress or scheduler is declared dead at once. For a worker, the normal timeout applies, because its last events
   * may still be in flight on another channel.
   */
  #onLeave(boot: string): void {
    const peer = this.peers.get(boot)
    if (peer?.role === 'ingress' || peer?.role === 'scheduler') return this.#declareLost(boot)
    if (peer) Object.assign(peer, { slots: 0, draining: true, lastSeenMs: Date.now() })
  }

  #declareLost(boot: string): void {
    const peer = this.peers.get(boot)
    if (!peer) return
    this.peers.delete(boot)
    this.#listener.onLost?.(peer)
  }
}

export interface PresenceOptions {
  readonly broker: Broker
  readonly self: Self
  readonly listener: PresenceListener
  /**
   * Time in ms without heartbeats after which a peer is suspected, at least 2,000. Longer at a longer heartbeat interval. Default: `lostMs`, so peers
   * are never suspected.
   */
  readonly suspectedMs?: number | undefined
  /** Time in ms without heartbeats after which a peer is declared dead. Longer at a longer heartbeat interval. */
  readonly lostMs: number
  readonly log: Log
}
