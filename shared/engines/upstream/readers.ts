import { StringDecoder } from 'node:string_decoder'
import { createParser, type EventSourceParser } from 'eventsource-parser'
import { endOfString } from '#shared/json/read.ts'
import { concatBytes } from '#shared/lib/concat-bytes.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runNowOrYielding } from '#shared/lib/yielding.ts'
import { answerError, type ErrorContext, errorInAnswer, hasError } from './error.ts'
import type { Exchange } from './exchange.ts'
import {
  type AnswerReader,
  answerObject,
  type Decoder,
  isJson,
  isSmallFrame,
  isUnreadable,
  smallObject,
  type WholeBounds,
} from './json.ts'

/**
 * Readers of answers in three formats: a stream of events (SSE), one JSON object, or one JSON object per line.
 *
 * The first bytes decide, because servers and proxies send wrong content types: SSE as `application/json`, or a JSON error as `text/event-stream`.
 * The content type decides only if the first bytes match none of the formats.
 */

/** Default maximum bytes of an answer that is one JSON object. A worker accepts a third of this size per call (`shared/jobs/worker/attempt.ts`). */
const WHOLE_BYTES_MAX = 24 * 1024 * 1024

const [OPEN_ARRAY, OPEN_OBJECT] = [0x5b, 0x7b]
const BLANKS = new Set([0x09, 0x0a, 0x0d, 0x20])
const BYTE_ORDER_MARK = Buffer.of(0xef, 0xbb, 0xbf)
const BLANKS_MAX = 1024 * 1024
const MODEL_CHARS_MAX = 512
const FIELD_BYTES = 6
const FIELD = /^(?:data|event|id|retry)?:/
const LINES = /[/+-](?:x-)?(?:nd-?json|jsonl|jsonlines|json-?lines|stream\+json)$/

/**
 * Opens the reader of an answer. The first bytes select the format.
 *
 * @param bounds Maximum sizes of an answer that is one JSON object. Default: {@link WHOLE_BYTES_MAX}, and the number of values in `json.ts`
 */
export function openReader<Event>(
  exchange: Exchange,
  decoder: Decoder<Event>,
  bounds: WholeBounds = {},
): AnswerReader<Event> {
  return new SniffingReader(exchange, decoder, bounds)
}

class SniffingReader<Event> implements AnswerReader<Event> {
  readonly #exchange: Exchange
  readonly #decoder: Decoder<Event>
  readonly #bounds: WholeBounds
  #first: Buffer = Buffer.alloc(0)
  #size = 0
  #reader: AnswerReader<Event> | undefined

  constructor(exchange: Exchange, decoder: Decoder<Event>, bounds: WholeBounds) {
    this.#exchange = exchange
    this.#decoder = exchange.onModel ? new ModelReader(decoder, exchange.onModel) : decoder
    this.#bounds = bounds
  }

  get isComplete(): boolean {
    return this.#reader?.isComplete ?? false
  }

  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean> {
    if (this.#reader) return this.#reader.read(chunks, out)
    const isAll = chunks.length === 0
    for (const chunk of chunks) this.#size += chunk.length
    this.#first = withoutBlanks(Buffer.concat([this.#first, ...chunks]))
    this.#reader = this.#choose(this.#first, isAll)
    if (!this.#reader) return false
    const first = this.#first
    this.#first = Buffer.alloc(0)
    if (!isAll || first.length === 0) return this.#reader.read(isAll ? [] : [first], out)
    return this.#readAll(this.#reader, first, out)
  }

  async #readAll(reader: AnswerReader<Event>, bytes: Buffer, out: Event[]): Promise<boolean> {
    return (await reader.read([bytes], out)) || (await reader.read([], out))
  }

  cut(out: Event[]): boolean | Promise<boolean> {
    return this.#reader?.cut(out) ?? false
  }

  #choose(first: Buffer, isAll: boolean): AnswerReader<Event> | undefined {
    const { mediaType, errorContext } = this.#exchange
    const isStream = mediaType === 'text/event-stream'
    const isJson = mediaType === 'application/json' || mediaType.endsWith('+json')
    if (first.length === 0 && this.#size > BLANKS_MAX) throw answerError(errorContext.model, 'sent no answer')
    if (first.length === 0 && !isAll) return undefined
    if (first[0] === OPEN_OBJECT || first[0] === OPEN_ARRAY) {
      return LINES.test(mediaType) ? this.#frames() : this.#whole()
    }
    const text = first.toString('latin1', 0, FIELD_BYTES)
    if (isStream || FIELD.test(text)) return this.#frames()
    if (first.length < FIELD_BYTES && !isAll) return undefined
    if (isJson) return this.#whole()
    // The header may contain any text, so the error message repeats only usual content types.
    const named = /^(text|application)\/[a-z0-9.+-]{1,20}$/.test(mediaType) ? `content type '${mediaType}'` : 'no JSON'
    throw answerError(errorContext.model, `responded with ${named}`)
  }

  #frames(): FrameReader<Event> {
    return new FrameReader(this.#exchange.errorContext, this.#decoder)
  }

  #whole(): WholeReader<Event> {
    const isMeasured = this.#exchange.headers['content-length'] !== undefined
    return new WholeReader(this.#exchange.errorContext, this.#decoder, this.#bounds, isMeasured)
  }
}

/** Reports the first model name in an answer. Used only for traced calls. */
class ModelReader<Event> implements Decoder<Event> {
  readonly #decoder: Decoder<Event>
  #onModel: ((name: string) => void) | undefined

