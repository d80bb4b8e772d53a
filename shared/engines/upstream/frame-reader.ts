import { StringDecoder } from 'node:string_decoder'
import { createParser, type EventSourceParser } from 'eventsource-parser'
import { ServiceError } from '#shared/lib/error.ts'
import { runNowOrYielding } from '#shared/lib/yielding.ts'
import type { AnswerReader, Decoder } from './decoder.ts'
import { answerError, type ErrorContext, errorInAnswer, hasError } from './error.ts'
import { answerObject, isJson, isSmallFrame, isUnreadable, smallObject } from './json.ts'

const FRAME_CHARS_MAX = 8 * 1024 * 1024
/** Maximum bytes that are read without event-loop yields. */
const SMALL_READ_BYTES = 4 * 1024
/** Maximum characters of a line of JSON among the events of a stream. */
export const BARE_LINE_CHARS_MAX = 64 * 1024
/** Empty frames, which some servers send to keep the connection open. */
const KEEPALIVE_FRAMES = new Set(['', 'null', '""', '[]', '{}'])

interface Frame {
  readonly event: string | undefined
  readonly data: string
  /** Whether the stream ended within the frame, so that its text may be truncated. */
  readonly isLast: boolean
}

export class FrameReader<Event> implements AnswerReader<Event> {
  readonly #errorContext: ErrorContext
  readonly #decoder: Decoder<Event>
  readonly #bytes = new StringDecoder('utf8')
  readonly #parser: EventSourceParser
  readonly #frames: Frame[] = []
  /** JSON without `data:`, received so far: an error that ends a stream, or a line of JSON lines. */
  #bare = ''
  /** Start of an incomplete line of JSON without `data:`. */
  #tail = ''
  #isInLine = false
  #isEnding = false

