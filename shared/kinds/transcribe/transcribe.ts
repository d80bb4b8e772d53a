import type { EncodeContext } from '#schemas/job.ts'
import {
  type TokenLogprob,
  type TranscribeEvent,
  TranscribeRequest,
  type TranscriptForm,
  type TranscriptSegment,
  type Word,
} from '#schemas/kinds/transcription.ts'
import { type Answer, type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import { unfinished } from '#shared/kinds/encode.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { languageName } from './cue-text.ts'
import { encodeSrt, encodeVtt } from './cues.ts'

/** Maximum text of a merged event, in UTF-16 units, so that queue records and stream frames stay small. */
const MERGED_TEXT_MAX = 16 * 1024
const MERGED_LOGPROBS_MAX = 256

/** Maximum bytes of a transcript: four hours of speech with all words and the log probability of each token. */
export const TRANSCRIPT_BYTES_MAX = 24 * 1024 * 1024

export const transcribe: Kind<TranscribeRequest, TranscribeEvent> = {
  name: 'transcribe',
  pool: 'transcription',
  request: TranscribeRequest,
  answerBytesMax: TRANSCRIPT_BYTES_MAX,
  merge: mergeTranscribeEvents,
  isOutput: ({ type }) => type !== 'start',
  answer: () => transcriptAnswer,
}

/**
 * Transcribes speech into English text. Translation is a separate kind, because workers of older versions cannot translate. A worker
 * requeues a job of an unknown kind, so a newer worker runs the job.
 */
export const translate: Kind<TranscribeRequest, TranscribeEvent> = { ...transcribe, name: 'translate' }

/**
 * Merges two text events of the same segment. Undefined if they cannot be merged. The text that a client receives stays the same, in fewer frames.
 */
export function mergeTranscribeEvents(a: TranscribeEvent, b: TranscribeEvent): TranscribeEvent | undefined {
  if (a.type !== 'text' || b.type !== 'text' || a.segment !== b.segment) return undefined
  if (a.text.length > MERGED_TEXT_MAX || (a.logprobs?.length ?? 0) >= MERGED_LOGPROBS_MAX) return undefined
  const text = a.text + b.text
  if (!a.logprobs && !b.logprobs) return { ...a, text }
  return { ...a, text, logprobs: [...(a.logprobs ?? []), ...(b.logprobs ?? [])] }
}

const transcriptAnswer: Answer<TranscribeEvent> = {
  whole: encodeTranscript,
  open: (context) => new TranscriptStream(context),
}

type TextEvent = Extract<TranscribeEvent, { type: 'text' }>

/**
 * Encodes one stream of a transcript (docs/internals/protocol.md, Transcript streams). The stream has text deltas, segments if the format is
 * `diarized_json`, and one `done` event at the end.
 *
 * The concatenated deltas must equal the text of `done`, which is trimmed. Leading whitespace is therefore dropped, and trailing whitespace waits
 * until more text follows.
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
      // An event of an unknown type comes from a worker of a newer version, and is ignored.
      default:
        return []
    }
  }

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

  /**
   * Returns the part of the text that can be sent now. Leading whitespace of the transcript is dropped, and trailing whitespace waits for more text.
   */
  #trim(text: string): string {
    const all = this.#text === '' ? text.trimStart() : this.#blanks + text
    const trimmed = all.trimEnd()
    this.#blanks = all.slice(trimmed.length)
    return trimmed
  }

  /** Makes the frames of a piece of text. If whitespace had to wait for more text, then its log probabilities are sent with that text. */
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
 * Encodes the whole answer of a transcription (docs/reference/compatibility.md, Transcripts): an object, or a string for text, srt and vtt. Long
 * subtitles are returned as a promise, because they are encoded with event-loop yields.
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

function formOf({ transcript }: EncodeContext): NonNullable<EncodeContext['transcript']> {
  if (transcript) return transcript
  throw new ServiceError('internal_error', 'The job does not specify the format of its transcript.')
}

/** Encodes the format `json`. Usage is reported as a duration and as tokens (docs/reference/compatibility.md, Transcripts). */
function encodeJson({ text, logprobs, usage, duration }: Transcript, hasLogprobs: boolean): object {
  return {
    text,
    logprobs: hasLogprobs ? logprobs : null,
    usage: { type: 'duration', seconds: Math.ceil(duration), ...usage },
    duration,
    // Clients expect the English name of a language in this field and do not accept a code. Only the code is known here, so the field is empty.
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

/** Encodes a segment of `verbose_json`. All ten keys are present, because clients fail if one of them is missing. */
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

function segmentId(id: number): string {
  return `seg_${String(id + 1).padStart(3, '0')}`
}

/** Returns one line per speaker turn. A line has the label of the speaker, followed by the text until another speaker begins. */
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

interface Transcript {
  readonly text: string
  readonly segments: readonly TranscriptSegment[]
  readonly logprobs: readonly TokenLogprob[]
  readonly language: string
  readonly duration: number
  readonly usage: TranscriptUsage
}

interface TranscriptUsage {
  input_tokens: number
  output_tokens: number
  total_tokens: number
  input_token_details: { audio_tokens: number; text_tokens: number }
}

type UsageEvent = Extract<TranscribeEvent, { type: 'usage' }>

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

function usageOf(usage: UsageEvent['usage'] | undefined): TranscriptUsage {
  const { input_tokens, output_tokens } = usage ?? { input_tokens: 0, output_tokens: 0 }
  return {
    input_tokens,
    output_tokens,
    total_tokens: input_tokens + output_tokens,
    input_token_details: usage?.input_token_details ?? { audio_tokens: input_tokens, text_tokens: 0 },
  }
}

/**
 * Repairs a segment for output. The result has only finite numbers, no end before its start, and no lone surrogates.
 */
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

/** Rounds to milliseconds. Sums of floating-point numbers give times such as 2.7100000000000004 s. */
function toMilliseconds(seconds: number): number {
  return Math.round(Math.max(0, finite(seconds)) * 1_000) / 1_000
}

function finite(value: number | null): number {
  return Number.isFinite(value) ? (value as number) : 0
}
