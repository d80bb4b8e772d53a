import { z } from 'zod'
import { RESULTS_MAX } from '#schemas/kinds/search.ts'
import { Metadata, recordOf } from '#schemas/lib/record.ts'

/*
 * Bodies of `/v1/conversations` (docs/guides/responses.md, Conversations). Items are not validated here, because the decoder checks them one at a
 * time.
 */

const ADDED_MAX = 20

const Items = z.array(z.unknown()).max(ADDED_MAX)

export const CreateConversation = z.object({
  items: Items.nullish().describe('Initial items, at most 20'),
  metadata: Metadata.nullish(),
})

export const UpdateConversation = z.object({ metadata: Metadata.nullable() })

export const CreateItems = z.object({ items: Items.min(1).describe('Items to append, at most 20') })

export const ListItems = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  order: z.enum(['asc', 'desc']).default('desc').describe('desc: newest first'),
  after: z.string().max(128).optional().describe('Cursor: last_id of the previous page'),
})

const ConversationParam = z.union([z.string().min(1), z.looseObject({ id: z.string().min(1) })])

export const ConversationItem = z.looseObject({ id: z.string(), type: z.string() })
export type ConversationItem = z.infer<typeof ConversationItem>

/**
 * Body of `POST /v1/responses` (docs/guides/responses.md, Requests).
 *
 * Objects are loose and enums are open, because agents send new fields, tools and items before Sluice supports them. The decoder passes unknown
 * fields, tools and items to an upstream with the Responses API. The decoder validates each item with the schema of its type. `null` means absent.
 */

const DECIMAL = 'decimal'
const decimal = (min: number, max: number) => z.number().min(min, DECIMAL).max(max, DECIMAL)
/**
 * A tool name. Some upstream servers permit fewer characters than this pattern. For such a server, the worker shortens the name
 * (shared/engines/adapt.ts).
 */
const Name = z.string().regex(/^[^\p{Cc}]{1,256}$/u)
const FormatName = z.string().regex(/^[A-Za-z0-9_-]{1,64}$/)
const JsonObject = recordOf(z.string(), z.unknown())

export const ITEMS_MAX = 100_000

const InputText = z.looseObject({ type: z.literal('input_text'), text: z.string() })
const InputImage = z.looseObject({
  type: z.literal('input_image'),
  image_url: z.string().min(1).nullish(),
  file_id: z.string().nullish(),
  detail: z.string().max(64).nullish(),
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

/** Schemas of the parts of messages and of function outputs. The key is the type of the part. */
export const PARTS = {
  input_text: InputText,
  input_image: InputImage,
  input_file: InputFile,
  input_audio: InputAudio,
  output_text: OutputText,
  refusal: Refusal,
} as const
export type InputPart = z.infer<(typeof PARTS)[keyof typeof PARTS]>

/** Maximum parts per item. An item is validated in one step, which blocks the event loop for about a microsecond per part. */
const PARTS_MAX = 10_000
const AnyPart = z.looseObject({ type: z.string() })
const Content = z.union([z.string(), z.array(AnyPart).max(PARTS_MAX)])
const Text = z.looseObject({ text: z.string() })

/** Schemas of items. The key is the type of the item. An item without a type is a message. */
export const ITEMS = {
  message: z.looseObject({ role: z.enum(['user', 'assistant', 'system', 'developer']), content: Content }),
  function_call: z.looseObject({ call_id: z.string().min(1), name: z.string().min(1), arguments: z.string() }),
  function_call_output: z.looseObject({ call_id: z.string().min(1), output: Content }),
  custom_tool_call: z.looseObject({ call_id: z.string().min(1), name: z.string().min(1), input: z.string() }),
  custom_tool_call_output: z.looseObject({ call_id: z.string().min(1), output: Content }),
  reasoning: z.looseObject({
    summary: z.array(Text).max(PARTS_MAX).nullish(),
    content: z.array(Text).max(PARTS_MAX).nullish(),
    encrypted_content: z.string().nullish(),
  }),
  code_interpreter_call: z.looseObject({
    id: z.string().nullish(),
    code: z.string().nullish(),
    outputs: z
      .array(z.looseObject({ type: z.string(), logs: z.string().nullish() }))
      .max(PARTS_MAX)
      .nullish(),
  }),
  web_search_call: z.looseObject({
    id: z.string().nullish(),
    action: z
      .looseObject({
        query: z.string().nullish(),
        sources: z
          .array(z.looseObject({ url: z.string().nullish() }))
          .max(PARTS_MAX)
          .nullish(),
      })
      .nullish(),
    results: z
      .array(z.looseObject({ url: z.string().nullish(), title: z.string().nullish(), excerpt: z.string().nullish() }))
      .max(PARTS_MAX)
      .nullish(),
  }),
  file_search_call: z.looseObject({
    id: z.string().nullish(),
    queries: z.array(z.string()).max(PARTS_MAX).nullish(),
    results: z
      .array(z.looseObject({ filename: z.string().nullish(), text: z.string().nullish() }))
      .max(PARTS_MAX)
      .nullish(),
  }),
  item_reference: z.looseObject({ id: z.string().min(1) }),
} as const

export type ItemType = keyof typeof ITEMS
export type ItemOf<Type extends ItemType> = z.infer<(typeof ITEMS)[Type]>

/** An item of any type. The decoder later validates the item with the schema of its type. */
export const AnyItem = z.looseObject({ type: z.string().nullish() })
export type AnyItem = z.infer<typeof AnyItem>

export const ResponsesTool = z.looseObject({ type: z.string() })
export type ResponsesTool = z.infer<typeof ResponsesTool>

export const FunctionTool = z.looseObject({
  type: z.literal('function'),
  name: Name,
  description: z.string().nullish(),
  parameters: JsonObject.nullish(),
  strict: z.boolean().nullish(),
})

export const CustomTool = z.looseObject({
  type: z.literal('custom'),
  name: Name,
  description: z.string().nullish(),
  format: z.looseObject({ type: z.string(), definition: z.string().nullish() }).nullish(),
})

/** Functions with a common prefix, such as the tools of an MCP server. */
export const NamespaceTool = z.looseObject({
  type: z.literal('namespace'),
  name: Name,
  tools: z.array(ResponsesTool).max(1_024),
})

export const CodeInterpreterTool = z.looseObject({
  type: z.literal('code_interpreter'),
  container: z
    .union([z.string(), z.looseObject({ type: z.literal('auto'), file_ids: z.array(z.string()).nullish() })])
    .nullish(),
})

const Domains = z.array(z.string().min(1).max(253)).max(100)

/** The hosted tool for web search. Fields for location and context size are accepted but have no effect. */
export const WebSearchTool = z.looseObject({
  type: z.string(),
  filters: z.looseObject({ allowed_domains: Domains.nullish(), blocked_domains: Domains.nullish() }).nullish(),
})

export const FileSearchTool = z.looseObject({
  type: z.literal('file_search'),
  vector_store_ids: z.array(z.string()).min(1),
  max_num_results: z.int().min(1).max(RESULTS_MAX).nullish(),
  filters: z.unknown().optional(),
})

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
    name: FormatName,
    schema: JsonObject,
    description: z.string().nullish(),
    strict: z.boolean().nullish(),
  }),
])

