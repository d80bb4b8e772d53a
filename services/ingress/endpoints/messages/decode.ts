import type { IncomingHttpHeaders } from 'node:http'
import type { GenerateRequest, Tool } from '#schemas/kinds/generate.ts'
import {
  CountTokensRequest,
  MessagesRequest,
  type MessagesTool,
  type MessagesToolChoice,
  Unknown,
} from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  type DecodeContext,
  outputTokens,
  refuse,
  requireBoundedSchemas,
  requireJson,
  requireToolChoice,
  requireTools,
} from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, type Pieces, parseInPieces } from '#services/ingress/body/validate.ts'
import { NO_ACCESS } from '#services/ingress/calls/endpoint.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { clientTool, isMessagesUpstream, isSearch } from './native.ts'
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
 * Decodes a body for token counting. Such a body has neither `max_tokens` nor `stream`
 * (docs/reference/compatibility.md, Counting tokens).
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

/**
 * Finds a model. The caller of an unknown model receives Anthropic's message, `model: <id>`, followed by suggestions.
 * `messagesErrorBody` adds the prefix `model: `, because `param` is `model`. The message of `getModel` is a sentence that
 * ends with `NO_ACCESS`, then the suggestions. The message is split there, so that the id replaces the sentence.
 */
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

/**
 * Returns the fields that `GenerateRequest` cannot represent, such as `display` of `thinking`, and objects of unknown types.
 * An upstream of the Messages API receives both unchanged.
 */
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
  // The field `thread` refers to a conversation that Anthropic stores, and whose content is unknown here. If the field
  // is refused, then SDKs send the whole conversation instead.
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
 * Returns the response format of the request. Beta versions of the API name the field `output_format`. That field is
 * decoded only for upstreams of other APIs, because an upstream of the Messages API receives the field unchanged.
 */
function responseFormat(request: CountTokensRequest, model: ModelConfig): GenerateRequest['response_format'] {
  const { output_config, output_format } = request
  const isOlder = !output_config?.format && output_format && !isMessagesUpstream(model)
  const format = isOlder ? output_format : output_config?.format
  if (!format || format instanceof Unknown) return undefined
  requireJson(model, isOlder ? 'output_format' : 'output_config.format')
  return { type: 'json_schema', schema: format.schema }
}

/**
 * Returns the thinking options. Undefined for a model without reasoning. The thinking budget is kept below the token
 * limit of the answer.
 */
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

const TOOL_CONSUMED: ReadonlySet<string> = new Set(['name', 'description', 'input_schema', 'strict'])

/**
 * Decodes the tools of a request. Custom tools become functions. An upstream of the Messages API receives all other
 * tools unchanged. For upstreams of other APIs, tools that the client runs, such as `bash`, become functions, and the
 * remaining tools are left out.
 *
 * @throws ServiceError for duplicate names, for a tool in the format of OpenAI's API, and for a model without tool calls
 */
function decodeTools(tools: readonly MessagesTool[], model: ModelConfig): Tool[] {
  const decoded = tools.map((tool, index) => (tool instanceof Unknown ? nativeTool(tool, index) : customTool(tool)))
  const needed = isMessagesUpstream(model) ? decoded : decoded.filter(({ native_only }) => !native_only)
  if (needed.length > 0) requireTools(model, decoded, (index) => `tools[${index}].name`)
  return decoded
}

function customTool(tool: Exclude<MessagesTool, Unknown>): Tool {
  return {
    name: tool.name,
    description: tool.description ?? undefined,
    parameters: tool.input_schema,
    strict: tool.strict ?? undefined,
    extra: extraOf(tool, TOOL_CONSUMED),
  }
}

/**
 * Converts a tool of an unknown type. Such a tool may have no name, so the type and the index then form a unique name.
 */
function nativeTool({ value }: Unknown, index: number): Tool {
  if (value.type === 'function') {
    const message = "This tool has the format of OpenAI's API. Send name, description and input_schema, without type."
    refuse('invalid_value', `tools[${index}]`, message)
  }
  const name = typeof value.name === 'string' && value.name !== '' ? value.name : `${value.type}_${index}`
  const stand = clientTool(value)
  if (stand) return { name, ...stand, native: value }
  return { name, parameters: { type: 'object', properties: {} }, native: value, native_only: true }
}

