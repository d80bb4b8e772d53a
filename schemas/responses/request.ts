import { z } from 'zod'
import { Metadata, recordOf } from '#schemas/record.ts'
import { RESULTS_MAX } from '#schemas/search.ts'
import { ConversationParam } from './conversation.ts'

/**
 * The wire shapes of `POST /v1/responses` (docs/responses.md, Requests).
 *
 * Objects are loose, and lists of names are open: agents send new fields, tools and items before Sluice knows them. The decoder
 * passes unknown ones to an upstream that speaks this API. Items are checked one by one, each against the schema of its type.
 * `null` stands for absent.
 */

const DECIMAL = 'decimal'
const decimal = (min: number, max: number) => z.number().min(min, DECIMAL).max(max, DECIMAL)
/** Longer names, and names with dots, are shortened for upstreams that refuse them (shared/engines/adapt.ts). */
const Name = z.string().regex(/^[^\p{Cc}]{1,256}$/u)
const FormatName = z.string().regex(/^[A-Za-z0-9_-]{1,64}$/)
const JsonObject = recordOf(z.string(), z.unknown())

/** Items of one request. */
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

/** Parts of a message, or of the output of a function, by their types. */
export const PARTS = {
  input_text: InputText,
  input_image: InputImage,
  input_file: InputFile,
  input_audio: InputAudio,
  output_text: OutputText,
  refusal: Refusal,
} as const
/** One part of a known type. */
export type InputPart = z.infer<(typeof PARTS)[keyof typeof PARTS]>

const AnyPart = z.looseObject({ type: z.string() })
const Content = z.union([z.string(), z.array(AnyPart)])
const Text = z.looseObject({ text: z.string() })

/** What an item must be, by its type. A message need not name its own. */
export const ITEMS = {
  message: z.looseObject({ role: z.enum(['user', 'assistant', 'system', 'developer']), content: Content }),
  function_call: z.looseObject({ call_id: z.string().min(1), name: z.string().min(1), arguments: z.string() }),
  function_call_output: z.looseObject({ call_id: z.string().min(1), output: Content }),
  custom_tool_call: z.looseObject({ call_id: z.string().min(1), name: z.string().min(1), input: z.string() }),
  custom_tool_call_output: z.looseObject({ call_id: z.string().min(1), output: Content }),
  reasoning: z.looseObject({
    summary: z.array(Text).nullish(),
    content: z.array(Text).nullish(),
    encrypted_content: z.string().nullish(),
  }),
  code_interpreter_call: z.looseObject({
    id: z.string().nullish(),
    code: z.string().nullish(),
    outputs: z.array(z.looseObject({ type: z.string(), logs: z.string().nullish() })).nullish(),
  }),
  web_search_call: z.looseObject({
    id: z.string().nullish(),
    action: z
      .looseObject({
        query: z.string().nullish(),
        sources: z.array(z.looseObject({ url: z.string().nullish() })).nullish(),
      })
      .nullish(),
    results: z
      .array(z.looseObject({ url: z.string().nullish(), title: z.string().nullish(), excerpt: z.string().nullish() }))
      .nullish(),
  }),
  file_search_call: z.looseObject({
    id: z.string().nullish(),
    queries: z.array(z.string()).nullish(),
    results: z.array(z.looseObject({ filename: z.string().nullish(), text: z.string().nullish() })).nullish(),
  }),
  item_reference: z.looseObject({ id: z.string().min(1) }),
} as const

/** Type of an item with an internal form. */
export type ItemType = keyof typeof ITEMS
/** An item of one type. */
export type ItemOf<Type extends ItemType> = z.infer<(typeof ITEMS)[Type]>

/** What every item is, before it is looked at. */
export const AnyItem = z.looseObject({ type: z.string().nullish() })
export type AnyItem = z.infer<typeof AnyItem>

/** A tool of any type. */
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

/** A tool whose input is free text, such as a patch. */
export const CustomTool = z.looseObject({
  type: z.literal('custom'),
  name: Name,
  description: z.string().nullish(),
  format: z.looseObject({ type: z.string(), definition: z.string().nullish() }).nullish(),
})

/** Functions under a common name, such as those of an MCP server. */
export const NamespaceTool = z.looseObject({
  type: z.literal('namespace'),
  name: Name,
  tools: z.array(ResponsesTool).max(1_024),
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
    name: FormatName,
    schema: JsonObject,
    description: z.string().nullish(),
    strict: z.boolean().nullish(),
  }),
])

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
  tools: z.array(ResponsesTool).max(1_024).nullish(),
  tool_choice: ResponsesToolChoice.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  reasoning: z
    .looseObject({
      effort: z.string().max(64).nullish(),
      summary: z.string().max(64).nullish(),
      generate_summary: z.string().max(64).nullish(),
    })
    .nullish(),
  text: z.looseObject({ format: TextFormat.nullish(), verbosity: z.string().max(64).nullish() }).nullish(),
  truncation: z.enum(['auto', 'disabled']).nullish(),
}

/** Body of `POST /v1/responses`. The decoder checks the items, and what needs the model or two fields at once. */
export const ResponsesRequest = z.looseObject({
  ...promptFields,
  background: z.boolean().nullish(),
  context_management: z.unknown().optional(),
  include: z.array(z.string().max(200)).max(100).nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  max_tool_calls: z.int().min(1).nullish(),
  metadata: Metadata.nullish(),
  moderation: z.unknown().optional(),
  presence_penalty: decimal(-2, 2).nullish(),
  frequency_penalty: decimal(-2, 2).nullish(),
  prompt: z.unknown().optional(),
  prompt_cache_key: z.string().nullish(),
  prompt_cache_options: z.looseObject({}).nullish(),
  prompt_cache_retention: z.string().nullish(),
  safety_identifier: z.string().nullish(),
  service_tier: z.string().max(64).nullish(),
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
export const InputTokensRequest = z.looseObject(promptFields)
