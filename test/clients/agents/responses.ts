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

const FIELDS = [
  ...['model', 'input', 'instructions', 'tools', 'tool_choice', 'parallel_tool_calls', 'max_tool_calls', 'stream'],
  ...['stream_options', 'store', 'include', 'reasoning', 'text', 'temperature', 'top_p', 'top_logprobs', 'truncation'],
  ...['max_output_tokens', 'metadata', 'user', 'service_tier', 'prompt_cache_key', 'prompt_cache_retention'],
  ...['safety_identifier', 'previous_response_id', 'conversation', 'background', 'prompt', 'client_metadata'],
]
const INCLUDES = ['reasoning.encrypted_content', 'web_search_call.action.sources', 'message.output_text.logprobs']
/** Types of tools other than functions. */
const HOSTED = [
  ...['web_search', 'web_search_preview', 'file_search', 'code_interpreter', 'image_generation', 'mcp', 'computer'],
  ...['local_shell', 'shell', 'apply_patch', 'tool_search'],
]
/** Item types and the prefixes of their ids. */
const ITEMS: Readonly<Record<string, string>> = {
  message: 'msg',
  reasoning: 'rs',
  function_call: 'fc',
  function_call_output: 'fc',
  custom_tool_call: 'ctc',
  custom_tool_call_output: 'ctc',
  web_search_call: 'ws',
  additional_tools: 'at',
}
const PART_TYPES: Readonly<Record<string, readonly string[]>> = {
  assistant: ['output_text', 'refusal'],
  user: ['input_text', 'input_image', 'input_file'],
  system: ['input_text', 'input_image', 'input_file'],
  developer: ['input_text', 'input_image', 'input_file'],
}
const ENCRYPTED = 'encrypted-by-the-scripted-model-'

/** The Responses API, as OpenAI serves it. */
export const RESPONSES: Wire = {
  path: '/v1/responses',
  read(body) {
    refuseUnknown(body, FIELDS, '')
    for (const name of (body.include ?? []) as string[]) {
      refuseIf(!INCLUDES.includes(name), `Invalid value: '${name}' for 'include'.`)
    }
    const input = typeof body.input === 'string' ? [{ role: 'user', content: body.input }] : body.input
    const items = objectsOf(input, 'input')
    for (const [index, item] of items.entries()) checkItem(item, `input[${index}]`)
    const added = items.filter(({ type }) => type === 'additional_tools').flatMap(({ tools }) => tools as Json[])
    const tools = [...objectsOf(body.tools ?? [], 'tools'), ...added]
    const offers = tools.flatMap((tool, index) => offersOf(tool, `tools[${index}]`))
    const { type, name } = typeof body.tool_choice === 'object' ? ((body.tool_choice ?? {}) as Json) : {}
    const isMissing = type === 'function' && !offers.some((offer) => offer.name === name)
    refuseIf(isMissing, `Tool choice '${name}' not found in 'tools' parameter.`)
    return {
      offers,
      canSearch: tools.some(({ type }) => type === 'web_search'),
      results: resultsOf(items),
      thoughts: items.filter(({ type }) => type === 'reasoning').length,
      wantsThought: body.reasoning !== undefined,
      request: body,
    }
  },
  *frames(conversation, move): Generator<Frame> {
    let sequence_number = 0
    for (const data of eventsOf(conversation, move)) {
      yield { event: String(data.type), data: { ...data, sequence_number } }
      sequence_number += 1
    }
  },
}

function checkItem(item: Json, path: string): void {
  const type = String(item.type ?? 'message')
  const prefix = ITEMS[type]
  if (prefix === undefined) throw new Refusal(`Invalid value: '${type}' for '${path}.type'.`)
  const hasOtherId = typeof item.id === 'string' && !item.id.startsWith(prefix)
  refuseIf(hasOtherId, `Invalid '${path}.id': '${item.id}'. Expected an ID that begins with '${prefix}'.`)
  if (type === 'function_call' || type === 'custom_tool_call') refuseName(item.name, NAME_CHARS_MAX, `${path}.name`)
  if (type === 'reasoning') {
    const isForged = item.encrypted_content != null && !String(item.encrypted_content).startsWith(ENCRYPTED)
    refuseIf(isForged, `The encrypted content of '${path}' could not be verified.`)
  }
  if (type !== 'message' || typeof item.content === 'string') return
  const known = PART_TYPES[String(item.role)]
  if (!known) throw new Refusal(`Invalid value: '${item.role}' for '${path}.role'.`)
  for (const [index, part] of objectsOf(item.content, `${path}.content`).entries()) {
    refuseIf(!known.includes(String(part.type)), `Invalid value: '${part.type}' for '${path}.content[${index}].type'.`)
  }
}

function offersOf(tool: Json, path: string, namespace?: string): Offer[] {
  if (tool.type === 'namespace') {
    const inside = objectsOf(tool.tools, `${path}.tools`)
    return inside.flatMap((made, index) => offersOf(made, `${path}.tools[${index}]`, String(tool.name)))
  }
  if (HOSTED.includes(String(tool.type))) return []
  const isCustom = tool.type === 'custom'
  refuseIf(!isCustom && tool.type !== 'function', `Invalid value: '${tool.type}' for '${path}.type'.`)
  refuseName(tool.name, NAME_CHARS_MAX, `${path}.name`)
  const parameters = isCustom ? [] : parametersOf(tool.parameters, `${path}.parameters`)
  return [{ name: tool.name, namespace, isCustom, parameters }]
}

