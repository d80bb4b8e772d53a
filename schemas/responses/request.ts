import { z } from 'zod'
import { RESULTS_MAX } from '#schemas/search.ts'
import { ConversationParam } from './conversation.ts'

/**
 * The wire shapes of `POST /v1/responses` (docs/responses.md, Requests).
 *
 * Fields of the body that are not named here are refused by name. Items are checked one by one, each against the schema of
 * its type; what they carry beside, such as a status, is the echo of an answer and ends here. `null` stands for absent.
 */

const DECIMAL = 'decimal'
const decimal = (min: number, max: number) => z.number().min(min, DECIMAL).max(max, DECIMAL)
const Name = z.string().regex(/^[A-Za-z0-9_-]{1,64}$/)
const JsonObject = z.record(z.string(), z.unknown())

/** Items of one request. */
export const ITEMS_MAX = 100_000

const InputText = z.looseObject({ type: z.literal('input_text'), text: z.string() })
const InputImage = z.looseObject({
  type: z.literal('input_image'),
  image_url: z.string().min(1).nullish(),
  file_id: z.string().nullish(),
  detail: z.enum(['auto', 'low', 'high', 'original']).nullish(),
})
const InputFile = z.looseObject({
  type: z.literal('input_file'),
  file_data: z.string().min(1).nullish(),
  file_url: z.string().min(1).nullish(),
  file_id: z.string().nullish(),
  filename: z.string().nullish(),
})
const InputAudio = z.looseObject({
  type: z.literal('input_audio'),
  input_audio: z.looseObject({ data: z.string().min(1), format: z.enum(['wav', 'mp3']) }),
})
const OutputText = z.looseObject({ type: z.literal('output_text'), text: z.string() })
const Refusal = z.looseObject({ type: z.literal('refusal'), refusal: z.string() })

/** One part of a message, or of the output of a function. */
export const InputPart = z.discriminatedUnion('type', [
  InputText,
  InputImage,
  InputFile,
  InputAudio,
  OutputText,
  Refusal,
])
export type InputPart = z.infer<typeof InputPart>

const Content = z.union([z.string(), z.array(InputPart)])
const Text = z.looseObject({ text: z.string() })

/** What an item must be, by its type. A message need not name its own. */
export const ITEMS = {
  message: z.looseObject({ role: z.enum(['user', 'assistant', 'system', 'developer']), content: Content }),
  function_call: z.looseObject({ call_id: z.string().min(1), name: z.string().min(1), arguments: z.string() }),
  function_call_output: z.looseObject({ call_id: z.string().min(1), output: Content }),
  reasoning: z.looseObject({
    summary: z.array(Text).nullish(),
    content: z.array(Text).nullish(),
    encrypted_content: z.string().nullish(),
  }),
  code_interpreter_call: z.looseObject({
    id: z.string().min(1),
    code: z.string().nullish(),
    outputs: z.array(z.looseObject({ type: z.string(), logs: z.string().nullish() })).nullish(),
  }),
  web_search_call: z.looseObject({
    id: z.string().min(1),
    action: z.looseObject({
      query: z.string().nullish(),
      sources: z.array(z.looseObject({ url: z.string() })).nullish(),
    }),
    results: z.array(z.looseObject({ url: z.string(), title: z.string(), excerpt: z.string() })).nullish(),
  }),
  file_search_call: z.looseObject({
    id: z.string().min(1),
    queries: z.array(z.string()),
    results: z.array(z.looseObject({ filename: z.string().nullish(), text: z.string().nullish() })).nullish(),
  }),
  item_reference: z.looseObject({ id: z.string().min(1) }),
} as const

/** A type of item that can be sent. */
export type ItemType = keyof typeof ITEMS
/** An item of one type. */
export type ItemOf<Type extends ItemType> = z.infer<(typeof ITEMS)[Type]>

/** What every item is, before it is looked at. */
export const AnyItem = z.looseObject({ type: z.string().nullish() })
export type AnyItem = z.infer<typeof AnyItem>

/** A tool. Those of other types parse, so that they can be refused by name. */
export const ResponsesTool = z.looseObject({ type: z.string() })
export type ResponsesTool = z.infer<typeof ResponsesTool>

/** A function the model may call. */
export const FunctionTool = z.looseObject({
  type: z.literal('function'),
  name: Name,
  description: z.string().nullish(),
  parameters: JsonObject.nullish(),
  strict: z.boolean().nullish(),
})

