import { type FleetCounts, NAMES_MAX, RUNNING_MS } from '#shared/limits/fleet-counts.ts'
import type { Log } from '#shared/log/log.ts'
import { MinuteWindow } from './minute-window.ts'
import { Running } from './running.ts'

const PUBLISH_DELAY_MS = 100
/**
 * Maximum time that a call waits for the counts of the fleet, in milliseconds. After that, the last known counts are
 * used.
 */
const STORE_TIMEOUT_MS = 250
/** Retry interval while the store is unreachable, in milliseconds. */
const RECONNECT_INTERVAL_MS = 1_000
/** Maximum age of the counts in use, in milliseconds. */
const CACHE_TTL_MS = 1_000

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
      this.#options.log.warn({ err: error }, 'fleet limits not readable; counting locally')
    this.#isUnreachable = true
  }

  #found(): void {
    if (this.#isUnreachable) this.#options.log.info({}, 'fleet limits readable again')
    this.#isUnreachable = false
  }
}
