import type { EncodeContext } from '#schemas/job.ts'
import type { TranscribeEvent, TranscriptForm, TranscriptSegment, Word } from '#schemas/transcription/transcription.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { encodeSrt, encodeVtt } from './cues.ts'
import { gatherTranscript, type Transcript, toMilliseconds } from './gather.ts'
import { languageName } from './languages.ts'

/**
 * The whole answer of a transcription (docs/reference/compatibility.md, Transcripts): an object, or a string for text, srt and vtt. Long subtitles are
 * returned as a promise, because they are encoded with event-loop yields.
 *
 * @throws ServiceError `upstream_error` if the engine did not finish
 */
export function encodeTranscript(
  events: readonly TranscribeEvent[],
  context: EncodeContext,
): object | string | Promise<string> {
  const form = formOf(context)
  const transcript = gatherTranscript(events)
  switch (form.format) {
    case 'json':
      return encodeJson(transcript, form.logprobs)
    case 'text':
      return `${transcript.text}\n`
    case 'srt':
      return encodeSrt(transcript.segments, transcript.language)
    case 'vtt':
      return encodeVtt(transcript.segments, transcript.language)
    case 'verbose_json':
      return encodeVerbose(transcript, form)
    case 'diarized_json':
      return encodeDiarized(transcript)
  }
}

/** The requested format of the transcript. @throws ServiceError `internal_error` if the job has none */
export function formOf({ transcript }: EncodeContext): NonNullable<EncodeContext['transcript']> {
  if (transcript) return transcript
  throw new ServiceError('internal_error', 'The job does not specify the format of its transcript.')
}

/** The format `json`. Usage is reported in both forms, duration and tokens (docs/reference/compatibility.md, Transcripts). */
function encodeJson({ text, logprobs, usage, duration }: Transcript, hasLogprobs: boolean): object {
  return {
    text,
    logprobs: hasLogprobs ? logprobs : null,
    usage: { type: 'duration', seconds: Math.ceil(duration), ...usage },
    duration,
    // Empty, because clients expect the English name of a language here, as in other formats, and would not recognise a code.
    language: '',
    segments: null,
    words: null,
  }
}

function encodeVerbose(transcript: Transcript, form: TranscriptForm): object {
  const { language, duration, text, segments } = transcript
  return {
    task: form.translated ? 'translate' : 'transcribe',
    language: languageName(language),
    duration,
    text,
    ...(form.segments && { segments: segments.map(verboseSegment) }),
    ...(form.words && { words: segments.flatMap(({ words = [] }) => words.map(soundWord)) }),
    usage: durationUsage(duration),
  }
}

/** A segment of `verbose_json`. All ten keys are present, because clients check each of them. */
function verboseSegment(segment: TranscriptSegment): object {
  const { id, seek, start, end, text, tokens, temperature, avg_logprob, compression_ratio, no_speech_prob } = segment
  return { id, seek, start, end, text, tokens, temperature, avg_logprob, compression_ratio, no_speech_prob }
}

function soundWord({ word, start, end }: Word): Word {
  const from = toMilliseconds(start)
  return { word: word.toWellFormed().trim(), start: from, end: Math.max(from, toMilliseconds(end)) }
}

function encodeDiarized({ duration, segments }: Transcript): object {
  const said = segments.map(diarizedSegment).filter(({ text }) => text !== '')
  return { task: 'transcribe', duration, text: labelled(said), segments: said, usage: durationUsage(duration) }
}

/** A segment with its speaker: part of diarized_json, and an event of its stream. */
export interface DiarizedSegment {
  type: 'transcript.text.segment'
  id: string
  start: number
  end: number
  text: string
  speaker: string
}

export function diarizedSegment({ id, start, end, text, speaker }: TranscriptSegment): DiarizedSegment {
  return { type: 'transcript.text.segment', id: segmentId(id), start, end, text: text.trim(), speaker: speaker ?? 'A' }
}

/** Wire id of a segment; the first is `seg_001`. */
export function segmentId(id: number): string {
  return `seg_${String(id + 1).padStart(3, '0')}`
}

/** The text as one line per speaker turn: the label of the speaker, then the text until another speaker begins. */
function labelled(segments: readonly DiarizedSegment[]): string {
  let text = ''
  let last: string | undefined
  for (const { speaker, text: said } of segments) {
    text += speaker === last ? ` ${said}` : `${text === '' ? '' : '\n'}${speaker}: ${said}`
    last = speaker
  }
  return text
}

function durationUsage(duration: number): object {
  return { type: 'duration', seconds: Math.ceil(duration) }
}
