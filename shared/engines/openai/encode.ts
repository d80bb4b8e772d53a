import { createHash } from 'node:crypto'
import { IMPLIED_CALL } from '#schemas/chat.ts'
import type { GenerateRequest, NativePart, Part, Tool, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { customInput } from '#shared/engines/adapt.ts'
import { isOpenAiServer } from '#shared/engines/upstream/servers.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Reasoning effort for a budget of reasoning tokens. The first row whose maximum is at least the budget applies. */
const EFFORTS: ReadonlyArray<readonly [budgetMax: number, effort: string]> = [
  [2_048, 'low'],
  [8_192, 'medium'],
  [Number.POSITIVE_INFINITY, 'high'],
]

/**
 * Encodes the body of POST /chat/completions for an upstream with OpenAI's API.
 *
 * OpenAI's own servers and compatible servers differ in a few fields, and the base URL decides which form is sent. Unknown fields of a request of the
 * same API are sent unchanged, but never override a known field.
 *
 * @throws ServiceError for a parameter that the API lacks
 */
export function encodeOpenAi(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  const isOpenAi = isOpenAiServer(config)
  const isSame = request.dialect === 'openai'
  const limit = maxTokens(request, model)
  return defined({
    // Unknown fields of callers of this API and of the Responses API are sent. The module adapt.ts has already removed fields that this API lacks.
    ...(request.dialect === 'anthropic' ? {} : request.extra),
    model: config.model ?? model.id,
    messages: encodeTurns(request, isOpenAi),
    // With these flags, vLLM and SGLang continue a last assistant turn instead of starting a new one. llama.cpp and Ollama do so by default.
    ...(isPrefill(request) && !isOpenAi ? { continue_final_message: true, add_generation_prompt: false } : {}),
    [isOpenAi ? 'max_completion_tokens' : 'max_tokens']: limit,
    ...sampling(request, isOpenAi),
    ...tools(request, isOpenAi),
    response_format: responseFormat(request) ?? (isSame ? request.extra?.response_format : undefined),
    reasoning_effort: model.capabilities.reasoning ? effort(request.reasoning) : undefined,
    user: endUser(request.user),
    stream: request.stream,
    stream_options: streamOptions(request, config),
  })
}

/**
 * Returns the token limit of the answer: the caller's limit or else the model's default, but at most the model's maximum. Undefined if there is
 * neither a limit of the caller nor a default.
 */
export function maxTokens(request: GenerateRequest, model: ModelConfig): number | undefined {
  const { default_output_tokens, max_output_tokens } = model.limits
  const wanted = request.max_tokens ?? default_output_tokens
  if (wanted === undefined || max_output_tokens === undefined) return wanted
  return Math.min(wanted, max_output_tokens)
}

function sampling(request: GenerateRequest, isOpenAi: boolean): object {
  if (request.top_k !== undefined && isOpenAi) {
    throw new ServiceError('unsupported_parameter', `The model '${request.model}' does not support top_k.`, {
      param: 'top_k',
    })
  }
  return {
    temperature: request.temperature,
    top_p: request.top_p,
    top_k: request.top_k,
    n: request.n > 1 ? request.n : undefined,
    stop: request.stop.length > 0 ? request.stop : undefined,
    presence_penalty: request.presence_penalty,
    frequency_penalty: request.frequency_penalty,
    logit_bias: request.logit_bias,
    seed: request.seed,
    logprobs: request.logprobs || undefined,
    top_logprobs: request.top_logprobs,
  }
}

/** Encodes the tools. Only OpenAI supports `allowed_tools`, so other servers receive only the tools that are allowed. */
function tools(request: GenerateRequest, isOpenAi: boolean): object {
  const allowed = request.allowed_tools
  const offered = allowed && !isOpenAi ? request.tools.filter((tool) => allowed.includes(tool.name)) : request.tools
  if (offered.length === 0) return {}
  return {
    tools: offered
      .filter(({ native }) => native !== null)
      .map((tool) => encodeTool(tool, request.dialect === 'openai')),
    tool_choice: allowed && isOpenAi ? allowedTools(request, allowed) : toolChoice(request),
    parallel_tool_calls: request.parallel_tool_calls,
  }
}

function encodeTool(tool: Tool, isSame: boolean): object {
  if (tool.native) return tool.native
  const { name, description, parameters, strict } = tool
  const extra = isSame ? tool.extra : {}
  return {
    ...extra,
    type: 'function',
    function: { ...nested(extra, 'function'), ...defined({ name, description, parameters, strict }) },
  }
}

function toolChoice(request: GenerateRequest): unknown {
  const choice = request.tool_choice
  return choice?.type === 'tool' ? namedTool(choice.name, request.tools) : choice?.type
}

function namedTool(name: string, tools: readonly Tool[]): object {
  const { native, custom } = tools.find((tool) => tool.name === name) ?? {}
  if (!native) return { type: 'function', function: { name } }
  return custom ? { type: 'custom', custom: { name } } : { type: native.type }
}

function allowedTools(request: GenerateRequest, allowed: readonly string[]): unknown {
  const choice = request.tool_choice
  if (choice?.type === 'none' || choice?.type === 'tool') return toolChoice(request)
  const tools = allowed.map((name) => namedTool(name, request.tools))
  return { type: 'allowed_tools', allowed_tools: { mode: choice?.type ?? 'auto', tools } }
}

/**
 * Requests usage in the stream, unless the configuration disables this. Other stream options of the caller are sent unchanged if the upstream has the
 * same API.
 */
function streamOptions(request: GenerateRequest, config: UpstreamConfig): object | undefined {
  if (!request.stream) return undefined
  const options = request.dialect === 'openai' ? request.extra?.stream_options : undefined
  if (!config.force_usage) return options as object | undefined
  return { ...(options as object | undefined), include_usage: true }
}

/** Maximum characters of an end user id. OpenAI and many other servers reject a longer id. */
const USER_CHARS_MAX = 64

/**
 * Returns the end user id. An id that is too long is replaced with its SHA-256, because some clients of the Messages API send ids of 164 characters.
 */
function endUser(user: string | undefined): string | undefined {
  if (user === undefined || user.length <= USER_CHARS_MAX) return user
  return createHash('sha256').update(user).digest('hex')
}

function responseFormat(request: GenerateRequest): unknown {
  const format = request.response_format
  if (format?.type !== 'json_schema') return format
  const { name = 'answer', description, schema, strict } = format
  return { type: 'json_schema', json_schema: defined({ name, description, schema, strict }) }
}

export function effort(reasoning: GenerateRequest['reasoning']): string | undefined {
  if (!reasoning) return undefined
  if (reasoning.effort !== undefined) return reasoning.effort
  if (reasoning.enabled === false) return 'none'
  const budget = reasoning.budget_tokens
  return budget === undefined ? undefined : EFFORTS.find(([budgetMax]) => budget <= budgetMax)?.[1]
}

/** Whether the last assistant turn is the beginning of the answer. Only the Messages API defines this meaning. */
function isPrefill(request: GenerateRequest): boolean {
  return request.dialect === 'anthropic' && request.turns.at(-1)?.role === 'assistant'
}

export function defined(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
}

type ToolTurn = Extract<Turn, { role: 'tool' }>
type ToolCallPart = Extract<Part, { type: 'tool_call' }>

interface Form {
  readonly isSame: boolean
  /**
   * Whether the upstream is OpenAI's own server, which supports the role `developer` but rejects `reasoning_content`.
   */
  readonly isOpenAi: boolean
}

/**
 * Converts turns into the messages of a chat completion.
 *
 * A tool message contains only text, so media of tool results follow in a user message. A tool error gets the prefix `Error:`. Earlier
 * reasoning becomes `reasoning_content`, which DeepSeek and other servers require in messages with tool calls.
 *
 * A native part contains content that only the API of the caller has. With a type, the part becomes a content part. Without a type, the
 * part contains extra fields of the message.
 */
function encodeTurns(request: GenerateRequest, isOpenAi: boolean): object[] {
  const form = { isSame: request.dialect === 'openai', isOpenAi }
  const messages: object[] = []
  let media: object[] = []
  for (const [index, turn] of request.turns.entries()) {
    if (turn.role !== 'tool' && media.length > 0) {
      messages.push({ role: 'user', content: media })
      media = []
    }
    if (turn.role === 'tool') for (const part of toolMedia(turn, index)) media.push(part)
    const message = encodeTurn(turn, index, form)
    if (message) messages.push({ ...(form.isSame ? turn.extra : {}), ...message })
  }
  if (media.length > 0) messages.push({ role: 'user', content: media })
  return messages
}

function encodeTurn(turn: Turn, index: number, form: Form): object | undefined {
  if (turn.role === 'tool') return encodeToolResult(turn, form)
  const name = turn.name === undefined ? {} : { name: turn.name }
  if (turn.role === 'assistant') {
    const answer = encodeAnswer(turn.parts, form)
    return answer && { role: 'assistant', ...answer, ...name }
  }
  if (turn.role === 'system') {
    const role = turn.developer && form.isOpenAi ? 'developer' : 'system'
    return { role, content: encodeText(turn.parts, '', form.isSame), ...name }
  }
  return { role: 'user', content: encodeContent(turn.parts, index, form.isSame), ...name }
}

function encodeAnswer(parts: readonly Part[], { isSame, isOpenAi }: Form): object | undefined {
  const all = parts.filter((part) => part.type === 'tool_call')
  const calls = isSame ? all.filter(({ extra }) => extra?.[IMPLIED_CALL] !== true) : all
  const fields = Object.assign({}, ...parts.filter(isFields).map(({ value }) => value))
  const hasText = parts.some((part) => part.type === 'text' || (part.type === 'native' && !isFields(part)))
  const hasFields = Object.keys(fields).length > 0
  const thought = joinText(
    parts.filter((part) => part.type === 'reasoning'),
    '',
  )
  if (all.length > calls.length && calls.length === 0 && !hasText && !hasFields) return undefined
  return {
    ...fields,
    content: hasText ? encodeText(parts, '', isSame) : calls.length > 0 || hasFields ? null : '',
    ...(thought !== '' && (isSame || !isOpenAi) ? { reasoning_content: thought } : {}),
    ...(calls.length === 0 ? {} : { tool_calls: calls.map((call) => encodeCall(call, isSame)) }),
  }
}

function encodeCall(call: ToolCallPart, isSame: boolean): object {
  const { id, name, custom } = call
  const extra = isSame ? call.extra : {}
  if (custom) {
    const made = { ...nested(extra, 'custom'), name, input: customInput(call.arguments) }
    return { ...extra, id, type: 'custom', custom: made }
  }
  const called = { ...nested(extra, 'function'), name, arguments: call.arguments }
  return { ...extra, id, type: 'function', function: called }
}

function isFields(part: Part): part is NativePart {
  return part.type === 'native' && part.value.type === undefined
}

function encodeToolResult(turn: ToolTurn, { isSame }: Form): object {
  const content = encodeText(turn.parts, '\n', isSame)
  if (isSame && turn.extra?.role === 'function') return { role: 'function', content }
  const failed = turn.is_error && typeof content === 'string'
  return { role: 'tool', tool_call_id: turn.call_id, content: failed ? `Error: ${content}` : content }
}

function toolMedia(turn: ToolTurn, index: number): object[] {
  const parts = turn.parts.filter(({ type }) => type === 'image' || type === 'file' || type === 'audio')
  if (parts.length === 0) return []
  return [
    { type: 'text', text: `Attached by the result of tool call ${turn.call_id}:` },
    ...parts.map((part, at) => encodePart(part, `messages[${index}].content[${at}]`, false)),
  ]
}

/** Encodes user content. A single text becomes a plain string, because every server supports strings. */
function encodeContent(parts: readonly Part[], index: number, isSame: boolean): unknown {
  const [only] = parts
  if (parts.length === 0) return ''
  if (parts.length === 1 && only?.type === 'text' && !(isSame && only.extra)) return only.text
  return parts.map((part, at) => encodePart(part, `messages[${index}].content[${at}]`, isSame))
}

/** Encodes content of roles that permit only text. If the caller used another API, then all texts are joined into one string. */
function encodeText(parts: readonly Part[], separator: string, isSame: boolean): unknown {
  const shown = parts.filter((part) => part.type === 'text' || (part.type === 'native' && !isFields(part)))
  const texts = shown.filter((part) => part.type === 'text')
  const arePlain = shown.length <= 1 && shown.length === texts.length && !texts[0]?.extra
  if (!isSame || arePlain) return joinText(texts, separator)
  return shown.map((part) => encodePart(part, '', true))
}

function joinText(parts: ReadonlyArray<{ readonly text: string }>, separator: string): string {
  return parts.map((part) => part.text).join(separator)
}

function encodePart(part: Part, param: string, isSame: boolean): object {
  const extra = isSame && 'extra' in part ? part.extra : {}
  switch (part.type) {
    case 'text':
      return { ...extra, type: 'text', text: part.text }
    case 'image': {
      const detail = part.detail === undefined ? {} : { detail: part.detail }
      return { ...extra, type: 'image_url', image_url: { ...nested(extra, 'image_url'), url: part.url, ...detail } }
    }
    case 'audio': {
      const audio = { ...nested(extra, 'input_audio'), data: part.data, format: part.format }
      return { ...extra, type: 'input_audio', input_audio: audio }
    }
    case 'file': {
      if (!part.data.startsWith('data:')) {
        throw new ServiceError('unsupported_value', 'This model reads files by content, not by URL.', { param })
      }
      const filename = part.filename === undefined ? {} : { filename: part.filename }
      return { ...extra, type: 'file', file: { ...nested(extra, 'file'), ...filename, file_data: part.data } }
    }
    case 'native':
      return part.value
    default:
      throw new ServiceError('invalid_value', `A user message cannot contain a part of type ${part.type}.`, { param })
  }
}

function nested(extra: Readonly<Record<string, unknown>> | undefined, name: string): object {
  const inner = extra?.[name]
  return typeof inner === 'object' && inner !== null ? inner : {}
}
