import { Queueing } from './queueing.ts'

/** Minimum silence of a whole server, in milliseconds, before it is considered hanging. */
const SILENCE_MS_MIN = 10_000
/** Time after a decrease during which the limit rises slowly. */
const CAREFUL_MS = 10_000
/** Maximum pause that a server may request. */
const PAUSE_MS_MAX = 60_000

/** Tolerated calls in the queue inside a server, so that it is never idle: a share of the limit, and a minimum. */
const WAITING = { part: 1 / 8, least: 2 }
/** Minimum share of the limit that one decrease keeps when calls queue inside the server. */
const STEP_MIN = 0.5
/** Time during which the limit rises slowly near the value at which calls last queued: from nine tenths of it. */
const QUEUED_MS = 60_000

/** This worker's part of a limit that several workers share. */
export interface LimitShare {
  readonly workers: number
  partOf(limit: number): number
}

const ALONE: LimitShare = { workers: 1, partOf: (limit) => limit }

/** The permit of one call. */
export interface Place {
  readonly startedAtMs: number
  /** Whether the first byte measures the server's speed. The first byte of a whole answer arrives with its last, so it does not. */
  readonly isTimed: boolean
  /** Whether at least half of the limit was in use when the call began. Only then does the answer raise the limit. */
  readonly isTelling: boolean
}

/**
 * Adaptive concurrency limit of one server, between 1 and a maximum. The limit covers all workers, each of which has a part.
 *
 * Workers exchange their results. The limit with more decreases wins; of two with equally many, the higher one wins, since it was raised
 * later.
 *
 * 1. An answer raises the limit by one if at least half of it was in use. Soon after a decrease the limit rises by one per as many answers
 *    as the limit is. This rule is additive increase, multiplicative decrease (Chiu and Jain 1989), by which callers of one server get
 *    equal parts.
 * 2. An overload answer halves the calls in flight. A time without any answer reduces the limit to one call, which probes the server. Such
 *    a time is either a call's timeout, or silence longer than twice the timeout of RFC 6298.
 * 3. If first bytes are late because calls queue inside the server, then the limit drops by the queue length minus a tolerance
 *    (`queueing.ts`).
 * 4. Calls that began before a decrease cause no further one: they report the same overload.
 */
export class AdaptiveLimit {
  readonly #max: number
  readonly #nowMs: () => number
  readonly #open = new Set<Place>()
  /** Timed calls without an answer; the oldest first. */
  readonly #unanswered = new Set<Place>()
  readonly #share: LimitShare
  readonly #queueing = new Queueing()
  #limit: number
  #generation = 0
  /** The limit at which calls last queued inside the server, with its time; and the limit before that decrease. */
  #queuedAt = { limit: Number.POSITIVE_INFINITY, ms: Number.NEGATIVE_INFINITY }
  #unqueued: number | undefined
  #loweredAtMs = Number.NEGATIVE_INFINITY
  #answeredAtMs = Number.NEGATIVE_INFINITY
  #pausedUntilMs = Number.NEGATIVE_INFINITY
  /** Smoothed time to the first byte, and its variation (RFC 6298, 2.3). */
  #usual: { ms: number; variesMs: number } | undefined

  /** @param max Maximum concurrent calls of all workers, at least 1. @param nowMs A monotonic clock */
  constructor(max: number, nowMs: () => number = () => performance.now(), share: LimitShare = ALONE) {
    this.#max = max
    this.#share = share
    this.#limit = max
    this.#nowMs = nowMs
  }

  /** Current maximum of concurrent calls of this worker; 0 if the limit is below the number of workers. */
  get places(): number {
    this.#noteSilence()
    return this.#share.partOf(Math.floor(this.#limit))
  }

