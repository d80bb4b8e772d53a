import type { TranscriptSegment, Word } from '#schemas/transcription/transcription.ts'

/** A segment of a transcript, with its words and who said it. */
export interface Said {
  readonly start: number
  readonly end: number
  readonly text: string
  readonly speaker: string
}

/** A word, and who said it. */
export interface SaidWord extends Word {
  readonly speaker: string
}

/** What came of a recording. */
export interface Transcript {
  readonly text: string
  readonly duration: number
  readonly segments: readonly Said[]
  readonly words: readonly SaidWord[]
  /** As the service writes subtitles from. */
  readonly cues: readonly TranscriptSegment[]
  /** In the order in which they first speak. */
  readonly speakers: readonly string[]
}

/** An answer with `response_format=verbose_json`. */
export interface Verbose {
  readonly text: string
  readonly duration: number
  readonly segments?: readonly TranscriptSegment[]
  readonly words?: readonly Word[]
}

/** An answer with `response_format=diarized_json`. */
export interface Diarized {
  readonly segments: readonly Said[]
}

/** Words and times of one answer, and who speaks from another, where that was asked for. */
export function transcriptOf(verbose: Verbose, diarized: Diarized | undefined): Transcript {
  const { text, duration, segments: cues = [], words = [] } = verbose
  const turns = diarized?.segments ?? []
  return {
    text,
    duration,
    cues,
    segments: diarized ? turns : cues.map(({ start, end, text: said }) => ({ start, end, text: said, speaker: '' })),
    words: words.map((word) => ({ ...word, speaker: speakerAt(turns, (word.start + word.end) / 2) })),
    speakers: [...new Set(turns.map(({ speaker }) => speaker))],
  }
}

/** Who speaks at a moment, or nearest to it; empty where nobody was told apart. */
function speakerAt(turns: readonly Said[], seconds: number): string {
  const away = ({ start, end }: Said) => Math.max(0, start - seconds, seconds - end)
  const [first, ...rest] = turns
  if (!first) return ''
  return rest.reduce((best, turn) => (away(turn) < away(best) ? turn : best), first).speaker
}
