import type { TranscriptSegment } from '#schemas/transcription/transcription.ts'

/** Subtitles (docs/protocol.md, Transcripts): one cue a segment with text. */

/** SubRip: numbered cues, decimal commas, a blank line after each. Empty when nobody speaks. */
export function encodeSrt(segments: readonly TranscriptSegment[]): string {
  return cuesOf(segments)
    .map(({ start, end, text }, index) => `${index + 1}\n${time(start, ',')} --> ${time(end, ',')}\n${text}\n\n`)
    .join('')
}

/** WebVTT: a header, cues without numbers, decimal points. */
export function encodeVtt(segments: readonly TranscriptSegment[]): string {
  const cues = cuesOf(segments).map(({ start, end, text }) => `${time(start, '.')} --> ${time(end, '.')}\n${text}\n\n`)
  return `WEBVTT\n\n${cues.join('')}`
}

function cuesOf(segments: readonly TranscriptSegment[]): { start: number; end: number; text: string }[] {
  return segments.map(({ start, end, text }) => ({ start, end, text: cueText(text) })).filter(({ text }) => text !== '')
}

/** An arrow would read as a line of times, and a blank line would end the cue. */
function cueText(text: string): string {
  return text
    .trim()
    .replace(/\s*[\r\n\u2028\u2029]\s*/g, ' ')
    .replace(/-{2,}>/g, '->')
}

function time(seconds: number, point: ',' | '.'): string {
  const ms = Math.round(seconds * 1_000)
  const two = (value: number) => String(Math.floor(value)).padStart(2, '0')
  const clock = `${two(ms / 3_600_000)}:${two((ms / 60_000) % 60)}:${two((ms / 1_000) % 60)}`
  return `${clock}${point}${String(ms % 1_000).padStart(3, '0')}`
}
