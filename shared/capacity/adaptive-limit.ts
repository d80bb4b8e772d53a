/** Minimum time in ms for which a server must send nothing before it counts as hanging. */
const SILENCE_MS_MIN = 10_000
const SLOW_RISE_MS = 10_000
const PAUSE_MS_MAX = 60_000

/**
 * Number of calls that may queue inside the server: `part` of the limit, but at least `least`. Without a queue, the server would be idle at times.
 */
const TOLERATED_QUEUE = { part: 1 / 8, least: 2 }
/** If the limit is lowered because calls queue inside the server, then the new limit is at least this fraction of the calls in flight. */
const STEP_MIN = 0.5
/** Time in ms for which the limit rises slowly after such a decrease. */
const QUEUE_SLOW_RISE_MS = 60_000

export interface LimitPartition {
  readonly workers: number
  partOf(limit: number): number
}

const UNDIVIDED: LimitPartition = { workers: 1, partOf: (limit) => limit }

export interface Permit {
  readonly startedAtMs: number
  /**
   * Whether the time to the first byte measures the server's speed. False for an answer that is not streamed, because its first byte arrives with its
   * last.
   */
  readonly isTimed: boolean
  /**
   * Whether at least half of the limit was in use when the call began. Otherwise the answer does not raise the limit.
   */
  readonly canRaiseLimit: boolean
}

/**
 * Adaptive concurrency limit of one server, between 1 and a maximum. The limit applies to all workers together, and
 * each worker gets a part.
 *
 * Workers exchange their limits. The limit with the most decreases is adopted. If two limits have equally many
 * decreases, then the higher limit is adopted, because it was raised later.
 *
 * 1. An answer raises the limit by one if at least half of the limit was in use. Soon after a decrease, a limit of n
 * rises by one only after n answers. Additive increase and multiplicative decrease give all callers of a server equal
 * parts (Chiu and Jain 1989).
 * 2. An overload answer lowers the limit to half of the calls in flight. If the server sends no answer for too long,
 * then the limit drops to one call, which probes the server. Too long means the timeout of a call, or twice the
 * retransmission timeout of RFC 6298.
 * 3. If first bytes are late because calls queue inside the server, then the limit drops by the queue length minus a
 * tolerance ({@link Queueing}).
 * 4. Calls that began before a decrease cause no further decrease, because they report the same overload.
 */
export class AdaptiveLimit {
  readonly #max: number
  readonly #nowMs: () => number
  readonly #open = new Set<Permit>()
  readonly #unanswered = new Set<Permit>()
  readonly #partition: LimitPartition
  readonly #queueing = new Queueing()
  #limit: number
  #generation = 0
  /**
   * `#queuedAt` has the time of the last decrease that a queue inside the server caused, and the limit after that decrease. `#limitBeforeQueue` is the
   * limit before the first decrease of an unbroken series of such decreases.
   */
  #queuedAt = { limit: Number.POSITIVE_INFINITY, ms: Number.NEGATIVE_INFINITY }
  #limitBeforeQueue: number | undefined
  #loweredAtMs = Number.NEGATIVE_INFINITY
  #answeredAtMs = Number.NEGATIVE_INFINITY
  #pausedUntilMs = Number.NEGATIVE_INFINITY
  /** Smoothed time to the first byte, and its variation (RFC 6298, 2.3). */
  #firstByte: { ms: number; variesMs: number } | undefined

  constructor(max: number, nowMs: () => number = () => performance.now(), share: LimitPartition = UNDIVIDED) {
    this.#max = max
    this.#partition = share
    this.#limit = max
    this.#nowMs = nowMs
  }

  /** Current maximum of concurrent calls of this worker. If the limit is below the number of workers, then some workers get 0. */
  get permits(): number {
    this.#detectSilence()
    return this.#partition.partOf(Math.floor(this.#limit))
  }

