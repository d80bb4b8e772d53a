import {
  type Conversation,
  type Frame,
  type Json,
  type Move,
  makeId,
  type Offer,
  objectsOf,
  parametersOf,
  piecesOf,
  Refusal,
  type Result,
  refuseIf,
  refuseName,
  refuseUnknown,
  type Wire,
} from './conversation.ts'

const NAME_CHARS_MAX = 64
const USER_CHARS_MAX = 64

const FIELDS = [
  ...['model', 'messages', 'tools', 'tool_choice', 'parallel_tool_calls', 'stream', 'stream_options', 'n', 'stop'],
  ...['max_tokens', 'max_completion_tokens', 'temperature', 'top_p', 'seed', 'user', 'response_format', 'logit_bias'],
  ...['presence_penalty', 'frequency_penalty', 'logprobs', 'top_logprobs', 'reasoning_effort', 'metadata', 'store'],
  ...['service_tier', 'prompt_cache_key', 'prompt_cache_retention', 'safety_identifier', 'verbosity'],
]
const MESSAGE_FIELDS: Readonly<Record<string, readonly string[]>> = {
  system: ['role', 'content', 'name'],
  developer: ['role', 'content', 'name'],
  user: ['role', 'content', 'name'],
  // The field `reasoning_content` belongs to DeepSeek's API, which requires that the reasoning of tool calls is sent back.
  assistant: ['role', 'content', 'name', 'tool_calls', 'refusal', 'audio', 'reasoning_content'],
  tool: ['role', 'content', 'tool_call_id'],
}
const PART_TYPES: Readonly<Record<string, readonly string[]>> = {
  user: ['text', 'image_url', 'input_audio', 'file'],
  assistant: ['text', 'refusal'],
}

/** Chat completions, as OpenAI and DeepSeek serve them. */
export const CHAT: Wire = {
  path: '/v1/chat/completions',
  read(body) {
    refuseUnknown(body, FIELDS, '')
    refuseIf(String(body.user ?? '').length > USER_CHARS_MAX, `Invalid 'user': more than ${USER_CHARS_MAX} characters.`)
    const messages = objectsOf(body.messages, 'messages')
    for (const [index, message] of messages.entries()) checkMessage(message, `messages[${index}]`)
    const offers = objectsOf(body.tools ?? [], 'tools').map((tool, index) => offerOf(tool, `tools[${index}]`))
    checkChoice(body, offers)
    return {
      offers,
      canSearch: false,
      results: resultsOf(messages),
      thoughts: messages.filter(({ reasoning_content }) => Boolean(reasoning_content)).length,
      wantsThought: true,
      request: body,
    }
  },
  *frames(conversation, move): Generator<Frame> {
    const chunkOf = chunksOf(conversation)
    yield chunkOf({ role: 'assistant', content: '' })
    for (const piece of piecesOf(move.thought ?? '')) yield chunkOf({ reasoning_content: piece })
    for (const piece of piecesOf(move.text ?? '')) yield chunkOf({ content: piece })
    for (const [index, call] of move.calls.entries()) yield* callFrames(chunkOf, index, call)
    yield chunkOf({}, move.calls.length > 0 ? 'tool_calls' : 'stop')
    const { data } = chunkOf({})
    const usage = { prompt_tokens: 900, completion_tokens: 40, total_tokens: 940 }
    yield {
      data: { ...(data as Json), choices: [], usage: { ...usage, prompt_tokens_details: { cached_tokens: 800 } } },
    }
    yield { data: '[DONE]' }
  },
}

function checkMessage(message: Json, path: string): void {
  const role = String(message.role)
  const fields = MESSAGE_FIELDS[role]
  if (!fields) throw new Refusal(`Invalid value: '${role}' for '${path}.role'.`)
  refuseUnknown(message, fields, `${path}.`)
  const isEmpty = message.content === null || message.content === undefined
  refuseIf(isEmpty && message.tool_calls === undefined, `Invalid '${path}.content': expected a string, got null.`)
  if (isEmpty || typeof message.content === 'string') return
  for (const [index, { type }] of objectsOf(message.content, `${path}.content`).entries()) {
    const isKnown = (PART_TYPES[role] ?? ['text']).includes(String(type))
    refuseIf(!isKnown, `Invalid value: '${type}' for '${path}.content[${index}].type' of role ${role}.`)
  }
}

