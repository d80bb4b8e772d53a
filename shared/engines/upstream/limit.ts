import { Queueing } from './queueing.ts'

/** Silence of a whole server, in milliseconds, before which it is never taken for hanging. */
const SILENCE_MS_MIN = 10_000
/** How long after it was lowered the limit rises carefully. */
const CAREFUL_MS = 10_000
/** Longest pause that a server may ask for. */
const PAUSE_MS_MAX = 60_000

/** Calls that may wait inside a server, so that it is never idle: part of the limit, and how many at least. */
const WAITING = { part: 1 / 8, least: 2 }
/** Part of the limit that is kept at least when calls wait inside the server. */
const STEP_MIN = 0.5
/** How long the limit rises carefully from nine tenths of that at which calls waited inside the server. */
const QUEUED_MS = 60_000

/** Calls of all workers together, and which of them are this worker's. */
export interface LimitShare {
  readonly workers: number
  partOf(limit: number): number
}

const ALONE: LimitShare = { workers: 1, partOf: (limit) => limit }

/** A call that has its place. */
export interface Place {
  readonly startedAtMs: number
  /** Its first byte tells how quick the server is: that of a whole answer comes only with its last. */
  readonly isTimed: boolean
  /** The limit was half reached, or more, when it began: what it is matters. */
  readonly isTelling: boolean
}

/**
 * How many calls one server gets at once: as many as it bears, from one to a maximum. It is the limit of all workers together,
 * of which each has its part. What one finds out all hear: the limit that was lowered more often counts, and of two that were
 * lowered as often the higher one, which was raised since.
 *
 * - An answer raises the limit when half of it was in use: by one, or, soon after it was lowered, by one in as many answers as the
 *   limit is (additive increase, multiplicative decrease: Chiu and Jain 1989, by which callers of one server get equal parts).
 * - An answer that says it is busy halves what is in flight. A time without any answer leaves one call, which probes: either a
 *   call that met its clock, or silence longer than twice what RFC 6298 would wait.
 * - First bytes that come late because calls wait inside the server lower it by those that wait (`queueing.ts`), but for a few.
 * - Calls that began before the limit was lowered lower it no further: they tell of the same trouble.
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
  /** The limit at which calls waited inside the server last, and when; and what it was before that lowered it. */
  #queuedAt = { limit: Number.POSITIVE_INFINITY, ms: Number.NEGATIVE_INFINITY }
  #unqueued: number | undefined
  #loweredAtMs = Number.NEGATIVE_INFINITY
  #answeredAtMs = Number.NEGATIVE_INFINITY
  #pausedUntilMs = Number.NEGATIVE_INFINITY
  /** Smoothed time to the first byte, and how much it varies (RFC 6298, 2.3). */
  #usual: { ms: number; variesMs: number } | undefined

  /** @param max Most calls at once, of all workers, 1 or more. @param nowMs A monotonic clock */
  constructor(max: number, nowMs: () => number = () => performance.now(), share: LimitShare = ALONE) {
    this.#max = max
    this.#share = share
    this.#limit = max
    this.#nowMs = nowMs
  }

  /** Calls of this worker that it may have at once now; 0 where the limit is below the number of workers. */
  get places(): number {
    this.#noteSilence()
    return this.#share.partOf(Math.floor(this.#limit))
  }

  /** What was found out, for the other workers. */
  get found(): { readonly generation: number; readonly limit: number } {
    return { generation: this.#generation, limit: Math.floor(this.#limit) }
  }

  /** Another worker found out something. */
  hear({ generation, limit }: { readonly generation: number; readonly limit: number }): void {
    const known = Math.max(1, Math.min(this.#max, limit))
    if (generation === this.#generation) this.#limit = Math.max(this.#limit, known)
    if (generation <= this.#generation) return
    this.#generation = generation
    this.#limit = known
    this.#loweredAtMs = this.#nowMs()
    this.#queueing.restart(this.#loweredAtMs)
  }

  /** Calls it has. */
  get inFlight(): number {
    return this.#open.size
  }

  get hasPlace(): boolean {
    return this.#open.size < this.places
  }

  /** Milliseconds for which the server wants no calls. */
  get pausedMs(): number {
    return Math.max(0, this.#pausedUntilMs - this.#nowMs())
  }

  /** A call begins. Whoever begins it {@link end ends} it, once. */
  begin(isTimed: boolean): Place {
    const isTelling = 2 * (this.#open.size + 1) > this.places
    const place = { startedAtMs: this.#nowMs(), isTimed, isTelling }
    this.#open.add(place)
    if (isTimed) this.#unanswered.add(place)
    return place
  }

  /** The first byte of a good answer has come. */
  answered(place: Place): void {
    const nowMs = this.#nowMs()
    this.#unanswered.delete(place)
    this.#answeredAtMs = nowMs
    if (place.isTimed) this.#learn(place, nowMs)
    if (!place.isTelling || this.#isQueueing) return
    const { workers } = this.#share
    const isCareful = nowMs - this.#loweredAtMs < CAREFUL_MS || this.#isNearQueue(nowMs)
    // Each worker sees its part of the answers only.
    this.#limit = Math.min(this.#max, this.#limit + (isCareful ? workers / this.#limit : workers))
  }

  /** The server said that it has too much to do. */
  busy(place: Place): void {
    this.#unanswered.delete(place)
    if (place.startedAtMs > this.#loweredAtMs) this.#lower(this.#used / 2)
  }

  /** The server wants no calls for so long, at most a minute. */
  pause(ms: number): void {
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, this.#nowMs() + Math.min(ms, PAUSE_MS_MAX))
  }

  /** A call met its clock without an answer. */
  silent(place: Place): void {
    this.#unanswered.delete(place)
    if (place.startedAtMs <= this.#loweredAtMs) return
    if (this.#answeredAtMs > place.startedAtMs) this.busy(place)
    else this.#lower(1)
  }

  /** A call is over, however it ended. */
  end(place: Place): void {
    if (place.isTimed && !this.#unanswered.has(place)) this.#queueing.ended(this.#nowMs() - place.startedAtMs)
    this.#open.delete(place)
    this.#unanswered.delete(place)
  }

  /** Calls of all workers, if the others use as much of their parts. */
  get #used(): number {
    return Math.min(this.#limit, this.#open.size * this.#share.workers)
  }

  get #isQueueing(): boolean {
    return this.#queueing.part * this.#used > this.#mayWait / 2
  }

  /** Calls that may wait inside the server. */
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

  /** Calls wait inside the server: they had better wait here, where others of them may go elsewhere. */
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

  /** Fewer calls made no first byte come sooner: it was not they that waited. */
  #takeBack(): void {
    this.#limit = Math.max(this.#limit, this.#unqueued ?? 1)
    this.#unqueued = undefined
    this.#queuedAt = { limit: Number.POSITIVE_INFINITY, ms: Number.NEGATIVE_INFINITY }
  }

  /** A server that always answered and says nothing to anybody hangs, long before its calls meet their clocks. */
  #noteSilence(): void {
    const [oldest] = this.#unanswered
    if (!oldest || !this.#usual || oldest.startedAtMs <= this.#loweredAtMs) return
    const silentMs = this.#nowMs() - Math.max(oldest.startedAtMs, this.#answeredAtMs)
    const { ms, variesMs } = this.#usual
    if (silentMs > Math.max(SILENCE_MS_MIN, 2 * (ms + 4 * variesMs))) this.#lower(1)
  }
}
