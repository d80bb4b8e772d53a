import type { ControlRecord } from '#schemas/event.ts'
import type { Broker, ChannelRecord, Receiver } from '#shared/broker/broker.ts'
import type { Log } from '#shared/log/log.ts'
import { every } from '#shared/ticks.ts'
import { HEARTBEAT_MS, heartbeatIntervalOf, IDLE_FROM, IDLE_HEARTBEAT_MS, slackMs } from './heartbeat.ts'
import { type Capacity, type Peer, Peers, type Role } from './peers.ts'
import { passedControl, readControl } from './records.ts'
import { CONTROL } from './topics.ts'
import { UnknownRecordLog } from './unknown-record-log.ts'

/** Every how many heartbeats a worker says what it can start. */
const BEATS_PER_CAPACITY = 4
/** Least time between two such records, at the rhythm of a fleet that is not large: what changes meanwhile is told in one. */
const CAPACITY_MS_MIN = 100
/**
 * Silence of our own heartbeat from which that of the others says nothing of them. Less than the shortest `silentMs` by more
 * than a heartbeat, or a late channel would be seen in the others first.
 */
const CHANNEL_LATE_MS = 1_250
/** After such a silence of our own heartbeat the channel is taken to be broken. */
const CHANNEL_SILENCE_MS = 2_500
/** A check that is late by more saw a process that stood still, not a channel: what came meanwhile was not heard yet. */
const CHECK_LATE_MS = 1_000

/** Who in this process finds the channel of a broker silent: the roles of one process say it once, together. */
const silent = new WeakMap<Broker, Set<Presence>>()

/** What this process tells about itself with every heartbeat. */
export interface Self {
  readonly boot: string
  readonly role: Role
  readonly version: string
  slots(): number
  running(): number
  isDraining(): boolean
  /** What a worker can start; undefined: there is nothing to tell. Other roles have none. */
  capacity?(): Capacity | undefined
}

/** Who hears what the control channel says. */
export interface PresenceListener {
  /** A peer was not heard for `silentMs`. It may be dead, or slow. */
  onSilent?(peer: Peer): void
  /** A peer was not heard for `lostMs`, or said goodbye. */
  onLost?(peer: Peer): void
  /** A worker said what it can start. */
  onCapacity?(peer: Peer): void
  /** A record about a job: a cancel, a pause, a resume. */
  onControl?(record: ControlRecord): void
}

/**
 * One process on the control channel: tells that it lives, and knows who else does.
 *
 * A peer is lost after `lostMs` without a heartbeat, after more if it rests longer between two (`heartbeat.ts`). Silence counts
 * only while our own heartbeats come back to us: when the channel was down or late, everybody gets a whole lease again, since
 * nobody could be heard.
 */
export class Presence extends Peers {
  readonly #broker: Broker
  readonly #self: Self
  readonly #listener: PresenceListener
  readonly #silentMs: number
  readonly #lostMs: number
  readonly #log: Log
  readonly #skipped: UnknownRecordLog
  #stopTicking: (() => void) | undefined
  /** For the moment in which the silence of a peer becomes too long, where that is before the next beat. */
  #checkTimer: NodeJS.Timeout | undefined
  #receiver: Receiver | undefined
  readonly #openedAtMs = Date.now()
  #lastEchoMs = this.#openedAtMs
  #lastCheckMs = this.#openedAtMs
  #stoodStillAtMs = 0
  #beats = 0
  /** Half seconds between two heartbeats, and those since the last one. */
  #rhythm = 1
  #rested = 0
  /** Half seconds in a row in which it had no job. */
  #idle = 0
  #capacityToldMs = 0
  #isGreeting = false
  #capacityTimer: NodeJS.Timeout | undefined

  private constructor(options: PresenceOptions) {
    super()
    this.#broker = options.broker
    this.#self = options.self
    this.#listener = options.listener
    this.#silentMs = options.silentMs ?? options.lostMs
    this.#lostMs = options.lostMs
    this.#log = options.log
    this.#skipped = new UnknownRecordLog(options.log)
  }

