import { ChatRequest, type ChatTool, type ChatToolChoice, type NamedTool } from '#schemas/chat.ts'
import { CompletionsRequest } from '#schemas/completions.ts'
import { type EmbedInput, TOKENS_MAX } from '#schemas/kinds/embeddings.ts'
import type { GenerateRequest, Tool } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  type DecodeContext,
  outputTokens,
  readInputs,
  refuse,
  requireBoundedSchemas,
  requireJson,
  requireNamed,
  requireToolChoice,
  requireTools,
} from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, type Pieces, parseBody, parseInPieces } from '#services/ingress/body/validate.ts'
import { dialectOf } from '#shared/engines/adapt.ts'
import { choicesOf, requireCompletable } from '#shared/engines/completions.ts'
import { decodeChatTurns } from './turns.ts'

/**
 * Decodes a chat completions body (docs/reference/compatibility.md, Chat requests). The shape is checked first, then
 * the model, then the rules that depend on the model. An invalid body is therefore refused with 400 even if the model
 * is unknown (404).
 *
 * @throws ServiceError with the path of the first problem
 */
export function* decodeChat(body: unknown, context: DecodeContext): Pieces<GenerateRequest> {
  const chat = yield* parseInPieces(ChatRequest, body, 'openai')
  const model = context.getModel(chat.model)
  const isSame = dialectOf({}, model) === 'openai'
  requireSupported(chat, model, isSame)
  requireSampling(chat, model)
  const tools = chat.tools?.length ? decodeTools(chat.tools, model, isSame) : []
  const format = responseFormat(chat, model, isSame)
  requireBoundedSchemas(tools, (index) => `tools[${index}].function.parameters`, format, FORMAT_SCHEMA)
  const turns = yield* decodeChatTurns(chat.messages, { model, remoteImages: context.remoteImages, isSame })
  const top_k = chat.top_k ?? 0
  return {
    dialect: 'openai',
    model: model.id,
    turns,
    stream: chat.stream ?? false,
    max_tokens: outputTokens(model, chat.max_completion_tokens ?? chat.max_tokens ?? undefined),
    temperature: chat.temperature ?? undefined,
    top_p: chat.top_p ?? undefined,
    top_k: top_k > 0 ? top_k : undefined,
    n: chat.n ?? 1,
    stop: typeof chat.stop === 'string' ? [chat.stop] : (chat.stop ?? []),
    presence_penalty: chat.presence_penalty ?? undefined,
    frequency_penalty: chat.frequency_penalty ?? undefined,
    logit_bias: chat.logit_bias ?? undefined,
    seed: typeof chat.seed === 'number' ? exactSeed(chat.seed) : undefined,
    logprobs: chat.logprobs ?? false,
    top_logprobs: chat.top_logprobs ?? undefined,
    tools,
    ...(chat.tool_choice || tools.length > 0 ? toolUse(chat, tools) : {}),
    response_format: format,
    reasoning: reasoning(chat, model),
    user: chat.user ?? undefined,
    extra: requestExtra(chat, isSame),
  }
}

/**
 * Fields that `GenerateRequest` represents, or that concern only the job, such as `store` and `metadata`. An upstream with
 * the chat completions API receives all other fields unchanged (docs/reference/compatibility.md, Chat requests).
 */
const CONSUMED: ReadonlySet<string> = new Set([
  ...['model', 'messages', 'stream', 'stream_options', 'temperature', 'top_p', 'max_completion_tokens', 'max_tokens'],
  'top_k',
  ...['n', 'stop', 'presence_penalty', 'frequency_penalty', 'logit_bias', 'seed', 'logprobs', 'top_logprobs'],
  ...['response_format', 'tools', 'tool_choice', 'parallel_tool_calls', 'user', 'metadata', 'store'],
  'reasoning_effort',
])

/**
 * Returns the fields that the upstream receives unchanged. For some fields, `GenerateRequest` represents only some values.
 * All other values, such as a `top_k` of 0, are returned too.
 */
