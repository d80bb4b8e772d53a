import { z } from 'zod'
import { recordOf } from './lib/record.ts'

/**
 * Request and response of `POST /v1/messages` and `/v1/messages/count_tokens` (docs/reference/compatibility.md, Messages requests).
 *
 * Objects are loose: the decoder passes unknown fields to an upstream of the same dialect. Blocks, tools and sources of an unknown type are read as
 * {@link Unknown}, because the API adds types every month. `null` means absent for all optional fields.
 */

/**
 * Message of a failed check of a decimal number. The message makes the decoder choose an error code that begins with `decimal_`, such as
 * `decimal_above_max_value`.
 */
const DECIMAL = 'decimal'
const fraction = z.number().min(0, DECIMAL).max(1, DECIMAL)
const JsonObject = recordOf(z.string(), z.unknown())

/** An object whose type has no schema here. The decoder copies the object unchanged. */
export class Unknown {
  readonly type = 'unknown'
  readonly value: Record<string, unknown> & { readonly type: string }

  constructor(value: Unknown['value']) {
    this.value = value
  }
}

function unknownType(...known: readonly string[]) {
  const type = z.string().refine((name) => !known.includes(name))
  return z.looseObject({ type }).transform((value) => new Unknown(value))
}

const TextBlock = z.looseObject({ type: z.literal('text'), text: z.string() })

const ImageBlock = z.looseObject({
  type: z.literal('image'),
  source: z.union([
    z.discriminatedUnion('type', [
      z.looseObject({
        type: z.literal('base64'),
        media_type: z.enum(['image/png', 'image/jpeg', 'image/gif', 'image/webp']),
        data: z.string().min(1),
      }),
      z.looseObject({ type: z.literal('url'), url: z.string().min(1) }),
    ]),
    unknownType('base64', 'url'),
  ]),
})

const DocumentBlock = z.looseObject({
  type: z.literal('document'),
  source: z.union([
    z.discriminatedUnion('type', [
      z.looseObject({ type: z.literal('text'), media_type: z.literal('text/plain').nullish(), data: z.string() }),
      z.looseObject({
        type: z.literal('content'),
        content: z.union([z.string(), z.array(z.discriminatedUnion('type', [TextBlock, ImageBlock]))]),
      }),
      z.looseObject({
        type: z.literal('base64'),
        media_type: z.literal('application/pdf'),
        data: z.string().min(1),
      }),
      z.looseObject({ type: z.literal('url'), url: z.string().min(1) }),
    ]),
    unknownType('text', 'content', 'base64', 'url'),
  ]),
  title: z.string().nullish(),
  context: z.string().nullish(),
})

const SearchResultBlock = z.looseObject({
  type: z.literal('search_result'),
  source: z.string(),
  title: z.string(),
  content: z.array(TextBlock),
})

const READABLE = [TextBlock, ImageBlock, DocumentBlock, SearchResultBlock] as const
const READABLE_TYPES = ['text', 'image', 'document', 'search_result']
const ASSISTANT_TYPES = ['tool_use', 'thinking', 'redacted_thinking']

export const ReadableBlock = z.union([
  z.discriminatedUnion('type', READABLE),
  unknownType(...READABLE_TYPES, ...ASSISTANT_TYPES, 'tool_result'),
])
export type ReadableBlock = z.infer<typeof ReadableBlock>

const ToolResultBlock = z.looseObject({
  type: z.literal('tool_result'),
  tool_use_id: z.string().min(1),
  content: z.union([z.string(), z.array(ReadableBlock)]).nullish(),
  is_error: z.boolean().nullish(),
})

export const UserBlock = z.union([
  z.discriminatedUnion('type', [...READABLE, ToolResultBlock]),
  unknownType(...READABLE_TYPES, ...ASSISTANT_TYPES, 'tool_result'),
])
export type UserBlock = z.infer<typeof UserBlock>

export const AssistantBlock = z.union([
  z.discriminatedUnion('type', [
    TextBlock,
    z.looseObject({
      type: z.literal('tool_use'),
      id: z.string().min(1),
      name: z.string().min(1),
      input: JsonObject,
    }),
    z.looseObject({ type: z.literal('thinking'), thinking: z.string(), signature: z.string().nullish() }),
    z.looseObject({ type: z.literal('redacted_thinking'), data: z.string() }),
  ]),
  unknownType('text', ...ASSISTANT_TYPES, 'tool_result'),
])
export type AssistantBlock = z.infer<typeof AssistantBlock>

const Texts = z.union([z.string(), z.array(TextBlock)])

/** Maximum blocks per message. A message is validated in one step, so more blocks would block the event loop. */
const BLOCKS_MAX = 10_000

export const InputMessage = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal('user'), content: z.union([z.string(), z.array(UserBlock).max(BLOCKS_MAX)]) }),
  z.looseObject({
    role: z.literal('assistant'),
    content: z.union([z.string(), z.array(AssistantBlock).max(BLOCKS_MAX)]),
  }),
  z.looseObject({
    role: z.literal('system'),
    content: z.union([z.string(), z.array(z.union([TextBlock, unknownType('text')])).max(BLOCKS_MAX)]).nullish(),
  }),
])
export type InputMessage = z.infer<typeof InputMessage>

/** Maximum characters of a tool name. If the upstream allows fewer, then the worker shortens the name (shared/engines/adapt.ts). */
const TOOL_NAME_CHARS_MAX = 256

