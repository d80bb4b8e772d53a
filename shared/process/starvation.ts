import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'

const SAMPLE_INTERVAL_MS = 5_000
/** Time in ms without a queue record after which a worker counts as starved, if jobs are queued and the worker has free slots. */
const STARVED_MS = 15_000

interface JobTaker {
  readonly taken: number
  readonly running: number
}

/**
 * Detects a worker that receives no queue records although jobs are queued and it has free slots. An example is a Kafka consumer that its consumer
 * group does not admit. The consumer seems to run, so no other check detects this.
 */
export class Starvation {
  readonly #taker: JobTaker
  readonly #slots: number
  readonly #lag: () => Promise<number | undefined>
  readonly #stopChecks: () => void
  #taken = -1
  #waiting = 0
  #sinceMs: number | undefined
  #isChecking = false

  /**
   * Checks at an interval until closed.
   *
   * @param lag Returns the number of queued records. Undefined if unknown
   */
  constructor(
    taker: JobTaker,
    slots: number,
    lag: () => Promise<number | undefined>,
    checkIntervalMs = SAMPLE_INTERVAL_MS,
  ) {
    this.#taker = taker
    this.#slots = slots
    this.#lag = lag
    this.#stopChecks = atAlignedInterval(checkIntervalMs, () => void this.#check(), { keepsAlive: false })
  }

  problems(worker: string): string[] {
    if (this.#sinceMs === undefined || Date.now() - this.#sinceMs < STARVED_MS) return []
    const seconds = Math.round((Date.now() - this.#sinceMs) / 1_000)
    return [
      `The ${worker} worker has free slots but received none of the ${this.#waiting} queued jobs for ${seconds} s.`,
    ]
  }

  close(): void {
    this.#stopChecks()
  }

  async #check(): Promise<void> {
    if (this.#isChecking) return
    const { taken, running } = this.#taker
    const hadNone = taken === this.#taken && running < this.#slots
    this.#taken = taken
    if (!hadNone) return this.#end()
    this.#isChecking = true
    this.#waiting = (await this.#lag().catch(() => undefined)) ?? 0
    this.#isChecking = false
    if (this.#waiting === 0 || this.#taker.taken !== taken) return this.#end()
    this.#sinceMs ??= Date.now()
  }

  #end(): void {
    this.#sinceMs = undefined
  }
}
