import type { Log } from '#shared/log/log.ts'

export const NAMES_MAX = 500
export const WINDOW_MS = 60_000
const CACHE_TTL_MS = 1_000
/** Time in ms after which a published number of running calls expires. The ingress renews it earlier. */
export const RUNNING_MS = 15_000

export interface FleetWindow {
  readonly name: string
  readonly used: number
  readonly remainingMs: number
}

export interface FleetRunning {
  readonly name: string
  readonly elsewhere: number
  readonly jobs: number
}

/**
 * Name of the counter for running calls of a tenant. The concurrency limit of the tenant applies to the sum of these calls and of its durable jobs.
 */
export function callsName(tenant: string): string {
  return `calls ${tenant}`
}

/**
 * Counts that all ingresses of a fleet share, by name, in a table of Postgres. A service with a single ingress needs no shared counts.
 *
 * Guarantees of every adapter (test/shared/capacity/fleet-counts.test.ts):
 * 1. Concurrent writers see each other's sums, so totals are exact.
 * 2. A window begins with its first use, by the clock of the store. If that clock jumps back, then a new window begins.
 * 3. A report of running calls expires {@link RUNNING_MS} after its last renewal, so a dead process holds no permits.
 * 4. The counts need not be durable: the store may lose all of them in a crash.
 * 5. While the store is unreachable, `add` and `setRunning` reject, at once if `isReachable` is false. Both work again when the store is back.
 */
export interface FleetCounts {
  readonly isReachable: boolean
  /**
   * Adds amounts and returns the current window of each name. A negative amount undoes an earlier amount, and an amount
   * of 0 only reads.
   *
   * @param used At most {@link NAMES_MAX} names, each at most once
   */
  add(used: readonly { readonly name: string; readonly amount: number }[]): Promise<FleetWindow[]>
  /**
   * Publishes the number of calls that run in the process `boot`, and returns the load of each name in other processes. For a name of
   * {@link callsName}, the result includes running durable jobs. Later claims of durable jobs take the published calls into account.
   *
   * @param running At most {@link NAMES_MAX} names, each at most once
   */
  setRunning(
    boot: string,
    running: readonly { readonly name: string; readonly count: number }[],
  ): Promise<FleetRunning[]>
  close(): Promise<void>
}

/**
 * Usage of one limit in the current minute: the total of all ingresses at the last synchronization, plus later usage of this ingress. Times come from
 * a monotonic clock.
 *
 * Usage has one of three states. Pending usage is known only to this ingress. Sent usage is part of a statement in progress. Settled usage is part of
 * the total in the store.
 */
export class MinuteWindow {
  readonly name: string
  syncedAtMs = -Infinity
  /**
   * Number of running calls of this ingress that have reserved tokens. At 0, the next call is admitted even if its estimate exceeds the
   * limit, because otherwise such a call could never run.
   */
  reservations = 0
  #minute = 0
  #settled = 0
  #sent = 0
  #pending = 0
  #endsAtMs = -Infinity
  #isKnown = false

  constructor(name: string) {
    this.name = name
  }

  used(nowMs: number): number {
    this.#roll(nowMs)
    return this.#settled + this.#sent + this.#pending
  }

  get unsettled(): number {
    return this.#sent + this.#pending
  }

  minute(nowMs: number): number {
    this.#roll(nowMs)
    return this.#minute
  }

  isKnown(nowMs: number): boolean {
    this.#roll(nowMs)
    return this.#isKnown
  }

