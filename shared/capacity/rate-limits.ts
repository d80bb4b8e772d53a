import type { ErrorCode } from '#schemas/error.ts'
import {
  type ApiKey,
  type LimitSettings,
  type Limits,
  limitsOfKey,
  type Owner,
  projectIdOf,
} from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { RunningLimits, TenantReads } from '#shared/store/records.ts'
import { callsName, type Fleet, MinuteWindow, Running, WINDOW_MS } from './fleet-counts.ts'

/**
 * Fraction of the remaining limit that all ingresses together may grant without synchronizing. The limit may therefore be exceeded by this fraction
 * of the remainder. Example: if 400 requests remain, then each of four ingresses may grant 25.
 */
const UNSYNCED_FRACTION = 1 / 4

/** Maximum number of counters per map, which bounds memory. At the maximum, all counters of the map are dropped. */
const COUNTERS_MAX = 50_000

/**
 * Default limits of a key, where 0 means no limit. A limit of the key itself or of its project replaces the default. In such a limit, 0 permits no
 * calls.
 */
export interface RateLimitConfig extends LimitSettings {
  readonly followsMaxPerKey: number
  readonly codeRunsPerUser: number
}

export interface RateLimitOptions {
  limitsOf?(project: string): Limits | undefined
  /** Limits of a project, or of a key that belongs to no project. */
  limitsOfTenant?(tenant: string): Limits | undefined
  /** Counts of running durable jobs. Undefined if the deployment has no durable jobs. */
  readonly tenants?: Pick<TenantReads, 'running'> | undefined
  /**
   * Counts shared with other ingresses. Undefined if there is no other ingress, or if no store supports shared counts.
   */
  readonly fleet?: Fleet | undefined
  ingresses?(): number
  clock?(): number
}

type KeyOf = Pick<ApiKey, 'id' | 'project' | 'limits'>

export interface RemainingLimit {
  readonly kind: 'requests' | 'tokens'
  readonly limit: number
  readonly remaining: number
  readonly resetMs: number
}

type ShowRemaining = (left: readonly RemainingLimit[]) => void

interface Use {
  readonly kind: 'requests' | 'tokens'
  readonly owner: Owner
  readonly limit: number
  readonly window: MinuteWindow
}

export interface ConcurrencyUse {
  readonly most: number
  readonly calls: number
  readonly jobs: number
}

interface SlotUse {
  readonly owner: Owner
  readonly limit: number
  readonly running: Running
}

/**
 * Limits per key and project: requests and tokens per minute, and concurrent calls (docs/internals/protocol.md, Limits). The concurrency limit of a
 * project includes its durable jobs.
 *
 * Counts are kept in memory and synchronized with the other ingresses a few times a second. A call waits for a synchronization only if it might
 * exceed a limit (docs/operate/reliability.md, How exact limits are).
 *
 * Only requests that create work are counted, so running calls never cause the refusal of a read, poll or cancel. Long polls and event streams have a
 * limit of their own, because they stay open.
 *
 * Calls and durable jobs of a project share a concurrency limit over the whole fleet (docs/operate/keys.md, What runs at once). A call increments the
 * shared counter, then reads the number of running calls and jobs. A claim of a durable job reads both numbers under a lock of the tenant. The last
 * slot is therefore never taken twice. If a call and a claim compete for the last slot, then both may fail. A durable job that exceeds the limit
 * waits in the store.
 */
export class RateLimits implements RunningLimits {
  readonly #config: RateLimitConfig
  readonly #options: RateLimitOptions
  readonly #fleet: Fleet | undefined
  readonly #clock: () => number
  readonly #windows = new Map<string, MinuteWindow>()
  readonly #windowsOfUsers = new Map<string, MinuteWindow>()
  readonly #running = new Map<string, Running>()
  readonly #following = new Map<string, number>()

  constructor(config: RateLimitConfig, options: RateLimitOptions = {}) {
    this.#config = config
    this.#options = options
    this.#fleet = options.fleet
    this.#clock = options.clock ?? (() => performance.now())
  }