function resultsOf(items: readonly Json[]): Result[] {
  const results: Result[] = []
  const open = new Map<string, { name: string; output: string }>()
  for (const [index, item] of items.entries()) {
    const type = String(item.type)
    const id = String(item.call_id)
    if (type === 'function_call' || type === 'custom_tool_call') {
      open.set(id, { name: String(item.name), output: `${type}_output` })
    } else if (type.endsWith('_call_output')) {
      const call = open.get(id)
      if (call?.output !== type)
        throw new Refusal(`input[${index}]: No tool call found for ${type} with call_id ${id}.`)
      open.delete(id)
      const { output } = item
      results.push({ name: call.name, output: typeof output === 'string' ? output : JSON.stringify(output) })
    }
  }
  refuseIf(open.size > 0, `No tool output found for function call ${[...open.keys()]}.`)
  return results
}

function* eventsOf({ request, canSearch, wantsThought }: Conversation, move: Move): Generator<Json> {
  const head = {
    ...{ id: makeId('resp_'), object: 'response', created_at: 1_764_000_000, model: request.model, error: null },
    ...{ incomplete_details: null, instructions: request.instructions ?? null, metadata: {}, temperature: 1, top_p: 1 },
    ...{ parallel_tool_calls: true, tool_choice: 'auto', tools: request.tools ?? [], store: request.store ?? true },
    ...{
      reasoning: request.reasoning ?? null,
      text: request.text ?? { format: { type: 'text' } },
      truncation: 'disabled',
    },
  }
  yield { type: 'response.created', response: { ...head, status: 'in_progress', output: [], usage: null } }
  yield { type: 'response.in_progress', response: { ...head, status: 'in_progress', output: [], usage: null } }
  const output: Json[] = []
  if (move.thought !== undefined && wantsThought)
    output.push(yield* thoughtEvents(request, output.length, move.thought))
  if (move.search !== undefined && canSearch) output.push(yield* searchEvents(output.length, move.search))
  if (move.text !== undefined) output.push(yield* textEvents(output.length, move.text))
  for (const call of move.calls) output.push(yield* callEvents(output.length, call))
  const usage = {
    ...{ input_tokens: 900, input_tokens_details: { cached_tokens: 800 } },
    ...{ output_tokens: 40, output_tokens_details: { reasoning_tokens: 10 }, total_tokens: 940 },
  }
  yield { type: 'response.completed', response: { ...head, status: 'completed', output, usage } }
}

function* thoughtEvents(request: Json, output_index: number, text: string): Generator<Json, Json> {
  const isEncrypted = ((request.include ?? []) as string[]).includes('reasoning.encrypted_content')
  const begun = { id: makeId('rs_'), type: 'reasoning', summary: [] }
  const at = { item_id: begun.id, output_index, summary_index: 0 }
  yield { type: 'response.output_item.added', output_index, item: begun }
  const part = { type: 'summary_text', text }
  yield { type: 'response.reasoning_summary_part.added', ...at, part: { ...part, text: '' } }
  for (const delta of piecesOf(text)) yield { type: 'response.reasoning_summary_text.delta', ...at, delta }
  yield { type: 'response.reasoning_summary_text.done', ...at, text }
  yield { type: 'response.reasoning_summary_part.done', ...at, part }
  const item = { ...begun, summary: [part], ...(isEncrypted && { encrypted_content: makeId(ENCRYPTED) }) }
  yield { type: 'response.output_item.done', output_index, item }
  return item
}

function* searchEvents(output_index: number, query: string): Generator<Json, Json> {
  const begun = { id: makeId('ws_'), type: 'web_search_call', status: 'in_progress' }
  yield { type: 'response.output_item.added', output_index, item: begun }
  for (const state of ['in_progress', 'searching', 'completed']) {
    yield { type: `response.web_search_call.${state}`, item_id: begun.id, output_index }
  }
  const item = { ...begun, status: 'completed', action: { type: 'search', query } }
  yield { type: 'response.output_item.done', output_index, item }
  return item
}

function* textEvents(output_index: number, text: string): Generator<Json, Json> {
  const begun = { id: makeId('msg_'), type: 'message', role: 'assistant', status: 'in_progress', content: [] }
  const at = { item_id: begun.id, output_index, content_index: 0 }
  const part = { type: 'output_text', text, annotations: [], logprobs: [] }
  yield { type: 'response.output_item.added', output_index, item: begun }
  yield { type: 'response.content_part.added', ...at, part: { ...part, text: '' } }
  for (const delta of piecesOf(text)) yield { type: 'response.output_text.delta', ...at, delta, logprobs: [] }
  yield { type: 'response.output_text.done', ...at, text, logprobs: [] }
  yield { type: 'response.content_part.done', ...at, part }
  const item = { ...begun, status: 'completed', content: [part] }
  yield { type: 'response.output_item.done', output_index, item }
  return item
}

function* callEvents(output_index: number, { offer, input }: Move['calls'][number]): Generator<Json, Json> {
  const { name, namespace, isCustom } = offer
  const text = typeof input === 'string' ? input : JSON.stringify(input)
  const field = isCustom ? 'input' : 'arguments'
  const begun = {
    ...{ id: makeId(isCustom ? 'ctc_' : 'fc_'), type: isCustom ? 'custom_tool_call' : 'function_call' },
    ...{ status: 'in_progress', call_id: makeId('call_'), name, ...(namespace !== undefined && { namespace }) },
  }
  const event = isCustom ? 'response.custom_tool_call_input' : 'response.function_call_arguments'
  const at = { item_id: begun.id, output_index }
  yield { type: 'response.output_item.added', output_index, item: { ...begun, [field]: '' } }
  for (const delta of piecesOf(text)) yield { type: `${event}.delta`, ...at, delta }
  yield { type: `${event}.done`, ...at, [field]: text }
  const item = { ...begun, status: 'completed', [field]: text }
  yield { type: 'response.output_item.done', output_index, item }
  return item
}
