import { z } from 'zod'
import { Metadata, recordOf } from './lib/record.ts'

/**
 * Request and response of `POST /v1/chat/completions` (docs/reference/compatibility.md, Chat requests).
 *
 * Objects are loose: the decoder passes unknown fields to an upstream of the same dialect. Parts, calls, tools and formats of an unknown type are
 * read as {@link Unknown}, because servers add types every month. `null` means absent for all optional fields.
 */

/**
 * Message of a failed check of a decimal number. The message makes the decoder choose an error code that begins with `decimal_`, such as
 * `decimal_above_max_value`.
 */
const DECIMAL = 'decimal'
const decimal = (min: number, max: number) => z.number().min(min, DECIMAL).max(max, DECIMAL)
const StopString = z.string().min(1).max(1_000)
const FormatName = z.string().regex(/^[A-Za-z0-9_-]{1,64}$/)
/**
 * A tool name. Some upstream servers permit fewer characters than this pattern. For such a server, the worker shortens the name
 * (shared/engines/adapt.ts).
 */
const ToolName = z.string().regex(/^[^\p{Cc}]{1,256}$/u)
/** A value of an enum that may get more values. Unknown values are accepted, because new models add values. */
const Word = z.string().min(1).max(64)
const JsonObject = recordOf(z.string(), z.unknown())

/**
 * Key in `extra` that marks a tool call which the decoder created for a deprecated function call. A deprecated call has no id, but the result of a
 * tool call must refer to one.
 */
export const IMPLIED_CALL = 'implied_call'

/** An object whose type has no schema here. The decoder copies the object unchanged. */
export interface Unknown {
  readonly type: 'unknown'
  readonly value: Record<string, unknown> & { readonly type: string }
}

function unknownType(...known: readonly string[]) {
  const type = z.string().refine((name) => !known.includes(name))
  return z.looseObject({ type }).transform((value): Unknown => ({ type: 'unknown', value }))
}

const TextPart = z.looseObject({ type: z.literal('text'), text: z.string() })
const RefusalPart = z.looseObject({ type: z.literal('refusal'), refusal: z.string() })
const ImagePart = z.looseObject({
  type: z.literal('image_url'),
  image_url: z.looseObject({
    url: z.string().min(1),
    detail: Word.nullish(),
  }),
})
const AudioPart = z.looseObject({
  type: z.literal('input_audio'),
  input_audio: z.looseObject({ data: z.string().min(1), format: Word }),
})
const FilePart = z.looseObject({
  type: z.literal('file'),
  file: z.looseObject({ filename: z.string().nullish(), file_data: z.string().min(1).nullish() }),
})

export const ChatPart = z.union([
  z.discriminatedUnion('type', [TextPart, ImagePart, AudioPart, FilePart]),
  unknownType('text', 'image_url', 'input_audio', 'file'),
])
export type ChatPart = z.infer<typeof ChatPart>

const Contents = z.union([z.string(), z.array(ChatPart)])
const Texts = z.union([z.string(), z.array(z.union([TextPart, unknownType('text')]))])
const AssistantTexts = z.union([
  z.string(),
  z.array(z.union([z.discriminatedUnion('type', [TextPart, RefusalPart]), unknownType('text', 'refusal')])),
])

const FunctionCall = z.looseObject({
  id: z.string().min(1),
  type: z.literal('function').nullish(),
  function: z.looseObject({ name: z.string().min(1), arguments: z.string() }),
})
const CustomCall = z.looseObject({
  id: z.string().min(1),
  type: z.literal('custom'),
  custom: z.looseObject({ name: z.string().min(1), input: z.string() }),
})
const ToolCall = z.union([CustomCall, FunctionCall])
/** Maximum tool calls per message. A message is validated in one step, so more calls would block the event loop. */
const TOOL_CALLS_MAX = 10_000

const name = z.string().nullish()

export const ChatMessage = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal(['system', 'developer']), content: Texts, name }),
  z.looseObject({ role: z.literal('user'), content: Contents, name }),
  z.looseObject({
    role: z.literal('assistant'),
    content: AssistantTexts.nullish(),
    name,
    refusal: z.string().nullish(),
    reasoning_content: z.string().nullish(),
    tool_calls: z.array(ToolCall).max(TOOL_CALLS_MAX).nullish(),
    function_call: z.looseObject({ name: z.string(), arguments: z.string() }).nullish(),
    audio: JsonObject.nullish(),
  }),
  z.looseObject({ role: z.literal('tool'), content: Contents.nullish(), tool_call_id: z.string().min(1) }),
  z.looseObject({ role: z.literal('function'), content: z.string().nullish(), name: z.string().min(1) }),
])
export type ChatMessage = z.infer<typeof ChatMessage>