type Choice = Pick<GenerateRequest, 'tool_choice' | 'parallel_tool_calls'>

function toolUse(choice: MessagesToolChoice | undefined, tools: readonly Tool[], model: ModelConfig): Choice {
  if (choice === undefined || choice instanceof Unknown) return {}
  const use = internalChoice(choice)
  requireToolChoice(use, tools, choice.type === 'tool' ? 'tool_choice.name' : 'tool_choice')
  // Upstreams refuse `tool_choice` and `parallel_tool_calls` in a request without tools.
  if (tools.length === 0) return {}
  if (choice.type === 'none') return { tool_choice: use }
  const chosen = tools.find(({ name }) => use?.type === 'tool' && name === use.name)
  // A choice of a search tool is kept, because Sluice may run the search itself. If Sluice cannot, then native.ts later
  // removes both the tool and the choice.
  const isLeftOut = chosen?.native_only === true && !isSearch(chosen.native) && !isMessagesUpstream(model)
  const parallel_tool_calls = choice.disable_parallel_tool_use ? false : undefined
  return { tool_choice: isLeftOut ? { type: 'auto' } : use, parallel_tool_calls }
}

function internalChoice(choice: Exclude<MessagesToolChoice, Unknown>): GenerateRequest['tool_choice'] {
  if (choice.type === 'tool') return { type: 'tool', name: choice.name }
  return { type: choice.type === 'any' ? 'required' : choice.type }
}

const CHOICE_CONSUMED: ReadonlySet<string> = new Set(['type', 'name'])

/**
 * Returns the fields of the client's tool_choice that the internal request cannot represent, for an upstream of the
 * Messages API. If the type is unknown, then the whole choice is returned.
 */
function choiceExtra(choice: MessagesToolChoice | null | undefined): Record<string, unknown> | undefined {
  if (!choice) return undefined
  return choice instanceof Unknown ? choice.value : extraOf(choice, CHOICE_CONSUMED)
}

/**
 * Version of a call without a version header, which is also the oldest accepted version
 * (docs/reference/compatibility.md, Messages versions).
 */
const VERSION_DEFAULT = '2023-06-01'

/**
 * Returns the version of the Messages API that a call requests, from the header `anthropic-version`, or else
 * `vendor-version`.
 *
 * @returns A date, `YYYY-MM-DD`
 * @throws ServiceError if the value is not a date, or precedes the first version
 */
export function parseVersion(headers: IncomingHttpHeaders): string {
  const name = headers['anthropic-version'] === undefined ? 'vendor-version' : 'anthropic-version'
  const version = String(headers[name] ?? VERSION_DEFAULT).trim()
  const isDate = /^\d{4}-\d{2}-\d{2}$/.test(version) && isCalendarDate(version)
  if (isDate && version >= VERSION_DEFAULT) return version
  const message = `'${excerpt(version)}' is not a version. Expected a date, ${VERSION_DEFAULT} or later.`
  throw new ServiceError('invalid_request', message, { param: name })
}

const BETA_CHARS_MAX = 2_000

/**
 * Returns the headers for an upstream of the Messages API: the version, if given, and the beta features.
 *
 * @throws The errors of {@link parseVersion}, and a ServiceError for an invalid list of beta features
 */
export function parseUpstreamHeaders(headers: IncomingHttpHeaders): NonNullable<GenerateRequest['anthropic']> {
  const isNamed = headers['anthropic-version'] !== undefined || headers['vendor-version'] !== undefined
  const beta = headers['anthropic-beta']?.toString().trim() || undefined
  if (beta !== undefined && (beta.length > BETA_CHARS_MAX || !/^[\w.:-]+( *, *[\w.:-]+)*$/.test(beta))) {
    const message = 'The header must contain names of features, separated by commas.'
    throw new ServiceError('invalid_request', message, { param: 'anthropic-beta' })
  }
  return { ...(isNamed && { version: parseVersion(headers) }), ...(beta !== undefined && { beta }) }
}

function isCalendarDate(text: string): boolean {
  const ms = Date.parse(`${text}T00:00:00Z`)
  return !Number.isNaN(ms) && new Date(ms).toISOString().startsWith(text)
}
