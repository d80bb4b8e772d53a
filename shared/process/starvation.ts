import { every } from '#shared/ticks.ts'

/** How often a worker that takes nothing looks whether there is anything to take. */
const SAMPLE_INTERVAL_MS = 5_000
/** How long jobs may wait beside free slots of a worker that takes none of them. */
const STARVED_MS = 15_000

/** What is watched of a worker. */
interface Taker {
  /** Records taken so far. */
  readonly taken: number
  readonly running: number
}

/**
 * Notices a worker that takes nothing although jobs wait and it has free slots: its consumer seems to run, and the broker gives
 * it nothing, such as a member of a group that it is not let into. Every part of the process looks well then.
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

  /** Looks by itself until it is closed. @param lag Records that wait; undefined where nobody knows. */
  constructor(taker: Taker, slots: number, lag: () => Promise<number | undefined>, lookMs = SAMPLE_INTERVAL_MS) {
    this.#taker = taker
    this.#slots = slots
    this.#lag = lag
    this.#stopLooking = every(lookMs, () => void this.#look(), { keepsAlive: false })
  }

  /** A sentence for people while it lasts. */
  problems(worker: string): string[] {
    if (this.#sinceMs === undefined || Date.now() - this.#sinceMs < STARVED_MS) return []
    const seconds = Math.round((Date.now() - this.#sinceMs) / 1_000)
    return [
      `The ${worker} worker has free slots and took none of the ${this.#waiting} jobs that waited for ${seconds} s.`,
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