  constructor(decoder: Decoder<Event>, onModel: (name: string) => void) {
    this.#decoder = decoder
    this.#onModel = onModel
  }

  get isDone(): boolean {
    return this.#decoder.isDone
  }

  get isComplete(): boolean {
    return this.#decoder.isComplete ?? false
  }

  frame(data: Record<string, unknown>, out: Event[]): void {
    this.#readModel(data)
    this.#decoder.frame(data, out)
  }

  whole(body: Record<string, unknown>, out: Event[]): Generator<undefined, void> | undefined {
    this.#readModel(body)
    return this.#decoder.whole(body, out)
  }

  isEnd(data: string): boolean {
    return this.#decoder.isEnd(data)
  }

  end(out: Event[]): Generator<undefined, void> | undefined {
    return this.#decoder.end(out)
  }

  /** Streams of Anthropic name the model in `message`, and streams of the Responses API in `response`. */
  #readModel({ model, message, response }: Record<string, unknown>): void {
    if (!this.#onModel) return
    const name =
      model ?? (message as { model?: unknown } | null)?.model ?? (response as { model?: unknown } | null)?.model
    if (typeof name !== 'string' || name === '' || name.length > MODEL_CHARS_MAX) return
    this.#onModel(name)
    this.#onModel = undefined
  }
}

/** Removes a byte order mark, and whitespace that servers send to keep the connection open. */
function withoutBlanks(bytes: Buffer): Buffer {
  let at = bytes.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK) ? BYTE_ORDER_MARK.length : 0
  while (at < bytes.length && BLANKS.has(bytes[at] ?? 0)) at++
  return bytes.subarray(at)
}

class WholeReader<Event> implements AnswerReader<Event> {
  readonly #errorContext: ErrorContext
  readonly #decoder: Decoder<Event>
  readonly #bounds: WholeBounds
  readonly #chunks: Buffer[] = []
  readonly #scanner: JsonEnd | undefined
  #size = 0
  #isClosed = false

  /** @param isMeasured Whether the answer declares its length, so that a truncated answer is detected. */
  constructor(errorContext: ErrorContext, decoder: Decoder<Event>, bounds: WholeBounds, isMeasured: boolean) {
    this.#errorContext = errorContext
    this.#decoder = decoder
    this.#bounds = bounds
    this.#scanner = isMeasured ? undefined : new JsonEnd()
  }

