/** Measured in spans of this length: in shorter ones jobs that began together would look like a fast pace. */
const SPAN_MS = 250

/** The pace at which something happened of late: in this span of time, or in the one before where that was busier. */
export class RateMeter {
  #fromMs = 0
  #before = 0
  #now = 0

  /** It happened once more. */
  add(): void {
    this.#roll()
    this.#now++
  }

  /** How often it happens in so many milliseconds: a number with a fraction. */
  in(ms: number): number {
    this.#roll()
    return (Math.max(this.#before, this.#now) * ms) / SPAN_MS
  }

  #roll(): void {
    const sinceMs = Date.now() - this.#fromMs
    if (sinceMs < SPAN_MS) return
    this.#before = sinceMs < 2 * SPAN_MS ? this.#now : 0
    this.#now = 0
    this.#fromMs = Date.now()
  }
}
