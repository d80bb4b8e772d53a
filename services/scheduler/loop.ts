import { setTimeout } from 'node:timers/promises'
import type { Log } from '#shared/log/log.ts'
import { untilTick } from '#shared/ticks.ts'

/** Turns of several processes drift apart by up to this share of the interval. */
const JITTER = 0.1
/** A turn that takes longer than any should: what it waits for does not come. */
const TURN_MS_MAX = 600_000

/** One thing to do again and again. */
export interface LoopOptions {
  readonly name: string
  readonly intervalMs: number
  readonly log: Log
  /** No other process does the same: turns come together with those of other loops, so that this process wakes seldom. */
  readonly isAlone?: boolean
  /** Waits for work where nothing is there for sure, or for the signal. Default: there may always be some. */
  rest?(stopped: AbortSignal): Promise<void>
  /** False skips the turn: what it needs is away, which somebody else reports. */
  canRun(): boolean
  /**
   * One turn.
   *
   * @param stopped Aborts when the loop is stopped: waits end, work is finished.
   * @returns `true` when there is more to do: the next turn follows at once
   */
  run(stopped: AbortSignal): Promise<unknown>
}

/** Runs its turns one after the other from its creation on, until it is stopped. A turn that fails is followed by the next. */
export class Loop {
  readonly #options: LoopOptions
  readonly #stopped = new AbortController()
  readonly #ended: Promise<void>
  #isFailing = false
  #turnStartedAt: number | undefined

  constructor(options: LoopOptions) {
    this.#options = options
    this.#ended = this.#runForEver()
  }

  /** Why it gets nothing done; undefined while it does. */
  get problem(): string | undefined {
    const hangs = performance.now() - (this.#turnStartedAt ?? Infinity) > TURN_MS_MAX
    if (!hangs && !this.#isFailing) return undefined
    return `The scheduler's loop '${this.#options.name}' ${hangs ? 'hangs' : 'fails'}.`
  }

  /** Starts no further turn, and waits for the one under way. Tolerates a second call. */
  async stop(): Promise<void> {
    this.#stopped.abort()
    await this.#ended
  }

  async #runForEver(): Promise<void> {
    const { signal } = this.#stopped
    while (!signal.aborted) {
      // Nothing is lost by a turn too many: one that cannot rest works.
      if (this.#options.rest) await this.#options.rest(signal).catch(() => {})
      const hasMore = await this.#turn(signal)
      // At least one turn of the event loop: an embedded store answers without giving others a chance.
      await setTimeout(hasMore ? 0 : this.#waitMs, undefined, { signal }).catch(() => {})
    }
  }

  get #waitMs(): number {
    const { intervalMs, isAlone } = this.#options
    return isAlone ? untilTick(intervalMs) : intervalMs * (1 - JITTER + 2 * JITTER * Math.random())
  }

  async #turn(signal: AbortSignal): Promise<boolean> {
    const { name, log } = this.#options
    if (!this.#options.canRun()) return false
    try {
      this.#turnStartedAt = performance.now()
      const hasMore = (await this.#options.run(signal)) === true
      if (this.#isFailing) log.info({ loop: name }, 'scheduler loop works again')
      this.#isFailing = false
      return hasMore
    } catch (error) {
      // Told once an outage, and not at all where this turn was the first to notice that the store is gone.
      if (!this.#isFailing && this.#options.canRun()) {
        this.#isFailing = true
        log.error({ err: error, loop: name }, 'scheduler loop failed; trying again')
      }
      return false
    } finally {
      this.#turnStartedAt = undefined
    }
  }
}
