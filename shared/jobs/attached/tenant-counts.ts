/** Number of jobs of each tenant, with capped sums whose cost does not depend on the number of tenants. */
export class TenantCounts {
  readonly #of = new Map<string, number>()
  /**
   * `#above[n]` is the number of tenants with more than n jobs. Thus the sum with a cap of m is `#above[0] + … + #above[m - 1]`.
   */
  readonly #above: number[] = []
  #total = 0

  of(tenant: string): number {
    return this.#of.get(tenant) ?? 0
  }

  tenants(): Iterable<string> {
    return this.#of.keys()
  }

  change(tenant: string, by: 1 | -1): void {
    const before = this.of(tenant)
    const after = before + by
    if (after > 0) this.#of.set(tenant, after)
    else this.#of.delete(tenant)
    const least = Math.min(before, after)
    this.#above[least] = (this.#above[least] ?? 0) + by
    if (this.#above[least] === 0) this.#above.pop()
    this.#total += by
  }

  addAll(others: TenantCounts): void {
    for (const [tenant, count] of others.#of) for (let n = 0; n < count; n++) this.change(tenant, 1)
  }

  /** Sum over all tenants, in which each tenant counts at most `most` jobs. */
  sum(most: number): number {
    if (most >= this.#above.length) return this.#total
    let sum = 0
    for (let n = 0; n < most; n++) sum += this.#above[n] ?? 0
    return sum
  }
}
