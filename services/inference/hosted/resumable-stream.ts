import type { GenerateEvent } from '#schemas/generate.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import { mergeGenerateEvents } from '#shared/kinds/generate.ts'
import { isSaid, restOf } from './rest.ts'

/** Pieces of one answer that are told while the model speaks: each is a step. What is said after them is told when its round is over. */
const PIECES_MAX = 600
/** Time between two pieces; it grows by itself every {@link PACE_PIECES}, so that long answers have enough of them. */
const PIECE_MS = 100
const PACE_PIECES = 20

const CUT: GenerateEvent = { type: 'cut', choice: 0 }

/** The pieces of an answer so far, over all rounds. */
export interface DeltaInterval {
  pieces: number
}

/**
 * What callers are told of one round while the model still speaks (docs/design.md, Hosted tools).
 *
 * Pieces are kept as they were told. An attempt whose predecessor died in the round tells them again, which nobody hears, and asks the
 * model anew: as long as it says the same, nothing more is told; where it says something else, what was told is cut, and all of the new
 * words follow.
 */
export class ResumableStream {
  readonly #composition: Composition
  readonly #at: number
  readonly #pace: DeltaInterval
  #pieces = 0
  /** Told since the last cut. */
  #told: GenerateEvent[] = []
  /** Said in this attempt and not told; while {@link #isBehind}, all that it said. */
  #fresh: GenerateEvent[] = []
  /** What was told before is not yet said again. */
  #isBehind = false
  #dueAt = 0

  private constructor(composition: Composition, at: number, pace: DeltaInterval) {
    this.#composition = composition
    this.#at = at
    this.#pace = pace
  }

  /** Begins a round, with what attempts before have told of it. @param at Ordinal of the round */
  static async begin(composition: Composition, at: number, pace: DeltaInterval): Promise<ResumableStream> {
    const round = new ResumableStream(composition, at, pace)
    for (;;) {
      const events = await composition.published(round.#key)
      if (!events) return round
      await round.#tell(events as GenerateEvent[])
      round.#isBehind = true
    }
  }

  /** Hears the next event of the model, and tells what waits when it is time. */
  async hear(event: GenerateEvent): Promise<void> {
    if (isSaid(event) && !(event.type === 'start' && this.#at > 0)) this.#push(event)
    const hasText = this.#fresh.some(({ type }) => type !== 'start')
    if (!hasText || this.#pace.pieces >= PIECES_MAX || performance.now() < this.#dueAt) return
    if (this.#isBehind) this.#catchUp()
    if (this.#isBehind || this.#fresh.length === 0) return
    const events = this.#fresh.splice(0)
    await this.#tell(events)
    this.#dueAt = performance.now() + PIECE_MS * (1 + this.#pace.pieces / PACE_PIECES)
  }

  /** What is still to be told of all that was said. */
  rest(said: readonly GenerateEvent[]): GenerateEvent[] {
    const { state, rest } = restOf(this.#told, said)
    return state === 'beyond' ? rest : [CUT, ...said.filter(({ type }) => type !== 'start')]
  }

  #push(event: GenerateEvent): void {
    const last = this.#fresh.at(-1)
    const merged = last && mergeGenerateEvents(last, event)
    if (merged) this.#fresh[this.#fresh.length - 1] = merged
    else this.#fresh.push(event)
  }

  /** Compares what is said with what was told before. */
  #catchUp(): void {
    const { state, rest } = restOf(this.#told, this.#fresh)
    if (state === 'within') return
    this.#isBehind = false
    this.#fresh = state === 'beyond' ? rest : [CUT, ...this.#fresh.filter(({ type }) => type !== 'start')]
  }

  get #key(): string {
    return `said.${this.#at}.${this.#pieces}`
  }

  async #tell(events: readonly GenerateEvent[]): Promise<void> {
    await this.#composition.publishStored(this.#key, events)
    this.#pieces++
    this.#pace.pieces++
    const cut = events.findLastIndex(({ type }) => type === 'cut')
    if (cut >= 0) this.#told = []
    this.#told.push(...events.slice(cut + 1))
  }
}
