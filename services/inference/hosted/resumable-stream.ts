import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import { mergeGenerateEvents } from '#shared/kinds/generate/generate.ts'

/**
 * Maximum pieces in which the output of one answer is published while the model generates. The number is limited, because each piece is a recorded
 * step. Output beyond the last piece is published at the end of its round.
 */
const PIECES_MAX = 600
/**
 * Initial interval between two pieces, in ms. The interval grows by this amount after every {@link PACE_PIECES} pieces, so that a long answer does
 * not use up its pieces early.
 */
const PIECE_MS = 100
const PACE_PIECES = 20

const CUT: GenerateEvent = { type: 'cut', choice: 0 }

/** Count of the pieces that all rounds of one answer have published. The interval between two pieces grows with this count. */
export interface PieceCount {
  pieces: number
}

/**
 * Publishes the output of one run of the model while the model still generates (docs/internals/design.md, Composed jobs).
 *
 * Each published piece is stored. If a worker stops during the run, then the next attempt first publishes the stored pieces again, under
 * their original keys. A key is published only once, so subscribers receive no piece twice. The attempt then runs the model again.
 *
 * While the new output equals the stored output, no event is published. At the first difference, a `cut` event discards the published text,
 * and all of the new text follows.
 */
export class ResumableStream {
  readonly #composition: Composition
  readonly #at: number
  readonly #pace: PieceCount
  #pieces = 0
  #published: GenerateEvent[] = []
  /**
   * Events of this attempt that are not published yet. While {@link #isBehind} is true, these are all events of the
   * attempt.
   */
  #pending: GenerateEvent[] = []
  /** Whether earlier attempts published text that this attempt has not yet generated again. */
  #isBehind = false
  #dueAt = 0

  private constructor(composition: Composition, at: number, pace: PieceCount) {
    this.#composition = composition
    this.#at = at
    this.#pace = pace
  }

  /**
   * Begins a round (one run of the model for an answer). Publishes the pieces that earlier attempts stored for this round.
   *
   * @param at Number of the round, from 0
   */
  static async begin(composition: Composition, at: number, pace: PieceCount): Promise<ResumableStream> {
    const round = new ResumableStream(composition, at, pace)
    for (;;) {
      const events = await composition.published(round.#key)
      if (!events) return round
      await round.#publish(events as GenerateEvent[])
      round.#isBehind = true
    }
  }

  /** Adds the next event of the model. Publishes the pending events if the next piece is due. */
  async receive(event: GenerateEvent): Promise<void> {
    if (isPublishedEarly(event) && !(event.type === 'start' && this.#at > 0)) this.#push(event)
    const hasText = this.#pending.some(({ type }) => type !== 'start')
    if (!hasText || this.#pace.pieces >= PIECES_MAX || performance.now() < this.#dueAt) return
    if (this.#isBehind) this.#catchUp()
    if (this.#isBehind || this.#pending.length === 0) return
    const events = this.#pending.splice(0)
    await this.#publish(events)
    this.#dueAt = performance.now() + PIECE_MS * (1 + this.#pace.pieces / PACE_PIECES)
  }

  /**
   * Returns the events of the round that are not published yet.
   *
   * @param said All events of the round
   */
  rest(said: readonly GenerateEvent[]): GenerateEvent[] {
    const { state, rest } = restOf(this.#published, said)
    return state === 'beyond' ? rest : [CUT, ...said.filter(({ type }) => type !== 'start')]
  }

  #push(event: GenerateEvent): void {
    const last = this.#pending.at(-1)
    const merged = last && mergeGenerateEvents(last, event)
    if (merged) this.#pending[this.#pending.length - 1] = merged
    else this.#pending.push(event)
  }

  #catchUp(): void {
    const { state, rest } = restOf(this.#published, this.#pending)
    if (state === 'within') return
    this.#isBehind = false
    this.#pending = state === 'beyond' ? rest : [CUT, ...this.#pending.filter(({ type }) => type !== 'start')]
  }

  get #key(): string {
    return `said.${this.#at}.${this.#pieces}`
  }

  async #publish(events: readonly GenerateEvent[]): Promise<void> {
    await this.#composition.publishStored(this.#key, events)
    this.#pieces++
    this.#pace.pieces++
    const cut = events.findLastIndex(({ type }) => type === 'cut')
    if (cut >= 0) this.#published = []
    this.#published.push(...events.slice(cut + 1))
  }
}

/**
 * Result of comparing a new run of the model with the published events. `within`: the new text is a prefix of the published text. `beyond`: the new
 * text continues the published text. `parted`: the texts differ.
 */
interface Rest {
  readonly state: 'within' | 'beyond' | 'parted'
  /** Events that follow the published events, if `state` is `beyond`. */
  readonly rest: GenerateEvent[]
}

/**
 * Whether events of this type are published while the model generates. Tool calls are published when they run, and finish and usage events at the end
 * of the answer.
 */
function isPublishedEarly({ type }: GenerateEvent): boolean {
  return type !== 'tool_call' && type !== 'tool_arguments' && type !== 'finish' && type !== 'usage'
}

/** Compares the content of two runs of a model, independent of how the text is divided into events. Start events are not compared. */
function restOf(published: readonly GenerateEvent[], generated: readonly GenerateEvent[]): Rest {
  if (published.length === 0) return { state: 'beyond', rest: [...generated] }
  const words = generated.filter(({ type }) => type !== 'start')
  let at = 0
  for (let event of published as GenerateEvent[]) {
    if (event.type === 'start') continue
    for (;;) {
      const other = words[at]
      if (other === undefined) return { state: 'within', rest: [] }
      const length = commonLengthOf(event, other)
      if (length === undefined) return { state: 'parted', rest: [] }
      const left: GenerateEvent | undefined = after(event, length)
      const otherLeft = signatureOf(event, other, length) ?? after(other, length)
      if (otherLeft) words[at] = otherLeft
      else at++
      if (!left) break
      event = left
    }
  }
  return { state: 'beyond', rest: words.slice(at) }
}

/**
 * Returns the length of the common prefix if one text is a prefix of the other. 0 for equal events without a text. Undefined if the events
 * differ.
 */
function commonLengthOf(a: GenerateEvent, b: GenerateEvent): number | undefined {
  if (a.type !== b.type || !('text' in a) || !('text' in b)) {
    return JSON.stringify(a) === JSON.stringify(b) ? 0 : undefined
  }
  if (a.type === 'reasoning' && b.type === 'reasoning' && a.redacted !== b.redacted) return undefined
  const length = Math.min(a.text.length, b.text.length)
  return a.text.slice(0, length) === b.text.slice(0, length) ? length : undefined
}

/** Returns an event with only the signature of a reasoning text, if the text was published without its signature. */
function signatureOf(published: GenerateEvent, generated: GenerateEvent, length: number): GenerateEvent | undefined {
  if (published.type !== 'reasoning' || generated.type !== 'reasoning' || generated.signature === undefined)
    return undefined
  return published.signature === undefined && generated.text.length === length && length > 0
    ? { ...generated, text: '' }
    : undefined
}

function after(event: GenerateEvent, length: number): GenerateEvent | undefined {
  if (!('text' in event) || event.text.length <= length) return undefined
  const text = event.text.slice(length)
  if (event.type !== 'text' || !event.logprobs) return { ...event, text }
  let end = 0
  const logprobs = event.logprobs.filter(({ token }) => {
    end += token.length
    return end > length
  })
  return { ...event, text, logprobs }
}