function requestExtra(chat: ChatRequest, isSame: boolean): GenerateRequest['extra'] {
  const { stream_options, response_format: format, top_k } = chat
  const options = stream_options ? extraOf(stream_options, STREAM_OPTIONS_CONSUMED) : undefined
  const shown = format?.type === 'unknown' ? format.value : format?.type === 'text' ? format : undefined
  const more = {
    ...(options && { stream_options: options }),
    ...(isSame && shown && { response_format: shown }),
    // Servers interpret 0 or -1 as "consider all tokens", for which the internal request has no value. Such a value is
    // therefore passed to the server unchanged.
    ...(typeof top_k === 'number' && top_k <= 0 && { top_k }),
  }
  const extra = extraOf(chat, CONSUMED)
  return extra || Object.keys(more).length > 0 ? { ...extra, ...more } : undefined
}

const STREAM_OPTIONS_CONSUMED: ReadonlySet<string> = new Set(['include_usage'])
const FORMAT_SCHEMA = 'response_format.json_schema.schema'
const UNSUPPORTED = ['audio', 'web_search_options', 'moderation', 'functions', 'function_call'] as const
const METADATA_PAIRS_MAX = 16

function requireSupported(chat: ChatRequest, model: ModelConfig, isSame: boolean): void {
  for (const field of isSame ? [] : UNSUPPORTED) {
    if (chat[field] === undefined || chat[field] === null) continue
    refuse('unsupported_parameter', field, `Unsupported parameter: '${field}' is not supported by this model.`)
  }
  if (chat.functions?.length && !model.capabilities.tools) {
    refuse('unsupported_parameter', 'functions', `The model '${model.id}' does not support tool calls.`)
  }
  if (!isSame && chat.modalities?.some((modality) => modality !== 'text')) {
    refuse('unsupported_value', 'modalities', "Unsupported value: 'modalities' supports only 'text'.")
  }
  if (typeof chat.top_logprobs === 'number' && chat.logprobs !== true) {
    refuse('invalid_value', 'top_logprobs', "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.")
  }
}

type Sampling = Pick<ChatRequest, 'stream' | 'stream_options' | 'metadata' | 'n' | 'logprobs'>

function requireSampling(chat: Sampling, model: ModelConfig): void {
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
    refuse('unsupported_value', 'logprobs', `The model '${model.id}' does not support log probabilities.`)
  }
}

/** Reduces a 64-bit seed to an integer that a double represents exactly. Equal seeds give equal results. */
function exactSeed(seed: number): number {
  return Number.isSafeInteger(seed) ? seed : seed % Number.MAX_SAFE_INTEGER
}

const TOOL_CONSUMED: ReadonlySet<string> = new Set(['type', 'function'])
const FUNCTION_CONSUMED: ReadonlySet<string> = new Set(['name', 'description', 'parameters', 'strict'])
const CUSTOM_PARAMETERS = { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] }

function decodeTools(given: readonly ChatTool[], model: ModelConfig, isSame: boolean): Tool[] {
  const tools = given.map((tool, index) => {
    if (tool.type === 'function') return functionTool(tool)
    return tool.type === 'custom' ? customTool(tool) : nativeTool(tool, index, isSame)
  })
  requireTools(model, tools, (index) => `tools[${index}].function.name`)
  return tools
}

function functionTool(tool: Extract<ChatTool, { type: 'function' }>): Tool {
  const { name, description, parameters, strict } = tool.function
  const inner = extraOf(tool.function, FUNCTION_CONSUMED)
  const extra = extraOf(tool, TOOL_CONSUMED)
  return {
    name,
    description: description ?? undefined,
    parameters: parameters ?? { type: 'object', properties: {} },
    strict: strict ?? undefined,
    extra: inner ? { ...extra, function: inner } : extra,
  }
}

/**
 * Converts a custom tool to a function with one string parameter, for upstreams without the chat completions API. These
 * upstreams cannot enforce a grammar, so the description of the function contains the grammar.
 */
