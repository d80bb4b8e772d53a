/** Streams whose first bytes are looked at together: half as many as are in flight, from this to that many. */
const WINDOW = { least: 8, most: 64 }
/** How long the shortest waits are remembered, in spans of a minute each. */
const SPAN_MS = 60_000
const SPANS = 10
/** How much shorter waits must have become after fewer calls were sent, and how often in a row they may not have. */
const HELPED = 0.9
const UNHELPFUL_MAX = 2
/**
 * How much later than usual a first byte may come: so many times the usual wait, or so many milliseconds where that is more. A server
 * that batches is that much slower when it has much to do, and does more for it.
 */
const TOLERATED = { times: 2, ms: 250 }

/** One stream whose first byte has come. */
export interface FirstByte {
  readonly startedAtMs: number
  readonly waitedMs: number
}

/**
 * Estimates which part of the calls that a server has waits in a queue inside it.
 *
 * Of all calls there, those wait that arrive in the time by which first bytes come later than they need to (Little's law; as in TCP
 * Vegas: Brakmo and Peterson, IEEE JSAC 13:8, 1995): the longer answers take, the less does a late first byte tell.
 *
 * Compared is the shortest wait of each window, which a queue makes longer and a long prompt among others does not, with the shortest
 * of ten minutes. Waits that stay long although fewer calls were sent, twice in a row, have other reasons: they are usual from then on.
 */
export class Queueing {
  /** The shortest of each of the last spans; the newest last. */
  readonly #spans: { readonly fromMs: number; ms: number }[] = []
  #window: number[] = []
  #windowFromMs = Number.NEGATIVE_INFINITY
  /** How long a whole call takes, smoothed. */
  #wholeMs: number | undefined
  /** The shortest wait when fewer calls were sent last, until it is known whether that helped. */
  #loweredFrom: number | undefined
  #unhelpful = 0
  #shortestNow: number | undefined
  /** Part of the calls that waits, from 0 to 1, in the last window. */
  part = 0

  /** A call is over, all of it. */
  ended(ms: number): void {
    this.#wholeMs = this.#wholeMs === undefined ? ms : this.#wholeMs + (ms - this.#wholeMs) / 8
  }

  /** Fewer calls are sent, because of what this said: what follows shows whether it was right. */
  lowered(nowMs: number): void {
    this.#loweredFrom = this.#shortestNow
    this.restart(nowMs)
  }

  /** Calls that began before say nothing: there were more of them, or fewer. */
  restart(nowMs: number): void {
    this.#windowFromMs = nowMs
    this.#window = []
  }

  /** @param inFlight Calls that the server has now. @returns `part` where {@link part} is news; `usual`: late first bytes had other reasons than what was sent */
  add({ startedAtMs, waitedMs }: FirstByte, inFlight: number, nowMs: number): 'part' | 'usual' | undefined {
    if (startedAtMs < this.#windowFromMs) return undefined
    this.#window.push(waitedMs)
    if (this.#window.length < Math.min(WINDOW.most, Math.max(WINDOW.least, inFlight / 2))) return undefined
    const shortest = Math.min(...this.#window)
    this.#shortestNow = shortest
    this.restart(nowMs)
    const isUsual = this.#isUsual(shortest)
    if (isUsual) this.#spans.length = 0
    this.#remember(shortest, nowMs)
    const usual = Math.min(...this.#spans.map(({ ms }) => ms))
    const late = Math.max(0, shortest - usual - Math.max(TOLERATED.times * usual, TOLERATED.ms))
    const whole = Math.max(this.#wholeMs ?? shortest, shortest)
    this.part = whole > 0 ? Math.min(1, late / whole) : 0
    return isUsual ? 'usual' : 'part'
  }

  #isUsual(shortest: number): boolean {
    if (this.#loweredFrom === undefined) return false
    this.#unhelpful = shortest > HELPED * this.#loweredFrom ? this.#unhelpful + 1 : 0
    this.#loweredFrom = undefined
    if (this.#unhelpful < UNHELPFUL_MAX) return false
    this.#unhelpful = 0
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
