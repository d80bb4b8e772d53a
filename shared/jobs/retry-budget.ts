/**
 * Limits retries to a share of the traffic, so that a failing upstream is not asked three times as often as a healthy one
 * (Google SRE book, "Handling Overload": retry budgets).
 *
 * Every first attempt earns a part of a retry; every retry spends a whole one. A few are there from the start, so that
 * a quiet service can retry at all.
 */
export class RetryBudget {
  readonly #earnPerCall: number
  readonly #max: number
  #tokens: number

  /** @param share Retries per first attempt in the long run, such as 0.1. @param max Most retries saved up. */
  constructor(share: number, max: number) {
    this.#earnPerCall = share
    this.#max = max
    this.#tokens = max
  }

  /** A first attempt was made. */
  earn(): void {
    this.#tokens = Math.min(this.#max, this.#tokens + this.#earnPerCall)
  }

  /** Whether a retry may be made now. */
  get canSpend(): boolean {
    return this.#tokens >= 1
  }

  /** A retry is made. */
  spend(): void {
    this.#tokens -= 1
  }
}