  remainingMs(nowMs: number): number {
    return Math.max(0, Math.ceil(this.#endsAtMs - nowMs))
  }

  /** Adds usage. A negative amount reduces the usage. A minute begins with the first usage. */
  add(amount: number, nowMs: number): void {
    this.#roll(nowMs)
    if (this.#endsAtMs === -Infinity) this.#endsAtMs = nowMs + WINDOW_MS
    this.#pending += amount
  }

  /** Marks the pending usage as sent, and returns it. {@link confirm} or {@link restore} must be called afterwards. */
  take(): number {
    this.#sent = this.#pending
    this.#pending = 0
    return this.#sent
  }

  /** Called when the total in the store contains the sent usage. */
  confirm(used: number, leftMs: number, nowMs: number): void {
    this.#settled = used
    this.#sent = 0
    this.#endsAtMs = nowMs + leftMs
    this.#isKnown = true
    this.syncedAtMs = nowMs
  }

  /** Makes the sent usage pending again, because the statement that wrote it may have failed. */
  restore(): void {
    this.#pending += this.#sent
    this.#sent = 0
  }

  #roll(nowMs: number): void {
    if (nowMs < this.#endsAtMs || this.#endsAtMs === -Infinity) return
    this.#minute++
    this.#settled = 0
    this.#sent = 0
    this.#pending = 0
    this.#endsAtMs = -Infinity
    this.#isKnown = false
  }
}

/** Number of concurrent calls of one key or project: current calls of this ingress, and calls of other ingresses at the last synchronization. */
export class Running {
  readonly name: string
  local = 0
  published = 0
  syncedAtMs = -Infinity
  #elsewhere = 0
  #jobs = 0

  constructor(name: string) {
    this.name = name
  }

  /**
   * Returns the number of calls in other ingresses. 0 after {@link RUNNING_MS} without a read. Otherwise calls that have long ended would use up the
   * limit while the store is down.
   */
  elsewhere(nowMs: number): number {
    return nowMs - this.syncedAtMs < RUNNING_MS ? this.#elsewhere : 0
  }

  /** Returns the number of running durable jobs of the project. 0 after {@link RUNNING_MS} without a read. */
  jobs(nowMs: number): number {
    return nowMs - this.syncedAtMs < RUNNING_MS ? this.#jobs : 0
  }

  all(nowMs: number): number {
    return this.local + this.elsewhere(nowMs)
  }

  isFresh(nowMs: number): boolean {
    return nowMs - this.syncedAtMs < CACHE_TTL_MS
  }

  update({ elsewhere, jobs }: Pick<FleetRunning, 'elsewhere' | 'jobs'>, nowMs: number): void {
    this.#elsewhere = elsewhere
    this.#jobs = jobs
    this.syncedAtMs = nowMs
  }
}

const PUBLISH_DELAY_MS = 100
/**
 * Maximum time in ms for which a call waits for the counts of other ingresses. Afterwards the last known counts are
 * used.
 */
const STORE_TIMEOUT_MS = 250
const RECONNECT_INTERVAL_MS = 1_000

type Count = MinuteWindow | Running

export interface FleetOptions {
  readonly counts: FleetCounts
  readonly boot: string
  readonly log: Log
  readonly clock: () => number
}

/**
 * Synchronizes the counts of this ingress with the other ingresses through the store.
 *
 * One statement writes all changed counts. Statements run at most every {@link PUBLISH_DELAY_MS}, or at once if a call must have the current total.
 * While the store is unreachable, calls do not wait, and each ingress applies the limits to its own calls. When the store is reachable again, the
 * ingress adds its usage of the current minute.
 */
export class Fleet {
  readonly #options: FleetOptions
  readonly #changed = new Set<Count>()
  readonly #renewed = new Set<Running>()
  #timer: NodeJS.Timeout | undefined
  #renewal: NodeJS.Timeout | undefined
  #current: Promise<void> | undefined
  #next: Promise<void> | undefined
  #isUnreachable = false
  #isClosed = false

  constructor(options: FleetOptions) {
    this.#options = options
  }

  get isReachable(): boolean {
    return !this.#isUnreachable && !this.#isClosed
  }

  markChanged(count: Count): void {
    this.#changed.add(count)
    if (count instanceof Running) this.#renewed.add(count)
    this.#timer ??= setTimeout(
      () => void this.#publish(),
      this.#isUnreachable ? RECONNECT_INTERVAL_MS : PUBLISH_DELAY_MS,
    ).unref()
  }

  refresh(count: Count, nowMs: number): void {
    if (nowMs - count.syncedAtMs > CACHE_TTL_MS) this.markChanged(count)
  }

  /** Publishes counts now. Resolves when the totals have been read, or after {@link STORE_TIMEOUT_MS}. Never rejects. */
  async synchronize(counts: readonly Count[]): Promise<void> {
    for (const count of counts) this.#changed.add(count)
    const answered = this.#publish()
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<'late'>((resolve) => {
      timer = setTimeout(() => resolve('late'), STORE_TIMEOUT_MS)
    })
    if ((await Promise.race([answered, late])) === 'late') this.#lose(undefined)
    clearTimeout(timer)
  }

  /** Publishes that this ingress runs no calls, and closes the store. */
  async close(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#timer)
    clearTimeout(this.#renewal)
    await this.#current
    const none = [...this.#renewed].slice(0, NAMES_MAX).map(({ name }) => ({ name, count: 0 }))
    const { counts, boot } = this.#options
    // If the request fails, then the published counts expire in the store.
    if (none.length > 0) await counts.setRunning(boot, none).catch(() => {})
    await counts.close()
  }

  #publish(): Promise<void> {
    this.#next ??= (this.#current ?? Promise.resolve()).then(() => {
      this.#current = this.#next
      this.#next = undefined
      return this.#settle().finally(() => {
        this.#current = undefined
      })
    })
    return this.#next
  }

  async #settle(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#isClosed) return
    const changed = [...this.#changed].slice(0, NAMES_MAX)
    for (const count of changed) this.#changed.delete(count)
    const windows = changed.filter((count) => count instanceof MinuteWindow)
    const running = changed.filter((count) => count instanceof Running)
    try {
      await Promise.all([this.#settleWindows(windows), this.#settleRunning(running)])
      this.#found()
    } catch (error) {
      for (const count of changed) this.#changed.add(count)
      this.#lose(error)
    }
    const [left] = this.#changed
    if (left) this.markChanged(left)
    this.#renewLater()
  }

  async #settleWindows(windows: readonly MinuteWindow[]): Promise<void> {
    if (windows.length === 0) return
    const used = windows.map((window) => ({ name: window.name, amount: window.take() }))
    const { counts, clock } = this.#options
    const answers = await counts.add(used).catch((error: unknown) => {
      for (const window of windows) window.restore()
      throw error
    })
    const byName = new Map(windows.map((window) => [window.name, window]))
    for (const { name, used, remainingMs } of answers) byName.get(name)?.confirm(used, remainingMs, clock())
  }

  async #settleRunning(running: readonly Running[]): Promise<void> {
    if (running.length === 0) return
    for (const count of running) count.published = count.local
    const { counts, boot, clock } = this.#options
    const published = running.map(({ name, published: told }) => ({ name, count: told }))
    const byName = new Map(running.map((count) => [count.name, count]))
    for (const total of await counts.setRunning(boot, published)) byName.get(total.name)?.update(total, clock())
  }

  /** Renews published numbers of running calls until no call runs, because they expire in the store. */
  #renewLater(): void {
    for (const count of this.#renewed) if (count.local === 0) this.#renewed.delete(count)
    if (this.#renewed.size === 0 || this.#renewal || this.#isClosed) return
    this.#renewal = setTimeout(() => {
      this.#renewal = undefined
      for (const count of this.#renewed) this.markChanged(count)
    }, RUNNING_MS / 3).unref()
  }

  /** Logs the first failure only, because an outage may last for hours. */
  #lose(error: unknown): void {
    if (!this.#isUnreachable && !this.#isClosed)
      this.#options.log.warn({ err: error }, 'shared rate limit counters unavailable; limits apply per process')
    this.#isUnreachable = true
  }

  #found(): void {
    if (this.#isUnreachable)
      this.#options.log.info({}, 'shared rate limit counters available again; limits apply to the fleet')
    this.#isUnreachable = false
  }
}
