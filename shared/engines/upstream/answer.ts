import { StringDecoder } from 'node:string_decoder'
import { createParser, type EventSourceParser } from 'eventsource-parser'
import type { GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { nextTurn, nowOrInTurns } from '#shared/in-turns.ts'
import { joinBytes } from '#shared/join-bytes.ts'
import { TurnPlaces } from '#shared/turn-places.ts'
import { answerError, type Speaker } from './error.ts'
import type { Exchange } from './exchange.ts'
import { answerObject, isSmallFrame, smallObject } from './json.ts'
import type { Upstream, UpstreamCall } from './upstream.ts'
import { completeUsage } from './usage.ts'

/** Characters of one frame of a stream. */
const FRAME_MAX = 8 * 1024 * 1024

/** Bytes of a whole answer, unless its reader says otherwise: three times what may be passed on (`shared/jobs/worker/sink.ts`). */
const WHOLE_MAX = 24 * 1024 * 1024

/** Events that are passed on before others have their turn: about a millisecond. */
const EVENTS_AT_ONCE = 512

/** Turns in which the answers of this process end: an end is as much work as a few tokens, and tokens of others may have come with it. */
const ENDS = new TurnPlaces()

/** Turns one answer of a dialect into events; made anew for each call. */
export interface Decoder<Event> {
  /** Reads the JSON object of one frame and pushes its events. */
  frame(data: Record<string, unknown>, out: Event[]): void
  /** Reads a whole answer and pushes its events: in turns, where it may have very much to do. */
  whole(body: Record<string, unknown>, out: Event[]): Generator<undefined, void> | undefined
  /** Hears the frame that is not JSON: true when it ends the stream well. */
  isEnd(data: string): boolean
  /** The answer has said all it has to say; what follows is of no interest. */
  readonly isDone: boolean
  /**
   * The whole answer was received, though the mark of its end may be missing: each choice has its finish reason, or the message
   * its stop reason. Then a connection that breaks or falls silent ends the answer well. Absent: only the mark ends it.
   */
  readonly isComplete?: boolean
  /** Pushes what was held back and `finish`, for each choice. @throws ServiceError when the answer is not complete */
  end(out: Event[]): void
}

/** The decoder of generated text. */
export interface AnswerDecoder extends Decoder<GenerateEvent> {
  /** Usage as the upstream counted it. Counts that it left out are estimated. */
  readonly usage: Partial<Usage> | undefined
  /** Usage in the words of the upstream, for a caller of the same dialect. */
  readonly nativeUsage?: NativeUsage | undefined
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
  open: () => Promise<UpstreamCall>,
  decoder: AnswerDecoder,
): AsyncGenerator<GenerateEvent, void, undefined> {
  const exchange = await upstream.call(await open())
  const out: GenerateEvent[] = []
  let written = ''
  try {
    const reader = openReader(exchange, decoder)
    for (let isRead = false, isOver = false; !isOver; ) {
      if (!isRead) {
        await exchange.waitForBytes()
        const read = reader.read(exchange.take(), out)
        isRead = typeof read === 'boolean' ? read : await read
        if (isRead) exchange.release(decoder.isDone)
      }
      // The last words do not wait with their end. The first do: where it is none, another model may still say them.
      isOver = isRead && (written === '' || out.length === 0)
      if (isOver) await endInTurn(decoder, out)
      for (const [index, event] of out.entries()) {
        if (index % EVENTS_AT_ONCE === EVENTS_AT_ONCE - 1) await nextTurn()
        if ('text' in event && event.type !== 'native') written += event.text
        yield event
      }
      out.length = 0
    }
    const { nativeUsage } = decoder
    const usage = await completeUsage(decoder.usage, request, written)
    yield { type: 'usage', usage, ...(nativeUsage && { native_usage: nativeUsage }) }
  } finally {
    exchange.release(decoder.isDone)
  }
}

/** @throws ServiceError when the answer is not complete */
async function endInTurn(decoder: AnswerDecoder, out: GenerateEvent[]): Promise<void> {
  const place = ENDS.enter()
  if (place) await place
  decoder.end(out)
}

/** Reads the bytes of an answer as they come. */
export interface AnswerReader<Event> {
  /**
   * Pushes the events that are complete. No chunks: the bytes have ended. Gives true when the answer has; without a promise where
   * that took no longer than others may wait for their turn.
   */
  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean>
}

/** How much of a whole answer is read. */
export interface WholeBounds {
  /** Default: what an answer of text may have. */
  readonly bytes?: number
  /** The same. */
  readonly values?: number
}

/**
 * The reader of an answer, by its content type.
 *
 * @param bounds Of an answer that is no stream, where it is not one of text.
 * @throws ServiceError when that is none we read
 */
export function openReader<Event>(
  exchange: Exchange,
  decoder: Decoder<Event>,
  bounds: WholeBounds = {},
): AnswerReader<Event> {
  const { mediaType, speaker } = exchange
  if (mediaType === 'text/event-stream') return new FrameReader(speaker, decoder)
  if (mediaType === 'application/json' || mediaType.endsWith('+json')) return new WholeReader(speaker, decoder, bounds)
  // Anything can stand in that header; what is shown is a type that is in use.
  const named = /^(text|application)\/[a-z0-9.+]{1,20}$/.test(mediaType) ? `content type '${mediaType}'` : 'no JSON'
  throw answerError(speaker.model, `answered with ${named}`)
}

class FrameReader<Event> implements AnswerReader<Event> {
  readonly #speaker: Speaker
  readonly #decoder: Decoder<Event>
  readonly #bytes = new StringDecoder('utf8')
  readonly #parser: EventSourceParser
  /** Of the last bytes, not read yet. */
  readonly #frames: string[] = []

  constructor(speaker: Speaker, decoder: Decoder<Event>) {
    this.#speaker = speaker
    this.#decoder = decoder
    this.#parser = createParser({
      maxBufferSize: FRAME_MAX,
      onEvent: ({ data }) => void this.#frames.push(data),
      onError: (error) => {
        // Unknown fields are none of our business (servers put notes there); an endless frame is.
        if (error.type !== 'max-buffer-size-exceeded') return
        throw answerError(speaker.model, 'sent a frame that is too long', error)
      },
    })
  }

  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean> {
    return nowOrInTurns(this.#read(chunks, out))
  }

  *#read(chunks: readonly Buffer[], out: Event[]): Generator<undefined, boolean> {
    const decoder = this.#decoder
    for (const chunk of chunks) {
      this.#parser.feed(this.#bytes.write(chunk))
      for (const data of this.#frames) {
        if (decoder.isDone || data === '' || decoder.isEnd(data)) continue
        const frame = isSmallFrame(data)
          ? smallObject(this.#speaker, data)
          : yield* answerObject(this.#speaker, Buffer.from(data))
        understood(this.#speaker.model, () => decoder.frame(frame, out))
        yield
      }
      this.#frames.length = 0
    }
    return chunks.length === 0 || decoder.isDone
  }
}

class WholeReader<Event> implements AnswerReader<Event> {
  readonly #speaker: Speaker
  readonly #decoder: Decoder<Event>
  readonly #bounds: WholeBounds
  readonly #chunks: Buffer[] = []
  #size = 0

  constructor(speaker: Speaker, decoder: Decoder<Event>, bounds: WholeBounds) {
    this.#speaker = speaker
    this.#decoder = decoder
    this.#bounds = bounds
  }

  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean> {
    if (chunks.length === 0) return nowOrInTurns(this.#end(out))
    this.#chunks.push(...chunks)
    for (const chunk of chunks) this.#size += chunk.length
    if (this.#size > (this.#bounds.bytes ?? WHOLE_MAX))
      throw answerError(this.#speaker.model, 'gave an answer that is too long')
    return false
  }

  *#end(out: Event[]): Generator<undefined, true> {
    const { model } = this.#speaker
    const body = yield* answerObject(this.#speaker, yield* joinBytes(this.#chunks, this.#size), this.#bounds.values)
    const rest = understood(model, () => this.#decoder.whole(body, out))
    if (!rest) return true
    while (!understood(model, () => rest.next()).done) yield
    return true
  }
}

/** Runs a decoder, which trusts the shapes it reads: what it stumbles over is the upstream's fault. */
function understood<T>(model: string, decode: () => T): T {
  try {
    return decode()
  } catch (error) {
    if (error instanceof ServiceError) throw error
    throw answerError(model, 'sent an answer of an unknown shape', error)
  }
}
