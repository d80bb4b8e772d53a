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

const NAME_CHARS_MAX = 128

const FIELDS = [
  ...['model', 'messages', 'system', 'max_tokens', 'metadata', 'stop_sequences', 'stream', 'temperature', 'top_p'],
  ...['top_k', 'tools', 'tool_choice', 'thinking', 'service_tier', 'output_config', 'cache_control', 'container'],
]
/**
 * Fields and roles that belong to a beta feature, each with the beginning of the feature's name. A request with one of them is refused unless
 * the header `anthropic-beta` names the feature.
 */
const BETAS: Readonly<Record<string, string>> = {
  context_management: 'context-management-2025-06-27',
  system: 'mid-conversation-',
  defer_loading: 'advanced-tool-use-2025-11-20',
}
const SERVER_TOOL =
  /^(?:web_search|web_fetch|code_execution|bash|text_editor|computer|memory|tool_search_tool_\w+)_\d{8}$/
const TOOL_FIELDS = [
  'type',
  'name',
  'description',
  'input_schema',
  'cache_control',
  'strict',
  'defer_loading',
  'eager_input_streaming',
]
const BLOCK_TYPES: Readonly<Record<string, readonly string[]>> = {
  user: ['text', 'image', 'document', 'search_result', 'tool_result', 'container_upload'],
  assistant: ['text', 'thinking', 'redacted_thinking', 'tool_use', 'server_tool_use', 'web_search_tool_result'],
  system: ['text', 'tool_addition', 'tool_removal'],
}
const SIGNATURE = 'sig-of-the-scripted-model-'

/** The Messages API, as Anthropic serves it. */
export const MESSAGES: Wire = {
  path: '/v1/messages',
  read(body, headers) {
    const betas = String(headers['anthropic-beta'] ?? '')
    const needsBeta = (feature: string, path: string) =>
      refuseIf(!betas.includes(BETAS[feature] ?? ''), `${path}: Extra inputs are not permitted`)
    if (body.context_management !== undefined) needsBeta('context_management', 'context_management')
    refuseUnknown(body, [...FIELDS, 'context_management'], '')
    refuseIf(typeof body.max_tokens !== 'number', 'max_tokens: Field required')
    refuseUnknown((body.metadata ?? {}) as Json, ['user_id'], 'metadata.')
    const messages = objectsOf(body.messages, 'messages')
    for (const [index, { role }] of messages.entries()) if (role === 'system') needsBeta('system', `messages.${index}`)
    const tools = objectsOf(body.tools ?? [], 'tools')
    for (const [index, tool] of tools.entries()) if (tool.defer_loading) needsBeta('defer_loading', `tools.${index}`)
    checkThinking(body)
    checkChoice(body, tools)
    const isServerTool = ({ type }: Json) => type !== undefined && type !== 'custom'
    const blocks = messages.flatMap((message, index) => blocksOf(message, `messages.${index}`))
    for (const tool of tools.filter(isServerTool)) {
      refuseIf(!SERVER_TOOL.test(String(tool.type)), `tools: type '${tool.type}' is not one of the expected tags`)
    }
    return {
      offers: tools.flatMap((tool, index) => (isServerTool(tool) ? [] : [offerOf(tool, `tools.${index}`)])),
      canSearch: tools.some(({ type }) => String(type).startsWith('web_search_')),
      results: resultsOf(messages),
      thoughts: blocks.filter(({ type }) => type === 'thinking').length,
      wantsThought: ['enabled', 'adaptive'].includes(String((body.thinking as Json | undefined)?.type)),
      request: body,
    }
  },
  *frames(conversation, move): Generator<Frame> {
    const { request } = conversation
    const usage = { input_tokens: 100, cache_creation_input_tokens: 0, cache_read_input_tokens: 800, output_tokens: 1 }
    const head = { id: makeId('msg_'), type: 'message', role: 'assistant', model: request.model, content: [] }
    yield frameOf({ type: 'message_start', message: { ...head, stop_reason: null, stop_sequence: null, usage } })
    yield frameOf({ type: 'ping' })
    for (const [index, { block, deltas }] of blocksOfMove(conversation, move).entries()) {
      yield frameOf({ type: 'content_block_start', index, content_block: block })
      for (const delta of deltas) yield frameOf({ type: 'content_block_delta', index, delta })
      yield frameOf({ type: 'content_block_stop', index })
    }
    const stop_reason = move.calls.length > 0 ? 'tool_use' : 'end_turn'
    yield frameOf({
      type: 'message_delta',
      delta: { stop_reason, stop_sequence: null },
      usage: { ...usage, output_tokens: 40 },
    })
    yield frameOf({ type: 'message_stop' })
  },
}

function checkThinking({ thinking, max_tokens }: Json): void {
  const { type, budget_tokens } = (thinking ?? {}) as Json
  const isTooLarge = type === 'enabled' && Number(budget_tokens) >= Number(max_tokens)
  refuseIf(isTooLarge, '`max_tokens` must be greater than `thinking.budget_tokens`')
}

