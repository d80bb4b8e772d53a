import { createHash } from 'node:crypto'
import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { isOpenAiServer } from '#shared/engines/upstream/servers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { encodeTurns, nested } from './messages.ts'

/** Converts a budget of reasoning tokens into an effort: the first row whose bound is not exceeded. */
const EFFORTS: ReadonlyArray<readonly [budgetMax: number, effort: string]> = [
  [2_048, 'low'],
  [8_192, 'medium'],
  [Number.POSITIVE_INFINITY, 'high'],
]

/**
 * The body of POST /chat/completions for an upstream with OpenAI's API.
 *
 * OpenAI's own servers and compatible ones differ in a few fields; there the base URL decides. Unknown fields of a request of the same API
 * are passed on, but never override a known field.
 *
 * @throws ServiceError for a parameter that the API lacks
 */
export function encodeOpenAi(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  const isOpenAi = isOpenAiServer(config)
  const isSame = request.dialect === 'openai'
  const limit = maxTokens(request, model)
  return defined({
    // The Responses API shares some fields (adapt.ts).
    ...(request.dialect === 'anthropic' ? {} : request.extra),
    model: config.model ?? model.id,
    messages: encodeTurns(request, isOpenAi),
    // vLLM and SGLang need these flags to continue a last assistant turn; llama.cpp and Ollama do so by default.
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

/** The token limit of the answer: the caller's, at most the model's; undefined if neither is set. */
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

/** Only OpenAI supports `allowed_tools`. For other servers, tools that are not allowed are left out. */
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

/** Usage is always requested. Other options are passed on to a server of the same API. */
function streamOptions(request: GenerateRequest, config: UpstreamConfig): object | undefined {
  if (!request.stream) return undefined
  const options = request.dialect === 'openai' ? request.extra?.stream_options : undefined
  if (!config.force_usage) return options as object | undefined
  return { ...(options as object | undefined), include_usage: true }
}

/** OpenAI and many servers reject a longer end user id. */
const USER_CHARS_MAX = 64

/** The end user id; a long one as its SHA-256. Clients of the messages format send 164 characters. */
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

/** The reasoning effort in OpenAI's terms; undefined for the model's default. */
export function effort(reasoning: GenerateRequest['reasoning']): string | undefined {
  if (!reasoning) return undefined
  if (reasoning.effort !== undefined) return reasoning.effort
  if (reasoning.enabled === false) return 'none'
  const budget = reasoning.budget_tokens
  return budget === undefined ? undefined : EFFORTS.find(([budgetMax]) => budget <= budgetMax)?.[1]
}

/** Whether the last assistant turn is the beginning of the answer; only the Messages API defines that. */
function isPrefill(request: GenerateRequest): boolean {
  return request.dialect === 'anthropic' && request.turns.at(-1)?.role === 'assistant'
}

export function defined(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
}
