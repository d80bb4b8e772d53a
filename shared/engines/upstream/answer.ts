import { StringDecoder } from 'node:string_decoder'
import { createParser, type EventSourceParser } from 'eventsource-parser'
import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { answerError, errorInAnswer, hasError, type Speaker } from './error.ts'
import type { Exchange } from './exchange.ts'
import type { Upstream, UpstreamCall } from './upstream.ts'
import { estimateUsage } from './usage.ts'

/** Characters of one frame of a stream. */
const FRAME_MAX = 8 * 1024 * 1024

/** Bytes of a whole answer. */
const WHOLE_MAX = 64 * 1024 * 1024

/** Turns one answer of a dialect into events; made anew for each call. */
export interface Decoder<Event> {
  /** Reads the JSON object of one frame and pushes its events. */
  frame(data: Record<string, unknown>, out: Event[]): void
  /** Reads a whole answer and pushes its events. */
  whole(body: Record<string, unknown>, out: Event[]): void
  /** Hears the frame that is not JSON: true when it ends the stream well. */
  isEnd(data: string): boolean
  /** The answer has said all it has to say; what follows is of no interest. */
  readonly isDone: boolean
  /** Pushes what was held back and `finish`, for each choice. @throws ServiceError when the answer is not complete */
  end(out: Event[]): void
}

/** The decoder of generated text. */
export interface AnswerDecoder extends Decoder<GenerateEvent> {
  /** Usage as the upstream counted it; undefined: it did not. */
  readonly usage: (GenerateEvent & { type: 'usage' })['usage'] | undefined
}

/**
 * Makes a call and yields the events of its answer, whether it comes as a stream or as one JSON object: which of the two
 * is told by its content type, since some servers answer in JSON although a stream was asked for.
 *
 * One generator without others inside it: each would cost every token three turns of the microtask queue.
 *
 * @param open Encodes the call; runs when the first event is asked for.
 * @throws ServiceError, or the signal's reason
 */
export async function* answerEvents(
  upstream: Upstream,
  request: GenerateRequest,
  open: () => UpstreamCall,
  decoder: AnswerDecoder,
): AsyncGenerator<GenerateEvent, void, undefined> {
  const exchange = await upstream.call(open())
  const out: GenerateEvent[] = []
  let written = ''
  try {
    const reader = openReader(exchange, decoder)
    for (let isOver = false; !isOver; ) {
      await exchange.waitForBytes()
      isOver = reader.read(exchange.take(), out)
      if (isOver) exchange.release(decoder.isDone)
      if (isOver) decoder.end(out)
      for (const event of out) {
        if ('text' in event) written += event.text
        yield event
      }
      out.length = 0
    }
    yield { type: 'usage', usage: decoder.usage ?? (await estimateUsage(request, written)) }
  } finally {
    exchange.release(decoder.isDone)
  }
}

/** Reads the bytes of an answer as they come. */
export interface AnswerReader<Event> {
  /** Pushes the events that are complete. No chunks: the bytes have ended. True: the answer has. */
  read(chunks: readonly Buffer[], out: Event[]): boolean
}

/**
 * The reader of an answer, by its content type.
 *
 * @param wholeMax Bytes of an answer that is no stream, where these can be few.
 * @throws ServiceError when that is none we read
 */
export function openReader<Event>(
  exchange: Exchange,
  decoder: Decoder<Event>,
  wholeMax: number = WHOLE_MAX,
): AnswerReader<Event> {
  const { mediaType, speaker } = exchange
  if (mediaType === 'text/event-stream') return new FrameReader(speaker, decoder)
  if (mediaType === 'application/json' || mediaType.endsWith('+json'))
    return new WholeReader(speaker, decoder, wholeMax)
  // Anything can stand in that header; what is shown is a type that is in use.
  const named = /^(text|application)\/[a-z0-9.+]{1,20}$/.test(mediaType) ? `content type '${mediaType}'` : 'no JSON'
  throw answerError(speaker.model, `answered with ${named}`)
}

class FrameReader<Event> implements AnswerReader<Event> {
  readonly #decoder: Decoder<Event>
  readonly #bytes = new StringDecoder('utf8')
  readonly #parser: EventSourceParser
  #out: Event[] = []

  constructor(speaker: Speaker, decoder: Decoder<Event>) {
    const { model } = speaker
    this.#decoder = decoder
    this.#parser = createParser({
      maxBufferSize: FRAME_MAX,
      onEvent: ({ data }) => {
        if (decoder.isDone || data === '' || decoder.isEnd(data)) return
        const frame = parseObject(speaker, data)
        understood(model, () => decoder.frame(frame, this.#out))
      },
      onError: (error) => {
        // Unknown fields are none of our business (servers put notes there); an endless frame is.
        if (error.type === 'max-buffer-size-exceeded') throw answerError(model, 'sent a frame that is too long', error)
      },
    })
  }

  read(chunks: readonly Buffer[], out: Event[]): boolean {
    this.#out = out
    for (const chunk of chunks) this.#parser.feed(this.#bytes.write(chunk))
    return chunks.length === 0 || this.#decoder.isDone
  }
}

class WholeReader<Event> implements AnswerReader<Event> {
  readonly #speaker: Speaker
  readonly #decoder: Decoder<Event>
  readonly #bytesMax: number
  readonly #chunks: Buffer[] = []
  #size = 0

  constructor(speaker: Speaker, decoder: Decoder<Event>, bytesMax: number) {
    this.#speaker = speaker
    this.#decoder = decoder
    this.#bytesMax = bytesMax
  }

  read(chunks: readonly Buffer[], out: Event[]): boolean {
    if (chunks.length > 0) {
      this.#chunks.push(...chunks)
      for (const chunk of chunks) this.#size += chunk.length
      if (this.#size > this.#bytesMax) throw answerError(this.#speaker.model, 'gave an answer that is too long')
      return false
    }
    const body = parseObject(this.#speaker, Buffer.concat(this.#chunks).toString('utf8'))
    understood(this.#speaker.model, () => this.#decoder.whole(body, out))
    return true
  }
}

/** @throws ServiceError when the text is not a JSON object, or is one that tells of an error */
function parseObject(speaker: Speaker, text: string): Record<string, unknown> {
  const { model } = speaker
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch (error) {
    throw answerError(model, 'sent JSON that cannot be read', error)
  }
  if (typeof body !== 'object' || body === null) throw answerError(model, 'sent JSON that is not an object')
  if (hasError(body)) throw errorInAnswer(speaker, body)
  return body as Record<string, unknown>
}

/** Runs a decoder, which trusts the shapes it reads: what it stumbles over is the upstream's fault. */
function understood(model: string, decode: () => void): void {
  try {
    decode()
  } catch (error) {
    if (error instanceof ServiceError) throw error
    throw answerError(model, 'sent an answer of an unknown shape', error)
  }
}
