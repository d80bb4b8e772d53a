import type { GenerateRequest, Part, Tool, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { defined, maxTokens } from '#shared/engines/openai/encode.ts'
import { objectIn } from '#shared/json/object.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Default of `max_tokens`, which the API requires, if neither the caller nor the catalogue sets a limit. */
const MAX_TOKENS_DEFAULT = 4_096

/**
 * Encodes the body of POST /v1/messages for an Anthropic upstream.
 *
 * Chat completions have parameters that this API lacks. Parameters that would change the answer are rejected. A `seed` is only a hint, and penalties
 * of 0 have no effect, so both are dropped.
 *
 * @throws ServiceError for a parameter that the API lacks
 */
export function encodeAnthropic(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  requireSupported(request)
  return defined({
    ...promptFields(request, model, config),
    max_tokens: maxTokens(request, model) ?? model.limits.max_output_tokens ?? MAX_TOKENS_DEFAULT,
    temperature: temperature(request),
    top_p: request.top_p,
    top_k: request.top_k,
    stop_sequences: request.stop.length > 0 ? request.stop : undefined,
    metadata: metadata(request),
    stream: request.stream,
  })
}

export function encodeCount(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  const { metadata: _, ...fields } = promptFields(request, model, config)
  if (request.dialect === 'anthropic') return defined(fields)
  const { model: name, system, messages, tools, tool_choice, thinking } = fields
  return defined({ model: name, system, messages, tools, tool_choice, thinking })
}

function promptFields(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): Record<string, unknown> {
  const { tool_choice, ...extra } = extraOf(request)
  const reasons = model.capabilities.reasoning
  return {
    ...extra,
    model: config.model ?? model.id,
    ...encodeConversation(request),
    ...tools(request, tool_choice),
    thinking: reasons ? thinking(request, extra.thinking) : undefined,
    output_config: outputConfig(request, reasons, extra.output_config),
  }
}

function extraOf({ dialect, extra }: GenerateRequest): Record<string, unknown> {
  return dialect === 'anthropic' ? (extra ?? {}) : {}
}

function metadata(request: GenerateRequest): object | undefined {
  const set = defined({ ...(extraOf(request).metadata as object | undefined), user_id: request.user })
  return Object.keys(set).length > 0 ? set : undefined
}

function requireSupported(request: GenerateRequest): void {
  if (request.n > 1) refuse(request, 'n')
  if (request.logprobs) refuse(request, 'logprobs')
  if (request.presence_penalty) refuse(request, 'presence_penalty')
  if (request.frequency_penalty) refuse(request, 'frequency_penalty')
  if (Object.keys(request.logit_bias ?? {}).length > 0) refuse(request, 'logit_bias')
  if (request.response_format?.type === 'json_object') {
    const message = `The model '${request.model}' cannot guarantee a JSON object without a schema. Use json_schema instead.`
    throw new ServiceError('unsupported_value', message, { param: 'response_format' })
  }
}

function refuse(request: GenerateRequest, param: string): never {
  throw new ServiceError('unsupported_parameter', `The model '${request.model}' does not support ${param}.`, { param })
}

/** Chat completions permit a temperature up to 2, but this API only up to 1. A higher temperature is therefore reduced to 1. */
function temperature({ temperature }: GenerateRequest): number | undefined {
  return temperature === undefined ? undefined : Math.min(temperature, 1)
}

/**
 * Encodes the tools. The API cannot restrict the choice to some tools, so tools that are not allowed are left out.
 *
 * @param extra Fields of the client's tool_choice that the internal request cannot represent. These fields are sent unchanged.
 */
function tools(request: GenerateRequest, extra: unknown): object {
  const allowed = request.allowed_tools
  const offered = allowed ? request.tools.filter((tool) => allowed.includes(tool.name)) : request.tools
  if (offered.length === 0) return {}
  const choice = { ...(extra as object | undefined), ...toolChoice(request) }
  return {
    tools: offered.flatMap((tool) => encodeTool(tool, request.dialect === 'anthropic')),
    tool_choice: Object.keys(choice).length > 0 ? choice : undefined,
  }
}

function encodeTool(tool: Tool, sameDialect: boolean): object[] {
  const { name, description, parameters, strict, native } = tool
  if (native !== undefined) return native === null ? [] : [native]
  const input_schema = { type: 'object', ...(Object.keys(parameters).length > 0 ? parameters : { properties: {} }) }
  return [defined({ ...(sameDialect ? tool.extra : {}), name, description, input_schema, strict })]
}

function toolChoice(request: GenerateRequest): object | undefined {
  const single = request.parallel_tool_calls === false ? { disable_parallel_tool_use: true } : {}
  const choice = request.tool_choice
  switch (choice?.type) {
    case 'none':
      return { type: 'none' }
    case 'required':
      return { type: 'any', ...single }
    case 'tool':
      return { type: 'tool', name: choice.name, ...single }
    case 'auto':
      return { type: 'auto', ...single }
    default:
      return request.parallel_tool_calls === false ? { type: 'auto', ...single } : undefined
  }
}

/**
 * Encodes the thinking options. The options of the internal form override the caller's options in this API's form, because the ingress may have
 * clamped them. If the caller's type of thinking is unknown, then the caller's options are sent unchanged.
 */
function thinking(request: GenerateRequest, extra: unknown): object | undefined {
  const own = thinkingOf(request)
  const { type } = (extra ?? {}) as { type?: unknown }
  const isOther = typeof type === 'string' && !['enabled', 'adaptive', 'disabled'].includes(type)
  return own && !isOther ? { ...(extra as object | undefined), ...own } : (extra as object | undefined)
}

/** Encodes thinking options from the internal form. Chat completions have only an effort, so the model chooses the budget. */
function thinkingOf({ reasoning, dialect }: GenerateRequest): object | undefined {
  if (!reasoning) return undefined
  if (reasoning.enabled === false || reasoning.effort === 'none') return { type: 'disabled' }
  if (reasoning.budget_tokens !== undefined) return { type: 'enabled', budget_tokens: reasoning.budget_tokens }
  const isWanted = reasoning.adaptive || (dialect === 'openai' && reasoning.effort !== undefined)
  return isWanted ? { type: 'adaptive' } : undefined
}

function outputConfig(request: GenerateRequest, reasons: boolean, extra: unknown): object | undefined {
  const format = request.response_format
  const effort = reasons ? effortValueOf(request.reasoning?.effort) : undefined
  const set = defined({
    ...(extra as object | undefined),
    format: format?.type === 'json_schema' ? { type: 'json_schema', schema: format.schema } : undefined,
    effort,
  })
  return Object.keys(set).length > 0 ? set : undefined
}

/**
 * Converts a reasoning effort into a value of this API, which has no `minimal`. For `none`, thinking is disabled
 * instead.
 */
function effortValueOf(effort: string | undefined): string | undefined {
  if (effort === 'none') return undefined
  return effort === 'minimal' ? 'low' : effort
}

interface Message {
  readonly role: Role
  readonly content: Block[]
  extra: object | undefined
  readonly isOpen: boolean
}

type Role = Exclude<Turn['role'], 'tool'>

interface Block {
  readonly value: object
  /** Whether the block is a text without further fields. Such a block can be sent as a plain string. */
  readonly isPlain: boolean
}

type ToolCallPart = Extract<Part, { type: 'tool_call' }>

/**
 * Converts turns into the system prompt and the messages of the Messages API.
 *
 * Tool results and the text after them form one user message, because the API requires all results in the message after the calls. If the caller uses
 * the same API, then all other turns stay unchanged, including `system` turns.
 *
 * For callers of other APIs, the roles of the messages are made to alternate. Adjacent turns of one role are merged, and all `system` turns move to
 * the front. If there are only system turns, then the last turn becomes the user message.
 *
 * Empty texts are removed, because the API rejects them. Names of speakers are dropped.
 */
function encodeConversation(request: GenerateRequest): { system: unknown; messages: object[] } {
  const sameDialect = request.dialect === 'anthropic'
  const messages: Message[] = []
  const system: Block[][] = []
  for (const [index, turn] of request.turns.entries()) {
    const content = encodeTurn(turn, index, sameDialect)
    const isPrompt = turn.role === 'system' && (!sameDialect || messages.length === 0)
    if (isPrompt) system.push(content)
    else append(messages, turn, content, sameDialect)
  }
  const last = messages.length === 0 ? system.pop() : undefined
  if (last) messages.push({ role: 'user', content: last, extra: undefined, isOpen: false })
  if (!sameDialect) trimPrefill(messages)
  return {
    system: sameDialect ? simplest(system.flat()) : system.map(joinTexts).join('\n\n') || undefined,
    messages: messages.map(({ role, content, extra }) => ({ ...extra, role, content: simplest(content) })),
  }
}

function append(messages: Message[], turn: Turn, content: Block[], sameDialect: boolean): void {
  const extra = sameDialect && turn.role !== 'tool' ? turn.extra : undefined
  if (content.length === 0 && !(turn.role === 'system' && extra)) return
  const role = turn.role === 'tool' ? 'user' : turn.role
  const last = messages.at(-1)
  if (last?.role === role && (!sameDialect || last.isOpen)) {
    for (const block of content) last.content.push(block)
    if (extra) last.extra = { ...last.extra, ...extra }
  } else messages.push({ role, content, extra, isOpen: turn.role === 'tool' })
}

function encodeTurn(turn: Turn, index: number, sameDialect: boolean): Block[] {
  const param = `messages[${index}].content`
  const content = encodeParts(turn.parts, param, sameDialect)
  if (turn.role !== 'tool') return content
  const value = {
    ...(sameDialect ? turn.extra : {}),
    type: 'tool_result',
    tool_use_id: permittedIdOf(turn.call_id),
    ...(content.length > 0 ? { content: simplest(content) } : {}),
    ...(turn.is_error === undefined ? {} : { is_error: turn.is_error }),
  }
  return [{ value, isPlain: false }]
}

function simplest(content: readonly Block[]): unknown {
  const [only] = content
  if (!only) return undefined
  return content.length === 1 && only.isPlain ? textOf(only) : content.map(({ value }) => value)
}

function textOf({ value }: Block): string {
  return (value as { text?: string }).text ?? ''
}

function joinTexts(blocks: readonly Block[]): string {
  return blocks.map(textOf).join('')
}

function encodeParts(parts: readonly Part[], param: string, sameDialect: boolean): Block[] {
  const blocks: Block[] = []
  for (const [index, part] of parts.entries()) {
    const block = encodePart(part, `${param}[${index}]`, sameDialect)
    const extra = sameDialect && 'extra' in part ? part.extra : undefined
    if (block) blocks.push({ value: { ...extra, ...block }, isPlain: part.type === 'text' && extra === undefined })
  }
  return blocks
}

function encodePart(part: Part, param: string, sameDialect: boolean): object | undefined {
  switch (part.type) {
    case 'text':
      return part.text === '' ? undefined : { type: 'text', text: part.text }
    case 'image':
      return { type: 'image', source: mediaSource(part.url) ?? { type: 'url', url: part.url } }
    case 'file':
      return encodeFile(part, param)
    case 'tool_call':
      return { type: 'tool_use', id: permittedIdOf(part.id), name: part.name, input: toolInput(part) }
    case 'reasoning':
      return sameDialect ? encodeThinking(part) : undefined
    case 'audio':
      throw new ServiceError('unsupported_value', 'This model does not support audio input.', { param })
    case 'native':
      // A native part contains content that only this API has. A part without fields was only added to separate two texts, so it is not
      // sent.
      return Object.keys(part.value).length === 0 ? undefined : part.value
  }
}

/**
 * Encodes a thinking block. Returns undefined for thinking without a signature, which comes from a model of another
 * provider and would be rejected.
 */
function encodeThinking({ text, signature, redacted }: Extract<Part, { type: 'reasoning' }>): object | undefined {
  if (redacted !== undefined) return { type: 'redacted_thinking', data: redacted }
  return signature ? { type: 'thinking', thinking: text, signature } : undefined
}

function encodeFile(part: Extract<Part, { type: 'file' }>, param: string): object {
  const title = part.filename === undefined ? {} : { title: part.filename }
  const source = mediaSource(part.data)
  if (!source) return { type: 'document', source: { type: 'url', url: part.data }, ...title }
  if (source.media_type === 'application/pdf') return { type: 'document', source, ...title }
  if (source.media_type.startsWith('text/')) {
    const data = Buffer.from(source.data, 'base64').toString('utf8')
    return { type: 'document', source: { type: 'text', media_type: 'text/plain', data }, ...title }
  }
  throw new ServiceError('unsupported_value', `This model does not support files of type ${source.media_type}.`, {
    param,
  })
}

function mediaSource(url: string): { type: 'base64'; media_type: string; data: string } | undefined {
  const comma = url.indexOf(',')
  const head = /^data:([^;,]*)(?:;[^,]*)?;base64$/i.exec(url.slice(0, comma))
  if (!head) return undefined
  const media_type = head[1]?.toLowerCase() || 'application/octet-stream'
  return { type: 'base64', media_type, data: url.slice(comma + 1) }
}

/**
 * Encodes the arguments of a call. The API accepts only objects, so other arguments are wrapped. The model then gets its invalid arguments back and
 * can correct them.
 */
function toolInput(part: ToolCallPart): object {
  if (part.arguments.trim() === '') return {}
  return objectIn(part.arguments) ?? { invalid_json: part.arguments }
}

/**
 * Replaces characters of a tool-call id that this API rejects but other APIs permit. Equal ids get equal replacements, so a result still refers to
 * its call.
 */
function permittedIdOf(id: string): string {
  return id.replace(/[^a-zA-Z0-9_-]/g, '_')
}

/**
 * Removes trailing whitespace from an assistant message at the end (prefill). This API rejects such whitespace, but
 * chat completions permit it.
 */
function trimPrefill(messages: Message[]): void {
  const last = messages.at(-1)
  const block = last?.content.at(-1)?.value as { text?: string } | undefined
  if (last?.role !== 'assistant' || block?.text === undefined) return
  block.text = block.text.trimEnd()
  if (block.text === '') last.content.pop()
  if (last.content.length === 0) messages.pop()
}
