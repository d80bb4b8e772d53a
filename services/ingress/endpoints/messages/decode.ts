import type { GenerateRequest } from '#schemas/generate.ts'
import { CountTokensRequest, MessagesRequest, Unknown } from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  type DecodeContext,
  outputTokens,
  refuse,
  requireBoundedSchemas,
  requireJson,
} from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, type Pieces, parseInPieces } from '#services/ingress/body/validate.ts'
import { NO_ACCESS } from '#services/ingress/calls/endpoint.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { isMessagesUpstream } from './native.ts'
import { choiceExtra, decodeTools, toolUse } from './tools.ts'
import { decodeConversation } from './turns.ts'

export interface MessagesContext extends DecodeContext {
  readonly beta?: string | undefined
}

/**
 * Decodes a messages body (docs/reference/compatibility.md, Messages requests). Checks the shape first, then the model,
 * then the rules that depend on the model.
 *
 * @throws ServiceError with the path of the first problem
 */
export function* decodeMessages(body: unknown, context: MessagesContext): Pieces<GenerateRequest> {
  const request = yield* parseInPieces(MessagesRequest, body, 'messages')
  const model = findModel(request.model, context)
  const maxTokens = outputTokens(model, request.max_tokens)
  if (request.thinking?.type === 'enabled' && request.thinking.budget_tokens >= request.max_tokens) {
    refuse('invalid_value', 'thinking.budget_tokens', 'Input should be less than max_tokens')
  }
  return {
    ...(yield* decodePrompt(request, model, context)),
    stream: request.stream ?? false,
    max_tokens: maxTokens,
    reasoning: reasoning(request, model, maxTokens),
    extra: extra(request),
  }
}

/**
 * Decodes a body for token counting, which has neither `max_tokens` nor `stream` (docs/reference/compatibility.md, Counting tokens).
 */
export function* decodeCount(body: unknown, context: MessagesContext): Pieces<GenerateRequest> {
  const request = yield* parseInPieces(CountTokensRequest, body, 'messages')
  const model = findModel(request.model, context)
  return {
    ...(yield* decodePrompt(request, model, context)),
    stream: false,
    reasoning: reasoning(request, model),
    extra: extra(request),
  }
}

/** Anthropic's error for an unknown model reads `model: <id>`. Suggestions follow the id. */
function findModel(id: string, context: DecodeContext): ModelConfig {
  try {
    return context.getModel(id)
  } catch (error) {
    if (!(error instanceof ServiceError) || error.code !== 'model_not_found') throw error
    const [, others = ''] = error.message.split(NO_ACCESS)
    const named = others === '' ? excerpt(id) : `${excerpt(id)}.${others}`
    throw new ServiceError('model_not_found', named, { cause: error, param: 'model' })
  }
}

const CONSUMED: ReadonlySet<string> = new Set([
  ...['model', 'messages', 'max_tokens', 'system', 'temperature', 'top_p', 'top_k', 'stop_sequences', 'stream'],
  ...['tools', 'tool_choice', 'metadata', 'output_config', 'thinking'],
])
const THINKING_CONSUMED: ReadonlySet<string> = new Set(['type', 'budget_tokens'])
const OUTPUT_CONSUMED: ReadonlySet<string> = new Set(['format', 'effort'])
const METADATA_CONSUMED: ReadonlySet<string> = new Set(['user_id'])

/** Fields without an internal form, such as `display` of `thinking`. Objects of unknown types are passed as a whole. */
function extra({
  thinking,
  output_config,
  metadata,
  tool_choice,
  output_format,
  ...request
}: CountTokensRequest): GenerateRequest['extra'] {
  const { format } = output_config ?? {}
  const rest = {
    ...extraOf(request, CONSUMED),
    thinking: thinking instanceof Unknown ? thinking.value : extraOf(thinking ?? {}, THINKING_CONSUMED),
    output_config: extraOf(
      { ...extraOf(output_config ?? {}, OUTPUT_CONSUMED), ...(format instanceof Unknown && { format: format.value }) },
      NOTHING,
    ),
    metadata: extraOf(metadata ?? {}, METADATA_CONSUMED),
    tool_choice: choiceExtra(tool_choice),
    output_format: output_format instanceof Unknown ? output_format.value : output_format,
  }
  return extraOf(rest, NOTHING)
}

const NOTHING: ReadonlySet<string> = new Set()

function* decodePrompt(request: CountTokensRequest, model: ModelConfig, context: MessagesContext) {
  // `thread` refers to a conversation stored at Anthropic, which the model here would not see. If `thread` is refused,
  // SDKs send the whole conversation instead.
  if (request.thread !== undefined && request.thread !== null) {
    refuse('unsupported_parameter', 'thread', 'Threads are not supported. Send the full conversation without a thread.')
  }
  if (typeof request.temperature === 'number' && typeof request.top_p === 'number') {
    refuse('invalid_value', 'temperature', 'temperature and top_p cannot both be specified. Use only one of them.')
  }
  const tools = decodeTools(request.tools ?? [], model)
  const format = responseFormat(request, model)
  requireBoundedSchemas(tools, (index) => `tools[${index}].input_schema`, format, 'output_config.format.schema')
  const turns = yield* decodeConversation(request.system ?? '', request.messages, { ...context, model })
  return {
    dialect: 'anthropic' as const,
    model: model.id,
    turns,
    temperature: request.temperature ?? undefined,
    top_p: request.top_p ?? undefined,
    top_k: request.top_k || undefined,
    n: 1,
    stop: request.stop_sequences ?? [],
    logprobs: false,
    tools,
    ...toolUse(request.tool_choice ?? undefined, tools, model),
    response_format: format,
    user: request.metadata?.user_id ?? undefined,
  }
}

/**
 * Response format. Beta versions of the API name the field `output_format`. An upstream of the Messages API receives
 * that field unchanged.
 */
function responseFormat(request: CountTokensRequest, model: ModelConfig): GenerateRequest['response_format'] {
  const { output_config, output_format } = request
  const isOlder = !output_config?.format && output_format && !isMessagesUpstream(model)
  const format = isOlder ? output_format : output_config?.format
  if (!format || format instanceof Unknown) return undefined
  requireJson(model, isOlder ? 'output_format' : 'output_config.format')
  return { type: 'json_schema', schema: format.schema }
}

/** Thinking options; undefined for a model without reasoning. The budget stays below the clamped `max_tokens`. */
function reasoning(
  request: CountTokensRequest,
  model: ModelConfig,
  maxTokens = Infinity,
): GenerateRequest['reasoning'] {
  if (!model.capabilities.reasoning) return undefined
  const effort = request.output_config?.effort ?? undefined
  const thinking = request.thinking
  if (!thinking) return effort === undefined ? undefined : { effort }
  if (thinking.type === 'disabled') return { effort, enabled: false }
  if (thinking.type !== 'enabled') return { effort, enabled: true, adaptive: true }
  return { effort, enabled: true, budget_tokens: Math.min(thinking.budget_tokens, maxTokens - 1) }
}
