import type { Owner, VirtualClock } from './clock.ts'

/**
 * A simulated process, which can die at any await. After its death, its timers do not fire, its calls never return, and it receives no records. A
 * paused process does nothing until the pause ends.
 */
export class SimulatedProcess implements Owner {
  readonly name: string
  readonly skewMs: number
  isDead = false
  pausedUntilMs = 0
  /** The process cannot reach the store, or the broker, before this time. */
  storeCutUntilMs = 0
  brokerCutUntilMs = 0
  /** For each lease renewal: time of the request and of its response. */
  readonly renewals: { askedAtMs: number; renewedAtMs: number }[] = []
  readonly pauses: { fromMs: number; toMs: number }[] = []
  readonly #clock: VirtualClock
  readonly #death = Promise.withResolvers<void>()

  constructor(name: string, clock: VirtualClock, skewMs: number) {
    this.name = name
    this.#clock = clock
    this.skewMs = skewMs
  }

  get died(): Promise<void> {
    return this.#death.promise
  }

  get isPaused(): boolean {
    return this.pausedUntilMs > this.#clock.nowMs
  }

  get isStoreCut(): boolean {
    return this.storeCutUntilMs > this.#clock.nowMs
  }

  get isBrokerCut(): boolean {
    return this.brokerCutUntilMs > this.#clock.nowMs
  }

  kill(): void {
    if (this.isDead) return
    this.isDead = true
    this.#death.resolve()
  }

  run<T>(work: () => T): T {
    return this.#clock.as(this, work)
  }

  /** Waits until the time has passed and the process is not paused. If the process dies, then the promise never settles. */
  async alive(ms = 0): Promise<void> {
    if (this.isDead) return await new Promise(() => {})
    if (ms > 0 || this.isPaused) await this.run(() => this.#clock.sleep(ms))
    if (this.isDead) await new Promise(() => {})
  }
}
