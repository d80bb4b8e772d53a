import type { TokenLogprob, TranscribeEvent, TranscriptSegment } from '#schemas/transcription/transcription.ts'
import type { Decoder } from '#shared/engines/upstream/decoder.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { isHighSurrogate, SurrogateBuffer } from '#shared/lib/surrogate-buffer.ts'
import { cutByWords, NO_FIGURES, readLogprobs, readSegments, readWords, withWords } from './shapes.ts'

/** Maximum characters of one text event, which keeps records small. */
const TEXT_CHARS_MAX = 8 * 1024
/** Maximum log probabilities of one text event. */
const LOGPROBS_MAX = 256
/** Maximum plausible duration in seconds. Longer values from a server are ignored, because tokens are computed from the duration. */
const SECONDS_MAX = 7 * 24 * 3_600

export interface CountedTokens {
  readonly input: number
  /** Tokens of the prompt among the input; 0 if unknown. */
  readonly text: number
  readonly output: number
}

/** Facts about a call that are known before its answer. */
export interface DecodeOptions {
  readonly model: string
  readonly language: string
  readonly duration: number | undefined
  readonly onSeconds?: ((seconds: number) => void) | undefined
}

/**
 * Reads every answer format of `POST /v1/audio/transcriptions`:
 *
 * 1. Whole, `json`: `{text, logprobs?, usage?}`.
 * 2. Whole, `verbose_json`: with `segments`, and `words` next to or inside them (whisper.cpp, Speaches).
 * 3. Stream of OpenAI: `transcript.text.delta` and `transcript.text.done`.
 * 4. Stream of vLLM: `transcription.chunk`, shaped like a chat chunk.
 * 5. Stream of Speaches: a whole object per segment, without an end event.
 * 6. Stream of our local server: `sluice.segment` and `sluice.progress` in addition to OpenAI's events.
 */
export class TranscriptDecoder implements Decoder<TranscribeEvent> {
  readonly #options: DecodeOptions
  readonly #characters = new SurrogateBuffer()
  #language: string
  #duration: number | undefined
  #isStarted = false
  #isDone = false
  /** Whether the stream has an end event. A stream without one is complete when it ends. */
  #hasOwnEnd = false
  #text = ''
  #segments = 0
  /** Token counts of the segments, used unless the upstream reports a total. */
  #segmentTokens = 0
  #lastEnd = 0
  counted: CountedTokens | undefined

  constructor(options: DecodeOptions) {
    this.#options = options
    this.#language = options.language
    this.#duration = options.duration
  }

  /** True if no relevant data can follow. */
  get isDone(): boolean {
    return this.#isDone
  }

  get text(): string {
    return this.#text
  }

  /** Number of tokens of the segments; 0 if unknown. */
  get segmentTokens(): number {
    return this.#segmentTokens
  }

  /** Duration in seconds, as decoded or as the upstream reports; 0 if unknown. */
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
    if (typeof body.text !== 'string') throw answerError(this.#options.model, 'gave an answer without text')
    this.#read(body)
    this.#pushText(body.text.trim(), out, readLogprobs(body.logprobs))
    const words = readWords(body.words)
    const segments = readSegments(body.segments)
    const complete = segments.length > 0 ? withWords(segments, words) : cutByWords(this.#text, words)
    for (const segment of complete) this.#emitSegment(segment, out)
    this.#isDone = true
  }

  end(out: TranscribeEvent[]): void {
    if (this.#hasOwnEnd && !this.#isDone) {
      throw answerError(this.#options.model, 'ended its stream before the transcript was complete')
    }
    this.#start(out)
    this.#pushText(this.#characters.flush(), out)
    if (this.#segments > 0 || this.#text === '') return
    // Every output format needs at least one segment.
    this.#emitSegment({ ...NO_FIGURES, start: 0, end: this.duration, text: this.#text }, out)
  }

  #done(data: Record<string, unknown>, out: TranscribeEvent[]): void {
    this.#read(data)
    if (this.#text === '') this.#pushText(stringOf(data.text).trim(), out, readLogprobs(data.logprobs))
    this.#isDone = true
  }

  /** vLLM: a chat chunk under another name. */
  #chunk(data: Record<string, unknown>, out: TranscribeEvent[]): void {
    this.#hasOwnEnd = true
    this.#readUsage(data.usage)
    for (const choice of data.choices as Record<string, unknown>[]) {
      const { content } = (choice.delta ?? {}) as Record<string, unknown>
      if (typeof content === 'string') this.#pushText(content, out)
      // vLLM sends a finish reason every 30 seconds of audio; only [DONE] ends the stream.
    }
  }

  /** Speaches: one object per segment; in `json` it contains only the text. */
  #piece(data: Record<string, unknown>, out: TranscribeEvent[]): void {
    this.#read(data)
    const text = data.text as string
    const gap = this.#text === '' || /^\s/.test(text) || text === '' ? '' : ' '
    this.#pushText(gap + text, out)
    for (const segment of withWords(readSegments(data.segments), readWords(data.words))) this.#emitSegment(segment, out)
  }

  #pushText(text: string, out: TranscribeEvent[], logprobs?: TokenLogprob[]): void {
    // Whisper's texts begin with a space; a transcript does not.
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
    // Numbered here, because some servers count from 1 or restart in each window.
    out.push({ type: 'segment', segment: { ...segment, id: this.#segments } })
    this.#segments += 1
  }

  #progress(seconds: number): void {
    if (Number.isFinite(seconds)) this.#options.onSeconds?.(seconds)
  }

  /** Reads the fields next to the text. The language may be a code or a name: readers support both. */
  #read(data: Record<string, unknown>): void {
    if (this.#language === '' && typeof data.language === 'string') this.#language = data.language
    // vLLM sends the duration as a string.
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

/** Estimated tokens of audio: ten per started second (docs/reference/compatibility.md, Transcripts). */
export function audioTokensOf(seconds: number): number {
  return 10 * Math.ceil(seconds)
}

/**
 * Splits a text into events that fit into records. The log probabilities are spread over these events, and over further ones if necessary.
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
