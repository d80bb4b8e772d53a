import { WINDOW_MS } from '#shared/limits/fleet-counts.ts'

/**
 * What was used of one limit in the minute under way: by the fleet as it was last heard, and by this ingress since. Times are
 * those of a monotonic clock: nobody sets that back.
 */
export class MinuteWindow {
  /** How the fleet knows it. */
  readonly name: string
  /** When the fleet was last heard. */
  heardAtMs = -Infinity
  /** Calls of this ingress that run and have reserved a part of the minute. */
  reservations = 0
  /** Counts the minutes that are over. */
  #minute = 0
  #settled = 0
  /** Told, and not confirmed. */
  #sent = 0
  /** Not told. */
  #pending = 0
  #endsAtMs = -Infinity
  #isKnown = false

  constructor(name: string) {
    this.name = name
  }

  /** What was used so far. */
  used(nowMs: number): number {
    this.#roll(nowMs)
    return this.#settled + this.#sent + this.#pending
  }

  /** What this ingress has used since it last heard of the fleet, which others may not know. */
  get unsettled(): number {
    return this.#sent + this.#pending
  }

  /** Tells minutes apart: what was reserved in one is gone in the next. */
  minute(nowMs: number): number {
    this.#roll(nowMs)
    return this.#minute
  }

  /** Whether the fleet was heard in this minute. */
  isKnown(nowMs: number): boolean {
    this.#roll(nowMs)
    return this.#isKnown
  }

  /** Milliseconds until the next minute begins; 0 where nothing was used in this one. */
  leftMs(nowMs: number): number {
    return Math.max(0, Math.ceil(this.#endsAtMs - nowMs))
  }

  /** Uses some; below 0: gives it back. A minute begins with its first use. */
  add(amount: number, nowMs: number): void {
    this.#roll(nowMs)
    if (this.#endsAtMs === -Infinity) this.#endsAtMs = nowMs + WINDOW_MS
    this.#pending += amount
  }

  /** Gives what the fleet is to be told. Then {@link hear} or {@link restore} must follow. */
  take(): number {
    this.#sent = this.#pending
    this.#pending = 0
    return this.#sent
  }

  /** The fleet has what it was told, and says how much that is with the rest. */
  hear(used: number, leftMs: number, nowMs: number): void {
    this.#settled = used
    this.#sent = 0
    this.#endsAtMs = nowMs + leftMs
    this.#isKnown = true
    this.heardAtMs = nowMs
  }

  /** The fleet may not have heard: it is told again. */
  restore(): void {
    this.#pending += this.#sent
    this.#sent = 0
  }

  #roll(nowMs: number): void {
    if (nowMs < this.#endsAtMs || this.#endsAtMs === -Infinity) return
    this.#minute++
    this.#settled = 0
    this.#sent = 0
    this.#pending = 0
    this.#endsAtMs = -Infinity
    this.#isKnown = false
  }
}