  get isComplete(): boolean {
    return this.#isClosed
  }

  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean> {
    if (chunks.length === 0) return runNowOrYielding(this.#end(out))
    for (const chunk of chunks) {
      this.#chunks.push(chunk)
      this.#size += chunk.length
      this.#isClosed = this.#scanner?.push(chunk) ?? false
    }
    const bytesMax = this.#bounds.bytes ?? WHOLE_BYTES_MAX
    if (this.#size > bytesMax)
      throw answerError(this.#errorContext.model, `sent a response of more than ${bytesMax} bytes`)
    return false
  }

  async cut(out: Event[]): Promise<boolean> {
    try {
      return await runNowOrYielding(this.#end(out))
    } catch (error) {
      if (isUnreadable(error)) return false
      throw error
    }
  }

  *#end(out: Event[]): Generator<undefined, true> {
    const { model } = this.#errorContext
    const json = yield* concatBytes(this.#chunks, this.#size)
    let body: Record<string, unknown>
    try {
      body = yield* answerObject(this.#errorContext, json, this.#bounds.values)
    } catch (error) {
      if (!isUnreadable(error) || !isJson(firstLineOf(json))) throw error
      return yield* this.#lines(json, out)
    }
    const rest = decodeOrFail(model, () => this.#decoder.whole(body, out))
    if (!rest) return true
    while (!decodeOrFail(model, () => rest.next()).done) yield
    return true
  }

  *#lines(json: Buffer, out: Event[]): Generator<undefined, true> {
    const frames = new FrameReader(this.#errorContext, this.#decoder)
    for (let at = 0; at < json.length; at += BARE_LINE_CHARS_MAX)
      yield* frames.readYielding([json.subarray(at, at + BARE_LINE_CHARS_MAX)], out)
    return yield* frames.endYielding(out)
  }
}

function firstLineOf(json: Buffer): string {
  const end = json.indexOf('\n')
  return end > 0 && end <= BARE_LINE_CHARS_MAX ? json.toString('utf8', 0, end) : ''
}

class JsonEnd {
  #depth = 0
  #isInString = false
  /** Number of bytes to skip at the start of the next piece, because a backslash at the end of the previous piece escapes these bytes. */
  #skipped = 0

  push(bytes: Buffer): boolean {
    let at = this.#skipped
    this.#skipped = 0
    while (at < bytes.length) {
      if (this.#isInString) {
        at = endOfString(bytes, at, bytes.length)
        this.#isInString = at >= bytes.length
        if (this.#isInString) this.#skipped = at - bytes.length
        else at++
        continue
      }
      const byte = bytes[at++]
      if (byte === 0x22) this.#isInString = true
      else if (byte === OPEN_ARRAY || byte === OPEN_OBJECT) this.#depth++
      else if (byte === 0x5d || byte === 0x7d) this.#depth--
    }
    return this.#depth === 0 && !this.#isInString
  }
}

const FRAME_CHARS_MAX = 8 * 1024 * 1024
const SMALL_READ_BYTES = 4 * 1024
/** Maximum characters of a JSON line outside of SSE events. */
const BARE_LINE_CHARS_MAX = 64 * 1024
/** Empty frames, which some servers send to keep the connection open. */
const KEEPALIVE_FRAMES = new Set(['', 'null', '""', '[]', '{}'])

interface Frame {
  readonly event: string | undefined
  readonly data: string
  /** Whether the connection ended within the frame, so that the text may be truncated. */
  readonly isLast: boolean
}

class FrameReader<Event> implements AnswerReader<Event> {
  readonly #errorContext: ErrorContext
  readonly #decoder: Decoder<Event>
  readonly #bytes = new StringDecoder('utf8')
  readonly #parser: EventSourceParser
  readonly #frames: Frame[] = []
  /** Text of a JSON object that arrived without `data:`. The object is an error that ends a stream, or one of the JSON lines. */
  #bare = ''
  /** Incomplete JSON line without `data:`. */
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
        if (error.type === 'max-buffer-size-exceeded') throw this.#tooLong(FRAME_CHARS_MAX, error)
        // llama.cpp sends an error as a field `error: {…}` instead of `data: {…}`.
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
    // Most reads contain one small frame, which is decoded here without the cost of a generator.
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

  /** Ends the stream. The last frame is read even if the blank line after it is missing. */
  *endYielding(out: Event[]): Generator<undefined, true> {
    this.#isEnding = true
    this.#parser.feed(`${this.#tail}${this.#bytes.end()}\n\n`)
    yield* this.#decode(out)
    return true
  }

  /** Feeds text to the SSE parser. An incomplete JSON line without `data:` is buffered first, because the parser would drop the start of the line. */
  #feed(text: string): void {
    const all = this.#tail + text
    const end = all.endsWith('\n') ? all.length : all.lastIndexOf('\n') + 1
    if (end > 0) this.#parser.feed(end === all.length ? all : all.slice(0, end))
    const rest = end === all.length ? '' : all.slice(end)
    const isLineStart = end > 0 || !this.#isInLine
    const isBare = rest !== '' && isLineStart && (this.#bare !== '' || rest.startsWith('{') || rest.startsWith('['))
    this.#tail = isBare ? rest : ''
    this.#isInLine = rest !== '' && !isBare
    if (this.#tail.length > BARE_LINE_CHARS_MAX) throw this.#tooLong(BARE_LINE_CHARS_MAX)
    if (this.#isInLine) this.#parser.feed(rest)
  }

  /** Collects the lines of a JSON object without `data:`. All other lines with unknown SSE fields are ignored. */
  #bareLine(line: string): void {
    if (this.#bare === '' && !/^[{[]/.test(line)) return
    this.#bare += `${line}\n`
    if (this.#bare.length > BARE_LINE_CHARS_MAX) throw this.#tooLong(BARE_LINE_CHARS_MAX)
    // The object is parsed only if its first line ends with a closing brace or bracket, or a later line begins with one. Parsing after every line
    // would take quadratic time.
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
    // An unreadable frame is tolerated in two cases: the frame is the last one and may be truncated, or the answer is
    // already complete. In both cases, the earlier frames decide whether the answer is complete.
    if (!isLast && !this.#decoder.isComplete) throw error
  }

  #push({ event, data: text }: Frame, data: Record<string, unknown>, out: Event[]): void {
    if (event === 'error' && !hasError(data)) throw errorInAnswer(this.#errorContext, data, text.length)
    decodeOrFail(this.#errorContext.model, () => this.#decoder.frame(data, out))
  }

  #tooLong(charsMax: number, cause?: unknown): ServiceError {
    return answerError(this.#errorContext.model, `sent a frame of more than ${charsMax} characters`, cause)
  }
}

/** Runs a decoder. Decoders do not validate types, so any exception becomes an `upstream_error`. */
function decodeOrFail<T>(model: string, decode: () => T): T {
  try {
    return decode()
  } catch (error) {
    if (error instanceof ServiceError) throw error
    throw answerError(model, 'sent a response in an unknown format', error)
  }
}