  /** The current limit, for the other workers. */
  get found(): { readonly generation: number; readonly limit: number } {
    return { generation: this.#generation, limit: Math.floor(this.#limit) }
  }

  /** Applies a limit that another worker published. */
  hear({ generation, limit }: { readonly generation: number; readonly limit: number }): void {
    const known = Math.max(1, Math.min(this.#max, limit))
    if (generation === this.#generation) this.#limit = Math.max(this.#limit, known)
    if (generation <= this.#generation) return
    this.#generation = generation
    this.#limit = known
    this.#loweredAtMs = this.#nowMs()
    this.#queueing.restart(this.#loweredAtMs)
  }

  /** Calls of this worker in flight. */
  get inFlight(): number {
    return this.#open.size
  }

  get hasPlace(): boolean {
    return this.#open.size < this.places
  }

  /** Remaining pause that the server requested, in milliseconds. */
  get pausedMs(): number {
    return Math.max(0, this.#pausedUntilMs - this.#nowMs())
  }

  /** Begins a call. The caller must {@link end} it once. */
  begin(isTimed: boolean): Place {
    const isTelling = 2 * (this.#open.size + 1) > this.places
    const place = { startedAtMs: this.#nowMs(), isTimed, isTelling }
    this.#open.add(place)
    if (isTimed) this.#unanswered.add(place)
    return place
  }

  /** Records the first byte of a successful answer. */
  answered(place: Place): void {
    const nowMs = this.#nowMs()
    this.#unanswered.delete(place)
    this.#answeredAtMs = nowMs
    if (place.isTimed) this.#learn(place, nowMs)
    if (!place.isTelling || this.#isQueueing) return
    const { workers } = this.#share
    const isCareful = nowMs - this.#loweredAtMs < CAREFUL_MS || this.#isNearQueue(nowMs)
    // Each worker sees only its part of the answers, so it raises the limit by the number of workers.
    this.#limit = Math.min(this.#max, this.#limit + (isCareful ? workers / this.#limit : workers))
  }

  /** Records an overload answer. */
  busy(place: Place): void {
    this.#unanswered.delete(place)
    if (place.startedAtMs > this.#loweredAtMs) this.#lower(this.#used / 2)
  }

  /** Pauses calls at the server's request, at most for a minute. */
  pause(ms: number): void {
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, this.#nowMs() + Math.min(ms, PAUSE_MS_MAX))
  }

  /** Records a call that timed out without an answer. */
  silent(place: Place): void {
    this.#unanswered.delete(place)
    if (place.startedAtMs <= this.#loweredAtMs) return
    if (this.#answeredAtMs > place.startedAtMs) this.busy(place)
    else this.#lower(1)
  }

  /** Ends a call, whatever its result. */
  end(place: Place): void {
    if (place.isTimed && !this.#unanswered.has(place)) this.#queueing.ended(this.#nowMs() - place.startedAtMs)
    this.#open.delete(place)
    this.#unanswered.delete(place)
  }

  /** Estimated calls in flight of all workers, if the others use as much of their parts. */
  get #used(): number {
    return Math.min(this.#limit, this.#open.size * this.#share.workers)
  }

  get #isQueueing(): boolean {
    return this.#queueing.part * this.#used > this.#mayWait / 2
  }

  /** Tolerated number of calls in the queue inside the server. */
  get #mayWait(): number {
    return Math.max(WAITING.least, WAITING.part * this.#limit)
  }

  #isNearQueue(nowMs: number): boolean {
    const { limit, ms } = this.#queuedAt
    return nowMs - ms < QUEUED_MS && this.#limit >= 0.9 * limit
  }

  #lower(limit: number): void {
    this.#limit = Math.max(1, Math.min(this.#limit, limit))
    this.#generation++
    this.#unqueued = undefined
    this.#loweredAtMs = this.#nowMs()
    this.#queueing.restart(this.#loweredAtMs)
  }

  #learn(place: Place, nowMs: number): void {
    const ms = nowMs - place.startedAtMs
    const { ms: usualMs, variesMs } = this.#usual ?? { ms, variesMs: ms / 2 }
    this.#usual = {
      ms: usualMs + (ms - usualMs) / 8,
      variesMs: variesMs + (Math.abs(ms - usualMs) - variesMs) / 4,
    }
    const news = this.#queueing.add({ startedAtMs: place.startedAtMs, waitedMs: ms }, this.#open.size, nowMs)
    if (news === 'usual') this.#takeBack()
    else if (news) this.#heedQueue()
  }

  /** Lowers the limit while calls queue inside the server. Here they wait better, because other servers may take them. */
  #heedQueue(): void {
    const used = this.#used
    const waiting = this.#queueing.part * used
    if (waiting <= this.#mayWait) {
      this.#unqueued = undefined
      return
    }
    const next = Math.max(STEP_MIN * used, used - waiting + this.#mayWait / 2)
    if (next >= this.#limit) return
    this.#queuedAt = { limit: next, ms: this.#nowMs() }
    const before = this.#unqueued ?? this.#limit
    this.#lower(next)
    this.#unqueued = before
    this.#queueing.lowered(this.#nowMs())
  }

  /** Restores the limit if fewer calls brought no earlier first bytes: the cause was not a queue. */
  #takeBack(): void {
    this.#limit = Math.max(this.#limit, this.#unqueued ?? 1)
    this.#unqueued = undefined
    this.#queuedAt = { limit: Number.POSITIVE_INFINITY, ms: Number.NEGATIVE_INFINITY }
  }

  /** Detects a server that answered before and is now silent to all calls, long before the calls time out. */
  #noteSilence(): void {
    const [oldest] = this.#unanswered
    if (!oldest || !this.#usual || oldest.startedAtMs <= this.#loweredAtMs) return
    const silentMs = this.#nowMs() - Math.max(oldest.startedAtMs, this.#answeredAtMs)
    const { ms, variesMs } = this.#usual
    if (silentMs > Math.max(SILENCE_MS_MIN, 2 * (ms + 4 * variesMs))) this.#lower(1)
  }
}
