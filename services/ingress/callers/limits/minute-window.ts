import { WINDOW_MS } from '#shared/limits/fleet-counts.ts'

/**
 * Usage of one limit in the current minute: the total of the fleet at the last synchronization, plus the usage of this
 * ingress since then. Times are monotonic, so changes of the clock have no effect.
 *
 * Usage passes through three states: pending (counted only here), sent (in a running statement) and settled (in the
 * total of the fleet).
 */
export class MinuteWindow {
  readonly name: string
  /** Time of the last synchronization. */
  syncedAtMs = -Infinity
  /** Number of running calls of this ingress that have reserved a part of the minute. */
  reservations = 0
  #minute = 0
  #settled = 0
  /** Usage in a running statement, not confirmed yet. */
  #sent = 0
  /** Usage that was not sent yet. */
  #pending = 0
  #endsAtMs = -Infinity
  #isKnown = false

  constructor(name: string) {
    this.name = name
  }

  used(nowMs: number): number {
    this.#roll(nowMs)
    return this.#settled + this.#sent + this.#pending
  }

  /** Usage that the total of the fleet may not contain yet. */
  get unsettled(): number {
    return this.#sent + this.#pending
  }

  /** Ordinal of the current minute. A reservation of an earlier minute no longer counts. */
  minute(nowMs: number): number {
    this.#roll(nowMs)
    return this.#minute
  }

  isKnown(nowMs: number): boolean {
    this.#roll(nowMs)
    return this.#isKnown
  }

  /** Milliseconds until the current minute ends; 0 if it has no usage. */
  remainingMs(nowMs: number): number {
    return Math.max(0, Math.ceil(this.#endsAtMs - nowMs))
  }

  /** Adds usage; a negative amount gives usage back. A minute begins with the first usage. */
  add(amount: number, nowMs: number): void {
    this.#roll(nowMs)
    if (this.#endsAtMs === -Infinity) this.#endsAtMs = nowMs + WINDOW_MS
    this.#pending += amount
  }

  /** Marks the pending usage as sent, and returns it. A confirmation or {@link restore} must follow. */
  take(): number {
    this.#sent = this.#pending
    this.#pending = 0
    return this.#sent
  }

  /** Confirms the sent usage, which the total of the fleet now contains. */
  confirm(used: number, leftMs: number, nowMs: number): void {
    this.#settled = used
    this.#sent = 0
    this.#endsAtMs = nowMs + leftMs
    this.#isKnown = true
    this.syncedAtMs = nowMs
  }

  /** Marks the sent usage as pending again, because its statement may have failed. */
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