  get published(): { readonly generation: number; readonly limit: number } {
    return { generation: this.#generation, limit: Math.floor(this.#limit) }
  }

  applyPublished({ generation, limit }: { readonly generation: number; readonly limit: number }): void {
    const known = Math.max(1, Math.min(this.#max, limit))
    if (generation === this.#generation) this.#limit = Math.max(this.#limit, known)
    if (generation <= this.#generation) return
    this.#generation = generation
    this.#limit = known
    this.#loweredAtMs = this.#nowMs()
    this.#queueing.restart(this.#loweredAtMs)
  }

  get inFlight(): number {
    return this.#open.size
  }

  get hasFreePermit(): boolean {
    return this.#open.size < this.permits
  }

  get pausedMs(): number {
    return Math.max(0, this.#pausedUntilMs - this.#nowMs())
  }

  /** Begins a call. The caller must call {@link end} once. */
  begin(isTimed: boolean): Permit {
    const canRaiseLimit = 2 * (this.#open.size + 1) > this.permits
    const permit = { startedAtMs: this.#nowMs(), isTimed, canRaiseLimit }
    this.#open.add(permit)
    if (isTimed) this.#unanswered.add(permit)
    return permit
  }

  answered(permit: Permit): void {
    const nowMs = this.#nowMs()
    this.#unanswered.delete(permit)
    this.#answeredAtMs = nowMs
    if (permit.isTimed) this.#recordFirstByte(permit, nowMs)
    if (!permit.canRaiseLimit || this.#isQueueing) return
    const { workers } = this.#partition
    const isCareful = nowMs - this.#loweredAtMs < SLOW_RISE_MS || this.#isNearQueue(nowMs)
    // Each worker receives only a part of the answers, so each answer raises the limit by the number of workers.
    this.#limit = Math.min(this.#max, this.#limit + (isCareful ? workers / this.#limit : workers))
  }

  overloaded(permit: Permit): void {
    this.#unanswered.delete(permit)
    if (permit.startedAtMs > this.#loweredAtMs) this.#lower(this.#used / 2)
  }

  pause(ms: number): void {
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, this.#nowMs() + Math.min(ms, PAUSE_MS_MAX))
  }

  timedOut(permit: Permit): void {
    this.#unanswered.delete(permit)
    if (permit.startedAtMs <= this.#loweredAtMs) return
    if (this.#answeredAtMs > permit.startedAtMs) this.overloaded(permit)
    else this.#lower(1)
  }

  end(permit: Permit): void {
    if (permit.isTimed && !this.#unanswered.has(permit)) this.#queueing.ended(this.#nowMs() - permit.startedAtMs)
    this.#open.delete(permit)
    this.#unanswered.delete(permit)
  }

  /** Estimated calls in flight of all workers. The estimate assumes that each worker has as many as this worker. */
  get #used(): number {
    return Math.min(this.#limit, this.#open.size * this.#partition.workers)
  }

  get #isQueueing(): boolean {
    return this.#queueing.part * this.#used > this.#toleratedQueue / 2
  }

  get #toleratedQueue(): number {
    return Math.max(TOLERATED_QUEUE.least, TOLERATED_QUEUE.part * this.#limit)
  }

  #isNearQueue(nowMs: number): boolean {
    const { limit, ms } = this.#queuedAt
    return nowMs - ms < QUEUE_SLOW_RISE_MS && this.#limit >= 0.9 * limit
  }

  #lower(limit: number): void {
    this.#limit = Math.max(1, Math.min(this.#limit, limit))
    this.#generation++
    this.#limitBeforeQueue = undefined
    this.#loweredAtMs = this.#nowMs()
    this.#queueing.restart(this.#loweredAtMs)
  }

  #recordFirstByte(permit: Permit, nowMs: number): void {
    const ms = nowMs - permit.startedAtMs
    const { ms: usualMs, variesMs } = this.#firstByte ?? { ms, variesMs: ms / 2 }
    this.#firstByte = {
      ms: usualMs + (ms - usualMs) / 8,
      variesMs: variesMs + (Math.abs(ms - usualMs) - variesMs) / 4,
    }
    const news = this.#queueing.add({ startedAtMs: permit.startedAtMs, waitedMs: ms }, this.#open.size, nowMs)
    if (news === 'usual') this.#restoreLimit()
    else if (news) this.#lowerByQueue()
  }

  /** Lowers the limit while calls queue inside the server. Calls that wait in the worker instead can still be sent to another server. */
  #lowerByQueue(): void {
    const used = this.#used
    const waiting = this.#queueing.part * used
    if (waiting <= this.#toleratedQueue) {
      this.#limitBeforeQueue = undefined
      return
    }
    const next = Math.max(STEP_MIN * used, used - waiting + this.#toleratedQueue / 2)
    if (next >= this.#limit) return
    this.#queuedAt = { limit: next, ms: this.#nowMs() }
    const before = this.#limitBeforeQueue ?? this.#limit
    this.#lower(next)
    this.#limitBeforeQueue = before
    this.#queueing.lowered(this.#nowMs())
  }

  /** Restores the limit, because first bytes stayed late although fewer calls were sent. The cause was therefore not a queue inside the server. */
  #restoreLimit(): void {
    this.#limit = Math.max(this.#limit, this.#limitBeforeQueue ?? 1)
    this.#limitBeforeQueue = undefined
    this.#queuedAt = { limit: Number.POSITIVE_INFINITY, ms: Number.NEGATIVE_INFINITY }
  }

  /** Detects a server that has answered before and now answers no call, long before the calls time out. */
  #detectSilence(): void {
    const [oldest] = this.#unanswered
    if (!oldest || !this.#firstByte || oldest.startedAtMs <= this.#loweredAtMs) return
    const silentMs = this.#nowMs() - Math.max(oldest.startedAtMs, this.#answeredAtMs)
    const { ms, variesMs } = this.#firstByte
    if (silentMs > Math.max(SILENCE_MS_MIN, 2 * (ms + 4 * variesMs))) this.#lower(1)
  }
}

/** Number of answers whose times to the first byte are combined into one measurement: half of the calls in flight, within these bounds. */
const WINDOW_STREAMS = { least: 8, most: 64 }
/** Length in ms of one span. The usual wait without a queue is estimated from the shortest wait of each of the last ten spans. */
const SPAN_MS = 60_000
const SPANS = 10
/**
 * A decrease of the limit counts as helpful if the new wait is at most this fraction of the old wait. After `FUTILE_DECREASES_MAX` decreases that did
 * not help, long waits are attributed to another cause than a queue.
 */
const IMPROVEMENT_RATIO = 0.9
const FUTILE_DECREASES_MAX = 2
/**
 * Delay beyond the usual wait after which a first byte counts as late: `times` the usual wait, but at least `ms`. Servers that batch calls delay
 * first bytes under load although their throughput rises.
 */
const TOLERATED_DELAY = { times: 2, ms: 250 }

export interface FirstByte {
  readonly startedAtMs: number
  readonly waitedMs: number
}

/**
 * Estimates the fraction of a server's calls that wait in a queue inside the server.
 *
 * By Little's law, the number of calls in the queue is the arrival rate times the delay of a first byte. TCP Vegas uses the same estimate (Brakmo and
 * Peterson, IEEE JSAC 13:8, 1995). The fraction of queued calls is therefore the delay divided by the duration of a whole call.
 *
 * The shortest wait of a measurement is compared with the shortest wait of the last ten minutes. A queue makes even the shortest wait longer, but a
 * single long prompt does not.
 *
 * If waits stay long after two decreases of the limit, then their cause is not a queue. The long wait then counts as the usual wait of this server, so
 * that the limit is not lowered further.
 */
export class Queueing {
  readonly #spans: { readonly fromMs: number; ms: number }[] = []
  #window: number[] = []
  #windowFromMs = Number.NEGATIVE_INFINITY
  #wholeMs: number | undefined
  /** Shortest wait before the last decrease of the limit. Undefined after the next measurement was compared with it. */
  #loweredFrom: number | undefined
  #futileDecreases = 0
  #shortestNow: number | undefined
  part = 0

  ended(ms: number): void {
    this.#wholeMs = this.#wholeMs === undefined ? ms : this.#wholeMs + (ms - this.#wholeMs) / 8
  }

  /** Records that the limit was lowered. The next measurement shows whether the decrease helped. */
  lowered(nowMs: number): void {
    this.#loweredFrom = this.#shortestNow
    this.restart(nowMs)
  }

  restart(nowMs: number): void {
    this.#windowFromMs = nowMs
    this.#window = []
  }

  /**
   * Adds a measured first byte.
   *
   * @param inFlight Number of the server's calls in flight
   * @returns `part` if {@link part} was updated. `usual` if long waits are normal for this server, so that the limit should be restored
   */
  add({ startedAtMs, waitedMs }: FirstByte, inFlight: number, nowMs: number): 'part' | 'usual' | undefined {
    if (startedAtMs < this.#windowFromMs) return undefined
    this.#window.push(waitedMs)
    if (this.#window.length < Math.min(WINDOW_STREAMS.most, Math.max(WINDOW_STREAMS.least, inFlight / 2)))
      return undefined
    const shortest = Math.min(...this.#window)
    this.#shortestNow = shortest
    this.restart(nowMs)
    const isUsual = this.#isUsual(shortest)
    if (isUsual) this.#spans.length = 0
    this.#remember(shortest, nowMs)
    const usual = Math.min(...this.#spans.map(({ ms }) => ms))
    const late = Math.max(0, shortest - usual - Math.max(TOLERATED_DELAY.times * usual, TOLERATED_DELAY.ms))
    const whole = Math.max(this.#wholeMs ?? shortest, shortest)
    this.part = whole > 0 ? Math.min(1, late / whole) : 0
    return isUsual ? 'usual' : 'part'
  }

  #isUsual(shortest: number): boolean {
    if (this.#loweredFrom === undefined) return false
    this.#futileDecreases = shortest > IMPROVEMENT_RATIO * this.#loweredFrom ? this.#futileDecreases + 1 : 0
    this.#loweredFrom = undefined
    if (this.#futileDecreases < FUTILE_DECREASES_MAX) return false
    this.#futileDecreases = 0
    return true
  }

  #remember(ms: number, nowMs: number): void {
    const last = this.#spans.at(-1)
    if (last && nowMs - last.fromMs < SPAN_MS) last.ms = Math.min(last.ms, ms)
    else this.#spans.push({ fromMs: nowMs, ms })
    while (this.#spans.length > SPANS || nowMs - (this.#spans[0]?.fromMs ?? nowMs) > SPANS * SPAN_MS)
      this.#spans.shift()
  }
}