function customTool(tool: Extract<ChatTool, { type: 'custom' }>): Tool {
  const { name, description, format } = tool.custom
  const { definition, syntax } = (format?.grammar ?? {}) as { definition?: unknown; syntax?: unknown }
  const grammar = typeof definition === 'string' ? `The input follows this grammar (${syntax}):\n${definition}` : ''
  const text = [description ?? '', grammar].filter((line) => line !== '').join('\n\n')
  return { name, description: text || undefined, parameters: CUSTOM_PARAMETERS, native: tool, custom: true }
}

function nativeTool(tool: Extract<ChatTool, { type: 'unknown' }>, index: number, isSame: boolean): Tool {
  const { type } = tool.value
  if (!isSame) {
    const message = `Invalid value: '${excerpt(type)}'. Supported values are: 'function', 'custom'.`
    refuse('invalid_value', `tools[${index}].type`, message)
  }
  // Several tools may have the same type, so the index makes the name unique.
  return { name: `${type}#${index}`, parameters: {}, native: tool.value, native_only: true }
}

function toolUse(
  chat: ChatRequest,
  tools: readonly Tool[],
): Pick<GenerateRequest, 'tool_choice' | 'allowed_tools' | 'parallel_tool_calls'> {
  const use = chat.tool_choice ? toolChoice(chat.tool_choice, tools) : {}
  requireToolChoice(use.tool_choice, tools)
  // Upstreams refuse `tool_choice` and `parallel_tool_calls` in a request without tools.
  if (tools.length === 0) return {}
  return { ...use, parallel_tool_calls: chat.parallel_tool_calls ?? undefined }
}

function toolChoice(
  choice: ChatToolChoice,
  tools: readonly Tool[],
): Pick<GenerateRequest, 'tool_choice' | 'allowed_tools'> {
  if (typeof choice === 'string') return { tool_choice: { type: choice } }
  if (choice.type !== 'allowed_tools') return { tool_choice: { type: 'tool', name: nameOf(choice, tools) } }
  const names = choice.allowed_tools.tools.map((tool) => nameOf(tool, tools))
  for (const name of names) requireNamed(name, tools, 'tool_choice')
  return { tool_choice: { type: choice.allowed_tools.mode }, allowed_tools: names }
}

/**
 * Name of the chosen tool. For a native tool, the choice contains only the type, so the first tool of that type is
 * used.
 */
function nameOf(choice: NamedTool, tools: readonly Tool[]): string {
  if (choice.type === 'function') return choice.function.name
  if (choice.type === 'custom') return choice.custom.name
  const { type } = choice.value
  return tools.find(({ native }) => native?.type === type)?.name ?? type
}

