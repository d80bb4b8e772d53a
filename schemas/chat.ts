import { z } from 'zod'

/**
 * The wire shapes of `POST /v1/chat/completions` (docs/protocol.md, Chat requests).
 *
 * Objects are loose: unknown fields pass, and the decoder hands them on to an upstream of the same dialect. `null` stands
 * for absent wherever a field is optional. A bound whose message is `decimal` is reported as one on a decimal number.
 */

const DECIMAL = 'decimal'
const decimal = (min: number, max: number) => z.number().min(min, DECIMAL).max(max, DECIMAL)
const StopString = z.string().min(1).max(1_000)
const Name = z.string().regex(/^[A-Za-z0-9_-]{1,64}$/)
const JsonObject = z.record(z.string(), z.unknown())

const TextPart = z.looseObject({ type: z.literal('text'), text: z.string() })
const RefusalPart = z.looseObject({ type: z.literal('refusal'), refusal: z.string() })
const ImagePart = z.looseObject({
  type: z.literal('image_url'),
  image_url: z.looseObject({
    url: z.string().min(1),
    detail: z.enum(['auto', 'low', 'high', 'original']).nullish(),
  }),
})
const AudioPart = z.looseObject({
  type: z.literal('input_audio'),
  input_audio: z.looseObject({ data: z.string().min(1), format: z.enum(['wav', 'mp3']) }),
})
const FilePart = z.looseObject({
  type: z.literal('file'),
  file: z.looseObject({ filename: z.string().nullish(), file_data: z.string().min(1) }),
})

/** One part of a user message. */
export const ChatUserPart = z.discriminatedUnion('type', [TextPart, ImagePart, AudioPart, FilePart])
export type ChatUserPart = z.infer<typeof ChatUserPart>

const Texts = z.union([z.string(), z.array(TextPart)])
const AssistantTexts = z.union([z.string(), z.array(z.discriminatedUnion('type', [TextPart, RefusalPart]))])

const ToolCall = z.looseObject({
  id: z.string().min(1),
  type: z.literal('function').nullish(),
  function: z.looseObject({ name: z.string().min(1), arguments: z.string() }),
})

const name = z.string().nullish()

/** One message of the conversation (docs/protocol.md, Chat messages). */
export const ChatMessage = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal(['system', 'developer']), content: Texts, name }),
  z.looseObject({ role: z.literal('user'), content: z.union([z.string(), z.array(ChatUserPart)]), name }),
  z.looseObject({
    role: z.literal('assistant'),
    content: AssistantTexts.nullish(),
    name,
    refusal: z.string().nullish(),
    reasoning_content: z.string().nullish(),
    tool_calls: z.array(ToolCall).nullish(),
    function_call: z.looseObject({ name: z.string(), arguments: z.string() }).nullish(),
  }),
  z.looseObject({ role: z.literal('tool'), content: Texts, tool_call_id: z.string().min(1) }),
  z.looseObject({ role: z.literal('function'), content: z.string().nullish(), name: z.string().min(1) }),
])
export type ChatMessage = z.infer<typeof ChatMessage>

const FunctionTool = z.looseObject({
  type: z.literal('function'),
  function: z.looseObject({
    name: Name,
    description: z.string().nullish(),
    parameters: JsonObject.nullish(),
    strict: z.boolean().nullish(),
  }),
})
const CustomTool = z.looseObject({ type: z.literal('custom') })

/** One tool definition (docs/protocol.md, Tools). `custom` parses, so that it can be refused by name. */
export const ChatTool = z.discriminatedUnion('type', [FunctionTool, CustomTool])
export type ChatTool = z.infer<typeof ChatTool>

const NamedFunction = z.looseObject({
  type: z.literal('function'),
  function: z.looseObject({ name: z.string().min(1) }),
})

/** How the model must choose among the tools (docs/protocol.md, Tools). */
export const ChatToolChoice = z.union([
  z.enum(['none', 'auto', 'required']),
  z.discriminatedUnion('type', [
    NamedFunction,
    z.looseObject({
      type: z.literal('allowed_tools'),
      allowed_tools: z.looseObject({ mode: z.enum(['auto', 'required']), tools: z.array(NamedFunction).min(1) }),
    }),
    CustomTool,
  ]),
])
export type ChatToolChoice = z.infer<typeof ChatToolChoice>

const ResponseFormat = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('text') }),
  z.looseObject({ type: z.literal('json_object') }),
  z.looseObject({
    type: z.literal('json_schema'),
    json_schema: z.looseObject({
      name: Name,
      description: z.string().nullish(),
      strict: z.boolean().nullish(),
      schema: JsonObject.nullish(),
    }),
  }),
])

