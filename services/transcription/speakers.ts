import type { TranscriptSegment, Word } from '#schemas/kinds/transcription.ts'
import { cutText } from '#shared/engines/cut-text.ts'
import type { Turn } from '#shared/engines/engine.ts'

/**
 * Maximum seconds of a stretch of words that is reassigned if one other speaker speaks both directly before and directly after it. Such a
 * short stretch is usually an error of the diarization.
 */
const STRAY_SECONDS_MAX = 0.4
/** Maximum seconds between a segment and the turn of its speaker. More distant turns are considered only if no turn is nearer. */
const NEAR_SECONDS = 30

type Span = Pick<Turn, 'start' | 'end'>

interface Stretch {
  readonly speaker: string
  readonly words: Word[]
}

/**
 * Assigns speakers to segments by the turns of a diarization, and splits segments at a change of speaker.
 *
 * A word belongs to the speaker with the longest overlap, or else to the speaker of the nearest turn. A segment without words is assigned as a whole
 * by the same rule. All text is kept. Unknown speakers are named A, B, … in the order of the segments passed to `split`.
 */
export class SpeakerLabels {
  readonly #turns: readonly Turn[]
  readonly #known: ReadonlySet<string>
  readonly #names = new Map<string, string>()
  #segments = 0

  /** @param known Names that the request gives to speakers, each with a voice sample */
  constructor(turns: readonly Turn[], known: readonly string[]) {
    this.#turns = turns
    this.#known = new Set(known)
  }

  /** Splits a segment into pieces of one speaker each. The pieces of all segments are numbered consecutively. */
  split(segment: TranscriptSegment): TranscriptSegment[] {
    const turns = this.#turnsNear(segment)
    const stretches = this.#stretchesOf(segment, turns)
    const pieces = stretches.length > 1 ? cut(segment, stretches) : [segment]
    return pieces.map((piece, index) => {
      const speaker = stretches[index]?.speaker ?? speakerOf(segment, turns)
      return { ...piece, id: this.#segments++, speaker: this.#nameOf(speaker) }
    })
  }

  #stretchesOf({ words = [] }: TranscriptSegment, turns: readonly Turn[]): Stretch[] {
    const stretches: Stretch[] = []
    for (const word of words) append(stretches, { speaker: speakerOf(word, turns), words: [word] })
    return withoutStrays(stretches)
  }

  /** Returns the speaker turns near a segment. All other turns are skipped, because hours of speech have thousands of turns. */
  #turnsNear({ start, end }: Span): readonly Turn[] {
    const near = this.#turns.filter((turn) => turn.end > start - NEAR_SECONDS && turn.start < end + NEAR_SECONDS)
    return near.length > 0 ? near : this.#turns
  }

  #nameOf(speaker: string): string {
    if (this.#known.has(speaker)) return speaker
    let name = this.#names.get(speaker)
    if (name === undefined) {
      name = this.#nextLetter()
      this.#names.set(speaker, name)
    }
    return name
  }

  #nextLetter(): string {
    const taken = new Set([...this.#known, ...this.#names.values()])
    for (let index = 0; ; index++) if (!taken.has(letter(index))) return letter(index)
  }
}

/**
 * Returns the speaker with the longest overlap with a span, or else the nearest speaker. Empty if there are no turns.
 */
function speakerOf(span: Span, turns: readonly Turn[]): string {
  const shares = new Map<string, number>()
  let nearest: Turn | undefined
  let nearestGap = Number.POSITIVE_INFINITY
  for (const turn of turns) {
    const overlap = Math.min(span.end, turn.end) - Math.max(span.start, turn.start)
    if (overlap > 0) shares.set(turn.speaker, (shares.get(turn.speaker) ?? 0) + overlap)
    if (-overlap >= nearestGap) continue
    nearestGap = -overlap
    nearest = turn
  }
  let best = nearest?.speaker ?? ''
  for (const [speaker, share] of shares) if (share > (shares.get(best) ?? 0)) best = speaker
  return best
}

function append(stretches: Stretch[], stretch: Stretch): void {
  const last = stretches.at(-1)
  if (last?.speaker === stretch.speaker) last.words.push(...stretch.words)
  else stretches.push(stretch)
}

/** Assigns a very short stretch between two stretches of one speaker to that speaker. */
function withoutStrays(stretches: readonly Stretch[]): Stretch[] {
  const kept: Stretch[] = []
  for (const [index, { speaker, words }] of stretches.entries()) {
    const [before, after] = [kept.at(-1), stretches[index + 1]]
    const isBetween = before !== undefined && before.speaker === after?.speaker
    const isStray = isBetween && secondsOf(words) <= STRAY_SECONDS_MAX
    append(kept, { speaker: isStray ? before.speaker : speaker, words: [...words] })
  }
  return kept
}

function secondsOf(words: readonly Word[]): number {
  return (words.at(-1)?.end ?? 0) - (words[0]?.start ?? 0)
}

function cut(segment: TranscriptSegment, stretches: readonly Stretch[]): TranscriptSegment[] {
  const texts = cutText(
    segment.text,
    stretches.map(({ words }) => words),
  )
  return stretches.map(({ words }, index) => ({
    ...segment,
    text: texts[index] ?? '',
    start: index === 0 ? segment.start : (words[0]?.start ?? segment.start),
    end: index === stretches.length - 1 ? segment.end : (words.at(-1)?.end ?? segment.end),
    words,
    // The part to which a token belongs is unknown, so the parts of a segment have no tokens.
    tokens: [],
  }))
}

function letter(index: number): string {
  const rest = String.fromCharCode(65 + (index % 26))
  return index < 26 ? rest : letter(Math.floor(index / 26) - 1) + rest
}
