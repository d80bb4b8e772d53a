import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { defined, maxTokens } from '#shared/engines/openai/encode.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { encodeConversation } from './messages.ts'

/** The API requires max_tokens. Default if neither the caller nor the catalogue sets a limit. */
const MAX_TOKENS_DEFAULT = 4_096

/**
 * The body of POST /v1/messages for an Anthropic upstream.
 *
 * Chat completions have parameters that this API lacks. Parameters that would change the answer are rejected. `seed`, which guarantees
 * nothing, and penalties of 0 are dropped.
 *
 * @throws ServiceError for a parameter that the API lacks
 */
export function encodeAnthropic(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  requireSayable(request)
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

/** The body of POST /v1/messages/count_tokens: the prompt without the parameters of the answer. */
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

/** Unknown fields, if the caller uses the same API. */
function extraOf({ dialect, extra }: GenerateRequest): Record<string, unknown> {
  return dialect === 'anthropic' ? (extra ?? {}) : {}
}

function metadata(request: GenerateRequest): object | undefined {
  const set = defined({ ...(extraOf(request).metadata as object | undefined), user_id: request.user })
  return Object.keys(set).length > 0 ? set : undefined
}

function requireSayable(request: GenerateRequest): void {
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

/** Clamped: chat completions permit up to 2, this API up to 1. */
function temperature({ temperature }: GenerateRequest): number | undefined {
  return temperature === undefined ? undefined : Math.min(temperature, 1)
}

/**
 * The API cannot restrict the choice to some tools, so tools that are not allowed are left out.
 *
 * @param extra Fields of the choice without an internal form
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

/** Thinking options in the API's own form are passed on. The internal form overrides them, because it may have been clamped. */
function thinking(request: GenerateRequest, extra: unknown): object | undefined {
  const own = thinkingOf(request)
  const { type } = (extra ?? {}) as { type?: unknown }
  const isOther = typeof type === 'string' && !['enabled', 'adaptive', 'disabled'].includes(type)
  return own && !isOther ? { ...(extra as object | undefined), ...own } : (extra as object | undefined)
}

/** Thinking options from the internal form. Chat completions have only an effort, which leaves the budget to the model. */
function thinkingOf({ reasoning, dialect }: GenerateRequest): object | undefined {
  if (!reasoning) return undefined
  if (reasoning.enabled === false || reasoning.effort === 'none') return { type: 'disabled' }
  if (reasoning.budget_tokens !== undefined) return { type: 'enabled', budget_tokens: reasoning.budget_tokens }
  const isWanted = reasoning.adaptive || (dialect === 'openai' && reasoning.effort !== undefined)
  return isWanted ? { type: 'adaptive' } : undefined
}

function outputConfig(request: GenerateRequest, reasons: boolean, extra: unknown): object | undefined {
  const format = request.response_format
  const effort = reasons ? wordOfEffort(request.reasoning?.effort) : undefined
  const set = defined({
    ...(extra as object | undefined),
    format: format?.type === 'json_schema' ? { type: 'json_schema', schema: format.schema } : undefined,
    effort,
  })
  return Object.keys(set).length > 0 ? set : undefined
}

/** The effort in the API's words. For `none` thinking is disabled, and the API has no `minimal`. */
function wordOfEffort(effort: string | undefined): string | undefined {
  if (effort === 'none') return undefined
  return effort === 'minimal' ? 'low' : effort
}
