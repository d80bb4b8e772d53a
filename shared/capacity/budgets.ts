import { setTimeout as delay } from 'node:timers/promises'
import type { BudgetState } from '#schemas/usage.ts'
import { stateOf } from '#shared/keys/changes.ts'
import { type ApiKey, type Limits, type Project, projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Spender, UsageLedger } from '#shared/store/records.ts'
import { type Month, monthOf, NANOS_PER_USD } from '#shared/usage/usage.ts'
import { type Fleet, Running } from './fleet-counts.ts'
import { refusal } from './rate-limits.ts'

/** Interval in ms at which the spending of a budget is read from the ledger while calls arrive. */
const CACHE_TTL_MS = 1_000
/**
 * Maximum age in ms of the spending that was read from the ledger. Beyond this age, a call waits for a new read, because other calls may have spent
 * the budget in between.
 */
const STALE_MS = 2_000
const LEDGER_TIMEOUT_MS = 250
/** Maximum number of cached budgets, which bounds memory. At the maximum, the cache is emptied. */
const CACHED_MAX = 20_000
/**
 * Fraction of a remaining budget that all ingresses together may reserve without synchronizing (see `rate-limits.ts`).
 */
const UNSYNCED_FRACTION = 1 / 4
/** Maximum wait of a call, in ms, until running calls release unused reservations, and interval between two checks. */
const RESERVED_WAIT_MS = 5_000
const RESERVED_CHECK_MS = 100
/** Maximum interval between two checks, in ms. If other ingresses hold the reservations, then a check costs a statement, so the interval grows. */
const RESERVED_CHECK_MS_MAX = 500
/** Maximum concurrent calls of this process that wait for reserved budget. Further calls are refused. */
const WAITING_MAX = 200
/** Maximum waiting calls of one project, so that one project cannot use all waiting places. */
const WAITING_MAX_PER_PROJECT = WAITING_MAX / 5
/** Retry-After in ms if other calls have reserved the rest of the budget. Within this time, some of those calls probably end. */
const RESERVED_RETRY_AFTER_MS = 2_000

export interface BudgetOptions {
  /** The usage ledger. Undefined if costs are not recorded, and no budget applies then. */
  readonly ledger: UsageLedger | undefined
  readonly log: Log
  limitsOf(project: string): Limits
  /** Synchronization with other ingresses. Undefined if there is no other ingress. */
  readonly fleet?: Fleet | undefined
  ingresses?(): number
  now?(): number
  clock?(): number
}

type KeyOf = Pick<ApiKey, 'id' | 'project' | 'limits'>

export interface Budget extends Spender {
  readonly usd: number
}

export function budgetsIn(
  known: { readonly keys: readonly ApiKey[]; readonly projects: readonly Project[] },
  nowMs: number,
) {
  const ofProjects = known.projects.map(
    ({ id, name, limits }) => ({ owner: 'project', id, name, project: id, limits }) as const,
  )
  const ofKeys = known.keys
    .filter((key) => stateOf(key, nowMs) === 'valid')
    .map((key) => ({ ...key, owner: 'key', project: projectIdOf(key) }) as const)
  return [...ofProjects, ...ofKeys].flatMap(({ owner, id, name = null, project, limits }) => {
    const usd = limits?.budget_usd_per_month
    return usd === undefined ? [] : [{ owner, id, name, project, usd }]
  })
}

export function budgetStateOf({ owner, id, usd }: Budget, costNanos: number, month: Month): BudgetState {
  const remaining_usd = Math.max(0, Math.round(usd * NANOS_PER_USD - costNanos) / NANOS_PER_USD)
  const amounts = { budget_usd: usd, spent_usd: costNanos / NANOS_PER_USD, remaining_usd }
  return { owner, id, name: null, month: month.name, ...amounts, resets_at: month.endsAtMs / 1_000 }
}

interface ReservedPart {
  readonly budget: Budget
  readonly of: HeldBudget
  readonly nanos: number
}

