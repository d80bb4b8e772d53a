import type { EncodeContext } from '#schemas/job.ts'
import {
  type TokenLogprob,
  type TranscribeEvent,
  TranscribeRequest,
  type TranscriptForm,
  type TranscriptSegment,
  type Word,
} from '#schemas/transcription/transcription.ts'
import { type Answer, type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import { unfinished } from '#shared/kinds/encode.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { SurrogateBuffer } from '#shared/lib/surrogate-buffer.ts'
import { languageName } from './cue-text.ts'
import { encodeSrt, encodeVtt } from './cues.ts'

/** Maximum text of a merged event, in UTF-16 units. Limited, so that records and frames stay small. */
const MERGED_TEXT_MAX = 16 * 1024
/** Maximum tokens with log probabilities per merged event. */
const MERGED_LOGPROBS_MAX = 256

/** Maximum bytes of a transcript: four hours of speech with all words and the log probability of each token. */
export const TRANSCRIPT_BYTES_MAX = 24 * 1024 * 1024

export const transcribe: Kind<TranscribeRequest, TranscribeEvent> = {
  name: 'transcribe',
  pool: 'transcription',
  request: TranscribeRequest,
  answerBytesMax: TRANSCRIPT_BYTES_MAX,
  merge: mergeTranscribeEvents,
  // After such an event, a second run would send output twice. The start event contains no output.
  isOutput: ({ type }) => type !== 'start',
  answer: () => transcriptAnswer,
}

/** Speech to English text. A separate kind, because older workers cannot translate and must requeue such jobs. */
export const translate: Kind<TranscribeRequest, TranscribeEvent> = { ...transcribe, name: 'translate' }

/**
 * Merges two events if both are text of the same segment; undefined otherwise. Merging changes only the number of frames that a
 * client receives.
 */
export function mergeTranscribeEvents(a: TranscribeEvent, b: TranscribeEvent): TranscribeEvent | undefined {
  if (a.type !== 'text' || b.type !== 'text' || a.segment !== b.segment) return undefined
  if (a.text.length > MERGED_TEXT_MAX || (a.logprobs?.length ?? 0) >= MERGED_LOGPROBS_MAX) return undefined
  const text = a.text + b.text
  if (!a.logprobs && !b.logprobs) return { ...a, text }
  return { ...a, text, logprobs: [...(a.logprobs ?? []), ...(b.logprobs ?? [])] }
}

/** The answer of a transcription (docs/reference/compatibility.md, Transcripts), in the format that the job requests. */
const transcriptAnswer: Answer<TranscribeEvent> = {
  whole: encodeTranscript,
  open: (context) => new TranscriptStream(context),
}

type TextEvent = Extract<TranscribeEvent, { type: 'text' }>

/**
 * Encodes one stream of a transcript (docs/internals/protocol.md, Transcript streams): text deltas, segments for diarized_json, and one `done` event
 * at the end.
 *
 * The deltas concatenate to the text of `done`, which equals the text of the whole answer and is trimmed. Leading whitespace is therefore
 * dropped, and trailing whitespace is held back until more text follows.
 */
export class TranscriptStream implements AnswerStream<TranscribeEvent> {
  readonly #isDiarized: boolean
  readonly #wantsLogprobs: boolean
  readonly #characters = new SurrogateBuffer()
  readonly #allLogprobs: TokenLogprob[] = []
  #logprobs: TokenLogprob[] = []
  #blanks = ''
  #text = ''
  #usage: TranscriptUsage = usageOf(undefined)
  #isFinished = false

  /** @throws ServiceError `internal_error` if the job has no transcript format */
  constructor(context: EncodeContext) {
    const { format, logprobs } = formOf(context)
    this.#isDiarized = format === 'diarized_json'
    this.#wantsLogprobs = logprobs
  }

  push(event: TranscribeEvent): Frame[] {
    switch (event.type) {
      case 'start':
        return []
      case 'text':
        return this.#delta(event)
      case 'segment': {
        const segment = diarizedSegment(soundSegment(event.segment))
        return this.#isDiarized && segment.text !== '' ? [frameOf(segment)] : []
      }
      case 'usage':
        this.#usage = usageOf(event.usage)
        return []
      case 'finish':
        this.#isFinished = true
        return []
      // Workers of newer versions may send unknown event types.
      default:
        return []
    }
  }

  /** @throws ServiceError `upstream_error` if the engine did not finish */
  end(): Frame[] {
    if (!this.#isFinished) throw unfinished()
    const rest = this.#flush()
    const logprobs = this.#wantsLogprobs ? { logprobs: this.#allLogprobs } : {}
    const usage = { type: 'tokens', ...this.#usage }
    return [...rest, frameOf({ type: 'transcript.text.done', text: this.#text, ...logprobs, usage })]
  }

  #delta({ text, logprobs, segment }: TextEvent): Frame[] {
    if (this.#wantsLogprobs) {
      for (const logprob of logprobs ?? []) {
        this.#logprobs.push(logprob)
        this.#allLogprobs.push(logprob)
      }
    }
    return this.#textFrames(this.#trim(this.#characters.push(text)), segment)
  }

  /** The part of the text that can be sent now: without leading whitespace, and without whitespace at its end. */
  #trim(text: string): string {
    const all = this.#text === '' ? text.trimStart() : this.#blanks + text
    const trimmed = all.trimEnd()
    this.#blanks = all.slice(trimmed.length)
    return trimmed
  }

  /** Frames for a piece of text. Log probabilities of whitespace that was held back are sent with the text after it. */
  #textFrames(delta: string, segment?: number): Frame[] {
    if (delta === '') return []
    this.#text += delta
    const logprobs = this.#takeLogprobs()
    const place = this.#isDiarized && segment !== undefined ? { segment_id: segmentId(segment) } : {}
    return [frameOf({ type: 'transcript.text.delta', delta, ...logprobs, ...place })]
  }

  #takeLogprobs(): { logprobs?: TokenLogprob[] } {
    if (!this.#wantsLogprobs || this.#logprobs.length === 0) return {}
    const logprobs = this.#logprobs
    this.#logprobs = []
    return { logprobs }
  }

  #flush(): Frame[] {
    const rest = this.#textFrames(this.#trim(this.#characters.flush()))
    if (this.#logprobs.length === 0) return rest
    return [...rest, frameOf({ type: 'transcript.text.delta', delta: '', ...this.#takeLogprobs() })]
  }
}

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
function formOf({ transcript }: EncodeContext): NonNullable<EncodeContext['transcript']> {
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
interface DiarizedSegment {
  type: 'transcript.text.segment'
  id: string
  start: number
  end: number
  text: string
  speaker: string
}

function diarizedSegment({ id, start, end, text, speaker }: TranscriptSegment): DiarizedSegment {
  return { type: 'transcript.text.segment', id: segmentId(id), start, end, text: text.trim(), speaker: speaker ?? 'A' }
}

/** Wire id of a segment; the first is `seg_001`. */
function segmentId(id: number): string {
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

/** All data of one transcript. Times are in seconds, rounded to milliseconds. */
interface Transcript {
  readonly text: string
  /** In order of time. */
  readonly segments: readonly TranscriptSegment[]
  readonly logprobs: readonly TokenLogprob[]
  /** ISO-639-1, or empty. */
  readonly language: string
  readonly duration: number
  readonly usage: TranscriptUsage
}

/** Usage of a transcript in tokens (docs/internals/protocol.md, Transcript streams). */
interface TranscriptUsage {
  input_tokens: number
  output_tokens: number
  total_tokens: number
  input_token_details: { audio_tokens: number; text_tokens: number }
}

type UsageEvent = Extract<TranscribeEvent, { type: 'usage' }>

/** Collects the events of one transcription. @throws ServiceError `upstream_error` if it did not finish */
function gatherTranscript(events: readonly TranscribeEvent[]): Transcript {
  const segments: TranscriptSegment[] = []
  const logprobs: TokenLogprob[] = []
  let text = ''
  let start = { language: '', duration: 0 }
  let usage: UsageEvent['usage'] | undefined
  let isFinished = false
  for (const event of events) {
    if (event.type === 'start') start = event
    else if (event.type === 'segment') segments.push(event.segment)
    else if (event.type === 'usage') usage = event.usage
    else if (event.type === 'finish') isFinished = true
    else {
      text += event.text
      for (const logprob of event.logprobs ?? []) logprobs.push(logprob)
    }
  }
  if (!isFinished) throw unfinished()
  const duration = toMilliseconds(start.duration)
  return {
    text: text.toWellFormed().trim(),
    segments: segments.map(soundSegment),
    logprobs,
    language: start.language,
    duration,
    usage: usageOf(usage),
  }
}

/** An engine's usage in the wire form; zeros if the engine reported none. */
function usageOf(usage: UsageEvent['usage'] | undefined): TranscriptUsage {
  const { input_tokens, output_tokens } = usage ?? { input_tokens: 0, output_tokens: 0 }
  return {
    input_tokens,
    output_tokens,
    total_tokens: input_tokens + output_tokens,
    input_token_details: usage?.input_token_details ?? { audio_tokens: input_tokens, text_tokens: 0 },
  }
}

/** Repairs a segment for output: finite numbers only, no end before its start, no lone surrogates. */
function soundSegment(segment: TranscriptSegment): TranscriptSegment {
  const start = toMilliseconds(segment.start)
  return {
    ...segment,
    start,
    end: Math.max(start, toMilliseconds(segment.end)),
    text: segment.text.toWellFormed(),
    temperature: finite(segment.temperature),
    avg_logprob: finite(segment.avg_logprob),
    compression_ratio: finite(segment.compression_ratio),
    no_speech_prob: finite(segment.no_speech_prob),
  }
}

/** Rounds to milliseconds, because engines add floats: 2.7100000000000004 becomes 2.71. */
function toMilliseconds(seconds: number): number {
  return Math.round(Math.max(0, finite(seconds)) * 1_000) / 1_000
}

function finite(value: number | null): number {
  return Number.isFinite(value) ? (value as number) : 0
}