  constructor(errorContext: ErrorContext, decoder: Decoder<Event>) {
    this.#errorContext = errorContext
    this.#decoder = decoder
    this.#parser = createParser({
      maxBufferSize: FRAME_CHARS_MAX,
      onEvent: ({ event, data }) => {
        this.#frames.push({ event, data, isLast: this.#isEnding })
        this.#bare = ''
      },
      onError: (error) => {
        if (error.type === 'max-buffer-size-exceeded') throw this.#tooLong(error)
        // llama.cpp: `error: {…}`.
        if (error.field === 'error' && error.value)
          this.#frames.push({ event: 'error', data: error.value, isLast: false })
        else this.#bareLine(error.line ?? '')
      },
    })
  }

  get isComplete(): boolean {
    return this.#decoder.isDone || this.#decoder.isComplete === true
  }

  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean> {
    const [chunk] = chunks
    if (!chunk) return runNowOrYielding(this.endYielding(out))
    if (chunks.length > 1 || chunk.length > SMALL_READ_BYTES) return runNowOrYielding(this.readYielding(chunks, out))
    // Most reads are one small frame, which needs no generator.
    this.#feed(this.#bytes.write(chunk))
    const [frame] = this.#frames
    if (!frame || this.#decoder.isDone) return this.#decoder.isDone
    if (this.#frames.length > 1 || !isSmallFrame(frame.data)) return runNowOrYielding(this.#decode(out))
    this.#frames.length = 0
    this.#decodeSmall(frame, out)
    return this.#decoder.isDone
  }

  async cut(out: Event[]): Promise<boolean> {
    await runNowOrYielding(this.endYielding(out))
    return this.isComplete
  }

  *readYielding(chunks: readonly Buffer[], out: Event[]): Generator<undefined, boolean> {
    for (const chunk of chunks) {
      this.#feed(this.#bytes.write(chunk))
      yield
      yield* this.#decode(out)
    }
    return this.#decoder.isDone
  }

  /** A last frame counts even without the blank line after it. */
  *endYielding(out: Event[]): Generator<undefined, true> {
    this.#isEnding = true
    this.#parser.feed(`${this.#tail}${this.#bytes.end()}\n\n`)
    yield* this.#decode(out)
    return true
  }

  /**
   * The parser drops a line that is no SSE field as soon as it sees the start. Lines of JSON are therefore held back until they are
   * complete.
   */
  #feed(text: string): void {
    const all = this.#tail + text
    const end = all.endsWith('\n') ? all.length : all.lastIndexOf('\n') + 1
    if (end > 0) this.#parser.feed(end === all.length ? all : all.slice(0, end))
    const rest = end === all.length ? '' : all.slice(end)
    const isLineStart = end > 0 || !this.#isInLine
    const isBare = rest !== '' && isLineStart && (this.#bare !== '' || rest.startsWith('{') || rest.startsWith('['))
    this.#tail = isBare ? rest : ''
    this.#isInLine = rest !== '' && !isBare
    if (this.#tail.length > BARE_LINE_CHARS_MAX) throw this.#tooLong()
    if (this.#isInLine) this.#parser.feed(rest)
  }

  /** Collects the lines of one JSON object. Other unknown fields are ignored. */
  #bareLine(line: string): void {
    if (this.#bare === '' && !/^[{[]/.test(line)) return
    this.#bare += `${line}\n`
    if (this.#bare.length > BARE_LINE_CHARS_MAX) throw this.#tooLong()
    // One parse attempt per object. Otherwise a stream of closing brackets would be parsed once per line.
    const isOne = this.#bare.length === line.length + 1 && /[}\]]\s*$/.test(line)
    if (!isOne && !/^[}\]]/.test(line)) return
    if (isJson(this.#bare)) this.#frames.push({ event: undefined, data: this.#bare, isLast: false })
    this.#bare = ''
  }

  *#decode(out: Event[]): Generator<undefined, boolean> {
    for (const frame of this.#frames) {
      if (this.#decoder.isDone) break
      if (isSmallFrame(frame.data)) this.#decodeSmall(frame, out)
      else yield* this.#decodeLarge(frame, out)
      yield
    }
    this.#frames.length = 0
    return this.#decoder.isDone
  }

  #decodeSmall(frame: Frame, out: Event[]): void {
    const text = frame.data.trim()
    if (this.#isWithoutData(frame, text)) return
    let data: Record<string, unknown>
    try {
      data = smallObject(this.#errorContext, text)
    } catch (error) {
      return this.#onUndecoded(error, frame)
    }
    this.#push(frame, data, out)
  }

  *#decodeLarge(frame: Frame, out: Event[]): Generator<undefined, void> {
    if (this.#isWithoutData(frame, frame.data)) return
    let data: Record<string, unknown>
    try {
      data = yield* answerObject(this.#errorContext, Buffer.from(frame.data))
    } catch (error) {
      return this.#onUndecoded(error, frame)
    }
    this.#push(frame, data, out)
  }

  #isWithoutData({ event }: Frame, text: string): boolean {
    return event !== 'error' && (KEEPALIVE_FRAMES.has(text) || this.#decoder.isEnd(text))
  }

  #onUndecoded(error: unknown, { event, data, isLast }: Frame): void {
    if (!isUnreadable(error)) throw error
    if (event === 'error') throw errorInAnswer(this.#errorContext, { message: data.trim() }, data.length)
    // The frame is truncated, or follows the whole answer. The earlier frames decide whether the answer is complete.
    if (!isLast && !this.#decoder.isComplete) throw error
  }

  #push({ event, data: text }: Frame, data: Record<string, unknown>, out: Event[]): void {
    if (event === 'error' && !hasError(data)) throw errorInAnswer(this.#errorContext, data, text.length)
    decodeOrFail(this.#errorContext.model, () => this.#decoder.frame(data, out))
  }

  #tooLong(cause?: unknown): ServiceError {
    return answerError(this.#errorContext.model, 'sent a frame that is too long', cause)
  }
}

/** Runs a decoder, which does not validate shapes. Any exception is therefore the upstream's fault. */
export function decodeOrFail<T>(model: string, decode: () => T): T {
  try {
    return decode()
  } catch (error) {
    if (error instanceof ServiceError) throw error
    throw answerError(model, 'sent an answer of an unknown shape', error)
  }
}
