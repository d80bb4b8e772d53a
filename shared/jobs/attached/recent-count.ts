/** Counts how often something happened of late: in this span of time, or in the one before where that was busier. */
export class RecentCount {
  readonly #spanMs: number
  #fromMs = 0
  #before = 0
  #now = 0

  /** @param spanMs Milliseconds of one span. */
  constructor(spanMs: number) {
    this.#spanMs = spanMs
  }

  /** It happened once more. */
  add(): void {
    this.#roll()
    this.#now++
  }

  /** How often it happened in the busier one of the last two spans. */
  get count(): number {
    this.#roll()
    return Math.max(this.#before, this.#now)
  }

  #roll(): void {
    const sinceMs = Date.now() - this.#fromMs
    if (sinceMs < this.#spanMs) return
    this.#before = sinceMs < 2 * this.#spanMs ? this.#now : 0
    this.#now = 0
    this.#fromMs = Date.now()
  }
}
