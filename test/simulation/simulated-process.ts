import type { Owner, VirtualClock } from './clock.ts'

/**
 * A process of the simulation. It dies between any two of its steps, and then never does anything again: its timers do
 * not fire, its calls are not answered, records do not reach it. Paused it does nothing either, until it goes on.
 */
export class SimulatedProcess implements Owner {
  readonly name: string
  readonly skewMs: number
  isDead = false
  pausedUntilMs = 0
  /** Until when it cannot reach the store, and the broker. */
  storeCutUntilMs = 0
  brokerCutUntilMs = 0
  /** When it asked the store what it owns, and when it was told. */
  readonly renewals: { askedAtMs: number; toldAtMs: number }[] = []
  /** When it stood still. */
  readonly pauses: { fromMs: number; toMs: number }[] = []
  readonly #clock: VirtualClock
  readonly #death = Promise.withResolvers<void>()

  constructor(name: string, clock: VirtualClock, skewMs: number) {
    this.name = name
    this.#clock = clock
    this.skewMs = skewMs
  }

  /** Resolves when it is dead. */
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

  /** Does something in this process. */
  run<T>(work: () => T): T {
    return this.#clock.as(this, work)
  }

  /** Resolves after a time, once it runs; never when it is dead. */
  async alive(ms = 0): Promise<void> {
    if (this.isDead) return await new Promise(() => {})
    if (ms > 0 || this.isPaused) await this.run(() => this.#clock.sleep(ms))
    if (this.isDead) await new Promise(() => {})
  }
}
