import { StringDecoder } from 'node:string_decoder'
import { createParser, type EventSourceParser } from 'eventsource-parser'
import { ServiceError } from '#shared/error.ts'
import { runNowOrYielding } from '#shared/yielding.ts'
import type { AnswerReader, Decoder } from './decoder.ts'
import { answerError, errorInAnswer, hasError, type Speaker } from './error.ts'
import { answerObject, isJson, isSmallFrame, isUnreadable, smallObject } from './json.ts'

/** Characters of one frame of a stream. */
const FRAME_MAX = 8 * 1024 * 1024
/** Characters of a line of JSON among the events of a stream. */
export const BARE_MAX = 64 * 1024
/** Frames that carry nothing; some servers send them to keep the connection open. */
const NOTHING = new Set(['', 'null', '""', '[]', '{}'])

interface Frame {
  readonly event: string | undefined
  readonly data: string
  /** The frame has no end, so that it may lack some of its text. */
  readonly isLast: boolean
}

/** Reads a stream of events, and lines of JSON among them. */
export class FrameReader<Event> implements AnswerReader<Event> {
  readonly #speaker: Speaker
  readonly #decoder: Decoder<Event>
  readonly #bytes = new StringDecoder('utf8')
  readonly #parser: EventSourceParser
  /** Of the last bytes, not read yet. */
  readonly #frames: Frame[] = []
  /** JSON without `data:`, as far as it came: an error that ends a stream, or a line of JSON lines. */
  #bare = ''
  /** Start of a line of such JSON. */
  #tail = ''
  /** The parser has the start of a line. */
  #isInLine = false
  #isEnding = false

  constructor(speaker: Speaker, decoder: Decoder<Event>) {
    this.#speaker = speaker
    this.#decoder = decoder
    this.#parser = createParser({
      maxBufferSize: FRAME_MAX,
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
    return runNowOrYielding(chunks.length === 0 ? this.endInTurns(out) : this.readInTurns(chunks, out))
  }

  async cut(out: Event[]): Promise<boolean> {
    await runNowOrYielding(this.endInTurns(out))
    return this.isComplete
  }

  *readInTurns(chunks: readonly Buffer[], out: Event[]): Generator<undefined, boolean> {
    for (const chunk of chunks) {
      this.#feed(this.#bytes.write(chunk))
      yield
      yield* this.#decode(out)
    }
    return this.#decoder.isDone
  }

  /** A last frame counts without the blank line after it. */
  *endInTurns(out: Event[]): Generator<undefined, true> {
    this.#isEnding = true
    this.#parser.feed(`${this.#tail}${this.#bytes.end()}\n\n`)
    yield* this.#decode(out)
    return true
  }

  /** The parser drops a line that is no field as soon as it sees its start, so JSON is held back to the end of its line. */
  #feed(text: string): void {
    const all = this.#tail + text
    const end = all.endsWith('\n') ? all.length : all.lastIndexOf('\n') + 1
    if (end > 0) this.#parser.feed(end === all.length ? all : all.slice(0, end))
    const rest = end === all.length ? '' : all.slice(end)
    const isLineStart = end > 0 || !this.#isInLine
    const isBare = rest !== '' && isLineStart && (this.#bare !== '' || rest.startsWith('{') || rest.startsWith('['))
    this.#tail = isBare ? rest : ''
    this.#isInLine = rest !== '' && !isBare
    if (this.#tail.length > BARE_MAX) throw this.#tooLong()
    if (this.#isInLine) this.#parser.feed(rest)
  }

  /** Gathers the lines of one JSON object. Other unknown fields are notes of servers, and ignored. */
  #bareLine(line: string): void {
    if (this.#bare === '' && !/^[{[]/.test(line)) return
    this.#bare += `${line}\n`
    if (this.#bare.length > BARE_MAX) throw this.#tooLong()
    // One try for each object, or a stream of closing brackets would be parsed as often as it has lines.
    const isOne = this.#bare.length === line.length + 1 && /[}\]]\s*$/.test(line)
    if (!isOne && !/^[}\]]/.test(line)) return
    if (isJson(this.#bare)) this.#frames.push({ event: undefined, data: this.#bare, isLast: false })
    this.#bare = ''
  }

  *#decode(out: Event[]): Generator<undefined, void> {
    for (const frame of this.#frames) {
      if (this.#decoder.isDone) break
      yield* this.#frame(frame, out)
      yield
    }
    this.#frames.length = 0
  }

  *#frame({ event, data, isLast }: Frame, out: Event[]): Generator<undefined, void> {
    const text = isSmallFrame(data) ? data.trim() : data
    if (event !== 'error' && (NOTHING.has(text) || this.#decoder.isEnd(text))) return
    let frame: Record<string, unknown>
    try {
      frame = isSmallFrame(text)
        ? smallObject(this.#speaker, text)
        : yield* answerObject(this.#speaker, Buffer.from(text))
    } catch (error) {
      if (!isUnreadable(error)) throw error
      if (event === 'error') throw errorInAnswer(this.#speaker, { message: text }, text.length)
      // Cut off, or after the whole answer: the frames before it decide whether the answer is complete.
      if (isLast || this.#decoder.isComplete) return
      throw error
    }
    if (event === 'error' && !hasError(frame)) throw errorInAnswer(this.#speaker, frame, text.length)
    understood(this.#speaker.model, () => this.#decoder.frame(frame, out))
  }

  #tooLong(cause?: unknown): ServiceError {
    return answerError(this.#speaker.model, 'sent a frame that is too long', cause)
  }
}

/** Runs a decoder, which trusts the shapes it reads: an exception is the upstream's fault. */
export function understood<T>(model: string, decode: () => T): T {
  try {
    return decode()
  } catch (error) {
    if (error instanceof ServiceError) throw error
    throw answerError(model, 'sent an answer of an unknown shape', error)
  }
}