const FunctionTool = z.looseObject({
  type: z.literal('function'),
  function: z.looseObject({
    name: ToolName,
    description: z.string().nullish(),
    parameters: JsonObject.nullish(),
    strict: z.boolean().nullish(),
  }),
})
const CustomTool = z.looseObject({
  type: z.literal('custom'),
  custom: z.looseObject({ name: ToolName, description: z.string().nullish(), format: JsonObject.nullish() }),
})

export const ChatTool = z.union([
  z.discriminatedUnion('type', [FunctionTool, CustomTool]),
  unknownType('function', 'custom'),
])
export type ChatTool = z.infer<typeof ChatTool>

const NamedFunction = z.looseObject({
  type: z.literal('function'),
  function: z.looseObject({ name: z.string().min(1) }),
})

const NamedCustom = z.looseObject({
  type: z.literal('custom'),
  custom: z.looseObject({ name: z.string().min(1) }),
})
const NamedTool = z.union([
  z.discriminatedUnion('type', [NamedFunction, NamedCustom]),
  unknownType('function', 'custom', 'allowed_tools'),
])
export type NamedTool = z.infer<typeof NamedTool>

export const ChatToolChoice = z.union([
  z.enum(['none', 'auto', 'required']),
  z.union([
    z.looseObject({
      type: z.literal('allowed_tools'),
      allowed_tools: z.looseObject({ mode: z.enum(['auto', 'required']), tools: z.array(NamedTool).min(1) }),
    }),
    NamedTool,
  ]),
])
export type ChatToolChoice = z.infer<typeof ChatToolChoice>

const ResponseFormat = z.union([
  z.discriminatedUnion('type', [
    z.looseObject({ type: z.literal('text') }),
    z.looseObject({ type: z.literal('json_object') }),
    z.looseObject({
      type: z.literal('json_schema'),
      json_schema: z.looseObject({
        name: FormatName,
        description: z.string().nullish(),
        strict: z.boolean().nullish(),
        schema: JsonObject.nullish(),
      }),
    }),
  ]),
  unknownType('text', 'json_object', 'json_schema'),
])

/**
 * Request body (docs/reference/compatibility.md, Chat requests). This schema checks each field alone. The decoder checks the rules that depend on
 * the model or on two fields together.
 */
export const ChatRequest = z.looseObject({
  model: z.string().min(1).describe('Model id or alias'),
  messages: z.array(ChatMessage).min(1).max(100_000).describe('Messages of the conversation, oldest first'),
  stream: z.boolean().nullish().describe('Stream the completion as server-sent events. Default: false'),
  stream_options: z
    .looseObject({ include_usage: z.boolean().nullish(), include_obfuscation: z.boolean().nullish() })
    .nullish(),
  temperature: decimal(0, 2).nullish().describe('Sampling temperature. Default: the default of the model'),
  top_p: decimal(0, 1).nullish().describe('Nucleus sampling: probability mass of the considered tokens'),
  max_completion_tokens: z.int().min(1).nullish().describe('Maximum output tokens, including reasoning'),
  max_tokens: z.int().min(1).nullish().describe('Deprecated alias of max_completion_tokens'),
  top_k: z.int().nullish().describe('Sample from the k most likely tokens'),
  n: z.int().min(1).max(128).nullish().describe('Number of choices. Default: 1'),
  stop: z
    .union([StopString, z.array(StopString).min(1).max(4)])
    .nullish()
    .describe('Strings that end the output'),
  presence_penalty: decimal(-2, 2).nullish().describe('Penalty for tokens that have occurred'),
  frequency_penalty: decimal(-2, 2).nullish().describe('Penalty for tokens in proportion to their frequency'),
  logit_bias: recordOf(z.string().regex(/^\d+$/), decimal(-100, 100)).nullish().describe('Bias by token id'),
  seed: z
    .number()
    .multipleOf(1)
    .min(-(2 ** 63))
    .max(2 ** 63)
    .nullish()
    .describe('Seed for reproducible sampling. 64-bit integer; values above 2^53 lose precision'),
  logprobs: z.boolean().nullish().describe('Return log probabilities of the output tokens'),
  top_logprobs: z.int().min(0).max(20).nullish().describe('Number of alternatives per token. Requires logprobs'),
  response_format: ResponseFormat.nullish().describe(
    'Free text, any JSON, or JSON that matches a schema. Default: free text',
  ),
  tools: z.array(ChatTool).max(128).nullish().describe('Tools that the model may call'),
  tool_choice: ChatToolChoice.nullish().describe('Tool selection. Default: auto if there are tools, otherwise none'),
  parallel_tool_calls: z.boolean().nullish().describe('Allow several tool calls in one message'),
  user: z.string().nullish().describe('Deprecated alias of safety_identifier'),
  safety_identifier: z.string().nullish().describe('Id of the end user'),
  prompt_cache_key: z.string().nullish().describe('Key that groups requests with a common prompt prefix'),
  metadata: Metadata.nullish().describe('At most 16 pairs of text'),
  store: z.boolean().nullish().describe('Store the completion, so that it can be retrieved later. Default: false'),
  service_tier: Word.nullish().describe('Passed to an upstream server with the same API'),
  reasoning_effort: Word.nullish().describe('Reasoning effort, such as low, medium or high'),
  verbosity: Word.nullish().describe('Verbosity of the output, such as low, medium or high'),
  modalities: z
    .array(Word)
    .max(16)
    .nullish()
    .describe('Output types. Only text, unless an upstream server with the same API supports others'),
  functions: z
    .array(z.looseObject({ name: z.string().min(1), parameters: JsonObject.nullish() }))
    .max(128)
    .nullish(),
  function_call: z
    .union([z.string(), z.looseObject({ name: z.string() })])
    .nullish()
    .describe('Deprecated form of tool_choice'),
})
export type ChatRequest = z.infer<typeof ChatRequest>