  /** Joins the channel; resolves once control records are received. */
  static async open(options: PresenceOptions): Promise<Presence> {
    const presence = new Presence(options)
    presence.#receiver = await options.broker.receive(CONTROL, [0], (record) => presence.#onRecord(record))
    presence.#beat()
    presence.#stopTicking = every(HEARTBEAT_MS, () => {
      presence.#beatInTime()
      presence.#check()
    })
    return presence
  }

  /**
   * Milliseconds since our own heartbeat last came back, without what this process rests between two beyond half a second: the
   * channel works when this is small.
   */
  get silenceMs(): number {
    return Math.max(0, Date.now() - this.#lastEchoMs - this.beatMs + HEARTBEAT_MS)
  }

  /** How old what a process said last may be while all is well, in milliseconds. */
  get beatMs(): number {
    return this.#rhythm * HEARTBEAT_MS
  }

  /**
   * Whether a process must be dead: it was never heard, although for `lostMs` it would have been. False while in doubt.
   */
  isUnheard(boot: string): boolean {
    const hasListened =
      Date.now() - this.#openedAtMs > this.#lostMs + slackMs(this.#rhythm) && this.silenceMs < CHANNEL_SILENCE_MS
    return hasListened && !this.peers.has(boot)
  }

  /** Whether it has listened for so long that every worker was heard, and has said what it can start. */
  get hasHeardAll(): boolean {
    const listenedMs = Date.now() - this.#openedAtMs
    if (listenedMs > this.beatMs * (BEATS_PER_CAPACITY + 1)) return true
    const isOpen = ({ slots, capacity }: Peer) => slots > 0 && capacity === undefined
    return listenedMs > 1.5 * Math.max(this.beatMs, IDLE_HEARTBEAT_MS) && ![...this.peers.values()].some(isOpen)
  }

  /** Says what this worker can start, soon: it has changed. */
  publishCapacity(): void {
    if (!this.#stopTicking) return
    const waitMs = Math.max(0, this.#capacityToldMs + CAPACITY_MS_MIN * this.#rhythm - Date.now())
    this.#capacityTimer ??= setTimeout(() => this.#sendCapacity(), waitMs)
  }

  /** Tells everyone. A record that cannot be sent is logged: whoever waits for it has a timeout. */
  send(record: ControlRecord): void {
    if (this.#broker.deliverLocal) return this.#broker.deliverLocal(CONTROL, 0, '', record)
    this.#broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(record))).catch((error: unknown) => {
      this.#log.warn({ err: error, type: record.type }, 'control record not sent')
    })
  }

  /** Says goodbye and leaves. */
  async close(): Promise<void> {
    this.#stopTicking?.()
    this.#stopTicking = undefined
    for (const timer of [this.#checkTimer, this.#capacityTimer]) clearTimeout(timer)
    silent.get(this.#broker)?.delete(this)
    if (!this.#receiver) return
    this.send({ type: 'goodbye', boot: this.#self.boot })
    await this.#receiver.close()
    this.#receiver = undefined
  }

  #beatInTime(): void {
    this.#idle = this.#self.running() > 0 ? 0 : this.#idle + 1
    const rhythm = heartbeatIntervalOf(this.peers, this.#self.boot, this.#idle >= IDLE_FROM)
    if (rhythm !== this.#rhythm) this.#changeRhythm(rhythm)
    if (++this.#rested >= rhythm) this.#beat()
  }

  #changeRhythm(rhythm: number): void {
    this.#rhythm = rhythm
    this.#receiver?.stretch?.(rhythm)
    // Whoever is to wait for longer hears it before it has to.
    this.#sendRhythm()
  }

  #beat(): void {
    this.#sendHeartbeat()
    if (this.#beats++ % BEATS_PER_CAPACITY !== 0) return
    this.#sendCapacity()
    this.#sendRhythm()
  }

  #sendHeartbeat(): void {
    const self = this.#self
    this.#rested = 0
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

  #sendRhythm(): void {
    this.send({ type: 'rhythm', boot: this.#self.boot, beat_ms: this.beatMs })
  }

  #sendCapacity(): void {
    clearTimeout(this.#capacityTimer)
    this.#capacityTimer = undefined
    this.#capacityToldMs = Date.now()
    // Of a worker that was not heard its capacity says nothing.
    if (this.#isGreeting) this.#sendHeartbeat()
    this.#isGreeting = false
    const capacity = this.#self.capacity?.()
    if (capacity) this.send({ type: 'capacity', boot: this.#self.boot, ...capacity })
  }

  #onRecord(heard: ChannelRecord): void {
    const record = heard.payload ? passedControl(heard.payload) : readControl(heard.value)
    if (record === undefined) return this.#skipped.note('control record not understood')
    if (typeof record === 'string') return this.#skipped.note('control record of another version passed over', record)
    if (record.type === 'heartbeat') this.#onHeartbeat(record)
    else if (record.type === 'goodbye') this.#onGoodbye(record.boot)
    else if (record.type === 'capacity') this.#onCapacity(record)
    else if (record.type === 'rhythm') this.heardRhythm(record.boot, record.beat_ms)
    else this.#listener.onControl?.(record)
  }

  #onHeartbeat({ type: _, ...heard }: Extract<ControlRecord, { type: 'heartbeat' }>): void {
    const isOwn = heard.boot === this.#self.boot
    if (isOwn) this.#onEcho(Date.now())
    const isNew = !isOwn && !this.peers.has(heard.boot)
    this.seen(heard)
    // Who has just come would know for two seconds only that there are workers.
    if (!isNew || !this.#self.capacity) return
    this.#isGreeting = true
    this.publishCapacity()
  }

  #onCapacity({ boot, ...capacity }: Extract<ControlRecord, { type: 'capacity' }>): void {
    const peer = this.told(boot, capacity)
    if (peer) this.#listener.onCapacity?.(peer)
  }

  #onEcho(now: number): void {
    const wasLate = this.silenceMs > CHANNEL_LATE_MS
    this.#lastEchoMs = now
    if (wasLate) for (const peer of this.peers.values()) peer.lastSeenMs = now
    const others = silent.get(this.#broker)
    if (others?.delete(this) && others.size === 0) this.#log.info({}, 'control channel is back')
  }

  #check(): void {
    const now = Date.now()
    if (now - this.#lastCheckMs > CHECK_LATE_MS) this.#stoodStillAtMs = now
    this.#lastCheckMs = now
    const isListening = now - this.#stoodStillAtMs > CHANNEL_LATE_MS
    if (this.silenceMs > CHANNEL_SILENCE_MS && isListening) this.#noteSilence()
    if (this.silenceMs > CHANNEL_LATE_MS) return
    let nextMs = HEARTBEAT_MS
    for (const peer of this.peers.values()) {
      if (peer.boot === this.#self.boot) continue
      const silenceMs = now - peer.lastSeenMs - slackMs(Math.max(this.#rhythm, peer.rhythm ?? 1))
      if (silenceMs > this.#lostMs) this.#lose(peer.boot)
      else if (silenceMs > this.#silentMs && !peer.isSilent) {
        peer.isSilent = true
        this.#listener.onSilent?.(peer)
      }
      nextMs = Math.min(nextMs, (peer.isSilent ? this.#lostMs : this.#silentMs) + 1 - silenceMs)
    }
    clearTimeout(this.#checkTimer)
    if (nextMs < HEARTBEAT_MS && nextMs > 0) this.#checkTimer = setTimeout(() => this.#check(), nextMs)
  }

  #noteSilence(): void {
    const all = silent.get(this.#broker) ?? new Set<Presence>()
    silent.set(this.#broker, all)
    if (all.size === 0) this.#log.warn({ silence_ms: this.silenceMs }, 'control channel is silent')
    all.add(this)
  }

  /** What a worker said last may still be on its way on another channel, so its goodbye only lets its lease run out. */
  #onGoodbye(boot: string): void {
    const peer = this.peers.get(boot)
    if (peer?.role === 'ingress' || peer?.role === 'scheduler') return this.#lose(boot)
    if (peer) Object.assign(peer, { slots: 0, draining: true, lastSeenMs: Date.now() })
  }

  #lose(boot: string): void {
    const peer = this.peers.get(boot)
    if (!peer) return
    this.peers.delete(boot)
    this.#listener.onLost?.(peer)
  }
}

/** What {@link Presence.open} needs. */
export interface PresenceOptions {
  readonly broker: Broker
  readonly self: Self
  readonly listener: PresenceListener
  /** Silence after which a peer is suspected, in milliseconds, 2,000 or more; longer at a longer rhythm. Default: never. */
  readonly silentMs?: number | undefined
  /** Silence after which a peer is lost, in milliseconds; longer at a longer rhythm. */
  readonly lostMs: number
  readonly log: Log
}
