/* Helpers for both encoders of the Messages format: whole answers and streams. */
import type { GenerateEvent, NativeUsage, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { Message, MessagesUsage, OutputBlock, RefusalDetails, StopReason } from '#schemas/messages.ts'
import { objectIn } from '#shared/json/object.ts'

export type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

/** First API version of the newer dialect, whose answers have additional keys, most of them null. */
const NEWER_DIALECT = '2026-10-21'

/**
 * Whether the caller's version uses the newer dialect. Clients of older versions fail on its additional keys
 * (docs/reference/compatibility.md, Messages versions).
 */
export function isNewer(context: EncodeContext): boolean {
  return context.version >= NEWER_DIALECT
}

/** The stop reason in this format (docs/reference/compatibility.md, Messages answers). */
export function stopReason(finish: FinishEvent, hasCalls: boolean, hasRefusal: boolean): StopReason {
  switch (finish.reason) {
    case 'content_filter':
      return 'refusal'
    case 'length':
      return finish.context_full ? 'model_context_window_exceeded' : 'max_tokens'
    case 'tool_calls':
      return 'tool_use'
    case 'stop':
      if (hasCalls) return 'tool_use'
      if (hasRefusal) return 'refusal'
      return finish.stop_sequence === undefined ? 'end_turn' : 'stop_sequence'
  }
}

export function stopSequence(finish: FinishEvent, reason: StopReason): string | null {
  return reason === 'stop_sequence' ? (finish.stop_sequence ?? null) : null
}

export function stopDetails(reason: StopReason | null): RefusalDetails | null {
  return reason === 'refusal' ? { type: 'refusal', category: null, explanation: null } : null
}

/** Usage of an answer: the internal counts, and the usage object of the upstream. */
export interface AnswerUsage {
  readonly usage: Usage
  /** Unchanged usage object of an upstream of this dialect. Details such as `cache_creation` are passed on. */
  readonly native?: NativeUsage | undefined
  readonly searches?: number
}

/** A message with the given content. The start event of a stream is a message with empty content and no stop reason. */
export function envelope(
  context: EncodeContext,
  model: string,
  body: Pick<Message, 'content' | 'stop_reason' | 'stop_sequence'>,
  usage: AnswerUsage,
): Message {
  const { content, stop_reason, stop_sequence } = body
  const newer = { container: null, stop_details: stopDetails(stop_reason), diagnostics: null }
  return {
    id: `msg_${context.call_id}`,
    type: 'message',
    role: 'assistant',
    model,
    content,
    stop_reason,
    stop_sequence,
    usage: messagesUsage(context, usage),
    ...(isNewer(context) ? newer : {}),
  }
}

function messagesUsage(context: EncodeContext, all: AnswerUsage): MessagesUsage {
  const newer = {
    cache_creation: null,
    inference_geo: null,
    output_tokens_details: thinkingTokens(all.usage),
    server_tool_use: null,
    service_tier: 'standard',
    speed: null,
  }
  return { ...cumulativeUsage(all.usage), ...(isNewer(context) && newer), ...detailsOf(all) }
}

/**
 * Details that every usage report repeats with new values. Other details are sent at the end of a stream only if its start did not contain
 * them.
 */
const CUMULATIVE = new Set(['output_tokens_details', 'server_tool_use'])

/** Usage at the end of a stream. @param atStart Usage that the start event contained */
export function deltaUsage(context: EncodeContext, all: AnswerUsage, atStart: AnswerUsage | undefined): MessagesUsage {
  const newer = { output_tokens_details: thinkingTokens(all.usage), server_tool_use: null }
  const sent = atStart ? detailsOf(atStart) : {}
  const details = Object.entries(detailsOf(all)).filter(
    ([name, value]) => CUMULATIVE.has(name) || JSON.stringify(sent[name]) !== JSON.stringify(value),
  )
  return { ...cumulativeUsage(all.usage), ...(isNewer(context) && newer), ...Object.fromEntries(details) }
}

/** Details of the upstream's usage, without the counts, which have an internal form. */
function detailsOf({ native, searches }: AnswerUsage): Record<string, unknown> {
  const { input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens, ...details } =
    native?.dialect === 'anthropic' ? native.value : {}
  if (!searches) return details
  return { ...details, server_tool_use: { web_search_requests: searches, web_fetch_requests: 0 } }
}

/** Internal input counts include the prompt cache. This format counts cache reads and writes separately. */
function cumulativeUsage(usage: Usage): MessagesUsage {
  const read = usage.cached_tokens ?? 0
  const written = usage.cache_write_tokens ?? 0
  return {
    input_tokens: Math.max(0, usage.input_tokens - read - written),
    output_tokens: usage.output_tokens,
    cache_creation_input_tokens: written,
    cache_read_input_tokens: read,
  }
}

function thinkingTokens({ reasoning_tokens }: Usage): { thinking_tokens: number } | null {
  return reasoning_tokens === undefined ? null : { thinking_tokens: reasoning_tokens }
}

export function textBlock(context: EncodeContext, text: string): OutputBlock {
  return { type: 'text', text, ...(isNewer(context) ? { citations: null } : {}) }
}

/** A tool_use block. @param extra Additional fields from an upstream of this dialect */
export function toolBlock(
  context: EncodeContext,
  id: string,
  name: string,
  input: Record<string, unknown>,
  extra: Record<string, unknown> | undefined,
): OutputBlock {
  return {
    type: 'tool_use',
    id,
    name: name.toWellFormed(),
    input,
    ...(isNewer(context) ? { caller: { type: 'direct' } } : {}),
    ...extra,
  }
}

/** Parses the arguments of a call; undefined if they are no JSON object. Empty arguments are `{}`. */
export function parseInput(text: string): Record<string, unknown> | undefined {
  return text.trim() === '' ? {} : objectIn(text)
}
