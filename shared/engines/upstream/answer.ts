import type { GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/generate.ts'
import { EVENT_SIZE_MAX, isUncarriable, sizeOf } from '#shared/event-size.ts'
import { TickThrottle } from '#shared/tick-throttle.ts'
import { nextTurn } from '#shared/yielding.ts'
import type { AnswerReader, Decoder } from './decoder.ts'
import { answerError } from './error.ts'
import type { Exchange } from './exchange.ts'
import { openReader } from './readers.ts'
import type { Upstream, UpstreamCall } from './upstream.ts'
import { completeUsage } from './usage.ts'

/** Events that are passed on before others have their turn: about a millisecond. */
const EVENTS_AT_ONCE = 512

/** Log probabilities that are carried in one record (`shared/kinds/generate.ts`). */
const LOGPROBS_AT_ONCE = 64

/** Turns in which the answers of this process end: an end is as much work as a few tokens, and tokens of others may have come with it. */
const ENDS = new TickThrottle()

/** The decoder of generated text. */
export interface AnswerDecoder extends Decoder<GenerateEvent> {
  /** Usage as the upstream counted it. Counts that it left out are estimated. */
  readonly usage: Partial<Usage> | undefined
  /** Usage in the words of the upstream, for a caller of the same dialect. */
  readonly nativeUsage?: NativeUsage | undefined
}

/**
 * Makes a call and yields the events of its answer, whether it comes as a stream or as one JSON object: some servers answer in
 * JSON although a stream was asked for. A connection that breaks after the whole answer, or stays open, does no harm.
 *
 * One generator without others inside it: each would cost every token three turns of the microtask queue.
 *
 * @param open Encodes the call; runs when the first event is asked for.
 * @throws ServiceError, or the signal's reason
 */
export async function* answerEvents(
  upstream: Pick<Upstream, 'call'>,
  request: GenerateRequest,
  open: () => Promise<UpstreamCall>,
  decoder: AnswerDecoder,
): AsyncGenerator<GenerateEvent, void, undefined> {
  const call = await open()
  const exchange = await upstream.call(call)
  const out: GenerateEvent[] = []
  let written = ''
  try {
    const reader = openReader(exchange, decoder)
    for (let isRead = false, isOver = false; !isOver; ) {
      if (!isRead) {
        const failure = await exchange.waitForChange()
        const read = failure === undefined ? reader.read(exchange.take(), out) : readRest(reader, failure, call, out)
        isRead = typeof read === 'boolean' ? read : await read
        noteEnd(exchange, isRead, isRead ? decoder.isDone : reader.isComplete)
      }
      // The last words do not wait with their end. The first do: where it is none, another model may still say them.
      isOver = isRead && (written === '' || out.length === 0)
      if (isOver) await endInTurn(decoder, out)
      for (const [index, event] of out.entries()) {
        if (index % EVENTS_AT_ONCE === EVENTS_AT_ONCE - 1) await nextTurn()
        written += textOf(event)
        requireCarriable(event, request.model)
        yield event
      }
      out.length = 0
    }
    const { nativeUsage } = decoder
    const usage = await completeUsage(decoder.usage, request, written)
    const last: GenerateEvent = { type: 'usage', usage, ...(nativeUsage && { native_usage: nativeUsage }) }
    requireCarriable(last, request.model)
    yield last
  } finally {
    exchange.release(decoder.isDone)
  }
}

function textOf(event: GenerateEvent): string {
  return 'text' in event && event.type !== 'native' ? event.text : ''
}

/**
 * Texts are split into pieces that records can carry, and so are log probabilities. An id, a name or a signature is not.
 *
 * @throws ServiceError `upstream_error`
 */
function requireCarriable(event: GenerateEvent, model: string): void {
  if (sizeOf(event) <= EVENT_SIZE_MAX) return
  const { text: _, logprobs = [], ...rest } = event as GenerateEvent & { text?: string; logprobs?: readonly unknown[] }
  let isLarge = isUncarriable(rest)
  for (let at = 0; at < logprobs.length; at += LOGPROBS_AT_ONCE)
    isLarge ||= isUncarriable(logprobs.slice(at, at + LOGPROBS_AT_ONCE))
  if (isLarge) throw answerError(model, 'sent an id, a name or another field that is too long')
}

function noteEnd(exchange: Exchange, isRead: boolean, isComplete: boolean): void {
  if (isRead) exchange.release(isComplete)
  else if (isComplete) exchange.expectEnd()
}

/** @throws The failure of the connection, unless the whole answer came before it */
async function readRest(
  reader: AnswerReader<GenerateEvent>,
  failure: unknown,
  { signal }: UpstreamCall,
  out: GenerateEvent[],
): Promise<true> {
  if (signal.aborted || !(await reader.cut(out))) throw failure
  return true
}

/** @throws ServiceError when the answer is not complete */
async function endInTurn(decoder: AnswerDecoder, out: GenerateEvent[]): Promise<void> {
  const place = ENDS.enter()
  if (place) await place
  decoder.end(out)
}