  /**
   * Counts a call of a key, or refuses the call. Check and count happen without an await in between. Otherwise concurrent calls could all take the
   * last slot. `show` receives the remaining limits, also of a refused call.
   *
   * @param isJob True for a durable job, which the store counts against the concurrency limit of its project when it is claimed
   * @returns A function to call when the call has ended
   * @throws ServiceError `rate_limit_exceeded`, `token_limit_exceeded` with the time until the limit allows more. `permission_denied` if the limit is
   * 0
   */
  async enter(key: KeyOf, show: ShowRemaining, isJob = false): Promise<() => void> {
    const owners = limitsOfKey(key, this.#config, this.#options.limitsOf)
    const uses = this.#usesOf(key, owners)
    const slots = owners.flatMap(({ owner, id, running: limit, countsJobs }): SlotUse[] => {
      if (limit === undefined || (isJob && countsJobs)) return []
      return [{ owner, limit, running: this.#runningOf(`${owner} ${id}`) }]
    })
    const leave = () => {
      for (const { running } of slots) running.local--
      for (const { running } of slots) this.#fleet?.markChanged(running)
    }
    try {
      this.#refuse(uses, slots, 1)
      for (const { kind, window } of uses) if (kind === 'requests') window.add(1, this.#clock())
      for (const { running } of slots) running.local++
      if (this.#fleet && uses.length + slots.length > 0) {
        await this.#settle(this.#fleet, uses, slots)
        this.#recheck(uses, slots, leave)
      }
      return leave
    } finally {
      show(this.#remainingOf(uses))
    }
  }

  /**
   * Counts an open long poll or event stream.
   *
   * @returns A function to call when the poll or stream has ended
   * @throws ServiceError `rate_limit_exceeded` if the maximum number is open
   */
  beginFollow({ id }: Pick<ApiKey, 'id'>): () => void {
    const count = this.#following.get(id) ?? 0
    const most = this.#config.followsMaxPerKey
    if (count >= (most || Infinity))
      throw concurrencyExceeded('key', most, 'open requests that wait for a job or follow its events')
    this.#following.set(id, count + 1)
    return () => {
      const left = (this.#following.get(id) ?? 1) - 1
      if (left > 0) this.#following.set(id, left)
      else this.#following.delete(id)
    }
  }

  hasTokenLimit(key: KeyOf): boolean {
    return limitsOfKey(key, this.#config, this.#options.limitsOf).some(({ tokens }) => tokens !== undefined)
  }

  remaining(key: KeyOf): RemainingLimit[] {
    return this.#remainingOf(this.#usesOf(key))
  }

  /**
   * Counts one call of an end user of a key, or refuses the call. Calls without a user id are not counted.
   *
   * @throws ServiceError `rate_limit_exceeded` with the time until the limit allows more
   */
  countUser({ id }: Pick<ApiKey, 'id'>, userId: string | undefined): void {
    const { codeRunsPerUser: most } = this.#config
    if (most === 0 || userId === undefined) return
    const now = this.#clock()
    const window = countOf(this.#windowsOfUsers, `${id} ${userId}`, MinuteWindow)
    if (window.used(now) < most) return window.add(1, now)
    throw refusal(`Rate limit reached: at most ${most} code runs per minute for one end user.`, window.remainingMs(now))
  }

  mostOf(project: string): number | undefined {
    return this.#options.limitsOfTenant?.(project)?.running
  }

  callsOf(project: string): number {
    return this.#running.get(callsName(project))?.local ?? 0
  }

  /**
   * Returns the running calls and jobs of a project. Undefined if no limit applies. Rejects only if the store is
   * unreachable.
   */
  async useOf(project: string): Promise<ConcurrencyUse | undefined> {
    const most = this.mostOf(project)
    return most === undefined ? undefined : { most, ...(await this.#readUse(project)) }
  }

  /**
   * Counts an attached call in the concurrency limit of its project. Returns undefined if no limit applies.
   *
   * @returns A function to call when the call has ended
   * @throws ServiceError `rate_limit_exceeded` if the limit is reached. `permission_denied` if the limit is 0
   */
  enterProject(key: Pick<ApiKey, 'id' | 'project'>): Promise<() => void> | undefined {
    const project = projectIdOf(key)
    const most = this.#options.limitsOfTenant?.(project)?.running
    return most === undefined ? undefined : this.#enterProject(project, most)
  }

  async #enterProject(project: string, most: number): Promise<() => void> {
    if (most === 0) throw limitIsZero('project', 'concurrent calls and jobs')
    const running = this.#runningOf(callsName(project))
    running.local++
    const leave = () => {
      running.local--
      this.#fleet?.markChanged(running)
    }
    try {
      const { calls, jobs } = await this.#readUse(project)
      if (calls + jobs <= most) return leave
      const used = `${calls - 1} calls and ${jobs} jobs are running.`
      throw refusal(`This project is at its limit of ${most} concurrent calls and jobs: ${used}`, 1_000)
    } catch (error) {
      leave()
      throw error
    }
  }

  async #readUse(project: string): Promise<{ calls: number; jobs: number }> {
    const running = this.#runningOf(callsName(project))
    if (!this.#fleet) return { jobs: (await this.#options.tenants?.running(project)) ?? 0, calls: running.local }
    if (this.#fleet.isReachable) await this.#fleet.synchronize([running])
    else this.#fleet.markChanged(running)
    return { calls: running.all(this.#clock()), jobs: running.jobs(this.#clock()) }
  }

  /**
   * Counts a line of a batch as a request, before the line becomes a job. The concurrency limit does not apply to lines.
   *
   * @throws ServiceError as {@link enter}
   */
  async enterLine(key: KeyOf): Promise<void> {
    const uses = this.#usesOf(key).filter(({ kind }) => kind === 'requests')
    this.#refuse(uses, [], 1)
    for (const { window } of uses) window.add(1, this.#clock())
    if (!this.#fleet || uses.length === 0) return
    await this.#settle(this.#fleet, uses, [])
    this.#recheck(uses, [], () => {})
  }

  leaveLine(key: KeyOf): void {
    for (const { kind, window } of this.#usesOf(key)) if (kind === 'requests') this.#add(window, -1)
  }

  /**
   * Reserves the estimated tokens of a call. The call is admitted if the estimate fits into the tokens that remain in this minute. A call is also
   * admitted if this ingress runs no other call of the key. At most one call per ingress can therefore exceed the limit.
   *
   * @returns A function to call once, with the number of tokens used (0 if the call did not run)
   * @throws ServiceError `token_limit_exceeded` if the tokens exceed the limit
   */
  async reserveTokens(key: KeyOf, tokens: number): Promise<(used: number) => void> {
    const uses = this.#usesOf(key).filter(({ kind }) => kind === 'tokens')
    const refuse = (more: number, others: number) => {
      const now = this.#clock()
      const full = uses.find(({ window, limit }) => window.used(now) + more > limit && window.reservations > others)
      if (full) throw exceeded('tokens', full.limit, full.owner, full.window.remainingMs(now) || WINDOW_MS)
    }
    this.#refuse(uses, [], 1)
    refuse(tokens, 0)
    const minutes = uses.map(({ window }) => {
      window.reservations++
      window.add(tokens, this.#clock())
      return window.minute(this.#clock())
    })
    const settle = (used: number) => {
      for (const [i, { window }] of uses.entries()) {
        window.reservations--
        this.#add(window, window.minute(this.#clock()) === minutes[i] ? used - tokens : used)
      }
    }
    try {
      if (this.#fleet) await this.#settle(this.#fleet, uses, [])
      refuse(0, 1)
    } catch (refused) {
      settle(0)
      throw refused
    }
    return settle
  }

  #add(window: MinuteWindow, amount: number): void {
    window.add(amount, this.#clock())
    this.#fleet?.markChanged(window)
  }

  /**
   * @param more Number of calls to admit, which the counts do not contain yet
   * @throws ServiceError if a limit does not allow these calls
   */
  #refuse(uses: readonly Use[], slots: readonly SlotUse[], more: number): void {
    const now = this.#clock()
    const full = slots.find(({ running, limit }) => this.#countedIn(running, now) + more > limit)
    if (full?.limit === 0) throw limitIsZero(full.owner, 'calls at once')
    if (full) {
      this.#fleet?.refresh(full.running, now)
      throw concurrencyExceeded(full.owner, full.limit, 'concurrent requests')
    }
    for (const { kind, limit, owner, window } of uses) {
      const used = window.used(now)
      const isOver = kind === 'tokens' ? used >= limit : used + more > limit
      if (!isOver) continue
      if (limit === 0) throw limitIsZero(owner, `${kind} per minute`)
      this.#fleet?.refresh(window, now)
      throw exceeded(kind, limit, owner, window.remainingMs(now) || WINDOW_MS)
    }
  }

  #recheck(uses: readonly Use[], slots: readonly SlotUse[], leave: () => void): void {
    try {
      this.#refuse(uses, slots, 0)
    } catch (refused) {
      for (const { kind, window } of uses) if (kind === 'requests') window.add(-1, this.#clock())
      leave()
      throw refused
    }
  }

  /** Publishes the counts of a call. If the call might exceed a limit, then it waits for the counts of the other ingresses. */
  async #settle(fleet: Fleet, uses: readonly Use[], slots: readonly SlotUse[]): Promise<void> {
    const now = this.#clock()
    const isSure = uses.every((use) => this.#isSure(use, now)) && slots.every((slot) => this.#isSlotSure(slot, now))
    if (!isSure && fleet.isReachable) {
      return await fleet.synchronize([...uses.map(({ window }) => window), ...slots.map(({ running }) => running)])
    }
    for (const { window } of uses) {
      if (window.unsettled === 0) fleet.refresh(window, now)
      else fleet.markChanged(window)
    }
    for (const { running } of slots) fleet.markChanged(running)
  }

  #isSure({ limit, window }: Use, nowMs: number): boolean {
    if (!window.isKnown(nowMs)) return false
    const { unsettled } = window
    if (unsettled === 0) return true
    return unsettled <= this.#unsynced(limit - (window.used(nowMs) - unsettled))
  }

  #isSlotSure({ limit, running }: SlotUse, nowMs: number): boolean {
    const { local: here, published: told } = running
    return running.isFresh(nowMs) && here - told <= this.#unsynced(limit - told - running.elsewhere(nowMs))
  }

  /**
   * Returns the number of running calls. While the store is reachable, outdated counts of other ingresses are not included, because the
   * caller of this method reads new counts next.
   */
  #countedIn(running: Running, nowMs: number): number {
    return this.#fleet?.isReachable && !running.isFresh(nowMs) ? running.local : running.all(nowMs)
  }

  #unsynced(left: number): number {
    return Math.floor((left * UNSYNCED_FRACTION) / Math.max(1, this.#options.ingresses?.() ?? 1))
  }

  #runningOf(name: string): Running {
    return countOf(this.#running, name, Running)
  }

  #usesOf(key: KeyOf, owners = limitsOfKey(key, this.#config, this.#options.limitsOf)): Use[] {
    const uses: Use[] = []
    for (const { owner, id, tokens, requests } of owners) {
      for (const [kind, limit] of Object.entries({ tokens, requests }) as [Use['kind'], number | undefined][]) {
        if (limit === undefined) continue
        const window = countOf(this.#windows, `${kind} ${owner} ${id}`, MinuteWindow)
        uses.push({ kind, owner, limit, window })
      }
    }
    return uses
  }

  #remainingOf(uses: readonly Use[]): RemainingLimit[] {
    const now = this.#clock()
    return uses.map(({ kind, limit, window }) => {
      const remaining = Math.max(0, limit - window.used(now))
      return { kind, limit, remaining, resetMs: window.remainingMs(now) }
    })
  }
}

function countOf<Count>(counts: Map<string, Count>, name: string, Type: new (name: string) => Count): Count {
  const known = counts.get(name)
  if (known) return known
  // Running calls hold a reference to their own counter, so they stay counted although the map is emptied.
  if (counts.size >= COUNTERS_MAX) counts.clear()
  const count = new Type(name)
  counts.set(name, count)
  return count
}

export function exceeded(kind: 'requests' | 'tokens', limit: number, owner: Owner, leftMs: number): ServiceError {
  const code = kind === 'tokens' ? 'token_limit_exceeded' : 'rate_limit_exceeded'
  return refusal(`Rate limit reached: ${limit} ${kind} per minute of this ${owner}.`, leftMs, code)
}

export function concurrencyExceeded(owner: Owner, limit: number, what: string): ServiceError {
  return refusal(`This ${owner} is at its limit of ${limit} ${what}.`, 1_000)
}

export function limitIsZero(owner: Owner, what: string): ServiceError {
  const message = `These calls are disabled for this ${owner}, because its limit of ${what} is 0. Only the operator of this service can raise it.`
  return new ServiceError('permission_denied', message)
}

export function refusal(message: string, retryAfterMs: number, code: ErrorCode = 'rate_limit_exceeded'): ServiceError {
  const seconds = Math.max(1, Math.ceil(retryAfterMs / 1_000))
  return new ServiceError(code, `${message} Try again in ${seconds} s.`, { retryAfterMs })
}
