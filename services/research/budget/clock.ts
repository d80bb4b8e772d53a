import type { ResearchStop } from '#schemas/kinds/research.ts'
import type { Composition } from '#shared/kinds/composition.ts'

/**
 * The deadline of a run. Decisions that depend on the time are recorded as steps. A resumed run replays these steps and reads the real clock only
 * after its last recorded step. Without these records, a run that is resumed after its deadline would decide differently than before. The run would
 * then not use the results that it has already recorded.
 */
export class Clock {
  readonly composition: Composition
  readonly #seconds: number
  #endsAtMs = Number.POSITIVE_INFINITY

  constructor(composition: Composition, seconds: number) {
    this.composition = composition
    this.#seconds = seconds
  }

  async start(): Promise<void> {
    const startedAtMs = await this.composition.step('admit', {}, async () => ({ value: Date.now() }))
    this.#endsAtMs = startedAtMs + this.#seconds * 1_000
  }

  get totalMs(): number {
    return this.#seconds * 1_000
  }

  /** Time in ms until the run must start to write its report, at least 1. */
  get remainingMs(): number {
    return Math.max(1, Math.min(this.composition.wrapUpAtMs, this.#endsAtMs) - Date.now())
  }

  /**
   * Returns the reason to stop now, or undefined if the run may continue.
   *
   * @param at Key of the recorded step, unique within the run.
   */
  async stop(at: number | string): Promise<ResearchStop | undefined> {
    return (await this.composition.step('clock', { at }, async () => ({ value: this.#stopReason() }))) ?? undefined
  }

  /** Aborts when the run is cancelled. The run then writes its report from the sources read so far. */
  get cancelled(): AbortSignal {
    return this.composition.cancelled
  }

  #stopReason(): ResearchStop | null {
    if (this.cancelled.aborted) return 'cancelled'
    return Date.now() >= Math.min(this.composition.wrapUpAtMs, this.#endsAtMs) ? 'deadline' : null
  }
}
