import type { TokenLogprob, TranscribeEvent, TranscriptSegment, Word } from '#schemas/kinds/transcription.ts'
import { cutText } from '#shared/engines/cut-text.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import type { Decoder } from '#shared/engines/upstream/json.ts'
import { isHighSurrogate, SurrogateBuffer } from '#shared/lib/buffers.ts'

/** Maximum characters of one text event, so that a broker record stays small. */
const TEXT_CHARS_MAX = 8 * 1024
const LOGPROBS_MAX = 256
/** Maximum plausible duration, in seconds. Tokens are computed from the duration, so a longer duration that a server reports is ignored. */
const SECONDS_MAX = 7 * 24 * 3_600

interface CountedTokens {
  readonly input: number
  /** Number of input tokens of the text prompt (as opposed to the audio), or 0 if unknown. */
  readonly text: number
  readonly output: number
}

interface DecodeOptions {
  readonly model: string
  readonly language: string
  readonly duration: number | undefined
  readonly onSeconds?: ((seconds: number) => void) | undefined
}

/**
 * Reads every answer format of `POST /v1/audio/transcriptions`:
 *
 * 1. Whole, `json`: `{text, logprobs?, usage?}`.
 * 2. Whole, `verbose_json`: also `segments`, and `words` next to or inside them (whisper.cpp, Speaches).
 * 3. Stream of OpenAI: `transcript.text.delta` and `transcript.text.done`.
 * 4. Stream of vLLM: `transcription.chunk`, shaped like a chat chunk.
 * 5. Stream of Speaches: a whole object per segment, without an end event.
 * 6. Stream of the local model server: `sluice.segment` and `sluice.progress` in addition to OpenAI's events.
 */
export class TranscriptDecoder implements Decoder<TranscribeEvent> {
  readonly #options: DecodeOptions
  readonly #characters = new SurrogateBuffer()
  #language: string
  #duration: number | undefined
  #isStarted = false
  #isDone = false
  /**
   * Whether the format of the stream has an end event. If such a stream ends without the event, then the transcript is incomplete. In other formats,
   * the transcript is complete when the stream ends.
   */
  #hasOwnEnd = false
  #text = ''
  #segments = 0
  #segmentTokens = 0
  #lastEnd = 0
  counted: CountedTokens | undefined

  constructor(options: DecodeOptions) {
    this.#options = options
    this.#language = options.language
    this.#duration = options.duration
  }

  get isDone(): boolean {
    return this.#isDone
  }

  get text(): string {
    return this.#text
  }

  get segmentTokens(): number {
    return this.#segmentTokens
  }

  get duration(): number {
    return this.#duration ?? 0
  }

  isEnd(data: string): boolean {
    if (data.trim() !== '[DONE]') return false
    this.#isDone = true
    return true
  }

  frame(data: Record<string, unknown>, out: TranscribeEvent[]): void {
    switch (data.type) {
      case 'transcript.text.delta':
        this.#hasOwnEnd = true
        return this.#pushText(stringOf(data.delta), out, readLogprobs(data.logprobs))
      case 'transcript.text.done':
        return this.#done(data, out)
      case 'sluice.language':
        return this.#read(data)
      case 'sluice.segment':
        this.#hasOwnEnd = true
        return this.#pushSegment(data.segment, out)
      case 'sluice.progress':
        this.#hasOwnEnd = true
        return this.#progress(Number(data.seconds))
    }
    if (Array.isArray(data.choices)) this.#chunk(data, out)
    else if (typeof data.text === 'string' && !String(data.type ?? '').startsWith('transcript.')) this.#piece(data, out)
  }

