import { setTimeout } from 'node:timers/promises'
import type { Log } from '#shared/log/log.ts'
import { untilTick } from '#shared/ticks.ts'

/** Random deviation from the interval, so that the loops of several processes drift apart. */
const JITTER = 0.1
/** Time after which a running turn is reported as hanging. */
const TURN_MS_MAX = 600_000

export interface LoopOptions {
  readonly name: string
  readonly intervalMs: number
  readonly log: Log
  /** Whether no other process runs this loop. Then its turns are aligned with those of other loops, so that the process wakes rarely. */
  readonly isAlone?: boolean
  /** Waits until there may be work, or for the signal. Default: no wait. */
  rest?(stopped: AbortSignal): Promise<void>
  /** False while a dependency is unreachable, which another check reports. */
  canRun(): boolean
  /**
   * One turn.
   *
   * @param stopped Aborts when the loop is stopped: waits end, started work is finished.
   * @returns `true` if there is more to do: the next turn follows at once
   */
  run(stopped: AbortSignal): Promise<unknown>
}

/** Runs turns one after the other from its creation until it is stopped. After a failed turn the next one runs as usual. */
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

  /** The reason why the loop makes no progress; undefined if it does. */
  get problem(): string | undefined {
    const hangs = performance.now() - (this.#turnStartedAt ?? Infinity) > TURN_MS_MAX
    if (!hangs && !this.#isFailing) return undefined
    return `The scheduler's loop '${this.#options.name}' ${hangs ? 'hangs' : 'fails'}.`
  }

  /** Starts no further turn and waits for the running one. May be called twice. */
  async stop(): Promise<void> {
    this.#stopped.abort()
    await this.#ended
  }

  async #runForEver(): Promise<void> {
    const { signal } = this.#stopped
    while (!signal.aborted) {
      // After a failed wait a turn runs, because a superfluous turn does no harm.
      if (this.#options.rest) await this.#options.rest(signal).catch(() => {})
      const hasMore = await this.#turn(signal)
      // Yields to the event loop at least once, since an embedded store may answer without yielding.
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
      if (this.#isFailing) log.info({ loop: name }, 'scheduler loop recovered')
      this.#isFailing = false
      return hasMore
    } catch (error) {
      // Logged once per outage. Not logged if this turn was the first to find that the store is down: the store reports that.
      if (!this.#isFailing && this.#options.canRun()) {
        this.#isFailing = true
        log.error({ err: error, loop: name }, 'scheduler loop failed; retrying')
      }
      return false
    } finally {
      this.#turnStartedAt = undefined
    }
  }
}
