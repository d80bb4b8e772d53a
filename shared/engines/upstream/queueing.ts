/** Streams per measurement window: half of the calls in flight, within these bounds. */
const WINDOW_STREAMS = { least: 8, most: 64 }
/** Length of a span. The shortest wait of each of the last ten spans is stored. */
const SPAN_MS = 60_000
const SPANS = 10
/**
 * Maximum ratio of the new to the old wait at which a decrease of the limit counts as effective. After this many decreases without effect, the cause is not a queue.
 */
const IMPROVEMENT_RATIO = 0.9
const FUTILE_DECREASES_MAX = 2
/**
 * Tolerated delay of a first byte: a multiple of the usual wait, or at least this many milliseconds. A server that batches calls delays first
 * bytes under load although its throughput rises.
 */
const TOLERATED_DELAY = { times: 2, ms: 250 }

export interface FirstByte {
  readonly startedAtMs: number
  readonly waitedMs: number
}

/**
 * Estimates the share of a server's calls that wait in a queue inside it.
 *
 * By Little's law, the calls in the queue are those that arrive during the avoidable delay of a first byte. TCP Vegas uses the same
 * estimate (Brakmo and Peterson, IEEE JSAC 13:8, 1995). The longer a whole answer takes, the smaller is the share that a given delay stands
 * for.
 *
 * The shortest wait of each window is compared with the shortest wait of ten minutes. A queue makes the shortest wait longer; a single long
 * prompt does not.
 *
 * If waits stay long twice in a row although fewer calls were sent, then they have another cause and become the usual wait.
 */
export class Queueing {
  /** Shortest wait of each recent span; the newest last. */
  readonly #spans: { readonly fromMs: number; ms: number }[] = []
  #window: number[] = []
  #windowFromMs = Number.NEGATIVE_INFINITY
  /** Smoothed duration of a whole call. */
  #wholeMs: number | undefined
  /** Shortest wait at the last decrease, until its effect is known. */
  #loweredFrom: number | undefined
  #futileDecreases = 0
  #shortestNow: number | undefined
  /** Share of the calls that queue, from 0 to 1, in the last window. */
  part = 0

  ended(ms: number): void {
    this.#wholeMs = this.#wholeMs === undefined ? ms : this.#wholeMs + (ms - this.#wholeMs) / 8
  }

  /** Called when the limit was lowered because of this estimate: the next window shows whether that helped. */
  lowered(nowMs: number): void {
    this.#loweredFrom = this.#shortestNow
    this.restart(nowMs)
  }

  /** Starts a new window. Calls from before it are ignored, because the number of calls in flight was different. */
  restart(nowMs: number): void {
    this.#windowFromMs = nowMs
    this.#window = []
  }

  /**
   * Adds a first byte.
   *
   * @param inFlight Calls of the server in flight
   *
   * @returns `part` if {@link part} was updated; `usual` if late first bytes had another cause than the number of calls
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
