/** Length of one measuring interval. A shorter one would mistake jobs that start together for a high rate. */
const SPAN_MS = 250

export class RateMeter {
  #fromMs = 0
  #before = 0
  #now = 0

  add(): void {
    this.#roll()
    this.#now++
  }

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