function responseFormat(chat: ChatRequest, model: ModelConfig, isSame: boolean): GenerateRequest['response_format'] {
  const format = chat.response_format
  if (!format || format.type === 'text') return undefined
  requireJson(model, 'response_format')
  if (format.type === 'unknown') {
    if (isSame) return undefined
    const message = `Invalid value: '${excerpt(format.value.type)}'. Supported values are: 'text', 'json_object', 'json_schema'.`
    return refuse('invalid_value', 'response_format.type', message)
  }
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

function reasoning(chat: ChatRequest, model: ModelConfig): GenerateRequest['reasoning'] {
  const effort = chat.reasoning_effort
  if (!effort || !model.capabilities.reasoning) return undefined
  return effort === 'none' ? { effort, enabled: false } : { effort }
}

const MAX_TOKENS = 16
const CHOICES_MAX = 2_048

/**
 * Fields that `GenerateRequest` represents, or that concern only the job. An upstream with the completions API receives
 * all other fields unchanged.
 */
const COMPLETION_CONSUMED: ReadonlySet<string> = new Set([
  ...['model', 'prompt', 'stream', 'stream_options', 'temperature', 'top_p', 'max_tokens', 'n', 'best_of', 'echo'],
  ...['suffix', 'stop', 'presence_penalty', 'frequency_penalty', 'logit_bias', 'seed', 'logprobs', 'user'],
  ...['metadata', 'store'],
])

/**
 * Decodes a completions body (docs/reference/compatibility.md, Completions). The shape is checked first, then the
 * model, then the rules that depend on the model. A prompt of text becomes a user turn. A prompt of token ids becomes a
 * list of tokens.
 *
 * @throws ServiceError with the path of the first problem
 */
// biome-ignore lint/correctness/useYield: decoding takes a few milliseconds; the other decoders yield, and callers expect a generator.
export function* decodeCompletions(body: unknown, context: DecodeContext): Pieces<GenerateRequest> {
  const asked = parseBody(CompletionsRequest, body, 'openai')
  const prompts = readInputs(asked.prompt, 'prompt')
  const model = context.getModel(asked.model)
  requireSampling({ ...asked, logprobs: typeof asked.logprobs === 'number' }, model)
  requireChoices(asked)
  const request = requestOf(asked, prompts, model)
  if (choicesOf(request) > CHOICES_MAX) {
    refuse('invalid_value', 'prompt', `Expected at most ${CHOICES_MAX} choices in one call, counted over all prompts.`)
  }
  requireCompletable(model, request)
  return request
}

function requestOf(asked: CompletionsRequest, prompts: EmbedInput[], model: ModelConfig): GenerateRequest {
  const { logprobs } = asked
  return {
    dialect: 'openai',
    model: model.id,
    turns: prompts.flatMap((text) =>
      typeof text === 'string' ? [{ role: 'user', parts: [{ type: 'text', text }] }] : [],
    ),
    stream: asked.stream ?? false,
    max_tokens: outputTokens(model, asked.max_tokens ?? MAX_TOKENS),
    temperature: asked.temperature ?? undefined,
    top_p: asked.top_p ?? undefined,
    n: asked.n ?? 1,
    stop: typeof asked.stop === 'string' ? [asked.stop] : (asked.stop ?? []),
    presence_penalty: asked.presence_penalty ?? undefined,
    frequency_penalty: asked.frequency_penalty ?? undefined,
    logit_bias: asked.logit_bias ?? undefined,
    seed: typeof asked.seed === 'number' ? exactSeed(asked.seed) : undefined,
    logprobs: typeof logprobs === 'number',
    top_logprobs: logprobs ?? undefined,
    tools: [],
    user: asked.user ?? undefined,
    completion: {
      tokens: tokensOf(prompts),
      echo: asked.echo ?? false,
      suffix: asked.suffix || undefined,
      best_of: asked.best_of ?? undefined,
    },
    extra: extraOf(asked, COMPLETION_CONSUMED),
  }
}

function tokensOf(prompts: readonly EmbedInput[]): number[][] | undefined {
  const lists = prompts.filter((prompt) => typeof prompt !== 'string')
  if (lists.length === 0) return undefined
  if (lists.reduce((sum, { length }) => sum + length, 0) <= TOKENS_MAX) return lists
  return refuse(
    'invalid_value',
    'prompt',
    `Expected at most ${TOKENS_MAX} tokens in one call, counted over all prompts.`,
  )
}

function requireChoices({ n, best_of: bestOf, stream, echo, max_tokens: maxTokens }: CompletionsRequest): void {
  const given = n ?? 1
  if (typeof bestOf === 'number') {
    if (bestOf < given) refuse('invalid_value', 'best_of', "Invalid 'best_of': must be at least as large as 'n'.")
    if (stream && bestOf > given) {
      refuse('invalid_value', 'best_of', "Invalid 'best_of': ranked choices cannot be streamed.")
    }
  }
  if (maxTokens === 0 && !echo) {
    refuse(
      'integer_below_min_value',
      'max_tokens',
      "Invalid 'max_tokens': 0 is valid only with 'echo', to repeat the prompt.",
    )
  }
}
