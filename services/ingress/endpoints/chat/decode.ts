import { ChatRequest, type ChatTool, type ChatToolChoice } from '#schemas/chat.ts'
import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { extraOf, type Pieces, parseInPieces } from '#services/ingress/body/validate.ts'
import {
  type DecodeContext,
  outputTokens,
  refuse,
  requireBoundedSchemas,
  requireJson,
  requireNamed,
  requireToolChoice,
  requireTools,
} from '#services/ingress/endpoints/decode.ts'
import { decodeChatTurns } from './turns.ts'

/**
 * Decodes a chat completions body (docs/protocol.md, Chat requests). Shape first, then the model, then the rules that
 * need it: so a body without shape is 400 and an unknown model 404.
 *
 * @throws ServiceError with the path of the first problem
 */
export function* decodeChat(body: unknown, context: DecodeContext): Pieces<GenerateRequest> {
  const chat = yield* parseInPieces(ChatRequest, body, 'openai')
  const model = context.getModel(chat.model)
  requireSupported(chat)
  requireSampling(chat, model)
  const tools = (chat.tools ?? []).map(decodeTool)
  requireTools(model, tools, (index) => `tools[${index}].function.name`)
  const format = responseFormat(chat, model)
  requireBoundedSchemas(tools, (index) => `tools[${index}].function.parameters`, format, FORMAT_SCHEMA)
  const turns = yield* decodeChatTurns(chat.messages, { model, remoteImages: context.remoteImages })
  return {
    dialect: 'openai',
    model: model.id,
    turns,
    stream: chat.stream ?? false,
    max_tokens: outputTokens(model, chat.max_completion_tokens ?? chat.max_tokens ?? undefined),
    temperature: chat.temperature ?? undefined,
    top_p: chat.top_p ?? undefined,
    n: chat.n ?? 1,
    stop: typeof chat.stop === 'string' ? [chat.stop] : (chat.stop ?? []),
    presence_penalty: chat.presence_penalty ?? undefined,
    frequency_penalty: chat.frequency_penalty ?? undefined,
    logit_bias: chat.logit_bias ?? undefined,
    seed: typeof chat.seed === 'number' ? exactSeed(chat.seed) : undefined,
    logprobs: chat.logprobs ?? false,
    top_logprobs: chat.top_logprobs ?? undefined,
    tools,
    ...toolUse(chat, tools),
    response_format: format,
    reasoning: reasoning(chat, model),
    user: chat.user ?? undefined,
    extra: extraOf(chat, CONSUMED),
  }
}

/**
 * Fields that have an internal meaning or end here. `store` and `metadata` belong to the job (docs/protocol.md, Chat
 * requests), not to the upstream. What is not listed goes along to an upstream of this dialect.
 */
const CONSUMED: ReadonlySet<string> = new Set([
  ...['model', 'messages', 'stream', 'stream_options', 'temperature', 'top_p', 'max_completion_tokens', 'max_tokens'],
  ...['n', 'stop', 'presence_penalty', 'frequency_penalty', 'logit_bias', 'seed', 'logprobs', 'top_logprobs'],
  ...['response_format', 'tools', 'tool_choice', 'parallel_tool_calls', 'user', 'metadata', 'store'],
  ...['reasoning_effort', 'modalities'],
])

const FORMAT_SCHEMA = 'response_format.json_schema.schema'
const UNSUPPORTED = ['audio', 'web_search_options', 'moderation', 'functions', 'function_call'] as const
const METADATA_PAIRS_MAX = 16

function requireSupported(chat: ChatRequest): void {
  for (const field of UNSUPPORTED) {
    if (chat[field] === undefined || chat[field] === null) continue
    refuse('unsupported_parameter', field, `Unsupported parameter: '${field}' is not supported by this service.`)
  }
  const audio = chat.modalities?.indexOf('audio') ?? -1
  if (audio >= 0) refuse('unsupported_value', 'modalities', "Unsupported value: 'modalities' supports only 'text'.")
  if (typeof chat.top_logprobs === 'number' && chat.logprobs !== true) {
    refuse('invalid_value', 'top_logprobs', "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.")
  }
}

