import type { ResearchEffort, ResearchLimits } from '#schemas/research/research.ts'
import type { Cost } from '#shared/kinds/composition.ts'

/** What one run may use, by unit. */
export interface Bounds {
  readonly searches: number
  readonly pages: number
  readonly tokens: number
  readonly usd: number
  /** From its beginning until it writes with what it has. */
  readonly seconds: number
  /** Times that it searches, each with what the time before has shown. */
  readonly rounds: number
  /** Searches of one round. */
  readonly queries: number
  /** Claims of the report. */
  readonly claims: number
}

const EFFORTS: Readonly<Record<ResearchEffort, Bounds>> = {
  low: bounds(6, 16, 60_000, 120, 1, 4, 14),
  medium: bounds(16, 32, 250_000, 480, 2, 6, 20),
  high: bounds(40, 50, 1_000_000, 1_800, 4, 8, 28),
}

/** The bounds of a request: those of its effort, or lower ones that it names. */
export function boundsOf(effort: ResearchEffort, limits: ResearchLimits): Bounds {
  const own = EFFORTS[effort]
  return {
    ...own,
    searches: Math.min(own.searches, limits.max_searches ?? Number.POSITIVE_INFINITY),
    // Sources and seconds are the caller's own measure, so they may also be more than the effort gives.
    pages: limits.max_sources ?? own.pages,
    seconds: limits.max_seconds ?? own.seconds,
    tokens: Math.min(own.tokens, limits.max_tokens ?? Number.POSITIVE_INFINITY),
    usd: limits.max_cost_usd ?? own.usd,
  }
}

/** Units of which there is only so much. */
export type Unit = 'searches' | 'pages' | 'tokens' | 'usd'

/**
 * What a run has left. An amount is reserved before it is spent and settled afterwards, so that what goes on at once cannot
 * spend the same rest twice. It counts what the run asks for, also where a step is only remembered: a run that is taken up
 * again reserves the same and decides the same.
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

  /** Takes amounts out of what is left; takes nothing where one of them is not there. */
  reserve(amounts: Partial<Record<Unit, number>>): boolean {
    const units = Object.entries(amounts) as [Unit, number][]
    const fits = units.every(([unit, amount]) => this.#used[unit] + amount <= this.bounds[unit])
    if (fits) for (const [unit, amount] of units) this.#used[unit] += amount
    return fits
  }

  /** Puts what was used in the place of what was reserved. */
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
