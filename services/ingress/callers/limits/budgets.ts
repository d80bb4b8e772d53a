import type { BudgetState } from '#schemas/usage.ts'
import { ServiceError } from '#shared/error.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import { type Limits, projectIdOf } from '#shared/keys/project.ts'
import type { Log } from '#shared/log/log.ts'
import type { Spender, UsageLedger } from '#shared/store/usage.ts'
import { type Month, monthOf } from '#shared/usage/month.ts'

const NANOS_PER_USD = 1_000_000_000
/** What was spent is read again after this, while calls come. */
const FRESH_MS = 1_000
/** A call waits for the ledger where what was heard is older: nobody has called for a while, and what ran then has ended since. */
const STALE_MS = 2_000
/** Longest wait of a call for that, in milliseconds. */
const ASK_MS_MAX = 250
/** Of what is known, most is forgotten at this many: more than spend at once. */
const KNOWN_MAX = 20_000

/** What {@link Budgets} need. */
export interface BudgetOptions {
  /** Undefined: nothing is known of costs, and nobody is held to a budget. */
  readonly ledger: UsageLedger | undefined
  readonly log: Log
  limitsOf(project: string): Limits
  /** Unix milliseconds. */
  now?(): number
  /** Monotonic, in milliseconds. */
  clock?(): number
}

interface Budget extends Spender {
  readonly usd: number
}

interface Spent {
  readonly month: string
  nanos: number
  askedAtMs: number
  /** When the ledger last answered, or was last waited for in vain. */
  heardAtMs: number
  reading: Promise<void> | undefined
}

/**
 * Budgets of projects and keys for a month of UTC, by the ledger of the whole fleet (docs/usage.md, Budgets). The first
 * call of a month, and one after a pause, wait for the ledger; else what was spent is read in the background, once a second.
 * While the ledger is away the last that was heard counts.
 */
export class Budgets {
  readonly #options: BudgetOptions
  readonly #now: () => number
  readonly #clock: () => number
  readonly #spent = new Map<string, Spent>()
  #isFailing = false

  constructor(options: BudgetOptions) {
    this.#options = options
    this.#now = options.now ?? Date.now
    this.#clock = options.clock ?? (() => performance.now())
  }

  /** Refuses a call whose budget is spent. @throws ServiceError `insufficient_quota` */
  require(key: Pick<ApiKey, 'id' | 'project' | 'limits'>): Promise<void> | undefined {
    const budgets = this.#of(key)
    return budgets.length === 0 ? undefined : this.#require(budgets)
  }

  /** The budgets of a key and its project, as they are now. @throws ServiceError `overloaded` while the ledger is away */
  async stateOf(key: Pick<ApiKey, 'id' | 'project' | 'limits'>): Promise<BudgetState[]> {
    const month = monthOf(this.#now())
    const budgets = this.#of(key)
    const spent = budgets.length === 0 ? [] : await this.#options.ledger?.spent(budgets, month.from, month.to)
    return budgets.map(({ owner, id, usd }, i) => {
      const spentUsd = (spent?.[i]?.costNanos ?? 0) / NANOS_PER_USD
      const remaining_usd = Math.max(0, Math.round((usd - spentUsd) * NANOS_PER_USD) / NANOS_PER_USD)
      const resets_at = month.endsAtMs / 1_000
      return { owner, id, month: month.name, budget_usd: usd, spent_usd: spentUsd, remaining_usd, resets_at }
    })
  }

  #of({ id, project, limits }: Pick<ApiKey, 'id' | 'project' | 'limits'>): Budget[] {
    const projectId = projectIdOf({ id, project })
    const own = limits?.budget_usd_per_month
    const shared = this.#options.limitsOf(projectId).budget_usd_per_month
    return [
      ...(own === undefined ? [] : [{ owner: 'key', id, usd: own } as const]),
      ...(shared === undefined ? [] : [{ owner: 'project', id: projectId, usd: shared } as const]),
    ]
  }

  async #require(budgets: readonly Budget[]): Promise<void> {
    const month = monthOf(this.#now())
    for (const budget of budgets) {
      const known = this.#known(budget, month)
      const nowMs = this.#clock()
      if (nowMs - known.askedAtMs > FRESH_MS) known.reading = this.#read(budget, month, known)
      if (nowMs - known.heardAtMs > STALE_MS) {
        await inTime(known.reading)
        known.heardAtMs = this.#clock()
      }
      if (known.nanos >= budget.usd * NANOS_PER_USD) throw spentAll(budget, month)
    }
  }

  #known({ owner, id }: Budget, { name: month }: Month): Spent {
    const place = `${owner} ${id}`
    const before = this.#spent.get(place)
    if (before?.month === month) return before
    if (this.#spent.size >= KNOWN_MAX) this.#spent.clear()
    const known = { month, nanos: 0, askedAtMs: -Infinity, heardAtMs: -Infinity, reading: undefined }
    this.#spent.set(place, known)
    return known
  }

  /** Never rejects. */
  async #read(budget: Budget, month: Month, known: Spent): Promise<void> {
    known.askedAtMs = this.#clock()
    const { ledger, log } = this.#options
    try {
      const [spent] = (await ledger?.spent([budget], month.from, month.to)) ?? []
      known.nanos = spent?.costNanos ?? 0
      if (this.#isFailing) log.info({}, 'budgets are read again')
      this.#isFailing = false
    } catch (error) {
      // Said once: an outage may last for hours.
      if (!this.#isFailing) log.warn({ err: error }, 'budgets not readable; the last that was known counts')
      this.#isFailing = true
    }
    known.heardAtMs = this.#clock()
  }
}

async function inTime(reading: Promise<void> | undefined): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, ASK_MS_MAX)
  })
  await Promise.race([reading, late])
  clearTimeout(timer)
}

function spentAll({ owner, usd }: Budget, { name, endsAtMs }: Month): ServiceError {
  if (usd === 0) {
    const none = `The budget of this ${owner} is $0, so it may make no calls. Only whoever runs this service can raise it.`
    return new ServiceError('insufficient_quota', none)
  }
  const resets = new Date(endsAtMs).toISOString().slice(0, 10)
  const message = `The budget of this ${owner}, $${usd} for ${name}, is spent. It resets on ${resets} (UTC); until then ask whoever runs this service to raise it.`
  return new ServiceError('insufficient_quota', message)
}