/**
 * Reservation in the budgets of a key and its project. The code that made the reservation calls exactly one of `settle`, `handOver` and `release`,
 * once.
 */
export interface BudgetReservation {
  readonly nanos: number
  /**
   * Replaces the reservation with the cost of the ended call.
   *
   * @param entered Resolves when the cost is in the ledger
   */
  settle(costNanos: number, entered: Promise<unknown>): void
  /** Called when the durable job is stored. From then on, the stored job reserves the amount instead of this reservation. */
  handOver(): void
  release(): void
}

/**
 * Monthly (UTC) budgets of projects and keys. The usage ledger counts the spending of the whole fleet
 * (docs/operate/usage.md, Budgets).
 *
 * A call reserves its estimated cost before it runs. The call is admitted if the estimate is at most the unreserved
 * part of the budget. A call is also admitted if no other call of that budget is in flight. At most one call can
 * therefore exceed a budget.
 *
 * Reservations of attached calls are kept in memory and published to the other ingresses. Reservations of durable jobs
 * are stored with the jobs and read together with the ledger.
 *
 * The first call of a month, and the first call after a quiet period, wait up to {@link LEDGER_TIMEOUT_MS} for the
 * ledger. Otherwise the ledger is read in the background once a second. While the ledger is unreachable, the last read
 * values apply.
 */
export class Budgets {
  readonly #options: BudgetOptions
  readonly #now: () => number
  readonly #clock: () => number
  readonly #held = new Map<string, HeldBudget>()
  #isFailing = false
  /** Number of calls that wait for reserved budget, by project and in total. */
  readonly #waiting = new Map<string, number>()
  #waitingCalls = 0
  /**
   * Errors of reservations that fit this ingress's own counts, but exceeded a budget together with the reservations of
   * other ingresses. Retrying such a reservation costs a database statement, so the retries are less frequent.
   */
  readonly #refusedByFleet = new WeakSet<object>()

  constructor(options: BudgetOptions) {
    this.#options = options
    this.#now = options.now ?? Date.now
    this.#clock = options.clock ?? (() => performance.now())
  }

  require(key: KeyOf): Promise<void> | undefined {
    const budgets = this.#of(key)
    return budgets.length === 0 ? undefined : this.#require(budgets)
  }

  bounds(key: KeyOf): boolean {
    return this.#options.ledger !== undefined && this.#of(key).length > 0
  }

