import type { GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/kinds/generate.ts'
import { isTooLarge, splitEvent } from '#shared/kinds/generate/generate.ts'
import { EVENT_BYTES_MAX, EVENT_SIZE_MAX, isUncarriable, sizeOf } from '#shared/lib/buffers.ts'
import { openTickThrottle, runYielding, yieldToEventLoop } from '#shared/lib/yielding.ts'
import { answerError } from './error.ts'
import type { Exchange } from './exchange.ts'
import type { AnswerReader, Decoder } from './json.ts'
import { openReader } from './readers.ts'
import type { Upstream, UpstreamCall } from './upstream.ts'
import { completeUsage } from './usage.ts'

/** Maximum conversation turns that are checked and encoded without an event-loop yield in between. */
const TURNS_PER_TICK_MAX = 1_000
/**
 * Maximum total size of events between two event-loop yields: about 512 tokens or a thousand log probabilities. Each event counts as its own size
 * plus {@link EVENT_SIZE}.
 */
const SIZE_PER_YIELD = 256 * 1024
const EVENT_SIZE = 512
/**
 * Maximum reads that are decoded and forwarded per event-loop tick. Processing that many takes one to two milliseconds.
 */
const READS_PER_TICK = 32

/** Spreads the ends of answers over event-loop ticks. An end takes as long as a few tokens, so many ends in one tick would block the event loop. */
const throttleEnd = openTickThrottle()

/**
 * Spreads reads of streams that have already sent output over event-loop ticks. First tokens and new calls do not wait.
 *
 * Without this throttle, a burst of tokens from 256 streams delays a new call at three points: acceptance, sending and the first token.
 */
const throttleRead = openTickThrottle(READS_PER_TICK)

export interface AnswerDecoder extends Decoder<GenerateEvent> {
  /** Usage as the upstream counted it. Counts that the upstream did not report are estimated. */
  readonly usage: Partial<Usage> | undefined
  readonly nativeUsage?: NativeUsage | undefined
}

/**
 * Makes a call and yields the events of its answer, which is either a stream or one JSON object. Some servers answer in JSON although a stream was
 * requested.
 *
 * If the connection breaks or stays open after the whole answer, then this is no error.
 *
 * This function is one generator, because each nested generator would cost three microtasks per token.
 *
 * @param open Encodes the call. Called when the first event is requested.
 * @throws ServiceError, or the signal's reason
 */
export async function* answerEvents(
  upstream: Pick<Upstream, 'call'>,
  request: GenerateRequest,
  open: () => Promise<UpstreamCall>,
  decoder: AnswerDecoder,
): AsyncGenerator<GenerateEvent, void, undefined> {
  // Checking a long request and encoding it both take long, so the event loop handles other events in between.
  if (request.turns.length > TURNS_PER_TICK_MAX) await yieldToEventLoop()
  const call = await open()
  const exchange = await upstream.call(call)
  const out: GenerateEvent[] = []
  let written = ''
  try {
    const reader = openReader(exchange, decoder)
    for (let isRead = false, isOver = false; !isOver; ) {
      if (!isRead) {
        const failure = await waitForRead(exchange, written !== '')
        const read = failure === undefined ? reader.read(exchange.take(), out) : readRest(reader, failure, call, out)
        isRead = typeof read === 'boolean' ? read : await read
        noteEnd(exchange, isRead, isRead ? decoder.isDone : reader.isComplete)
      }
      // If some text has arrived, then it is yielded before the end of the answer is decoded. Without any text, the end
      // is decoded first: if the end is an error, then another model can still answer.
      isOver = isRead && (written === '' || out.length === 0)
      if (isOver) await endThrottled(decoder, out)
      let size = 0
      for (const event of inPieces(out)) {
        written += textOf(event)
        size += EVENT_SIZE + requireRecordSize(event, request.model)
        yield event
        if (size < SIZE_PER_YIELD) continue
        size = 0
        await yieldToEventLoop()
      }
      out.length = 0
    }
    const { nativeUsage } = decoder
    const usage = await completeUsage(decoder.usage, request, written)
    exchange.onUsage?.(usage)
    const last: GenerateEvent = { type: 'usage', usage, ...(nativeUsage && { native_usage: nativeUsage }) }
    requireRecordSize(last, request.model)
    yield last
  } finally {
    exchange.release(decoder.isDone)
  }
}

/**
 * Waits until the exchange has new bytes, has ended or has failed. After the first output, a throttle may delay the return. The exchange may fail
 * during the delay, so it is checked again.
 */
function waitForRead(exchange: Exchange, hasOutput: boolean): Promise<unknown> {
  const change = exchange.waitForChange()
  if (!hasOutput) return change
  return change.then((failure) => throttleRead()?.then(() => exchange.waitForChange()) ?? failure)
}

function textOf(event: GenerateEvent): string {
  return 'text' in event && event.type !== 'native' ? event.text : ''
}

function inPieces(events: readonly GenerateEvent[]): readonly GenerateEvent[] {
  if (!events.some(isTooLarge)) return events
  return events.flatMap((event) => (isTooLarge(event) ? [...splitEvent(event)] : [event]))
}

/**
 * Rejects an event that is too large for a broker record even without its text. Text is split over several records, but ids, names and signatures
 * cannot be split.
 *
 * @returns Size of the event
 * @throws ServiceError `upstream_error` if such a field is too large
 */
function requireRecordSize(event: GenerateEvent, model: string): number {
  const size = sizeOf(event)
  if (size <= EVENT_SIZE_MAX) return size
  const { text: _, ...rest } = event as GenerateEvent & { text?: string }
  if (isUncarriable(rest))
    throw answerError(model, `sent an id, a name or another field of more than ${EVENT_BYTES_MAX} bytes`)
  return size
}

function noteEnd(exchange: Exchange, isRead: boolean, isComplete: boolean): void {
  if (isRead) exchange.release(isComplete)
  else if (isComplete) exchange.expectEnd()
}

async function readRest(
  reader: AnswerReader<GenerateEvent>,
  failure: unknown,
  { signal }: UpstreamCall,
  out: GenerateEvent[],
): Promise<true> {
  if (signal.aborted || !(await reader.cut(out))) throw failure
  return true
}

async function endThrottled(decoder: AnswerDecoder, out: GenerateEvent[]): Promise<void> {
  const place = throttleEnd()
  if (place) await place
  const rest = decoder.end(out)
  if (rest) await runYielding(rest)
}
