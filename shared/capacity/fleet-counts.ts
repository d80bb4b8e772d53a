import type { Log } from '#shared/log/log.ts'

export const NAMES_MAX = 500
export const WINDOW_MS = 60_000
/** Maximum age of the counts in use, in milliseconds. */
const CACHE_TTL_MS = 1_000
/** Lifetime of an ingress's report of its running calls, in ms. The ingress renews the report earlier. */
export const RUNNING_MS = 15_000

export interface FleetWindow {
  readonly name: string
  readonly used: number
  /** Milliseconds until the next window begins. */
  readonly remainingMs: number
}

export interface FleetRunning {
  readonly name: string
  /** Number of calls that run in other processes. */
  readonly elsewhere: number
  readonly jobs: number
}

/** Counter name for the running calls of a tenant, which share a concurrency limit with the tenant's durable jobs. */
export function callsName(tenant: string): string {
  return `calls ${tenant}`
}

/**
 * Counts that all ingresses of a fleet share, by name; a table of Postgres. An embedded service has one ingress and needs none.
 *
 * Promises every adapter keeps (test/shared/capacity/fleet-counts.test.ts).
 * 1. Concurrent writers see each other's sums, so totals are exact.
 * 2. A window begins with its first use. Only the clock of the store counts; if that clock jumps back, then a new window begins.
 * 3. A report of running calls expires {@link RUNNING_MS} after its last renewal, so a dead process holds no permits.
 * 4. The counts need not be durable: the store may lose all of them in a crash.
 * 5. While the store is unreachable, every call rejects, at once if `isReachable` is false. Calls succeed again when the store is back.
 */
export interface FleetCounts {
  readonly isReachable: boolean
  /**
   * Adds amounts and returns the present window of each name. A negative amount gives back; 0 only reads. At most {@link NAMES_MAX} names, each at
   * most once.
   */
  add(used: readonly { readonly name: string; readonly amount: number }[]): Promise<FleetWindow[]>
  /**
   * Reports the number of calls that run in the process `boot`, and returns the load of each name elsewhere. The bounds are those of {@link add}. For
   * a name of {@link callsName}, the result includes running durable jobs, and later claims take the report into account.
   */
  setRunning(
    boot: string,
    running: readonly { readonly name: string; readonly count: number }[],
  ): Promise<FleetRunning[]>
  close(): Promise<void>
}

/**
 * Usage of one limit in the current minute: the total of the fleet at the last synchronization, plus the usage of this
 * ingress since then. Times are monotonic, so changes of the clock have no effect.
 *
 * Usage passes through three states: pending (counted only here), sent (in a running statement) and settled (in the
 * total of the fleet).
 */
export class MinuteWindow {
  readonly name: string
  /** Time of the last synchronization. */
  syncedAtMs = -Infinity
  /** Number of running calls of this ingress that have reserved a part of the minute. */
  reservations = 0
  #minute = 0
  #settled = 0
  /** Usage in a running statement, not confirmed yet. */
  #sent = 0
  /** Usage that was not sent yet. */
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

  /** Usage that the total of the fleet may not contain yet. */
  get unsettled(): number {
    return this.#sent + this.#pending
  }

  /** Ordinal of the current minute. A reservation of an earlier minute no longer counts. */
  minute(nowMs: number): number {
    this.#roll(nowMs)
    return this.#minute
  }

  isKnown(nowMs: number): boolean {
    this.#roll(nowMs)
    return this.#isKnown
  }

  /** Milliseconds until the current minute ends; 0 if it has no usage. */
  remainingMs(nowMs: number): number {
    return Math.max(0, Math.ceil(this.#endsAtMs - nowMs))
  }

  /** Adds usage; a negative amount gives usage back. A minute begins with the first usage. */
  add(amount: number, nowMs: number): void {
    this.#roll(nowMs)
    if (this.#endsAtMs === -Infinity) this.#endsAtMs = nowMs + WINDOW_MS
    this.#pending += amount
  }

  /** Marks the pending usage as sent, and returns it. A confirmation or {@link restore} must follow. */
  take(): number {
    this.#sent = this.#pending
    this.#pending = 0
    return this.#sent
  }

  /** Confirms the sent usage, which the total of the fleet now contains. */
  confirm(used: number, leftMs: number, nowMs: number): void {
    this.#settled = used
    this.#sent = 0
    this.#endsAtMs = nowMs + leftMs
    this.#isKnown = true
    this.syncedAtMs = nowMs
  }

  /** Marks the sent usage as pending again, because its statement may have failed. */
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

/**
 * Number of concurrent calls of one key or project: in this ingress now, and in the others at the last synchronization.
 */
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
   * Number of calls in other ingresses. The number expires here at the same time as in the store, so that it occupies
   * no slots during an outage.
   */
  elsewhere(nowMs: number): number {
    return nowMs - this.syncedAtMs < RUNNING_MS ? this.#elsewhere : 0
  }

  /** Number of running durable jobs of the project, with the same expiry. */
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
 * Maximum time that a call waits for the counts of the fleet, in milliseconds. After that, the last known counts are
 * used.
 */
const STORE_TIMEOUT_MS = 250
/** Retry interval while the store is unreachable, in milliseconds. */
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
 * All changed counts are written in one statement. A statement runs at most every {@link PUBLISH_DELAY_MS}, or at once if a call
 * must have the current total. While the store is unreachable, calls do not wait, and each ingress counts alone. When
 * the store is reachable again, the ingress publishes its usage of the current minute.
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

  /** Whether the store was reachable at the last attempt. */
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

  /** Schedules a read of a count if its value is older than {@link CACHE_TTL_MS}. */
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

  /** Sets the published counts of this ingress to 0, and closes the store. */
  async close(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#timer)
    clearTimeout(this.#renewal)
    await this.#current
    const none = [...this.#renewed].slice(0, NAMES_MAX).map(({ name }) => ({ name, count: 0 }))
    const { counts, boot } = this.#options
    // On failure, the published counts expire in the store.
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

  /** Schedules the renewal of published counts of running calls, which expire in the store. */
  #renewLater(): void {
    for (const count of this.#renewed) if (count.local === 0) this.#renewed.delete(count)
    if (this.#renewed.size === 0 || this.#renewal || this.#isClosed) return
    this.#renewal = setTimeout(() => {
      this.#renewal = undefined
      for (const count of this.#renewed) this.markChanged(count)
    }, RUNNING_MS / 3).unref()
  }

  /** Logged once, because an outage may last for hours. */
  #lose(error: unknown): void {
    if (!this.#isUnreachable && !this.#isClosed)
      this.#options.log.warn({ err: error }, 'fleet counts unavailable; limits apply per process')
    this.#isUnreachable = true
  }

  #found(): void {
    if (this.#isUnreachable) this.#options.log.info({}, 'fleet counts available again; limits apply to the fleet')
    this.#isUnreachable = false
  }
}
