import { WINDOW_MS } from '#shared/limits/fleet-counts.ts'

/**
 * Usage of one limit in the current minute: the fleet's total at the last synchronization, plus the usage of this
 * ingress since then. Times are monotonic, so that clock changes have no effect.
 *
 * Usage moves through three states: pending (counted here) → sent (in a running statement) → settled (in the fleet's
 * total).
 */
export class MinuteWindow {
  readonly name: string
  /** Time of the last synchronization. */
  heardAtMs = -Infinity
  /** Calls of this ingress that run and have reserved a part of the minute. */
  reservations = 0
  #minute = 0
  #settled = 0
  /** Sent to the store, not confirmed. */
  #sent = 0
  /** Not sent yet. */
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

  /** Usage of this ingress that the other ingresses may not know. */
  get unsettled(): number {
    return this.#sent + this.#pending
  }

  /** Number of the current minute. A reservation made in an earlier minute no longer counts. */
  minute(nowMs: number): number {
    this.#roll(nowMs)
    return this.#minute
  }

  isKnown(nowMs: number): boolean {
    this.#roll(nowMs)
    return this.#isKnown
  }

  /** Milliseconds until the next minute begins; 0 if the current one has no usage. */
  leftMs(nowMs: number): number {
    return Math.max(0, Math.ceil(this.#endsAtMs - nowMs))
  }

  /** Adds usage; a negative amount returns some. A minute begins with its first usage. */
  add(amount: number, nowMs: number): void {
    this.#roll(nowMs)
    if (this.#endsAtMs === -Infinity) this.#endsAtMs = nowMs + WINDOW_MS
    this.#pending += amount
  }

  /** Takes the pending usage to send it. The result must be confirmed, or undone by {@link restore}. */
  take(): number {
    this.#sent = this.#pending
    this.#pending = 0
    return this.#sent
  }

  /** Confirms the sent usage with the fleet's total. */
  hear(used: number, leftMs: number, nowMs: number): void {
    this.#settled = used
    this.#sent = 0
    this.#endsAtMs = nowMs + leftMs
    this.#isKnown = true
    this.heardAtMs = nowMs
  }

  /** Marks the sent usage as pending again, because the statement may have failed. */
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