/** Code that the model may have the service run. */
export const CodeInterpreterTool = z.looseObject({
  type: z.literal('code_interpreter'),
  container: z
    .union([z.string(), z.looseObject({ type: z.literal('auto'), file_ids: z.array(z.string()).nullish() })])
    .nullish(),
})

const Domains = z.array(z.string().min(1).max(253)).max(100)

/** A search of the web. What it says of place and size changes nothing here. */
export const WebSearchTool = z.looseObject({
  type: z.string(),
  filters: z.looseObject({ allowed_domains: Domains.nullish(), blocked_domains: Domains.nullish() }).nullish(),
})

/** A search of the documents. */
export const FileSearchTool = z.looseObject({
  type: z.literal('file_search'),
  vector_store_ids: z.array(z.string()).min(1),
  max_num_results: z.int().min(1).max(RESULTS_MAX).nullish(),
  filters: z.unknown().optional(),
})

/** How the model must choose among the tools. */
export const ResponsesToolChoice = z.union([
  z.enum(['none', 'auto', 'required']),
  z.looseObject({
    type: z.string(),
    name: z.string().nullish(),
    mode: z.enum(['auto', 'required']).nullish(),
    tools: z
      .array(z.looseObject({ type: z.string(), name: z.string().nullish() }))
      .min(1)
      .nullish(),
  }),
])
export type ResponsesToolChoice = z.infer<typeof ResponsesToolChoice>

const TextFormat = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('text') }),
  z.looseObject({ type: z.literal('json_object') }),
  z.looseObject({
    type: z.literal('json_schema'),
    name: Name,
    schema: JsonObject,
    description: z.string().nullish(),
    strict: z.boolean().nullish(),
  }),
])

const INCLUDES = [
  'file_search_call.results',
  'web_search_call.results',
  'web_search_call.action.sources',
  'message.input_image.image_url',
  'computer_call_output.output.image_url',
  'code_interpreter_call.outputs',
  'reasoning.encrypted_content',
  'message.output_text.logprobs',
] as const

/** What a prompt is made of, also where it is only counted. */
const promptFields = {
  model: z.string().min(1),
  input: z
    .union([z.string(), z.array(z.unknown())])
    .nullish()
    .describe('Items are checked in turns, after the rest'),
  instructions: z.string().nullish(),
  previous_response_id: z.string().nullish(),
  conversation: ConversationParam.nullish(),
  tools: z.array(ResponsesTool).max(128).nullish(),
  tool_choice: ResponsesToolChoice.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  reasoning: z
    .looseObject({
      effort: z.enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).nullish(),
      summary: z.enum(['auto', 'concise', 'detailed']).nullish(),
      generate_summary: z.enum(['auto', 'concise', 'detailed']).nullish(),
    })
    .nullish(),
  text: z
    .looseObject({ format: TextFormat.nullish(), verbosity: z.enum(['low', 'medium', 'high']).nullish() })
    .nullish(),
  truncation: z.enum(['auto', 'disabled']).nullish(),
}

/** Body of `POST /v1/responses`. The decoder checks the items, and what needs the model or two fields at once. */
export const ResponsesRequest = z.object({
  ...promptFields,
  background: z.boolean().nullish(),
  context_management: z.unknown().optional(),
  include: z.array(z.enum(INCLUDES)).nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  max_tool_calls: z.int().min(1).nullish(),
  metadata: z.record(z.string().max(64), z.string().max(512)).nullish(),
  moderation: z.unknown().optional(),
  presence_penalty: decimal(-2, 2).nullish(),
  frequency_penalty: decimal(-2, 2).nullish(),
  prompt: z.unknown().optional(),
  prompt_cache_key: z.string().nullish(),
  prompt_cache_options: z.looseObject({}).nullish(),
  prompt_cache_retention: z.string().nullish(),
  safety_identifier: z.string().nullish(),
  service_tier: z.enum(['auto', 'default', 'flex', 'scale', 'priority', 'fast', 'ultrafast']).nullish(),
  store: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_obfuscation: z.boolean().nullish() }).nullish(),
  temperature: decimal(0, 2).nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  top_p: decimal(0, 1).nullish(),
  user: z.string().nullish(),
})
export type ResponsesRequest = z.infer<typeof ResponsesRequest>

/** Body of `POST /v1/responses/input_tokens` (docs/responses.md, Counting tokens). */
export const InputTokensRequest = z.object({ ...promptFields, personality: z.string().nullish() })