  whole(body: Record<string, unknown>, out: TranscribeEvent[]): undefined {
    if (typeof body.text !== 'string') throw answerError(this.#options.model, 'sent a response without text')
    this.#read(body)
    this.#pushText(body.text.trim(), out, readLogprobs(body.logprobs))
    const words = readWords(body.words)
    const segments = readSegments(body.segments)
    const complete = segments.length > 0 ? withWords(segments, words) : cutByWords(this.#text, words)
    for (const segment of complete) this.#emitSegment(segment, out)
    this.#isDone = true
  }

  end(out: TranscribeEvent[]): undefined {
    if (this.#hasOwnEnd && !this.#isDone) {
      throw answerError(this.#options.model, 'ended its stream before the transcript was complete')
    }
    this.#start(out)
    this.#pushText(this.#characters.flush(), out)
    if (this.#segments > 0 || this.#text === '') return
    // The response has text but no segment. One segment over the whole duration is added, because every output format needs at least one.
    this.#emitSegment({ ...NO_FIGURES, start: 0, end: this.duration, text: this.#text }, out)
  }

  #done(data: Record<string, unknown>, out: TranscribeEvent[]): void {
    this.#read(data)
    if (this.#text === '') this.#pushText(stringOf(data.text).trim(), out, readLogprobs(data.logprobs))
    this.#isDone = true
  }

  #chunk(data: Record<string, unknown>, out: TranscribeEvent[]): void {
    this.#hasOwnEnd = true
    this.#readUsage(data.usage)
    for (const choice of data.choices as Record<string, unknown>[]) {
      const { content } = (choice.delta ?? {}) as Record<string, unknown>
      if (typeof content === 'string') this.#pushText(content, out)
      // vLLM sends a finish reason after every 30 seconds of audio, so a finish reason does not end the stream. Only
      // [DONE] does.
    }
  }

  #piece(data: Record<string, unknown>, out: TranscribeEvent[]): void {
    this.#read(data)
    const text = data.text as string
    const gap = this.#text === '' || /^\s/.test(text) || text === '' ? '' : ' '
    this.#pushText(gap + text, out)
    for (const segment of withWords(readSegments(data.segments), readWords(data.words))) this.#emitSegment(segment, out)
  }

  #pushText(text: string, out: TranscribeEvent[], logprobs?: TokenLogprob[]): void {
    // Texts of Whisper begin with a space. The space is removed from the first text, so that a transcript does not begin with a space.
    const whole = this.#characters.push(this.#text === '' ? text.trimStart() : text)
    if (whole === '' && !logprobs) return
    this.#start(out)
    this.#text += whole
    for (const part of textEvents(whole, logprobs ?? [])) out.push(part)
  }

  #pushSegment(value: unknown, out: TranscribeEvent[]): void {
    for (const segment of readSegments([value])) this.#emitSegment(segment, out)
  }