function checkChoice(body: Json, offers: readonly Offer[]): void {
  for (const field of ['tool_choice', 'parallel_tool_calls']) {
    refuseIf(body[field] !== undefined && offers.length === 0, `'${field}' is only allowed when 'tools' are specified.`)
  }
  refuseIf(body.tools !== undefined && offers.length === 0, `Invalid 'tools': empty array.`)
  const { name } = ((body.tool_choice as Json | undefined)?.function ?? {}) as Json
  const isMissing = name !== undefined && !offers.some((offer) => offer.name === name)
  refuseIf(isMissing, `Tool choice '${name}' not found in 'tools' parameter.`)
}

function offerOf(tool: Json, path: string): Offer {
  refuseIf(tool.type !== 'function', `Invalid value: '${tool.type}' for '${path}.type'. Supported values: 'function'.`)
  refuseUnknown(tool, ['type', 'function'], `${path}.`)
  const made = (tool.function ?? {}) as Json
  refuseUnknown(made, ['name', 'description', 'parameters', 'strict'], `${path}.function.`)
  refuseName(made.name, NAME_CHARS_MAX, `${path}.function.name`)
  return { name: made.name, isCustom: false, parameters: parametersOf(made.parameters, `${path}.function.parameters`) }
}

function resultsOf(messages: readonly Json[]): Result[] {
  const results: Result[] = []
  let open = new Map<string, string>()
  for (const [index, message] of messages.entries()) {
    const path = `messages[${index}]`
    if (message.role === 'tool') {
      const name = open.get(String(message.tool_call_id))
      if (name === undefined)
        throw new Refusal(`${path}: tool_call_id '${message.tool_call_id}' has no call before it.`)
      open.delete(String(message.tool_call_id))
      results.push({ name, output: textOf(message.content) })
      continue
    }
    refuseIf(open.size > 0, `${path}: tool_calls without tool messages: ${[...open.keys()]}.`)
    open = new Map(objectsOf(message.tool_calls ?? [], `${path}.tool_calls`).map((call) => readCall(call, path)))
  }
  refuseIf(open.size > 0, `The last tool_calls have no tool messages: ${[...open.keys()]}.`)
  return results
}

function readCall(call: Json, path: string): [id: string, name: string] {
  refuseUnknown(call, ['id', 'type', 'function'], `${path}.tool_calls.`)
  const made = (call.function ?? {}) as Json
  refuseUnknown(made, ['name', 'arguments'], `${path}.tool_calls.function.`)
  refuseName(made.name, NAME_CHARS_MAX, `${path}.tool_calls.function.name`)
  try {
    JSON.parse(String(made.arguments))
  } catch {
    throw new Refusal(`${path}: arguments of '${made.name}' are not JSON.`)
  }
  return [String(call.id), made.name]
}

function textOf(content: unknown): string {
  return typeof content === 'string' ? content : (content as Json[]).map(({ text }) => text).join('')
}

type Chunk = (delta: Json, finishReason?: string) => Frame

function chunksOf({ request }: Conversation): Chunk {
  const head = {
    id: makeId('chatcmpl-'),
    object: 'chat.completion.chunk',
    created: 1_764_000_000,
    model: request.model,
  }
  return (delta, finishReason) => ({
    data: { ...head, choices: [{ index: 0, delta, logprobs: null, finish_reason: finishReason ?? null }] },
  })
}

function* callFrames(chunkOf: Chunk, index: number, { offer, input }: Move['calls'][number]): Generator<Frame> {
  const call = { index, id: makeId('call_'), type: 'function', function: { name: offer.name, arguments: '' } }
  yield chunkOf({ tool_calls: [call] })
  for (const piece of piecesOf(JSON.stringify(input))) {
    yield chunkOf({ tool_calls: [{ index, function: { arguments: piece } }] })
  }
}
