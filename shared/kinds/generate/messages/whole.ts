import type { EncodeContext } from '#schemas/job.ts'
import type { GenerateEvent, NativeUsage, Usage } from '#schemas/kinds/generate.ts'
import type { Message, MessagesUsage, OutputBlock, RefusalDetails, StopReason } from '#schemas/messages.ts'
import { objectIn } from '#shared/json/object.ts'
import { findEvent, makeCallId, type NativeEvent, NativeReader, unfinished } from '#shared/kinds/encode.ts'

/**
 * Encodes the whole message (docs/reference/compatibility.md, Messages answers) from all events of a call. The generator yields after each block,
 * because parsing the arguments of many tool calls takes long.
 *
 * @throws ServiceError `upstream_error` if the engine did not finish the answer
 */
export function* encodeMessage(
  events: readonly GenerateEvent[],
  context: EncodeContext,
): Generator<undefined, Message> {
  const start = findEvent(events, 'start')
  const finish = findEvent(events, 'finish')
  if (finish === undefined) throw unfinished()
  const content = new Pieces(context.call_id)
  for (const event of events) {
    content.push(event)
    yield
  }
  const blocks: OutputBlock[] = []
  for (const piece of content.pieces) {
    blocks.push(toBlock(piece, context))
    yield
  }
  const hasCalls = content.pieces.some((piece) => piece.type === 'tool')
  const reason = stopReason(finish, hasCalls, findEvent(events, 'refusal') !== undefined)
  const body = {
    content: blocks,
    stop_reason: reason,
    stop_sequence: stopSequence(finish, reason),
  }
  const counted = findEvent(events, 'usage')
  const usage: Usage = counted?.usage ?? { input_tokens: start?.input_tokens ?? 0, output_tokens: 0 }
  const { native } = content
  return {
    ...envelope(context, start?.model ?? context.model, body, {
      usage,
      native: counted?.native_usage,
      searches: content.searches,
    }),
    ...native.delta,
    ...native.beside,
  }
}

type Piece =
  | { type: 'text'; text: string; fields?: Record<string, unknown>; citations: unknown[] }
  | { type: 'thinking'; text: string; signature: string }
  | { type: 'tool'; id: string; name: string; text: string; extra: Record<string, unknown> | undefined }
  | { type: 'block'; block: OutputBlock }

type TextPiece = Extract<Piece, { type: 'text' }>

/** Merges events into pieces. Each piece becomes one content block, in the order in which the blocks began. */
class Pieces {
  pieces: Piece[] = []
  readonly native = new NativeAnswer()
  searches = 0
  readonly #callId: string
  readonly #calls = new Map<number, Extract<Piece, { type: 'tool' }>>()
  /**
   * Number of pieces up to the result of the last search. A `cut` event means that the output after that result was interrupted and that the engine
   * starts it again. A `cut` therefore removes the pieces after this number.
   */
  #kept = 0

  constructor(callId: string) {
    this.#callId = callId
  }

  push(event: GenerateEvent): void {
    switch (event.type) {
      case 'text':
      case 'refusal':
        if (event.text !== '') this.#text().text += event.text
        break
      case 'reasoning':
        this.#thought(event)
        break
      case 'native':
        this.#native(event)
        break
      case 'tool_call': {
        const { name, extra } = event
        const id = event.id || makeCallId('toolu_', this.#callId, 0, event.call)
        const call = { type: 'tool' as const, id, name, text: '', extra }
        this.#calls.set(event.call, call)
        this.pieces.push(call)
        break
      }
      case 'tool_arguments': {
        const call = this.#calls.get(event.call)
        if (call !== undefined) call.text += event.text
        break
      }
      case 'hosted_call':
        this.searches++
        this.#block(searchBlock(this.#callId, event))
        break
      case 'hosted_result':
        this.#block(searchResultBlock(this.#callId, event))
        this.#kept = this.pieces.length
        break
      case 'cut':
        this.pieces = this.pieces.slice(0, this.#kept)
    }
  }

  #text(): TextPiece {
    const last = this.pieces.at(-1)
    if (last?.type === 'text') return last
    const piece: TextPiece = { type: 'text', text: '', citations: [] }
    this.pieces.push(piece)
    return piece
  }

  /** Adds reasoning. A signature ends its block, so later reasoning begins another block. */
  #thought({ text, signature, redacted }: Extract<GenerateEvent, { type: 'reasoning' }>): void {
    if (redacted !== undefined) this.#block({ type: 'redacted_thinking', data: redacted })
    if (text === '' && signature === undefined) return
    const last = this.pieces.at(-1)
    if (last?.type === 'thinking' && last.signature === '') {
      last.text += text
      last.signature += signature ?? ''
    } else this.pieces.push({ type: 'thinking', text, signature: signature ?? '' })
  }

  #native(event: Extract<GenerateEvent, { type: 'native' }>): void {
    const content = this.native.read(event)
    if (content?.type === 'block') this.#block(content.block)
    else if (content?.type === 'text')
      this.pieces.push({ type: 'text', text: '', fields: content.fields, citations: [] })
    else if (content) for (const citation of content.citations) this.#text().citations.push(citation)
  }

  #block(block: OutputBlock): void {
    this.pieces.push({ type: 'block', block })
  }
}

function toBlock(piece: Piece, context: EncodeContext): OutputBlock {
  switch (piece.type) {
    case 'text': {
      const { fields, citations } = piece
      const text = piece.text.toWellFormed()
      return { ...textBlock(context, text), ...fields, text, ...(citations.length > 0 && { citations }) }
    }
    case 'thinking':
      return { type: 'thinking', thinking: piece.text.toWellFormed(), signature: piece.signature }
    case 'tool':
      return toolBlock(context, piece.id, piece.name, parseInput(piece.text.toWellFormed()) ?? {}, piece.extra)
    case 'block':
      return piece.block
  }
}