  #emitSegment(segment: TranscriptSegment, out: TranscribeEvent[]): void {
    this.#start(out)
    this.#segmentTokens += segment.tokens.length
    this.#lastEnd = Math.max(this.#lastEnd, segment.end)
    this.#progress(this.#lastEnd)
    out.push({ type: 'segment', segment: { ...segment, id: this.#segments } })
    this.#segments += 1
  }

  #progress(seconds: number): void {
    if (Number.isFinite(seconds)) this.#options.onSeconds?.(seconds)
  }

  /**
   * Reads the metadata of a transcript, such as language and duration. The language may be a code or a name, because
   * the encoder supports both.
   */
  #read(data: Record<string, unknown>): void {
    if (this.#language === '' && typeof data.language === 'string') this.#language = data.language
    const duration = Number(data.duration ?? Number.NaN)
    if (this.#duration === undefined && isDuration(duration)) this.#duration = duration
    this.#readUsage(data.usage)
  }

  #readUsage(usage: unknown): void {
    if (typeof usage !== 'object' || usage === null) return
    const { input_tokens, prompt_tokens, output_tokens, completion_tokens, seconds } = usage as Record<string, unknown>
    const input = input_tokens ?? prompt_tokens
    const output = output_tokens ?? completion_tokens
    if (isCount(input) && isCount(output)) this.counted = { input, text: Math.min(textTokensOf(usage), input), output }
    if (this.#duration === undefined && Number(seconds) > 0 && isDuration(Number(seconds))) {
      this.#duration = Number(seconds)
    }
  }

  #start(out: TranscribeEvent[]): void {
    if (this.#isStarted) return
    this.#isStarted = true
    const input_tokens = this.counted?.input ?? audioTokensOf(this.duration)
    out.push({ type: 'start', language: this.#language, duration: this.duration, input_tokens })
  }
}

/** Estimates the tokens of audio: ten per started second (docs/reference/compatibility.md, Transcripts). */
export function audioTokensOf(seconds: number): number {
  return 10 * Math.ceil(seconds)
}

/**
 * Splits a text into events that fit into broker records. The log probabilities are distributed over these events. If necessary, further events
 * without text follow.
 */
function* textEvents(text: string, logprobs: readonly TokenLogprob[]): Generator<TranscribeEvent> {
  let at = 0
  let probability = 0
  while (at < text.length || probability < logprobs.length) {
    const end = wholeCharacterBefore(text, at + TEXT_CHARS_MAX)
    const some = logprobs.slice(probability, probability + LOGPROBS_MAX)
    yield { type: 'text', text: text.slice(at, end), ...(some.length > 0 && { logprobs: some }) }
    at = end
    probability += LOGPROBS_MAX
  }
}

function wholeCharacterBefore(text: string, at: number): number {
  return at < text.length && isHighSurrogate(text.charCodeAt(at - 1)) ? at - 1 : Math.min(at, text.length)
}

function stringOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

function textTokensOf(usage: object): number {
  const { input_token_details: details } = usage as { input_token_details?: { text_tokens?: unknown } | null }
  return isCount(details?.text_tokens) ? details.text_tokens : 0
}

function isDuration(seconds: number): boolean {
  return seconds >= 0 && seconds <= SECONDS_MAX
}

function isCount(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0
}

/** Minimum pause between two words that starts a new segment, in seconds. */
const PAUSE_SECONDS = 1
const WORDS_MAX = 40

function readSegments(value: unknown): TranscriptSegment[] {
  if (!Array.isArray(value)) return []
  return value.filter(isObject).map((segment) => {
    const words = readWords(segment.words)
    return {
      id: 0,
      seek: Math.round(numberOf(segment.seek)),
      start: numberOf(segment.start),
      end: numberOf(segment.end),
      text: typeof segment.text === 'string' ? segment.text : '',
      tokens: Array.isArray(segment.tokens) ? segment.tokens.filter(Number.isInteger) : [],
      temperature: numberOf(segment.temperature),
      avg_logprob: numberOf(segment.avg_logprob),
      compression_ratio: numberOf(segment.compression_ratio),
      no_speech_prob: numberOf(segment.no_speech_prob),
      ...(words.length > 0 && { words }),
    }
  })
}

function readWords(value: unknown): Word[] {
  if (!Array.isArray(value)) return []
  return value
    .filter(isObject)
    .map(({ word, start, end }) => ({ word: String(word ?? '').trim(), start: numberOf(start), end: numberOf(end) }))
    .filter(({ word }) => word !== '')
}

function readLogprobs(value: unknown): TokenLogprob[] | undefined {
  if (!Array.isArray(value) || value.length === 0) return undefined
  return value.filter(isObject).map(({ token, logprob, bytes }) => ({
    token: String(token ?? ''),
    logprob: numberOf(logprob),
    bytes: Array.isArray(bytes) ? bytes.filter(Number.isInteger) : null,
  }))
}

/**
 * Assigns each word to the segment that contains its middle, or else to the last segment that began before it. If segments already have words, then
 * nothing is assigned.
 */
function withWords(segments: readonly TranscriptSegment[], words: readonly Word[]): TranscriptSegment[] {
  if (words.length === 0 || segments.some((segment) => segment.words)) return [...segments]
  const filled = segments.map((segment) => ({ ...segment, words: [] as Word[] }))
  let at = 0
  for (const word of words) {
    const middle = (word.start + word.end) / 2
    while (at + 1 < filled.length && (filled[at + 1]?.start ?? 0) <= middle) at += 1
    filled[at]?.words.push(word)
  }
  return filled
}

/** Creates segments for a text whose upstream sent only words. A segment ends after a sentence, at a pause, or after {@link WORDS_MAX} words. */
export function cutByWords(text: string, words: readonly Word[]): TranscriptSegment[] {
  const groups: Word[][] = []
  for (const word of words) {
    const group = groups.at(-1)
    if (group && !isEndOfPiece(group, word)) group.push(word)
    else groups.push([word])
  }
  const texts = cutText(text, groups)
  return groups.map((group, index) => ({
    ...NO_FIGURES,
    start: group[0]?.start ?? 0,
    end: group.at(-1)?.end ?? 0,
    text: texts[index] ?? '',
    words: group,
  }))
}

function isEndOfPiece(group: readonly Word[], next: Word): boolean {
  const last = group.at(-1)
  if (!last) return false
  return /[.?!。？！]$/.test(last.word) || next.start - last.end > PAUSE_SECONDS || group.length >= WORDS_MAX
}

export const NO_FIGURES = {
  id: 0,
  seek: 0,
  tokens: [] as number[],
  temperature: 0,
  avg_logprob: 0,
  compression_ratio: 0,
  no_speech_prob: 0,
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}

function numberOf(value: unknown): number {
  const number = Number(value ?? 0)
  return Number.isFinite(number) ? number : 0
}
