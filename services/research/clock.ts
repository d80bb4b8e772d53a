import type { ResearchStop } from '#schemas/research/research.ts'
import type { Composition } from '#shared/kinds/composition.ts'

/**
 * When a run has to end. Each look at the clock is a step: a run that is taken up again has gone as far as it had, and looks at
 * the time that it is only where it goes on.
 */
export class Clock {
  readonly composition: Composition
  readonly #seconds: number
  #endsAtMs = Number.POSITIVE_INFINITY

  /** @param seconds From the first attempt's beginning. */
  constructor(composition: Composition, seconds: number) {
    this.composition = composition
    this.#seconds = seconds
  }

  async start(): Promise<void> {
    const startedAtMs = await this.composition.step('admit', {}, async () => ({ value: Date.now() }))
    this.#endsAtMs = startedAtMs + this.#seconds * 1_000
  }

  /** Milliseconds that the run has in all; less where its job ends before. */
  get wholeMs(): number {
    return this.#seconds * 1_000
  }

  /** Milliseconds until the run has to write what there is; at least one. */
  get leftMs(): number {
    return Math.max(1, Math.min(this.composition.wrapUpAtMs, this.#endsAtMs) - Date.now())
  }

  /** Why to write what there is, if there is a reason. @param at Names the place where it is asked: once each */
  async stop(at: number | string): Promise<ResearchStop | undefined> {
    return (await this.composition.step('clock', { at }, async () => ({ value: this.#look() }))) ?? undefined
  }

  /** Aborts when the run was cancelled and is to write what there is at once. */
  get cancelled(): AbortSignal {
    return this.composition.cancelled
  }

  #look(): ResearchStop | null {
    if (this.cancelled.aborted) return 'cancelled'
    return Date.now() >= Math.min(this.composition.wrapUpAtMs, this.#endsAtMs) ? 'deadline' : null
  }
}
