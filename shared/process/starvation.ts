import { every } from '#shared/ticks.ts'

const SAMPLE_INTERVAL_MS = 5_000
/** Time with queued jobs, free slots and no received record after which a worker counts as starved. */
const STARVED_MS = 15_000

interface Taker {
  readonly taken: number
  readonly running: number
}

/**
 * Detects a worker that receives nothing although jobs are queued and it has free slots. The consumer seems to run, but the broker sends it nothing,
 * for example because the group does not admit it. No other part of the process detects this.
 */
export class Starvation {
  readonly #taker: Taker
  readonly #slots: number
  readonly #lag: () => Promise<number | undefined>
  readonly #stopLooking: () => void
  #taken = -1
  #waiting = 0
  #sinceMs: number | undefined
  #isLooking = false

  /** Checks at an interval until closed. @param lag Number of queued records; undefined if unknown. */
  constructor(taker: Taker, slots: number, lag: () => Promise<number | undefined>, lookMs = SAMPLE_INTERVAL_MS) {
    this.#taker = taker
    this.#slots = slots
    this.#lag = lag
    this.#stopLooking = every(lookMs, () => void this.#look(), { keepsAlive: false })
  }

  problems(worker: string): string[] {
    if (this.#sinceMs === undefined || Date.now() - this.#sinceMs < STARVED_MS) return []
    const seconds = Math.round((Date.now() - this.#sinceMs) / 1_000)
    return [
      `The ${worker} worker has free slots but received none of the ${this.#waiting} queued jobs for ${seconds} s.`,
    ]
  }

  close(): void {
    this.#stopLooking()
  }

  async #look(): Promise<void> {
    if (this.#isLooking) return
    const { taken, running } = this.#taker
    const hadNone = taken === this.#taken && running < this.#slots
    this.#taken = taken
    if (!hadNone) return this.#end()
    this.#isLooking = true
    this.#waiting = (await this.#lag().catch(() => undefined)) ?? 0
    this.#isLooking = false
    if (this.#waiting === 0 || this.#taker.taken !== taken) return this.#end()
    this.#sinceMs ??= Date.now()
  }

  #end(): void {
    this.#sinceMs = undefined
  }
}
