import { CountTokensResult, type GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { chatAnswer } from '#shared/protocols/chat/stream.ts'
import { completionsAnswer } from '#shared/protocols/completions/stream.ts'
import { messagesAnswer } from '#shared/protocols/messages/stream.ts'
import { inputTokensOf, responsesAnswer } from '#shared/protocols/responses/stream.ts'
import { isLowSurrogate } from '#shared/surrogate-buffer.ts'
import { tolerant } from '#shared/tolerant.ts'
import type { Answer } from './answer.ts'
import type { Kind } from './kind.ts'

/** Longest text a merged event holds, in UTF-16 units; keeps records and frames small. */
const MERGED_TEXT_MAX = 16 * 1024
/** Longest text of one event, in UTF-16 units: even as escapes of six bytes each a record carries it. */
const EVENT_TEXT_MAX = 64 * 1024
/** Most tokens whose log probabilities a merged event holds: with twenty alternatives each takes 2 KiB of JSON. */
const MERGED_LOGPROBS_MAX = 64

/** How answers read, by the path of the call; default: as chat completions. */
const ANSWERS: Readonly<Record<string, Answer<GenerateEvent>>> = {
  '/v1/completions': completionsAnswer,
  '/v1/messages': messagesAnswer,
  '/v1/responses': responsesAnswer,
}

/** Text generation, in the words of each protocol. */
export const generate: Kind<GenerateRequest, GenerateEvent> = {
  name: 'generate',
  pool: 'inference',
  request: GenerateRequest,
  merge: mergeGenerateEvents,
  // A caller would see all of it twice but the start.
  isOutput: ({ type }) => type !== 'start',
  answer: (endpoint = '') => ANSWERS[endpoint] ?? chatAnswer,
}

const countAnswer: Answer<CountTokensResult> = { whole: ([result]) => countOf(result) }
const inputTokensAnswer: Answer<CountTokensResult> = { whole: ([result]) => inputTokensOf(countOf(result)) }

function countOf(result: CountTokensResult | undefined): CountTokensResult {
  const parsed = tolerant(CountTokensResult).safeParse(result)
  if (!parsed.success) throw new ServiceError('internal_error', 'The tokens could not be counted.')
  return { input_tokens: parsed.data.input_tokens }
}

/** Counts the tokens of a prompt (docs/protocol.md, Counting tokens); its one event is the result. */
export const countTokens: Kind<GenerateRequest, CountTokensResult> = {
  name: 'count_tokens',
  pool: 'inference',
  request: GenerateRequest,
  merge: () => undefined,
  isOutput: () => true,
  answer: (endpoint) => (endpoint === '/v1/responses/input_tokens' ? inputTokensAnswer : countAnswer),
}

/**
 * Joins an event to the one before it when both are the same kind of text of the same choice; undefined otherwise.
 * Joining changes nothing a client can tell but the number of frames.
 */
export function mergeGenerateEvents(a: GenerateEvent, b: GenerateEvent): GenerateEvent | undefined {
  if (a.type === 'text' && b.type === 'text') {
    if (a.choice !== b.choice || a.text.length > MERGED_TEXT_MAX) return undefined
    const text = a.text + b.text
    if (!a.logprobs && !b.logprobs) return { type: 'text', choice: a.choice, text }
    if ((a.logprobs?.length ?? 0) >= MERGED_LOGPROBS_MAX) return undefined
    return { type: 'text', choice: a.choice, text, logprobs: [...(a.logprobs ?? []), ...(b.logprobs ?? [])] }
  }
  if (a.type === 'tool_arguments' && b.type === 'tool_arguments') {
    if (a.choice !== b.choice || a.call !== b.call || a.text.length > MERGED_TEXT_MAX) return undefined
    return { ...a, text: a.text + b.text }
  }
  if (a.type === 'reasoning' && b.type === 'reasoning') {
    const isPlain = a.signature === undefined && a.redacted === undefined && b.redacted === undefined
    if (!isPlain || a.choice !== b.choice || a.summary !== b.summary || a.text.length > MERGED_TEXT_MAX)
      return undefined
    return { ...b, text: a.text + b.text }
  }
  return undefined
}

/** Whether an event brings more than one record can carry: an upstream's whole answer in one piece. */
export function isTooLarge(event: GenerateEvent): boolean {
  if (event.type === 'text' && event.logprobs && event.logprobs.length > MERGED_LOGPROBS_MAX) return true
  return 'text' in event && event.text.length > EVENT_TEXT_MAX
}

/** The same in pieces that records can carry. Of a text with log probabilities the first piece brings the text, as far as one can. */
export function* splitEvent(event: GenerateEvent): Generator<GenerateEvent> {
  if (!('text' in event)) return yield event
  const { text, ...rest } = event
  const logprobs = event.type === 'text' ? (event.logprobs ?? []) : []
  let at = 0
  let nth = 0
  do {
    const end = endOfPiece(text, at)
    const named = logprobs.slice(nth, nth + MERGED_LOGPROBS_MAX)
    nth += named.length
    const isLast = end >= text.length && nth >= logprobs.length
    yield pieceOf(rest, text.slice(at, end), named, isLast)
    at = end
  } while (at < text.length || nth < logprobs.length)
}

type TextEvent = Extract<GenerateEvent, { text: string }>

/** The proof of a thought goes with its last piece. Only the last piece of native output says that it is complete. */
function pieceOf(
  rest: Omit<TextEvent, 'text'>,
  text: string,
  logprobs: readonly unknown[],
  isLast: boolean,
): GenerateEvent {
  const { signature, logprobs: _, ...others } = rest as Record<string, unknown>
  const proof = isLast && signature !== undefined ? { signature } : {}
  const more = rest.type === 'native' && !isLast ? { more: true } : {}
  return { ...others, ...proof, ...more, text, ...(logprobs.length > 0 && { logprobs }) } as GenerateEvent
}

/** No piece ends in half a character. */
function endOfPiece(text: string, start: number): number {
  const end = Math.min(text.length, start + EVENT_TEXT_MAX)
  return end < text.length && isLowSurrogate(text.charCodeAt(end)) ? end + 1 : end
}
