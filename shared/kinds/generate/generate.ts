import { CountTokensResult, type GenerateEvent, GenerateRequest } from '#schemas/kinds/generate.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { FormatCheck, Kind } from '#shared/kinds/kind.ts'
import { isLowSurrogate } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { chatAnswer } from './chat/stream.ts'
import { completionsAnswer } from './completions/stream.ts'
import { messagesAnswer } from './messages/stream.ts'
import { inputTokensOf, responsesAnswer } from './responses/stream.ts'

/** Maximum text of a merged event, in UTF-16 units, so that queue records and stream frames stay small. */
const MERGED_TEXT_MAX = 16 * 1024
/** Maximum text of one event, in UTF-16 units. A unit takes at most six bytes of JSON, so a text of this length fits into a queue record. */
const EVENT_TEXT_MAX = 64 * 1024
/** Maximum tokens with log probabilities per merged event. A token with twenty alternatives takes 2 KiB of JSON. */
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
  isOutput: ({ type }) => type !== 'start',
  answer: (endpoint = '') => ANSWERS[endpoint] ?? chatAnswer,
  formatCheck,
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
 * Merges two consecutive events of the same type and choice. Undefined if they cannot be merged. The text that a client receives stays the same, in
 * fewer frames.
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

/** Whether an event is too large for a queue record. An upstream may send a complete answer as one event. */
export function isTooLarge(event: GenerateEvent): boolean {
  if (event.type === 'text' && event.logprobs && event.logprobs.length > MERGED_LOGPROBS_MAX) return true
  return 'text' in event && event.text.length > EVENT_TEXT_MAX
}

/**
 * Splits an event into pieces that fit into queue records. Each piece has a bounded part of the text and of the log probabilities. If the text ends
 * first, then the remaining pieces have only log probabilities.
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
 * Makes one piece of a split event. Only the last piece has the signature of a thought, and only the last piece of native output is marked as
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

function endOfPiece(text: string, start: number): number {
  const end = Math.min(text.length, start + EVENT_TEXT_MAX)
  return end < text.length && isLowSurrogate(text.charCodeAt(end)) ? end + 1 : end
}

/** Maximum characters of a text that {@link formatCheck} parses, about 2 ms. A longer text counts as JSON. */
const CHECKED_TEXT_MAX = 256 * 1024

/**
 * Checks whether the choices of a complete answer have the requested format. Upstream servers may ignore `response_format` and `tool_choice`. Only the
 * syntax of JSON is checked, not the schema. Choices that a limit, a filter or a refusal ended are not checked, nor texts that continue a prefill. JSON
 * that a stop sequence may have cut is not checked either.
 */
function formatCheck(request: GenerateRequest): FormatCheck<GenerateEvent> | undefined {
  const { tool_choice, response_format, stop, turns } = request
  const mustCall = tool_choice?.type === 'required' || tool_choice?.type === 'tool'
  const isJson = response_format !== undefined && stop.length === 0 && turns.at(-1)?.role !== 'assistant'
  // The schema may allow other values than objects, such as the strings of an `enum`.
  const isAnyValue = response_format?.type === 'json_schema' && response_format.schema.type !== 'object'
  if (!mustCall && !isJson) return undefined
  const isFormed = (text: string) => !mustCall && isJsonText(text, isAnyValue)
  return { ignoredBy: (events) => (isIgnored(events, isFormed) ? (mustCall ? 'tool_call' : 'json') : undefined) }
}

function isIgnored(events: readonly GenerateEvent[], isFormed: (text: string) => boolean): boolean {
  const texts = new Map<number, string>()
  const others = new Set<number>()
  for (const event of events) {
    if (event.type === 'text') texts.set(event.choice, (texts.get(event.choice) ?? '') + event.text)
    else if (event.type === 'tool_call' || event.type === 'refusal') others.add(event.choice)
    else if (event.type === 'native' && event.scope === 'item') others.add(event.choice)
  }
  return events.some((event) => {
    if (event.type !== 'finish' || event.reason !== 'stop' || others.has(event.choice)) return false
    return !isFormed(texts.get(event.choice) ?? '')
  })
}

/** Whether a text is a JSON object or array, or with `isAnyValue` any JSON value. */
function isJsonText(text: string, isAnyValue: boolean): boolean {
  if (text.length > CHECKED_TEXT_MAX) return true
  try {
    return typeof (JSON.parse(text) ?? 0) === 'object' || isAnyValue
  } catch {
    return false
  }
}
