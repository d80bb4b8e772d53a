import { CountTokensResult, type GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { isLowSurrogate } from '#shared/lib/surrogate-buffer.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { chatAnswer } from './chat/stream.ts'
import { completionsAnswer } from './completions/stream.ts'
import { messagesAnswer } from './messages/stream.ts'
import { inputTokensOf, responsesAnswer } from './responses/stream.ts'

/** Maximum text of a merged event, in UTF-16 units. Limited, so that records and frames stay small. */
const MERGED_TEXT_MAX = 16 * 1024
/** Maximum text of one event, in UTF-16 units. Even if every unit needs a six-byte escape, the text fits into a record. */
const EVENT_TEXT_MAX = 64 * 1024
/** Maximum tokens with log probabilities per merged event: with twenty alternatives, each takes 2 KiB of JSON. */
const MERGED_LOGPROBS_MAX = 64

const ANSWERS: Readonly<Record<string, Answer<GenerateEvent>>> = {
  '/v1/completions': completionsAnswer,
  '/v1/messages': messagesAnswer,
  '/v1/responses': responsesAnswer,
}

export const generate: Kind<GenerateRequest, GenerateEvent> = {
  name: 'generate',
  pool: 'inference',
  request: GenerateRequest,
  merge: mergeGenerateEvents,
  // After such an event, a second run would send output twice. The start event contains no output.
  isOutput: ({ type }) => type !== 'start',
  answer: (endpoint = '') => ANSWERS[endpoint] ?? chatAnswer,
}

const countAnswer: Answer<CountTokensResult> = { whole: ([result]) => countOf(result) }
const inputTokensAnswer: Answer<CountTokensResult> = { whole: ([result]) => inputTokensOf(countOf(result)) }

function countOf(result: CountTokensResult | undefined): CountTokensResult {
  const parsed = tolerant(CountTokensResult).safeParse(result)
  if (!parsed.success) throw new ServiceError('internal_error', 'The worker returned an invalid token count.')
  return { input_tokens: parsed.data.input_tokens }
}

/** Counts the tokens of a prompt (docs/reference/compatibility.md, Counting tokens). The only event is the result. */
export const countTokens: Kind<GenerateRequest, CountTokensResult> = {
  name: 'count_tokens',
  pool: 'inference',
  request: GenerateRequest,
  merge: () => undefined,
  isOutput: () => true,
  answer: (endpoint) => (endpoint === '/v1/responses/input_tokens' ? inputTokensAnswer : countAnswer),
}

/**
 * Merges two events if both are the same kind of text of the same choice; undefined otherwise. Merging changes only the number of
 * frames that a client receives.
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

/** True if an event exceeds the size of a record, such as an upstream's complete answer in one event. */
export function isTooLarge(event: GenerateEvent): boolean {
  if (event.type === 'text' && event.logprobs && event.logprobs.length > MERGED_LOGPROBS_MAX) return true
  return 'text' in event && event.text.length > EVENT_TEXT_MAX
}

/**
 * Splits an event into pieces that fit into records. If the text has log probabilities, then the first pieces carry the text, up
 * to its maximum length.
 */
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

/**
 * One piece of a split event. The signature of a thought belongs to its last piece. Only the last piece of native output is marked as
 * complete.
 */
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

/** End of the piece that begins at `start`. A piece never ends within a surrogate pair. */
function endOfPiece(text: string, start: number): number {
  const end = Math.min(text.length, start + EVENT_TEXT_MAX)
  return end < text.length && isLowSurrogate(text.charCodeAt(end)) ? end + 1 : end
}
