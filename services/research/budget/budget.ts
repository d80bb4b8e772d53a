import type { ResearchEffort, ResearchLimits } from '#schemas/kinds/research.ts'
import type { Cost } from '#shared/kinds/composition.ts'

export interface Bounds {
  readonly searches: number
  readonly pages: number
  readonly tokens: number
  readonly usd: number
  /** Time in seconds after the start of the first attempt at which the run stops gathering and writes its report. */
  readonly seconds: number
  /** Maximum rounds of searching and reading. Each round adds queries from the results of the previous round. */
  readonly rounds: number
  readonly queries: number
  /** Maximum claims of a report that is written without a model. */
  readonly claims: number
}

const EFFORTS: Readonly<Record<ResearchEffort, Bounds>> = {
  low: bounds(6, 16, 60_000, 120, 1, 4, 14),
  medium: bounds(16, 32, 250_000, 480, 2, 6, 20),
  high: bounds(40, 50, 1_000_000, 1_800, 4, 8, 28),
}

/**
 * Combines the limits of the effort level with those of the request. The request can only lower `searches` and `tokens`, and can lower or raise
 * sources, seconds and cost.
 */
export function boundsOf(effort: ResearchEffort, limits: ResearchLimits): Bounds {
  const own = EFFORTS[effort]
  return {
    ...own,
    searches: Math.min(own.searches, limits.max_searches ?? Number.POSITIVE_INFINITY),
    pages: limits.max_sources ?? own.pages,
    seconds: limits.max_seconds ?? own.seconds,
    tokens: Math.min(own.tokens, limits.max_tokens ?? Number.POSITIVE_INFINITY),
    usd: limits.max_cost_usd ?? own.usd,
  }
}

export type Unit = 'searches' | 'pages' | 'tokens' | 'usd'

/**
 * The remaining budget of a run. Each amount is reserved before the work and settled afterwards, so concurrent calls cannot spend the same
 * remainder twice. Example: with 1,000 tokens left, only one of two concurrent calls that reserve 600 each starts.
 *
 * A replayed step reserves and settles like an executed step, so a resumed run makes equal decisions.
 */
export class Budget {
  readonly bounds: Bounds
  readonly #used: Record<Unit, number> = { searches: 0, pages: 0, tokens: 0, usd: 0 }

  constructor(own: Bounds) {
    this.bounds = own
  }

  get used(): Readonly<Record<Unit, number>> {
    return this.#used
  }

  /**
   * Reserves all amounts, or none if one exceeds its remainder.
   *
   * @returns Whether the amounts were reserved
   */
  reserve(amounts: Partial<Record<Unit, number>>): boolean {
    const units = Object.entries(amounts) as [Unit, number][]
    const fits = units.every(([unit, amount]) => this.#used[unit] + amount <= this.bounds[unit])
    if (fits) for (const [unit, amount] of units) this.#used[unit] += amount
    return fits
  }

  settle(reserved: Cost, used: Cost): void {
    for (const unit of Object.keys(this.#used) as Unit[]) this.#used[unit] += (used[unit] ?? 0) - (reserved[unit] ?? 0)
  }
}

function bounds(
  searches: number,
  pages: number,
  tokens: number,
  seconds: number,
  rounds: number,
  queries: number,
  claims: number,
): Bounds {
  return { searches, pages, tokens, seconds, rounds, queries, claims, usd: Number.POSITIVE_INFINITY }
}
