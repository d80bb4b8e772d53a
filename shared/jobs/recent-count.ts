/** How often something happened in the last `spanMs`, or in the fullest span of the last two. */
export class RecentCount {
  readonly #spanMs: number
  #fromMs = 0
  #before = 0
  #now = 0

  constructor(spanMs: number) {
    this.#spanMs = spanMs
  }

  add(): void {
    this.#roll()
    this.#now++
  }

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
