import type { TranscriptSegment, Word } from '#schemas/kinds/transcription.ts'
import { encodeSrt, encodeVtt } from '#shared/kinds/transcribe/cues.ts'

interface Segment {
  readonly start: number
  readonly end: number
  readonly text: string
  readonly speaker: string
}

interface SpeakerWord extends Word {
  readonly speaker: string
}

export interface Transcript {
  readonly text: string
  readonly duration: number
  readonly segments: readonly Segment[]
  readonly words: readonly SpeakerWord[]
  /** Segments from which the subtitles are made. */
  readonly cues: readonly TranscriptSegment[]
  /** Speakers in the order of their first words. */
  readonly speakers: readonly string[]
}

/** A response with `response_format=verbose_json`. */
export interface Verbose {
  readonly text: string
  readonly duration: number
  readonly segments?: readonly TranscriptSegment[]
  readonly words?: readonly Word[]
}

export interface Diarized {
  readonly segments: readonly Segment[]
}

export function transcriptOf(verbose: Verbose, diarized: Diarized | undefined): Transcript {
  const { text, duration, segments: cues = [], words = [] } = verbose
  const segments = diarized?.segments ?? []
  return {
    text,
    duration,
    cues,
    segments: diarized
      ? segments
      : cues.map((cue) => ({ start: cue.start, end: cue.end, text: cue.text, speaker: '' })),
    words: words.map((word) => ({ ...word, speaker: speakerAt(segments, (word.start + word.end) / 2) })),
    speakers: [...new Set(segments.map(({ speaker }) => speaker))],
  }
}

/** Returns the speaker at a time. Between segments, the speaker of the nearest segment. Empty without diarization. */
function speakerAt(segments: readonly Segment[], seconds: number): string {
  const away = ({ start, end }: Segment) => Math.max(0, start - seconds, seconds - end)
  const [first, ...rest] = segments
  if (!first) return ''
  return rest.reduce((best, segment) => (away(segment) < away(best) ? segment : best), first).speaker
}

export type SubtitleFormat = 'srt' | 'vtt'

// During a long transcript, the encoders yield with setImmediate, which browsers do not have.
globalThis.setImmediate ??= ((callback: () => void) => setTimeout(callback)) as unknown as typeof setImmediate

export async function subtitlesOf({ cues }: Transcript, format: SubtitleFormat): Promise<string> {
  return await (format === 'srt' ? encodeSrt(cues) : encodeVtt(cues))
}
