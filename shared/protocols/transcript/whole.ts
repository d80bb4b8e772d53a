import type { EncodeContext } from '#schemas/job.ts'
import type { TranscribeEvent, TranscriptForm, TranscriptSegment, Word } from '#schemas/transcription/transcription.ts'
import { ServiceError } from '#shared/error.ts'
import { encodeSrt, encodeVtt } from './cues.ts'
import { gatherTranscript, type Transcript, toMilliseconds } from './gather.ts'
import { languageName } from './languages.ts'

/**
 * The whole answer of a transcription (docs/protocol.md, Transcripts): an object, or a string for text, srt and vtt. Long
 * subtitles are a promise: they are made in turns.
 *
 * @throws ServiceError `upstream_error` when the engine did not finish
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

/** What the answer looks like. @throws ServiceError `internal_error` when the job does not say */
export function formOf({ transcript }: EncodeContext): NonNullable<EncodeContext['transcript']> {
  if (transcript) return transcript
  throw new ServiceError('internal_error', 'The job does not say how its transcript is kept.')
}

/** Joins what are two forms of usage elsewhere: time and tokens (docs/protocol.md, Transcripts). */
function encodeJson({ text, logprobs, usage, duration }: Transcript, hasLogprobs: boolean): object {
  return {
    text,
    logprobs: hasLogprobs ? logprobs : null,
    usage: { type: 'duration', seconds: Math.ceil(duration), ...usage },
    duration,
    // The other forms have a name here, and clients map names: a code would be taken for an unknown one.
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

/** All ten keys: clients check for each. */
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

/** A segment as diarized_json says it. */
export function diarizedSegment({ id, start, end, text, speaker }: TranscriptSegment): DiarizedSegment {
  return { type: 'transcript.text.segment', id: segmentId(id), start, end, text: text.trim(), speaker: speaker ?? 'A' }
}

/** Id of a segment on the wire: `seg_001` is the first. */
export function segmentId(id: number): string {
  return `seg_${String(id + 1).padStart(3, '0')}`
}

/** One line a turn: who speaks, and what until somebody else does. */
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
