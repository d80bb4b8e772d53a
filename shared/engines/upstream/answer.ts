import type { GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/generate.ts'
import { EVENT_SIZE_MAX, isUncarriable, sizeOf } from '#shared/event-size.ts'
import { TickThrottle } from '#shared/tick-throttle.ts'
import { yieldToEventLoop } from '#shared/yielding.ts'
import type { AnswerReader, Decoder } from './decoder.ts'
import { answerError } from './error.ts'
import type { Exchange } from './exchange.ts'
import { openReader } from './readers.ts'
import type { Upstream, UpstreamCall } from './upstream.ts'
import { completeUsage } from './usage.ts'

/** Events between two event-loop yields: about a millisecond. */
const EVENTS_PER_YIELD = 512

/** Maximum log probabilities of one record (`shared/kinds/generate.ts`). */
const LOGPROBS_PER_RECORD_MAX = 64

/**
 * Spreads the ends of this process's answers over event-loop ticks. An end costs as much as a few tokens, and tokens of other answers may
 * have arrived with it.
 */
const END_THROTTLE = new TickThrottle()

export interface AnswerDecoder extends Decoder<GenerateEvent> {
  /** Usage as the upstream counted it. Missing counts are estimated. */
  readonly usage: Partial<Usage> | undefined
  /** Usage in the upstream's own form, for a caller of the same dialect. */
  readonly nativeUsage?: NativeUsage | undefined
}

/**
 * Makes a call and yields the events of its answer, either a stream or one JSON object.
 *
 * Some servers answer in JSON although a stream was requested. A connection that breaks or stays open after the whole answer is no error.
 *
 * This is a single generator on purpose: each nested one would cost three microtasks per token.
 *
 * @param open Encodes the call; runs when the first event is requested.
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
      // Text is yielded before its end is decoded. If there is no text yet, then the end comes first: should it fail, another model can
      // still answer.
      isOver = isRead && (written === '' || out.length === 0)
      if (isOver) await endThrottled(decoder, out)
      for (const [index, event] of out.entries()) {
        if (index % EVENTS_PER_YIELD === EVENTS_PER_YIELD - 1) await yieldToEventLoop()
        written += textOf(event)
        requireRecordSize(event, request.model)
        yield event
      }
      out.length = 0
    }
    const { nativeUsage } = decoder
    const usage = await completeUsage(decoder.usage, request, written)
    const last: GenerateEvent = { type: 'usage', usage, ...(nativeUsage && { native_usage: nativeUsage }) }
    requireRecordSize(last, request.model)
    yield last
  } finally {
    exchange.release(decoder.isDone)
  }
}

function textOf(event: GenerateEvent): string {
  return 'text' in event && event.type !== 'native' ? event.text : ''
}

/**
 * Texts and log probabilities are split into pieces that fit into records. Ids, names and signatures cannot be split, so long ones are
 * rejected.
 *
 * @throws ServiceError `upstream_error`
 */
function requireRecordSize(event: GenerateEvent, model: string): void {
  if (sizeOf(event) <= EVENT_SIZE_MAX) return
  const { text: _, logprobs = [], ...rest } = event as GenerateEvent & { text?: string; logprobs?: readonly unknown[] }
  let isLarge = isUncarriable(rest)
  for (let at = 0; at < logprobs.length; at += LOGPROBS_PER_RECORD_MAX)
    isLarge ||= isUncarriable(logprobs.slice(at, at + LOGPROBS_PER_RECORD_MAX))
  if (isLarge) throw answerError(model, 'sent an id, a name or another field that is too long')
}

function noteEnd(exchange: Exchange, isRead: boolean, isComplete: boolean): void {
  if (isRead) exchange.release(isComplete)
  else if (isComplete) exchange.expectEnd()
}

/** @throws The error of the connection, unless the whole answer arrived before it */
async function readRest(
  reader: AnswerReader<GenerateEvent>,
  failure: unknown,
  { signal }: UpstreamCall,
  out: GenerateEvent[],
): Promise<true> {
  if (signal.aborted || !(await reader.cut(out))) throw failure
  return true
}

/** @throws ServiceError if the answer is not complete */
async function endThrottled(decoder: AnswerDecoder, out: GenerateEvent[]): Promise<void> {
  const place = END_THROTTLE.enter()
  if (place) await place
  decoder.end(out)
}
