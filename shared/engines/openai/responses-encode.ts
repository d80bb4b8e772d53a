import type { GenerateRequest, Part, Tool, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { customInput } from '#shared/engines/adapt.ts'
import { isOpenAiServer } from '#shared/engines/upstream/servers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { defined, effort, maxTokens } from './encode.ts'

/**
 * Encodes the body of POST /responses.
 *
 * The upstream stores nothing (`store: false`), because Sluice itself stores earlier responses. A reasoning model returns its reasoning encrypted, so
 * that a later request can send the reasoning back.
 *
 * Chat completions and the Messages API have parameters that this API lacks. Parameters that would change the answer are rejected. A `seed` is only a
 * hint, and penalties of 0 have no effect, so both are dropped.
 *
 * @throws ServiceError for a parameter that the API lacks
 */
export function encodeResponses(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  requireSupported(request)
  // Fields that Sluice does not know are sent if the caller used the Responses API or chat completions. The module adapt.ts has already removed those
  // fields of chat completions that the Responses API lacks.
  const extra = request.dialect === 'anthropic' ? {} : (request.extra ?? {})
  const isOpenAi = isOpenAiServer(config)
  return defined({
    ...extra,
    model: config.model ?? model.id,
    input: encodeItems(request, isOpenAi),
    max_output_tokens: maxTokens(request, model),
    temperature: request.temperature,
    top_p: request.top_p,
    top_k: request.top_k,
    presence_penalty: request.presence_penalty || undefined,
    frequency_penalty: request.frequency_penalty || undefined,
    top_logprobs: request.logprobs ? (request.top_logprobs ?? 0) : undefined,
    ...tools(request, extra.tool_choice),
    text: text(request, extra.text),
    reasoning: reasoning(request, model, extra.reasoning),
    include: include(request, model, extra.include),
    user: request.user,
    store: false,
    stream: request.stream,
  })
}

function requireSupported(request: GenerateRequest): void {
  if (request.n > 1) refuse(request, 'n')
  if (request.stop.length > 0) refuse(request, 'stop')
  if (Object.keys(request.logit_bias ?? {}).length > 0) refuse(request, 'logit_bias')
  if (request.turns.at(-1)?.role === 'assistant' && request.dialect === 'anthropic') {
    const message = `The model '${request.model}' cannot continue a prefilled assistant message.`
    throw new ServiceError('unsupported_value', message, { param: 'messages' })
  }
}

function refuse(request: GenerateRequest, param: string): never {
  throw new ServiceError('unsupported_parameter', `The model '${request.model}' does not support ${param}.`, { param })
}

function tools(request: GenerateRequest, nativeChoice: unknown): object {
  if (request.tools.length === 0) return {}
  const tools = encodeTools(request.tools, request.dialect === 'responses')
  return {
    tools: tools.length > 0 ? tools : undefined,
    tool_choice: nativeChoice ?? toolChoice(request),
    parallel_tool_calls: request.parallel_tool_calls,
  }
}

/**
 * Encodes the tools. A native tool, which only this API defines, is sent unchanged. One native tool may be represented by several tools.
 * All but the first of these tools have `native: null`, so that the native tool is sent only once.
 */
function encodeTools(tools: readonly Tool[], isSame: boolean): object[] {
  return tools.flatMap((tool) => {
    if (tool.native === null) return []
    return [tool.native ?? encodeTool(tool, isSame)]
  })
}

/** Encodes a function. In this API, `strict` is true by default, unlike in other APIs. */
function encodeTool({ name, description, parameters, strict, extra }: Tool, isSame: boolean): object {
  const known = defined({
    type: 'function',
    name,
    description,
    parameters,
    strict: strict ?? (isSame ? undefined : false),
  })
  return isSame ? { ...known, ...extra } : known
}

function toolChoice({ tool_choice: choice, allowed_tools: allowed }: GenerateRequest): unknown {
  if (choice?.type === 'tool') return { type: 'function', name: choice.name }
  if (!allowed || choice?.type === 'none') return choice?.type
  const tools = allowed.map((name) => ({ type: 'function', name }))
  return { type: 'allowed_tools', mode: choice?.type ?? 'auto', tools }
}

function text({ response_format: asked }: GenerateRequest, extra: unknown): object | undefined {
  const { name = 'answer', ...rest } = asked?.type === 'json_schema' ? asked : {}
  const format = asked?.type === 'json_schema' ? defined({ name, ...rest }) : asked
  return nonEmpty({ ...(extra as object | undefined), format })
}

function reasoning(request: GenerateRequest, model: ModelConfig, extra: unknown): object | undefined {
  if (!model.capabilities.reasoning) return undefined
  return nonEmpty({ ...(extra as object | undefined), effort: effort(request.reasoning) })
}

function include(
  { logprobs }: GenerateRequest,
  { capabilities }: ModelConfig,
  extra: unknown,
): readonly string[] | undefined {
  const all = new Set([
    ...((extra as string[] | undefined) ?? []),
    ...(logprobs ? ['message.output_text.logprobs'] : []),
    ...(capabilities.reasoning ? ['reasoning.encrypted_content'] : []),
  ])
  return all.size > 0 ? [...all] : undefined
}

function nonEmpty(fields: Record<string, unknown>): object | undefined {
  const set = defined(fields)
  return Object.keys(set).length > 0 ? set : undefined
}

type AssistantTurn = Extract<Turn, { role: 'assistant' }>
type ToolTurn = Extract<Turn, { role: 'tool' }>
type CallPart = Extract<Part, { type: 'tool_call' }>
type SaidPart = Extract<Part, { type: 'text' | 'native' }>

/**
 * Converts turns into the input items of a response, in order: messages, reasoning, calls and their outputs. If the caller used the Responses API,
 * then its native items and fields are sent unchanged.
 *
 * @param isOpenAi Whether the upstream is OpenAI's own server, which accepts only reasoning that it encrypted itself.
 */
function encodeItems(request: GenerateRequest, isOpenAi: boolean): object[] {
  const isSame = request.dialect === 'responses'
  const readsThoughts = request.dialect !== 'anthropic' && !isOpenAi
  return request.turns.flatMap((turn, index) => {
    if (turn.role === 'assistant') return encodeAnswer(turn, readsThoughts, isSame)
    if (turn.role === 'tool') return [encodeResult(turn, index, isSame)]
    const role = turn.role === 'system' && turn.developer ? 'developer' : turn.role
    return [{ type: 'message', ...(isSame && turn.extra), role, content: encodeContent(turn.parts, index, isSame) }]
  })
}

/** Encodes one assistant turn. Adjacent texts form one message, unless the caller sent them as several messages. */
function encodeAnswer({ parts }: AssistantTurn, readsThoughts: boolean, isSame: boolean): object[] {
  const items: object[] = []
  let texts: SaidPart[] = []
  const endMessage = () => {
    const [first] = texts
    if (first)
      items.push({
        type: 'message',
        ...(isSame && first.message),
        role: 'assistant',
        content: messageContent(texts, isSame),
      })
    texts = []
  }
  for (const part of parts) {
    if (part.type === 'text' || (part.type === 'native' && !part.isItem)) {
      if (isSame && part.message && texts.length > 0) endMessage()
      texts.push(part)
      continue
    }
    const item = encodeItem(part, readsThoughts, isSame)
    if (!item) continue
    endMessage()
    items.push(item)
  }
  endMessage()
  return items
}

function messageContent(parts: readonly SaidPart[], isSame: boolean): unknown {
  const isPlain = parts.every((part) => part.type === 'text' && !(isSame && part.extra))
  if (isPlain) return parts.map(({ text }) => text).join('')
  return parts.map((part) => {
    return part.type === 'native'
      ? part.value
      : { type: 'output_text', text: part.text, annotations: [], ...part.extra }
  })
}

function encodeItem(part: Part, readsThoughts: boolean, isSame: boolean): object | undefined {
  switch (part.type) {
    case 'tool_call':
      return encodeCall(part, isSame)
    case 'reasoning':
      return thoughtOf(part, readsThoughts, isSame)
    case 'native':
      return part.value
    default:
      return undefined
  }
}

function encodeCall({ id: call_id, name, arguments: text, custom, extra }: CallPart, isSame: boolean): object {
  const call = custom
    ? { type: 'custom_tool_call', call_id, name, input: customInput(text) }
    : { type: 'function_call', call_id, name, arguments: text }
  return isSame ? { ...call, ...extra } : call
}

function encodeResult(turn: ToolTurn, index: number, isSame: boolean): object {
  const { call_id, parts, is_error: hasFailed, custom, extra } = turn
  const content = encodeContent(parts, index, isSame)
  const output = hasFailed && typeof content === 'string' ? `Error: ${content}` : content
  const type = custom ? 'custom_tool_call_output' : 'function_call_output'
  return { type, ...(isSame && extra), call_id, output }
}

/** Encodes content. A single text becomes a string, because every server supports strings. */
function encodeContent(parts: readonly Part[], index: number, isSame: boolean): unknown {
  const [first] = parts
  if (!first) return ''
  if (parts.length === 1 && first.type === 'text' && !(isSame && first.extra)) return first.text
  return parts.map((part, at) => {
    const encoded = encodePart(part, `messages[${index}].content[${at}]`)
    return isSame && 'extra' in part ? { ...encoded, ...part.extra } : encoded
  })
}

function encodePart(part: Part, param: string): object {
  switch (part.type) {
    case 'text':
      return { type: 'input_text', text: part.text }
    case 'image':
      return { type: 'input_image', image_url: part.url, detail: part.detail ?? 'auto' }
    case 'audio':
      return { type: 'input_audio', input_audio: { data: part.data, format: part.format } }
    case 'file': {
      if (!part.data.startsWith('data:')) return { type: 'input_file', file_url: part.data }
      return { type: 'input_file', filename: part.filename ?? 'file', file_data: part.data }
    }
    case 'native':
      return part.value
    default:
      throw new ServiceError('invalid_value', `A user message cannot contain a part of type ${part.type}.`, { param })
  }
}

type ReasoningPart = Extract<Part, { type: 'reasoning' }>

const PREFIX = 'responses:'

export function signatureOf(id: string, sealed: string): string {
  return `${PREFIX}${id}:${sealed}`
}

/**
 * Converts a reasoning part into an input item. Reasoning without a signature of this API, for example from another model, can only be sent as text.
 *
 * @param readsText Whether the upstream accepts reasoning as text.
 * @param isSame Whether the caller used this API, so that its extra fields are sent.
 * @returns Undefined if the part is left out
 */
function thoughtOf(part: ReasoningPart, readsText: boolean, isSame: boolean): object | undefined {
  const { text, signature } = part
  const extra = isSame ? part.extra : undefined
  if (signature?.startsWith(PREFIX)) {
    const colon = signature.indexOf(':', PREFIX.length)
    const id = signature.slice(PREFIX.length, colon)
    const summary = text === '' ? [] : [{ type: 'summary_text', text }]
    const named = id === '' ? {} : { id }
    return { type: 'reasoning', ...named, summary, encrypted_content: signature.slice(colon + 1), ...extra }
  }
  if (!readsText || text === '') return undefined
  return { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text }], ...extra }
}