function checkChoice({ tool_choice }: Json, tools: readonly Json[]): void {
  const { type, name } = (tool_choice ?? {}) as Json
  refuseIf(type !== undefined && tools.length === 0, 'tool_choice may only be specified while providing tools')
  const isMissing = type === 'tool' && !tools.some((tool) => tool.name === name)
  refuseIf(isMissing, `Tool '${name}' not found in provided tools`)
}

function frameOf(data: Json): Frame {
  return { event: String(data.type), data }
}

function blocksOf(message: Json, path: string): Json[] {
  refuseUnknown(message, ['role', 'content'], `${path}.`)
  const known = BLOCK_TYPES[String(message.role)]
  if (!known) throw new Refusal(`${path}.role: Input should be 'user' or 'assistant'`)
  const content = typeof message.content === 'string' ? [{ type: 'text', text: message.content }] : message.content
  const blocks = objectsOf(content, `${path}.content`)
  for (const [index, block] of blocks.entries()) {
    const at = `${path}.content.${index}`
    refuseIf(!known.includes(String(block.type)), `${at}: '${block.type}' is not one of the expected tags`)
    refuseIf(block.type === 'text' && String(block.text).trim() === '', `${at}: text content blocks must be non-empty`)
    const isForged = block.type === 'thinking' && !String(block.signature).startsWith(SIGNATURE)
    refuseIf(isForged, `${at}: Invalid \`signature\` in \`thinking\` block`)
    if (block.type === 'tool_use') {
      refuseName(block.name, NAME_CHARS_MAX, `${at}.name`)
      refuseIf(!isObject(block.input), `${at}.input: Input should be an object`)
    }
  }
  return blocks
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function offerOf(tool: Json, path: string): Offer {
  refuseUnknown(tool, TOOL_FIELDS, `${path}.`)
  refuseName(tool.name, NAME_CHARS_MAX, `${path}.name`)
  return { name: tool.name, isCustom: false, parameters: parametersOf(tool.input_schema, `${path}.input_schema`) }
}

function resultsOf(messages: readonly Json[]): Result[] {
  const results: Result[] = []
  let open = new Map<string, string>()
  for (const [index, message] of messages.entries()) {
    const path = `messages.${index}`
    const blocks = blocksOf(message, path)
    if (message.role === 'system') continue
    for (const block of blocks.filter(({ type }) => type === 'tool_result')) {
      const name = open.get(String(block.tool_use_id))
      if (name === undefined) throw new Refusal(`${path}: unexpected \`tool_use_id\` '${block.tool_use_id}'`)
      open.delete(String(block.tool_use_id))
      results.push({ name, output: typeof block.content === 'string' ? block.content : JSON.stringify(block.content) })
    }
    refuseIf(open.size > 0, `${path}: \`tool_use\` ids without \`tool_result\` blocks: ${[...open.keys()]}`)
    const uses = blocks.filter(({ type }) => type === 'tool_use')
    open = new Map(uses.map(({ id, name }) => [String(id), String(name)]))
  }
  refuseIf(open.size > 0, `\`tool_use\` ids without \`tool_result\` blocks: ${[...open.keys()]}`)
  return results
}

interface Block {
  readonly block: Json
  readonly deltas: readonly Json[]
}

function blocksOfMove({ request, wantsThought }: Conversation, move: Move): Block[] {
  const blocks: Block[] = []
  if (move.thought !== undefined && wantsThought) {
    const isOmitted = (request.thinking as Json).display === 'omitted'
    const pieces = isOmitted ? [] : piecesOf(move.thought)
    blocks.push({
      block: { type: 'thinking', thinking: '', signature: '' },
      deltas: [
        ...pieces.map((thinking) => ({ type: 'thinking_delta', thinking })),
        { type: 'signature_delta', signature: makeId(SIGNATURE) },
      ],
    })
  }
  if (move.search !== undefined) blocks.push(...searchBlocks(move.search))
  if (move.text !== undefined) {
    blocks.push({
      block: { type: 'text', text: '' },
      deltas: piecesOf(move.text).map((text) => ({ type: 'text_delta', text })),
    })
  }
  for (const { offer, input } of move.calls) {
    blocks.push({
      block: { type: 'tool_use', id: makeId('toolu_'), name: offer.name, input: {} },
      deltas: piecesOf(JSON.stringify(input)).map((partial_json) => ({ type: 'input_json_delta', partial_json })),
    })
  }
  return blocks
}

function searchBlocks(query: string): Block[] {
  const id = makeId('srvtoolu_')
  const page = { type: 'web_search_result', title: 'Greek letters', url: 'https://example.com/greek', page_age: null }
  return [
    {
      block: { type: 'server_tool_use', id, name: 'web_search', input: {} },
      deltas: piecesOf(JSON.stringify({ query })).map((partial_json) => ({ type: 'input_json_delta', partial_json })),
    },
    {
      block: {
        type: 'web_search_tool_result',
        tool_use_id: id,
        content: [{ ...page, encrypted_content: 'c2VhcmNo' }],
      },
      deltas: [],
    },
  ]
}