/** What is asked beside the prompt, by chat and by plain completions. */
type Sampling = Pick<ChatRequest, 'stream' | 'stream_options' | 'metadata' | 'n' | 'logprobs'>

/** Refuses fields that need another one, and what is beyond a model. @throws ServiceError with the field */
export function requireSampling(chat: Sampling, model: ModelConfig): void {
  if (chat.stream_options && chat.stream !== true) {
    const message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    refuse('invalid_value', 'stream_options', message)
  }
  if (Object.keys(chat.metadata ?? {}).length > METADATA_PAIRS_MAX) {
    refuse('invalid_value', 'metadata', `Invalid 'metadata': expected at most ${METADATA_PAIRS_MAX} pairs.`)
  }
  const choices = chat.n ?? 1
  const most = model.limits.choices
  if (choices > most) {
    const message = `Invalid 'n': integer above maximum value. Expected a value <= ${most}, but got ${choices} instead.`
    refuse('integer_above_max_value', 'n', message)
  }
  if (chat.logprobs === true && !model.capabilities.logprobs) {
    refuse('unsupported_value', 'logprobs', `The model '${model.id}' does not give log probabilities.`)
  }
}

/** Seeds of 64 bits are folded into the integers a double holds exactly: the same seed gives the same number. */
export function exactSeed(seed: number): number {
  return Number.isSafeInteger(seed) ? seed : seed % Number.MAX_SAFE_INTEGER
}

const TOOL_CONSUMED: ReadonlySet<string> = new Set(['type', 'function'])

function decodeTool(tool: ChatTool, index: number): Tool {
  if (tool.type === 'custom') return refuseCustom(`tools[${index}].type`)
  return {
    name: tool.function.name,
    description: tool.function.description ?? undefined,
    parameters: tool.function.parameters ?? { type: 'object', properties: {} },
    strict: tool.function.strict ?? undefined,
    extra: extraOf(tool, TOOL_CONSUMED),
  }
}

function refuseCustom(param: string): never {
  return refuse('unsupported_value', param, "Unsupported value: tools of type 'custom' are not supported.")
}

function toolUse(
  chat: ChatRequest,
  tools: readonly Tool[],
): Pick<GenerateRequest, 'tool_choice' | 'allowed_tools' | 'parallel_tool_calls'> {
  const use = chat.tool_choice ? toolChoice(chat.tool_choice, tools) : {}
  requireToolChoice(use.tool_choice, tools)
  // Without tools there is nothing to choose, and upstreams refuse the mere words.
  if (tools.length === 0) return {}
  return { ...use, parallel_tool_calls: chat.parallel_tool_calls ?? undefined }
}

function toolChoice(
  choice: ChatToolChoice,
  tools: readonly Tool[],
): Pick<GenerateRequest, 'tool_choice' | 'allowed_tools'> {
  if (typeof choice === 'string') return { tool_choice: { type: choice } }
  if (choice.type === 'custom') return refuseCustom('tool_choice.type')
  if (choice.type === 'function') return { tool_choice: { type: 'tool', name: choice.function.name } }
  const names = choice.allowed_tools.tools.map((tool) => tool.function.name)
  for (const name of names) requireNamed(name, tools, 'tool_choice')
  return { tool_choice: { type: choice.allowed_tools.mode }, allowed_tools: names }
}

function responseFormat(chat: ChatRequest, model: ModelConfig): GenerateRequest['response_format'] {
  const format = chat.response_format
  if (!format || format.type === 'text') return undefined
  requireJson(model, 'response_format')
  if (format.type === 'json_object') return { type: 'json_object' }
  const { name, description, schema, strict } = format.json_schema
  return {
    type: 'json_schema',
    name,
    description: description ?? undefined,
    schema: schema ?? {},
    strict: strict ?? undefined,
  }
}

/** Passed to models that reason, else ignored. */
function reasoning(chat: ChatRequest, model: ModelConfig): GenerateRequest['reasoning'] {
  const effort = chat.reasoning_effort
  if (!effort || !model.capabilities.reasoning) return undefined
  return effort === 'none' ? { effort, enabled: false } : { effort }
}
