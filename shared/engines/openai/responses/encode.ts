import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { defined, effort, maxTokens } from '#shared/engines/openai/encode.ts'
import { isOpenAiServer } from '#shared/engines/upstream/servers.ts'
import { ServiceError } from '#shared/error.ts'
import { encodeItems } from './items.ts'

/**
 * The body of POST /responses. Nothing is kept at the upstream (`store: false`): the store here keeps what a response builds on,
 * and a model that reasons gives its thoughts sealed, so that they can be sent back to it.
 *
 * Chat completions and messages can ask for things this API has no words for. What would change the answer is refused; `seed`
 * is left out, since it promises nothing, and so is a penalty of 0.
 *
 * @throws ServiceError when the request asks for something the API cannot say
 */
export function encodeResponses(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  requireSayable(request)
  const { verbosity, ...extra } = request.dialect === 'openai' ? (request.extra ?? {}) : {}
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
    ...tools(request),
    text: text(request, verbosity),
    reasoning: reasoning(request, model),
    include: include(request, model),
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
    const message = `The model '${request.model}' cannot go on with an answer that was begun for it.`
    throw new ServiceError('unsupported_value', message, { param: 'messages' })
  }
}

function refuse(request: GenerateRequest, param: string): never {
  throw new ServiceError('unsupported_parameter', `The model '${request.model}' does not take ${param}.`, { param })
}

function tools(request: GenerateRequest): object {
  if (request.tools.length === 0) return {}
  return {
    tools: request.tools.map((tool) => encodeTool(tool, request.dialect === 'openai')),
    tool_choice: toolChoice(request),
    parallel_tool_calls: request.parallel_tool_calls,
  }
}

/** This API takes a schema as strict where nothing is said of it, unlike chat completions and messages. */
function encodeTool({ name, description, parameters, strict = false, extra }: Tool, isSameDialect: boolean): object {
  return { ...(isSameDialect ? extra : {}), ...defined({ type: 'function', name, description, parameters, strict }) }
}

function toolChoice({ tool_choice: choice, allowed_tools: allowed }: GenerateRequest): unknown {
  if (choice?.type === 'tool') return { type: 'function', name: choice.name }
  if (!allowed || choice?.type === 'none') return choice?.type
  const tools = allowed.map((name) => ({ type: 'function', name }))
  return { type: 'allowed_tools', mode: choice?.type ?? 'auto', tools }
}

function text({ response_format: asked }: GenerateRequest, verbosity: unknown): object | undefined {
  const { name = 'answer', ...rest } = asked?.type === 'json_schema' ? asked : {}
  const format = asked?.type === 'json_schema' ? defined({ name, ...rest }) : asked
  const all = defined({ format, verbosity })
  return Object.keys(all).length > 0 ? all : undefined
}

function reasoning(request: GenerateRequest, model: ModelConfig): object | undefined {
  const asked = model.capabilities.reasoning ? effort(request.reasoning) : undefined
  return asked === undefined ? undefined : { effort: asked }
}

function include({ logprobs }: GenerateRequest, { capabilities }: ModelConfig): string[] | undefined {
  const all = [
    ...(logprobs ? ['message.output_text.logprobs'] : []),
    ...(capabilities.reasoning ? ['reasoning.encrypted_content'] : []),
  ]
  return all.length > 0 ? all : undefined
}