  /**
   * Reserves the estimated cost in each budget of a key and its project.
   *
   * @throws ServiceError `insufficient_quota` if a budget is spent. `rate_limit_exceeded` if calls in flight may spend the remaining budget
   */
  async reserve(key: KeyOf, nanos: number): Promise<BudgetReservation> {
    const budgets = this.#options.ledger && nanos > 0 ? this.#of(key) : []
    await this.#require(budgets)
    const month = monthOf(this.#now())
    const held = budgets.map((budget) => ({ budget, of: this.#known(budget, month), nanos: 0 }))
    // Check and reservation happen without an await in between. Otherwise concurrent calls could all reserve the same
    // remaining money.
    for (const { budget, of } of held) this.#refuse(budget, of, month, nanos)
    for (const one of held) {
      one.nanos = Math.max(0, Math.min(nanos, this.#leftOf(one.budget, one.of)))
      one.of.reserve(one.nanos)
    }
    const largest = Math.max(0, ...held.map((one) => one.nanos))
    const release = () => {
      for (const { of, nanos: own } of held) of.release(own)
      this.#publish(held)
    }
    try {
      await this.#synchronize(held)
    } catch (error) {
      release()
      this.#refusedByFleet.add(error as Error)
      throw error
    }
    const settle: BudgetReservation['settle'] = (cost, entered) => this.#settle(held, cost, entered)
    return { nanos: largest, settle, release, handOver: () => this.#handOver(held) }
  }

  /**
   * Reserves as {@link reserve}, but waits up to {@link RESERVED_WAIT_MS} if calls of this process have reserved the rest of the budget.
   * Calls usually cost much less than they reserve.
   *
   * @param signalOf Called at the first wait. Returns the signal that ends the wait, such as for a disconnected caller
   */
  async reserveOrWait(key: KeyOf, nanos: number, signalOf?: () => AbortSignal): Promise<BudgetReservation> {
    const endsAtMs = this.#clock() + RESERVED_WAIT_MS
    const project = projectIdOf(key)
    let place: { readonly signal: AbortSignal | undefined } | undefined
    let waitMs = RESERVED_CHECK_MS
    try {
      for (;;) {
        try {
          return await this.reserve(key, nanos)
        } catch (error) {
          const isHeld = error instanceof ServiceError && error.code === 'rate_limit_exceeded'
          if (!isHeld || this.#clock() > endsAtMs || !this.#runsCalls(key)) throw error
          if (!place && !this.#enterWait(project)) throw error
          place ??= { signal: signalOf?.() }
          const { signal } = place
          await delay(waitMs, undefined, signal && { signal }).catch(() => {})
          if (signal?.aborted) throw error
          if (this.#refusedByFleet.has(error)) waitMs = Math.min(waitMs * 2, RESERVED_CHECK_MS_MAX)
        }
      }
    } finally {
      if (place) this.#leaveWait(project)
    }
  }

  /** @returns False if the maximum number of calls already waits, of the project or in total */
  #enterWait(project: string): boolean {
    const own = this.#waiting.get(project) ?? 0
    if (own >= WAITING_MAX_PER_PROJECT || this.#waitingCalls >= WAITING_MAX) return false
    this.#waiting.set(project, own + 1)
    this.#waitingCalls++
    return true
  }

  #leaveWait(project: string): void {
    const own = (this.#waiting.get(project) ?? 1) - 1
    if (own > 0) this.#waiting.set(project, own)
    else this.#waiting.delete(project)
    this.#waitingCalls--
  }

  #runsCalls(key: KeyOf): boolean {
    const month = monthOf(this.#now())
    return this.#of(key).some((budget) => this.#known(budget, month).hasCalls)
  }

  async stateOf(key: KeyOf): Promise<BudgetState[]> {
    return await this.statesOf(this.#of(key))
  }

  async statesOf(budgets: readonly Budget[]): Promise<BudgetState[]> {
    const month = monthOf(this.#now())
    const spent = budgets.length === 0 ? [] : await this.#options.ledger?.spent(budgets, month.from, month.to)
    return budgets.map((budget, i) => budgetStateOf(budget, spent?.[i]?.costNanos ?? 0, month))
  }

  #of({ id, project, limits }: KeyOf): Budget[] {
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
      if (nowMs - known.requestedAtMs > CACHE_TTL_MS) this.#startRead(budget, month, known)
      if (nowMs - known.readAtMs > STALE_MS) {
        await Promise.all([inTime(known.reading), this.#options.fleet?.synchronize([known.running])])
        known.readAtMs = this.#clock()
      } else this.#options.fleet?.refresh(known.running, nowMs)
      if (known.known >= budget.usd * NANOS_PER_USD) throw spentAll(budget, month)
    }
  }

  #leftOf({ usd }: Budget, held: HeldBudget): number {
    return Math.floor(usd * NANOS_PER_USD) - held.known - held.underWay(this.#clock())
  }

  #refuse(budget: Budget, held: HeldBudget, month: Month, nanos: number): void {
    if (held.known >= budget.usd * NANOS_PER_USD) throw spentAll(budget, month)
    if (held.underWay(this.#clock()) > 0 && nanos > this.#leftOf(budget, held)) throw budgetIsReserved(budget, month)
  }

  /**
   * Publishes reservations. If this ingress reserved more than its part of a remaining budget, then it first reads the
   * reservations of the other ingresses.
   *
   * @throws ServiceError if the reservations of all ingresses exceed a budget
   */
  async #synchronize(all: readonly ReservedPart[]): Promise<void> {
    const { fleet, ingresses } = this.#options
    if (!fleet) return
    const nowMs = this.#clock()
    const share = UNSYNCED_FRACTION / Math.max(1, ingresses?.() ?? 1)
    const isSure = all.every(({ budget, of }) => {
      const { local: here, published: told } = of.running
      return nowMs - of.running.syncedAtMs <= STALE_MS && here - told <= this.#leftOf(budget, of) * share
    })
    if (isSure || !fleet.isReachable) return this.#publish(all)
    await fleet.synchronize(all.map(({ of }) => of.running))
    const month = monthOf(this.#now())
    for (const { budget, of, nanos } of all) {
      const isAlone = of.underWay(this.#clock()) <= nanos
      if (this.#leftOf(budget, of) < 0 && !isAlone) throw budgetIsReserved(budget, month)
    }
  }

  #settle(held: readonly ReservedPart[], cost: number, entered: Promise<unknown>): void {
    for (const { of, nanos } of held) of.settle(nanos, cost)
    this.#publish(held)
    void entered.then(() => {
      for (const { of } of held) of.enter(cost)
      this.#readLater(held)
    })
  }

  #handOver(held: readonly ReservedPart[]): void {
    for (const { of, nanos } of held) of.handOver(nanos)
    this.#publish(held)
    this.#readLater(held)
  }

  #publish(all: readonly ReservedPart[]): void {
    for (const { of } of all) this.#options.fleet?.markChanged(of.running)
  }

  /**
   * Schedules a read of the ledger, so that this ingress stops publishing amounts that the ledger already contains. If no further call arrives, then
   * no other code reads the ledger.
   */
  #readLater(held: readonly ReservedPart[]): void {
    if (!this.#options.fleet) return
    for (const { budget, of } of held) {
      setTimeout(() => {
        const month = monthOf(this.#now())
        if (of.isUnread && of.month === month.name) this.#startRead(budget, month, of)
      }, CACHE_TTL_MS).unref()
    }
  }

  #known({ owner, id }: Budget, { name: month }: Month): HeldBudget {
    const budgetName = `${owner} ${id}`
    const before = this.#held.get(budgetName)
    if (before?.month === month) return before
    if (this.#held.size >= CACHED_MAX) this.#held.clear()
    const known = new HeldBudget(`budget ${month} ${budgetName}`, month)
    this.#held.set(budgetName, known)
    return known
  }

  #startRead(budget: Budget, month: Month, held: HeldBudget): void {
    held.reading ??= this.#read(budget, month, held).finally(() => {
      held.reading = undefined
    })
  }

  async #read(budget: Budget, month: Month, held: HeldBudget): Promise<void> {
    held.requestedAtMs = this.#clock()
    const { ledger, log, fleet } = this.#options
    const none = { costNanos: 0, reservedNanos: 0 }
    const ask = async () => (await ledger?.spent([budget], month.from, month.to))?.[0] ?? none
    try {
      await held.read(ask, () => fleet?.markChanged(held.running))
      if (this.#isFailing) log.info({}, 'budgets readable again')
      this.#isFailing = false
    } catch (error) {
      // Only the first failure is logged, because an outage may last for hours.
      if (!this.#isFailing) log.warn({ err: error }, 'budgets could not be read; the last known values apply')
      this.#isFailing = true
    }
    held.readAtMs = this.#clock()
  }
}

async function inTime(reading: Promise<void> | undefined): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, LEDGER_TIMEOUT_MS)
  })
  await Promise.race([reading, late])
  clearTimeout(timer)
}

function spentAll({ owner, usd }: Budget, { name, endsAtMs }: Month): ServiceError {
  if (usd === 0) {
    const none = `The budget of this ${owner} is $0, so no call is accepted. Only the operator of this service can raise it.`
    return new ServiceError('insufficient_quota', none)
  }
  const resets = new Date(endsAtMs).toISOString().slice(0, 10)
  const message = `The budget of this ${owner}, ${usdText(usd)} for ${name}, is spent. The budget resets on ${resets} (UTC). To raise it earlier, ask the operator of this service.`
  return new ServiceError('insufficient_quota', message)
}

function usdText(usd: number): string {
  return `$${usd >= 0.01 ? usd.toFixed(2) : usd}`
}

function budgetIsReserved({ owner, usd }: Budget, { name }: Month): ServiceError {
  const message = `Running calls and jobs have reserved the rest of the budget of this ${owner}, ${usdText(usd)} for ${name}. A lower max_tokens reserves less.`
  return refusal(message, RESERVED_RETRY_AFTER_MS)
}

/**
 * Time in ms for which an amount is still published after this ingress has read it from the ledger. All ingresses read
 * the ledger once a second, so after this time each of them has the amount.
 */
const PUBLISHED_MS = 3_000

interface LedgerAnswer {
  readonly costNanos: number
  readonly reservedNanos: number
}

/**
 * Amounts of one budget in one month that this ingress counts itself, in billionths of a US dollar. These are reservations of running calls, and
 * stored amounts that the last read of the ledger did not contain. The next read contains the stored amounts.
 *
 *     attached: reserved ──call ends──▶ cost ──entry written──▶ cost, unread ──next read──▶ spent
 *     durable:  reserved ──job created──▶ stored, unread ──next read──▶ ofJobs
 */
export class HeldBudget {
  readonly month: string
  requestedAtMs = Number.NEGATIVE_INFINITY
  readAtMs = Number.NEGATIVE_INFINITY
  reading: Promise<void> | undefined
  /** Amounts that this ingress publishes, and the sum of the amounts that other ingresses published. */
  readonly running: Running
  /**
   * Result of the last read of the ledger. `#spent` are costs, and `#ofJobs` are reservations of unfinished durable
   * jobs.
   */
  #spent = 0
  #ofJobs = 0
  #reserved = 0
  #costs = 0
  readonly #unread = { costs: 0, holds: 0 }

  constructor(name: string, month: string) {
    this.month = month
    this.running = new Running(name)
  }

  get known(): number {
    return this.#spent + this.#costs + this.#unread.costs
  }

  underWay(nowMs: number): number {
    return this.#reserved + this.#unread.holds + this.#ofJobs + this.running.elsewhere(nowMs)
  }

  /** Whether running attached calls of this process have reserved a part of the budget. */
  get hasCalls(): boolean {
    return this.#reserved > 0
  }

  get isUnread(): boolean {
    return this.#unread.costs + this.#unread.holds > 0
  }

  reserve(nanos: number): void {
    this.#reserved += nanos
    this.running.local += nanos
  }

  release(nanos: number): void {
    this.#reserved -= nanos
    this.running.local -= nanos
  }

  settle(nanos: number, cost: number): void {
    this.release(nanos)
    this.#costs += cost
    this.running.local += cost
  }

  enter(cost: number): void {
    this.#costs -= cost
    this.#unread.costs += cost
  }

  handOver(nanos: number): void {
    this.#reserved -= nanos
    this.#unread.holds += nanos
  }

  /**
   * Reads the ledger. Amounts that were stored before the read are part of the result, so they are no longer counted separately.
   *
   * @param onLess Called {@link PUBLISHED_MS} after the read, when these amounts are no longer published because the other ingresses have read them
   * too
   */
  async read(ask: () => Promise<LedgerAnswer>, onLess: () => void): Promise<void> {
    const { costs, holds } = this.#unread
    const { costNanos, reservedNanos } = await ask()
    this.#spent = costNanos
    this.#ofJobs = reservedNanos
    this.#unread.costs -= costs
    this.#unread.holds -= holds
    if (costs + holds === 0) return
    setTimeout(() => {
      this.running.local -= costs + holds
      onLess()
    }, PUBLISHED_MS).unref()
  }
}
