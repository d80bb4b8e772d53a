/** How many jobs each of many tenants has, so kept that sums over all of them cost as little as over a few. */
export class TenantCounts {
  readonly #of = new Map<string, number>()
  /** How many tenants have more than so many. */
  readonly #above: number[] = []
  #total = 0

  of(tenant: string): number {
    return this.#of.get(tenant) ?? 0
  }

  /** Those that have any. */
  tenants(): Iterable<string> {
    return this.#of.keys()
  }

  /** A tenant has one more, or one less. */
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

  /** Adds what others have. */
  addAll(others: TenantCounts): void {
    for (const [tenant, count] of others.#of) for (let n = 0; n < count; n++) this.change(tenant, 1)
  }

  /** Jobs of all tenants together, of each no more than so many. */
  sum(most: number): number {
    if (most >= this.#above.length) return this.#total
    let sum = 0
    for (let n = 0; n < most; n++) sum += this.#above[n] ?? 0
    return sum
  }
}