export type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

/** First API version whose responses have additional keys, most of them null. */
const NEWER_DIALECT = '2026-10-21'

/**
 * Whether the caller requested a version with additional keys in responses. Clients of older versions fail on these keys
 * (docs/reference/compatibility.md, Messages versions).
 */
export function isNewer(context: EncodeContext): boolean {
  return context.version >= NEWER_DIALECT
}

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

export interface AnswerUsage {
  readonly usage: Usage
  /** Usage object of an upstream with the Messages API, unchanged, with details such as `cache_creation`. */
  readonly native?: NativeUsage | undefined
  readonly searches?: number
}

/** Makes a message with the given content. The start event of a stream contains a message with empty content and no stop reason. */
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

/** Usage details whose final values are always sent at the end of a stream. Other details are sent at the end only if the first event lacked them. */
const CUMULATIVE = new Set(['output_tokens_details', 'server_tool_use'])

export function deltaUsage(context: EncodeContext, all: AnswerUsage, atStart: AnswerUsage | undefined): MessagesUsage {
  const newer = { output_tokens_details: thinkingTokens(all.usage), server_tool_use: null }
  const sent = atStart ? detailsOf(atStart) : {}
  const details = Object.entries(detailsOf(all)).filter(
    ([name, value]) => CUMULATIVE.has(name) || JSON.stringify(sent[name]) !== JSON.stringify(value),
  )
  return { ...cumulativeUsage(all.usage), ...(isNewer(context) && newer), ...Object.fromEntries(details) }
}

/** Returns the details of the upstream's usage without the token counts, which come from the internal usage. */
function detailsOf({ native, searches }: AnswerUsage): Record<string, unknown> {
  const { input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens, ...details } =
    native?.dialect === 'anthropic' ? native.value : {}
  if (!searches) return details
  return { ...details, server_tool_use: { web_search_requests: searches, web_fetch_requests: 0 } }
}

/** Converts usage. Internal input counts include the prompt cache, but the Messages API counts cache reads and cache writes separately. */
export function cumulativeUsage(usage: Usage): MessagesUsage {
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

export function parseInput(text: string): Record<string, unknown> | undefined {
  return text.trim() === '' ? {} : objectIn(text)
}

type Fields = Record<string, unknown>

/** Content of an event that has no internal form: a whole block, the start of a text, or citations of the preceding text. */
type NativeContent =
  | { readonly type: 'block'; readonly block: OutputBlock }
  | { readonly type: 'text'; readonly fields: Fields }
  | { readonly type: 'citations'; readonly citations: readonly unknown[] }

/**
 * Reads the native events of one answer. Fields of the message are collected until the end of the stream, where `message_delta` contains them. Fields
 * inside its object `delta` and fields next to that object are collected separately.
 */
export class NativeAnswer {
  readonly #reader = new NativeReader('anthropic')
  delta: Fields = {}
  beside: Fields = {}

  read(event: NativeEvent): NativeContent | undefined {
    const value = this.#reader.read(event)
    if (!value) return undefined
    const { type, citations } = value
    switch (event.scope) {
      case 'answer':
        this.delta = { ...this.delta, ...value }
        return undefined
      case 'message':
        this.beside = { ...this.beside, ...value }
        return undefined
      case 'item':
        return typeof type === 'string' ? { type: 'block', block: value as OutputBlock } : undefined
      case 'text':
        if (type === 'text') return { type, fields: value }
        return Array.isArray(citations) ? { type: 'citations', citations } : undefined
    }
  }
}

type HostedCall = Extract<GenerateEvent, { type: 'hosted_call' }>
type HostedResult = Extract<GenerateEvent, { type: 'hosted_result' }>

/** Prefix of the text inside `encrypted_content` that Sluice creates. Content of another service has no such prefix. */
const CONTENT_PREFIX = 'sluice:'

export function searchBlock(callId: string, { run, input }: Pick<HostedCall, 'run' | 'input'>): OutputBlock {
  return {
    type: 'server_tool_use',
    id: searchId(callId, run),
    name: 'web_search',
    input: { query: input.toWellFormed() },
  }
}

/** Encodes the results of a search. Clients do not read the encoded texts, but send them back with the next request of the conversation. */
export function searchResultBlock(callId: string, { run, status, output }: HostedResult): OutputBlock {
  const tool_use_id = searchId(callId, run)
  const error = { type: 'web_search_tool_result_error', error_code: 'unavailable' }
  const content = status === 'completed' ? output.map(shownResult) : error
  return { type: 'web_search_tool_result', tool_use_id, content }
}

function searchId(callId: string, run: number): string {
  return `srvtoolu_${callId}_${run}`
}

function shownResult({ url, title, excerpt, date }: Fields): Fields {
  const text = typeof excerpt === 'string' ? excerpt : ''
  return {
    type: 'web_search_result',
    url,
    title,
    encrypted_content: CONTENT_PREFIX + Buffer.from(text).toString('base64'),
    page_age: typeof date === 'string' ? date : null,
  }
}

/** Decodes the text of a search result. Undefined if another service encoded it. */
export function resultText(encrypted: unknown): string | undefined {
  if (typeof encrypted !== 'string' || !encrypted.startsWith(CONTENT_PREFIX)) return undefined
  return Buffer.from(encrypted.slice(CONTENT_PREFIX.length), 'base64').toString('utf8')
}
