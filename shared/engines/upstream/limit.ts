/** Silence of a whole server, in milliseconds, before which it is never taken for hanging. */
const SILENCE_MS_MIN = 10_000
/** How long after it was lowered the limit rises carefully. */
const CAREFUL_MS = 10_000
/** Longest pause that a server may ask for. */
const PAUSE_MS_MAX = 60_000

/** A call that has its place. */
export interface Place {
  readonly startedAtMs: number
  /** Its first byte tells how quick the server is: that of a whole answer comes only with its last. */
  readonly isTimed: boolean
  /** The limit was half reached, or more, when it began: what it is matters. */
  readonly isTelling: boolean
}

/**
 * How many calls one server gets at once: as many as it bears, from one to a maximum.
 *
 * - An answer raises the limit when half of it was in use: by one, or, soon after it was lowered, by one in as many answers as the
 *   limit is (additive increase, multiplicative decrease: Chiu and Jain 1989, by which callers of one server get equal parts).
 * - An answer that says it is busy halves what is in flight. A time without any answer leaves one call, which probes: either a
 *   call that met its clock, or silence longer than twice what RFC 6298 would wait.
 * - Calls that began before the limit was lowered lower it no further: they tell of the same trouble.
 */
export class AdaptiveLimit {
  readonly #max: number
  readonly #nowMs: () => number
  readonly #open = new Set<Place>()
  /** Timed calls without an answer; the oldest first. */
  readonly #unanswered = new Set<Place>()
  #limit: number
  #loweredAtMs = Number.NEGATIVE_INFINITY
  #answeredAtMs = Number.NEGATIVE_INFINITY
  #pausedUntilMs = Number.NEGATIVE_INFINITY
  /** Smoothed time to the first byte, and how much it varies (RFC 6298, 2.3). */
  #usual: { ms: number; variesMs: number } | undefined

  /** @param max Most calls at once, 1 or more. @param nowMs A monotonic clock */
  constructor(max: number, nowMs: () => number = () => performance.now()) {
    this.#max = max
    this.#limit = max
    this.#nowMs = nowMs
  }

  /** Calls it may have at once now. */
  get places(): number {
    this.#noteSilence()
    return Math.floor(this.#limit)
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
    if (place.isTimed) this.#learn(nowMs - place.startedAtMs)
    if (!place.isTelling) return
    const isCareful = nowMs - this.#loweredAtMs < CAREFUL_MS
    this.#limit = Math.min(this.#max, this.#limit + (isCareful ? 1 / this.#limit : 1))
  }

  /** The server said that it has too much to do. */
  busy(place: Place): void {
    this.#unanswered.delete(place)
    if (place.startedAtMs > this.#loweredAtMs) this.#lower(Math.min(this.#limit, this.#open.size) / 2)
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
    this.#open.delete(place)
    this.#unanswered.delete(place)
  }

  #lower(limit: number): void {
    this.#limit = Math.max(1, Math.min(this.#limit, limit))
    this.#loweredAtMs = this.#nowMs()
  }

  #learn(ms: number): void {
    const { ms: usualMs, variesMs } = this.#usual ?? { ms, variesMs: ms / 2 }
    this.#usual = {
      ms: usualMs + (ms - usualMs) / 8,
      variesMs: variesMs + (Math.abs(ms - usualMs) - variesMs) / 4,
    }
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