/** Fields that `POST /v1/responses` and `/v1/responses/input_tokens` have in common. */
const promptFields = {
  model: z.string().min(1).describe('Model id or alias'),
  input: z
    .union([z.string(), z.array(z.unknown())])
    .nullish()
    .describe('Text, or a list of items'),
  instructions: z.string().nullish().describe('System prompt of this response'),
  previous_response_id: z.string().nullish().describe('Id of a stored response that this one continues'),
  conversation: ConversationParam.nullish().describe('Conversation that this response continues'),
  tools: z.array(ResponsesTool).max(1_024).nullish().describe('Functions and hosted tools that the model may call'),
  tool_choice: ResponsesToolChoice.nullish().describe('Tool selection. Default: auto'),
  parallel_tool_calls: z.boolean().nullish().describe('Allow several tool calls at once'),
  reasoning: z
    .looseObject({
      effort: z.string().max(64).nullish(),
      summary: z.string().max(64).nullish(),
      generate_summary: z.string().max(64).nullish(),
    })
    .nullish(),
  text: z
    .looseObject({ format: TextFormat.nullish(), verbosity: z.string().max(64).nullish() })
    .nullish()
    .describe('Output format: free text or JSON'),
  truncation: z
    .enum(['auto', 'disabled'])
    .nullish()
    .describe('auto: drop the oldest items of an input that is too long. Default: disabled'),
}

/**
 * Body of `POST /v1/responses`. This schema checks each field alone. The decoder checks the items, and the rules that depend on the model or on two
 * fields together.
 */
export const ResponsesRequest = z.looseObject({
  ...promptFields,
  background: z.boolean().nullish().describe('Run as a durable job and return at once. Default: false'),
  context_management: z.unknown().optional(),
  include: z
    .array(z.string().max(200))
    .max(100)
    .nullish()
    .describe('Additional output to include, such as code_interpreter_call.outputs'),
  max_output_tokens: z.int().min(1).nullish().describe('Maximum output tokens, including reasoning'),
  max_tool_calls: z.int().min(1).nullish().describe('Maximum calls of hosted tools'),
  metadata: Metadata.nullish().describe('At most 16 pairs of text'),
  moderation: z.unknown().optional(),
  presence_penalty: decimal(-2, 2).nullish().describe('Penalty for tokens that have occurred'),
  frequency_penalty: decimal(-2, 2).nullish().describe('Penalty for tokens in proportion to their frequency'),
  prompt: z.unknown().optional(),
  prompt_cache_key: z.string().nullish().describe('Key that groups requests with a common prompt prefix'),
  prompt_cache_options: z.looseObject({}).nullish(),
  prompt_cache_retention: z.string().nullish(),
  safety_identifier: z.string().nullish().describe('Id of the end user'),
  service_tier: z.string().max(64).nullish().describe('Passed to an upstream server with the same API'),
  store: z.boolean().nullish().describe('Store the response, so that it can be retrieved later. Default: true'),
  stream: z.boolean().nullish().describe('Stream the response as server-sent events. Default: false'),
  stream_options: z.looseObject({ include_obfuscation: z.boolean().nullish() }).nullish(),
  temperature: decimal(0, 2).nullish().describe('Sampling temperature. Default: the default of the model'),
  top_logprobs: z.int().min(0).max(20).nullish().describe('Number of alternatives per token with log probabilities'),
  top_p: decimal(0, 1).nullish().describe('Nucleus sampling: probability mass of the considered tokens'),
  user: z.string().nullish().describe('Deprecated alias of safety_identifier'),
})
export type ResponsesRequest = z.infer<typeof ResponsesRequest>

/** Body of `POST /v1/responses/input_tokens` (docs/guides/responses.md, Counting tokens). */
export const InputTokensRequest = z.looseObject(promptFields)
