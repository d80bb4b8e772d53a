import { StringDecoder } from 'node:string_decoder'
import { createParser, type EventSourceParser } from 'eventsource-parser'
import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import type { Upstream, UpstreamCall } from './upstream.ts'
import { answerError, errorInAnswer, hasError } from './upstream-error.ts'
import type { Exchange } from './upstream-exchange.ts'
import { estimateUsage } from './upstream-usage.ts'

/** Characters of one frame of a stream. */
const FRAME_MAX = 8 * 1024 * 1024

/** Bytes of a whole answer. */
const WHOLE_MAX = 64 * 1024 * 1024

/** Turns one answer of a dialect into events; made anew for each call. */
export interface AnswerDecoder {
  /** Reads the JSON object of one frame and pushes its events. */
  frame(data: Record<string, unknown>, out: GenerateEvent[]): void
  /** Reads a whole answer and pushes its events. */
  whole(body: Record<string, unknown>, out: GenerateEvent[]): void
  /** Hears the frame that is not JSON: true when it ends the stream well. */
  isEnd(data: string): boolean
  /** The answer has said all it has to say; what follows is of no interest. */
  readonly isDone: boolean
  /** Pushes what was held back and one `finish` for each choice. @throws ServiceError when the answer is not complete */
  end(out: GenerateEvent[]): void
  /** Usage as the upstream counted it; undefined: it did not. */
  readonly usage: (GenerateEvent & { type: 'usage' })['usage'] | undefined
}

/**
 * Makes a call and yields the events of its answer, whether it comes as a stream or as one JSON object: which of the two
 * is told by its content type, since some servers answer in JSON although a stream was asked for.
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
  let written = ''
  try {
    const batches = isJson(exchange)
      ? wholeBatches(exchange, request, decoder)
      : frameBatches(exchange, request, decoder)
    for await (const batch of batches) {
      for (const event of batch) {
        if ('text' in event) written += event.text
        yield event
      }
    }
    yield { type: 'usage', usage: decoder.usage ?? (await estimateUsage(request, written)) }
  } finally {
    exchange.release(decoder.isDone)
  }
}

/** Events in batches, one for each piece that came off the socket. */
async function* frameBatches(
  exchange: Exchange,
  request: GenerateRequest,
  decoder: AnswerDecoder,
): AsyncGenerator<GenerateEvent[], void, undefined> {
  if (exchange.mediaType !== 'text/event-stream') {
    throw answerError(request.model, `answered with content type '${exchange.mediaType.slice(0, 100)}'`)
  }
  let out: GenerateEvent[] = []
  const bytes = new StringDecoder('utf8')
  const frames = frameParser(request.model, decoder, (frame) => {
    understood(request.model, () => decoder.frame(frame, out))
  })
  while (!decoder.isDone) {
    const chunks = await exchange.read()
    if (!chunks) break
    for (const chunk of chunks) frames.feed(bytes.write(chunk))
    if (out.length === 0) continue
    const batch = out
    out = []
    yield batch
  }
  exchange.release(decoder.isDone)
  decoder.end(out)
  yield out
}

async function* wholeBatches(
  exchange: Exchange,
  request: GenerateRequest,
  decoder: AnswerDecoder,
): AsyncGenerator<GenerateEvent[], void, undefined> {
  const out: GenerateEvent[] = []
  const body = parseObject(request.model, await exchange.text(WHOLE_MAX))
  understood(request.model, () => decoder.whole(body, out))
  decoder.end(out)
  yield out
}

function frameParser(
  model: string,
  decoder: AnswerDecoder,
  onFrame: (data: Record<string, unknown>) => void,
): EventSourceParser {
  return createParser({
    maxBufferSize: FRAME_MAX,
    onEvent: ({ data }) => {
      if (decoder.isDone || data === '' || decoder.isEnd(data)) return
      onFrame(parseObject(model, data))
    },
    onError: (error) => {
      // Unknown fields are none of our business (servers put notes there); an endless frame is.
      if (error.type === 'max-buffer-size-exceeded') throw answerError(model, 'sent a frame that is too long', error)
    },
  })
}

/** @throws ServiceError when the text is not a JSON object, or is one that tells of an error */
function parseObject(model: string, text: string): Record<string, unknown> {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch (error) {
    throw answerError(model, 'sent JSON that cannot be read', error)
  }
  if (typeof body !== 'object' || body === null) throw answerError(model, 'sent JSON that is not an object')
  if (hasError(body)) throw errorInAnswer(model, body)
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

function isJson(exchange: Exchange): boolean {
  return exchange.mediaType === 'application/json' || exchange.mediaType.endsWith('+json')
}