const CustomTool = z.looseObject({
  type: z.literal('custom').nullish(),
  name: z
    .string()
    .min(1)
    .max(TOOL_NAME_CHARS_MAX)
    .regex(/^\P{Cc}*$/u),
  description: z.string().nullish(),
  input_schema: z.looseObject({ type: z.literal('object') }),
  strict: z.boolean().nullish(),
})

export const MessagesTool = z.union([CustomTool, unknownType('custom')])
export type MessagesTool = z.infer<typeof MessagesTool>

const parallelism = { disable_parallel_tool_use: z.boolean().nullish() }

export const MessagesToolChoice = z.union([
  z.discriminatedUnion('type', [
    z.looseObject({ type: z.literal('auto'), ...parallelism }),
    z.looseObject({ type: z.literal('any'), ...parallelism }),
    z.looseObject({ type: z.literal('tool'), name: z.string().min(1), ...parallelism }),
    z.looseObject({ type: z.literal('none') }),
  ]),
  unknownType('auto', 'any', 'tool', 'none'),
])
export type MessagesToolChoice = z.infer<typeof MessagesToolChoice>

const Thinking = z.union([
  z.discriminatedUnion('type', [
    z.looseObject({ type: z.literal('enabled'), budget_tokens: z.int().min(1024), display: z.string().nullish() }),
    z.looseObject({ type: z.literal('adaptive'), display: z.string().nullish() }),
    z.looseObject({ type: z.literal('disabled') }),
  ]),
  unknownType('enabled', 'adaptive', 'disabled'),
])

const OutputFormat = z.union([
  z.looseObject({ type: z.literal('json_schema'), schema: JsonObject }),
  unknownType('json_schema'),
])

const promptFields = {
  model: z.string().min(1).describe('Model id or alias'),
  messages: z.array(InputMessage).min(1).max(100_000).describe('Messages of the conversation, oldest first'),
  system: Texts.nullish().describe('System prompt'),
  temperature: fraction.nullish().describe('Sampling temperature. Default: the default of the model'),
  top_p: fraction.nullish().describe('Nucleus sampling: probability mass of the considered tokens'),
  top_k: z.int().min(0).nullish().describe('Sample from the k most likely tokens. 0: off'),
  stop_sequences: z.array(z.string().min(1).max(1_000)).max(5).nullish().describe('Strings that end the output'),
  tools: z.array(MessagesTool).nullish().describe('Tools that the model may call'),
  tool_choice: MessagesToolChoice.nullish().describe('Tool selection. Default: auto'),
  metadata: z.looseObject({ user_id: z.string().nullish() }).nullish(),
  thinking: Thinking.nullish().describe('Extended thinking'),
  output_config: z
    .looseObject({
      format: OutputFormat.nullish(),
      effort: z.string().nullish(),
    })
    .nullish(),
  output_format: OutputFormat.nullish().describe('Beta name of output_config.format'),
  service_tier: z.string().nullish(),
}

/**
 * Request body (docs/reference/compatibility.md, Messages requests). This schema checks each field alone. The decoder checks the rules that depend
 * on the model or on two fields together.
 */
export const MessagesRequest = z.looseObject({
  ...promptFields,
  max_tokens: z.int().min(1).describe('Maximum output tokens'),
  stream: z.boolean().nullish().describe('Stream the message as server-sent events. Default: false'),
})
export type MessagesRequest = z.infer<typeof MessagesRequest>

/** Body of `POST /v1/messages/count_tokens` (docs/reference/compatibility.md, Counting tokens). */
export const CountTokensRequest = z.looseObject(promptFields)
export type CountTokensRequest = z.infer<typeof CountTokensRequest>

/** Stop reason (docs/reference/compatibility.md, Messages answers). An upstream of this dialect may return other reasons. */
export type StopReason =
  | 'end_turn'
  | 'max_tokens'
  | 'stop_sequence'
  | 'tool_use'
  | 'refusal'
  | 'model_context_window_exceeded'

/** Usage of a message. `input_tokens` excludes tokens that are read from or written to the prompt cache. An upstream may add further fields. */
export interface MessagesUsage {
  input_tokens: number
  output_tokens: number
  cache_creation_input_tokens: number
  cache_read_input_tokens: number
  [detail: string]: unknown
}

/**
 * One content block of a response. Newer versions of the API add `citations` and `caller` (docs/reference/compatibility.md, Messages versions). The
 * last variant is any other block, sent by an upstream of this dialect or by a hosted search.
 */
export type OutputBlock =
  | { type: 'text'; text: string; citations?: readonly unknown[] | null }
  | { type: 'thinking'; thinking: string; signature: string }
  | { type: 'redacted_thinking'; data: string }
  | { type: 'tool_use'; id: string; name: string; input: Record<string, unknown>; caller?: { type: 'direct' } }
  | { type: string; [field: string]: unknown }

/** Field `stop_details` of a refusal, which only newer versions of the API return. */
export interface RefusalDetails {
  type: 'refusal'
  category: null
  explanation: null
}

/** Response (docs/reference/compatibility.md, Messages answers). The last three fields exist only in newer versions of the API. */
export interface Message {
  id: string
  type: 'message'
  role: 'assistant'
  model: string
  content: OutputBlock[]
  stop_reason: StopReason | null
  stop_sequence: string | null
  usage: MessagesUsage
  container?: unknown
  stop_details?: RefusalDetails | null
  diagnostics?: unknown
}
