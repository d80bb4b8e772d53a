import { dataOf } from '../sse.ts'
import type { Way } from './case.ts'

/** A response in a common form, for all three APIs, streamed or not. */
export interface Got {
  readonly status: number
  readonly headers: Headers
  readonly body: string
  /** Error message; undefined if the call succeeded. */
  readonly error?: string
  readonly param?: string | null
  readonly text: string
  readonly reasoning: string
  readonly calls: readonly Call[]
  readonly finish: string | undefined
  readonly usage: readonly number[]
}

interface Call {
  id: string
  name: string
  arguments: string
}

// biome-ignore lint/suspicious/noExplicitAny: bodies of three APIs
type Json = any

interface Parts {
  text: string
  reasoning: string
  calls: Call[]
  finish: string | undefined
  usage: number[]
}

const READERS: Readonly<Record<Way, (body: string) => Parts>> = {
  chat: (body) => readChat([JSON.parse(body)]),
  'chat stream': (body) => readChat(framesOf(body)),
  messages: (body) => readMessage(JSON.parse(body)),
  'messages stream': (body) => readMessage(gatherMessage(framesOf(body))),
  responses: (body) => readResponse(JSON.parse(body)),
  'responses stream': (body) => readResponse(gatherResponse(framesOf(body))),
}

export async function readAnswer(way: Way, response: Response): Promise<Got> {
  const { status, headers } = response
  const body = await response.text()
  const common = { status, headers, body }
  const error = errorIn(body)
  if (error) return { ...common, ...NOTHING, error: error.message, param: error.param }
  return { ...common, ...READERS[way](body) }
}

const NOTHING: Parts = { text: '', reasoning: '', calls: [], finish: undefined, usage: [] }

function framesOf(body: string): Json[] {
  return dataOf(body).map((data) => JSON.parse(data))
}

function errorIn(body: string): { message: string; param?: string | null } | undefined {
  const values: Json[] = body.startsWith('{') ? [JSON.parse(body)] : framesOf(body)
  for (const { error, type, message, param, response } of values) {
    if (error) return error
    if (type === 'error') return { message, param }
    if (type === 'response.failed') return response.error
  }
  return undefined
}

function readChat(chunks: readonly Json[]): Parts {
  const parts: Parts = { ...NOTHING, calls: [], usage: [] }
  for (const { choices = [], usage } of chunks) {
    if (usage) parts.usage = usageOf(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details)
    for (const { delta, message, finish_reason } of choices) readChoice(delta ?? message, finish_reason, parts)
  }
  return parts
}

function readChoice(delta: Json, finish: string | null, parts: Parts): void {
  parts.text += delta.content ?? ''
  parts.reasoning += delta.reasoning_content ?? ''
  if (finish) parts.finish = finish
  for (const [position, call] of (delta.tool_calls ?? []).entries()) {
    const at = call.index ?? position
    parts.calls[at] ??= { id: '', name: '', arguments: '' }
    parts.calls[at].id ||= call.id ?? ''
    parts.calls[at].name ||= call.function?.name ?? ''
    parts.calls[at].arguments += call.function?.arguments ?? ''
  }
}

/** Joins the events of a Messages stream to a message. */
function gatherMessage(events: readonly Json[]): Json {
  let message: Json = { content: [] }
  const inputs: string[] = []
  for (const event of events) {
    if (event.type === 'message_start') message = { ...event.message, content: [] }
    if (event.type === 'content_block_start') message.content[event.index] = event.content_block
    if (event.type === 'content_block_delta') growBlock(message.content[event.index], event, inputs)
    if (event.type === 'message_delta')
      message = { ...message, ...event.delta, usage: { ...message.usage, ...event.usage } }
  }
  for (const [at, block] of message.content.entries()) if (inputs[at]) block.input = inputs[at]
  return message
}

function growBlock(block: Json, { index, delta }: Json, inputs: string[]): void {
  if (delta.type === 'text_delta') block.text += delta.text
  if (delta.type === 'thinking_delta') block.thinking += delta.thinking
  if (delta.type === 'input_json_delta') inputs[index] = (inputs[index] ?? '') + delta.partial_json
}

const STOP_REASONS: Readonly<Record<string, string>> = {
  end_turn: 'stop',
  stop_sequence: 'stop',
  max_tokens: 'length',
  model_context_window_exceeded: 'length',
  tool_use: 'tool_calls',
  refusal: 'content_filter',
}

function readMessage({ content, stop_reason, usage }: Json): Parts {
  const {
    input_tokens,
    output_tokens,
    cache_read_input_tokens: read = 0,
    cache_creation_input_tokens: made = 0,
  } = usage
  const cached_tokens = read ?? 0
  return {
    text: joined(content, 'text'),
    reasoning: joined(content, 'thinking'),
    calls: content.filter(({ type }: Json) => type === 'tool_use').map(callOf),
    finish: STOP_REASONS[stop_reason] ?? stop_reason,
    usage: usageOf(input_tokens + cached_tokens + (made ?? 0), output_tokens, { cached_tokens }),
  }
}

function joined(blocks: readonly Json[], type: string): string {
  return blocks.map((block) => (block.type === type ? block[type] : '')).join('')
}

function callOf({ id, name, input }: Json): Call {
  return { id, name, arguments: typeof input === 'string' ? input : JSON.stringify(input) }
}

/** Returns the final response of a Responses stream, whose text must equal the concatenated deltas. */
function gatherResponse(events: readonly Json[]): Json {
  const last = events.at(-1)?.response
  const deltas = events.map(({ type, delta }) => (type === 'response.output_text.delta' ? delta : '')).join('')
  if (last && deltas !== readResponse(last).text)
    throw new Error(`deltas '${deltas}' differ from the text of the response`)
  return last
}

function readResponse({ output, status, incomplete_details, usage }: Json): Parts {
  const content = (type: string): Json[] =>
    output.filter((item: Json) => item.type === type).flatMap((item: Json) => item.content ?? [])
  const calls: Call[] = output
    .filter(({ type }: Json) => type === 'function_call')
    .map((item: Json) => ({ id: item.call_id, name: item.name, arguments: item.arguments }))
  const reason = incomplete_details?.reason === 'max_output_tokens' ? 'length' : incomplete_details?.reason
  const finish = calls.length > 0 ? 'tool_calls' : 'stop'
  const isRefused = content('message').some(({ type }) => type === 'refusal')
  return {
    text: content('message')
      .map(({ text = '' }) => text)
      .join(''),
    reasoning: output
      .filter(({ type }: Json) => type === 'reasoning')
      .flatMap((item: Json) => [...(item.content ?? []), ...(item.summary ?? [])])
      .map(({ text = '' }: Json) => text)
      .join(''),
    calls,
    finish: status === 'incomplete' ? reason : isRefused ? 'content_filter' : finish,
    usage: usageOf(usage.input_tokens, usage.output_tokens, usage.input_tokens_details),
  }
}

function usageOf(input: number, output: number, details: Json): number[] {
  return [input, output, details?.cached_tokens ?? 0]
}
