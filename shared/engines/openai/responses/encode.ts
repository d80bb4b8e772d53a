import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { defined, effort, maxTokens } from '#shared/engines/openai/encode.ts'
import { isOpenAiServer } from '#shared/engines/upstream/servers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { encodeItems } from './items.ts'

/**
 * The body of POST /responses.
 *
 * The upstream stores nothing (`store: false`), since our own store has the earlier responses. A reasoning model returns its reasoning
 * encrypted, so that it can be sent back.
 *
 * Chat completions and messages have parameters that this API lacks. Parameters that would change the answer are rejected. `seed`, which
 * guarantees nothing, and penalties of 0 are dropped.
 *
 * @throws ServiceError for a parameter that the API lacks
 */
export function encodeResponses(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  requireSayable(request)
  // Chat completions share some fields (adapt.ts).
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

function requireSayable(request: GenerateRequest): void {
  if (request.n > 1) refuse(request, 'n')
  if (request.stop.length > 0) refuse(request, 'stop')
  if (Object.keys(request.logit_bias ?? {}).length > 0) refuse(request, 'logit_bias')
  if (request.turns.at(-1)?.role === 'assistant' && request.dialect === 'anthropic') {
    const message = `The model '${request.model}' cannot continue an answer that begins with a prefilled assistant turn.`
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

/** A native tool is sent once, unchanged. A null value means that the preceding native tool includes this one. */
function encodeTools(tools: readonly Tool[], isSame: boolean): object[] {
  return tools.flatMap((tool) => {
    if (tool.native === null) return []
    return [tool.native ?? encodeTool(tool, isSame)]
  })
}

/** Unlike other APIs, this one has `strict: true` as the default. */
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