/** Finish reason. `function_call` occurs only for requests with the deprecated field `functions`. */
export type ChatFinishReason = 'stop' | 'length' | 'tool_calls' | 'content_filter' | 'function_call'

/** An object to which an upstream with this API may add further fields. */
interface Extensible {
  [field: string]: unknown
}

/** Usage of a chat completion. Details are null if the engine does not report them. */
export interface ChatUsage extends Extensible {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  prompt_tokens_details: { cached_tokens?: number; cache_write_tokens?: number } | null
  completion_tokens_details: { reasoning_tokens?: number } | null
}

interface ChatFunctionCall {
  id: string
  type: 'function'
  function: { name: string; arguments: string }
}

interface ChatCustomCall {
  id: string
  type: 'custom'
  custom: { name: string; input: string }
}

export type ChatToolCall = ChatFunctionCall | ChatCustomCall

export type ChatFilterResults = Record<string, unknown>

export interface ChatAnswer extends Extensible {
  role: 'assistant'
  content: string | null
  refusal: string | null
  annotations: unknown[]
  reasoning_content?: string
  tool_calls?: ChatToolCall[]
}

export interface ChatLogprobs {
  content: unknown[] | null
  refusal: unknown[] | null
}

export interface ChatChoice {
  index: number
  message: ChatAnswer
  logprobs: ChatLogprobs | null
  finish_reason: ChatFinishReason
  content_filter_results: ChatFilterResults
}

/** Response without streaming (docs/reference/compatibility.md, Chat answers). */
export interface ChatCompletion extends Extensible {
  id: string
  object: 'chat.completion'
  created: number
  model: string
  service_tier: string
  system_fingerprint: string
  choices: ChatChoice[]
  usage: ChatUsage
}

interface ChatCallDelta {
  index: number
  id?: string
  type?: 'function' | 'custom'
  function?: { name?: string; arguments: string }
  custom?: { name?: string; input: string }
}

/** Fields of a choice that one chunk appends to the message (docs/internals/protocol.md, Chat streams). */
export interface ChatDelta extends Extensible {
  role?: 'assistant'
  content?: string | null
  refusal?: string | null
  reasoning_content?: string
  tool_calls?: ChatCallDelta[]
}

interface ChatChunkChoice {
  index: number
  delta: ChatDelta
  logprobs: ChatLogprobs | null
  finish_reason: ChatFinishReason | null
  content_filter_results?: ChatFilterResults
}

/** One `data:` line of a stream. With `include_usage`, `usage` is null in all chunks except the last. */
export interface ChatChunk extends Extensible {
  id: string
  object: 'chat.completion.chunk'
  created: number
  model: string
  system_fingerprint: string
  choices: ChatChunkChoice[]
  usage?: ChatUsage | null
}