/** Body of a request (docs/protocol.md, Chat requests). The decoder checks what needs the model, or two fields at once. */
export const ChatRequest = z.looseObject({
  model: z.string().min(1),
  messages: z.array(ChatMessage).min(1).max(100_000),
  stream: z.boolean().nullish(),
  stream_options: z
    .looseObject({ include_usage: z.boolean().nullish(), include_obfuscation: z.boolean().nullish() })
    .nullish(),
  temperature: decimal(0, 2).nullish(),
  top_p: decimal(0, 1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  max_tokens: z.int().min(1).nullish(),
  n: z.int().min(1).max(128).nullish(),
  stop: z.union([StopString, z.array(StopString).min(1).max(4)]).nullish(),
  presence_penalty: decimal(-2, 2).nullish(),
  frequency_penalty: decimal(-2, 2).nullish(),
  logit_bias: z.record(z.string().regex(/^\d+$/), decimal(-100, 100)).nullish(),
  seed: z
    .number()
    .multipleOf(1)
    .min(-(2 ** 63))
    .max(2 ** 63)
    .nullish()
    .describe('64 bits, as far as a double holds them'),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  response_format: ResponseFormat.nullish(),
  tools: z.array(ChatTool).max(128).nullish(),
  tool_choice: ChatToolChoice.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  user: z.string().nullish(),
  safety_identifier: z.string().nullish(),
  prompt_cache_key: z.string().nullish(),
  metadata: z.record(z.string().max(64), z.string().max(512)).nullish(),
  store: z.boolean().nullish(),
  service_tier: z.enum(['auto', 'default', 'flex', 'scale', 'priority', 'fast']).nullish(),
  reasoning_effort: z.enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).nullish(),
  verbosity: z.enum(['low', 'medium', 'high']).nullish(),
  modalities: z.array(z.enum(['text', 'audio'])).nullish(),
})
export type ChatRequest = z.infer<typeof ChatRequest>

/** Why a choice ended, in the words of the chat format. */
export type ChatFinishReason = 'stop' | 'length' | 'tool_calls' | 'content_filter'

/** Usage of a chat completion. Details are null unless the engine reports them. */
export interface ChatUsage {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  prompt_tokens_details: { cached_tokens?: number; cache_write_tokens?: number } | null
  completion_tokens_details: { reasoning_tokens?: number } | null
}

/** A call in an answer; `arguments` is a string that holds JSON. */
export interface ChatToolCall {
  id: string
  type: 'function'
  function: { name: string; arguments: string }
}

/** Categories of the content filter; an upstream may add others. */
export type ChatFilterResults = Record<string, unknown>

/** The text of a choice. `tool_calls` and `reasoning_content` are absent when there are none. */
export interface ChatAnswer {
  role: 'assistant'
  content: string | null
  refusal: string | null
  annotations: unknown[]
  reasoning_content?: string
  tool_calls?: ChatToolCall[]
}

/** One choice of a whole answer. */
export interface ChatChoice {
  index: number
  message: ChatAnswer
  logprobs: { content: unknown[]; refusal: null } | null
  finish_reason: ChatFinishReason
  content_filter_results: ChatFilterResults
}

/** The whole answer (docs/protocol.md, Chat answers). */
export interface ChatCompletion {
  id: string
  object: 'chat.completion'
  created: number
  model: string
  service_tier: 'default'
  system_fingerprint: string
  choices: ChatChoice[]
  usage: ChatUsage
}

/** What one chunk adds to a choice (docs/protocol.md, Chat streams). */
export interface ChatDelta {
  role?: 'assistant'
  content?: string | null
  refusal?: string | null
  reasoning_content?: string
  tool_calls?: { index: number; id?: string; type?: 'function'; function: { name?: string; arguments: string } }[]
}

/** One choice of a chunk. */
interface ChatChunkChoice {
  index: number
  delta: ChatDelta
  logprobs: { content: unknown[]; refusal: null } | null
  finish_reason: ChatFinishReason | null
  content_filter_results?: ChatFilterResults
}

/** One `data:` frame of a stream. `usage` is present, mostly null, only when the caller asked to include it. */
export interface ChatChunk {
  id: string
  object: 'chat.completion.chunk'
  created: number
  model: string
  system_fingerprint: string
  choices: ChatChunkChoice[]
  usage?: ChatUsage | null
}
