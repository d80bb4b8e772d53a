import { z } from 'zod'
import { recordOf } from '#schemas/record.ts'

/**
 * The wire shapes of `POST /v1/messages` and `/v1/messages/count_tokens` (docs/protocol.md, Messages requests).
 *
 * Objects are loose: unknown fields pass, and the decoder hands them on to an upstream of the same dialect. Blocks, tools,
 * sources and the like of an unknown type are read as {@link Unknown}, since the API gains types every month. `null` stands
 * for absent wherever a field is optional. A bound whose message is `decimal` is reported as one on a decimal number.
 */

const DECIMAL = 'decimal'
const fraction = z.number().min(0, DECIMAL).max(1, DECIMAL)
const JsonObject = recordOf(z.string(), z.unknown())

/** An object whose `type` has no schema here, as it came. */
export class Unknown {
  readonly type = 'unknown'
  readonly value: Record<string, unknown> & { readonly type: string }

  constructor(value: Unknown['value']) {
    this.value = value
  }
}

/** Any object whose type is none of these. */
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

/** A block that carries something to read. */
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

/** A block of a user turn. */
export const UserBlock = z.union([
  z.discriminatedUnion('type', [...READABLE, ToolResultBlock]),
  unknownType(...READABLE_TYPES, ...ASSISTANT_TYPES, 'tool_result'),
])
export type UserBlock = z.infer<typeof UserBlock>

/** A block of an assistant turn. */
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

/** One turn (docs/protocol.md, Turns and blocks). */
export const InputMessage = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal('user'), content: z.union([z.string(), z.array(UserBlock)]) }),
  z.looseObject({ role: z.literal('assistant'), content: z.union([z.string(), z.array(AssistantBlock)]) }),
  z.looseObject({
    role: z.literal('system'),
    content: z.union([z.string(), z.array(z.union([TextBlock, unknownType('text')]))]).nullish(),
  }),
])
export type InputMessage = z.infer<typeof InputMessage>

/** Names of tools, in a definition. An upstream that takes fewer characters gets a shorter name (shared/engines/adapt.ts). */
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

/** One tool definition (docs/protocol.md, Messages requests). */
export const MessagesTool = z.union([CustomTool, unknownType('custom')])
export type MessagesTool = z.infer<typeof MessagesTool>

const alone = { disable_parallel_tool_use: z.boolean().nullish() }

/** How the model must choose among the tools (docs/protocol.md, Messages requests). */
export const MessagesToolChoice = z.union([
  z.discriminatedUnion('type', [
    z.looseObject({ type: z.literal('auto'), ...alone }),
    z.looseObject({ type: z.literal('any'), ...alone }),
    z.looseObject({ type: z.literal('tool'), name: z.string().min(1), ...alone }),
    z.looseObject({ type: z.literal('none') }),
  ]),
  unknownType('auto', 'any', 'tool', 'none'),
])
export type MessagesToolChoice = z.infer<typeof MessagesToolChoice>

/** Whether and how long the model thinks first (docs/protocol.md, Messages requests). */
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
  model: z.string().min(1),
  messages: z.array(InputMessage).min(1).max(100_000),
  system: Texts.nullish(),
  temperature: fraction.nullish(),
  top_p: fraction.nullish(),
  top_k: z.int().min(0).nullish().describe('0 is off'),
  stop_sequences: z.array(z.string().min(1).max(1_000)).max(5).nullish(),
  tools: z.array(MessagesTool).nullish(),
  tool_choice: MessagesToolChoice.nullish(),
  metadata: z.looseObject({ user_id: z.string().nullish() }).nullish(),
  thinking: Thinking.nullish(),
  output_config: z
    .looseObject({
      format: OutputFormat.nullish(),
      effort: z.string().nullish(),
    })
    .nullish(),
  output_format: OutputFormat.nullish().describe('Name of output_config.format in betas'),
  service_tier: z.string().nullish(),
}

/** Body of a request (docs/protocol.md, Messages requests). The decoder checks what needs the model, or two fields. */
export const MessagesRequest = z.looseObject({
  ...promptFields,
  max_tokens: z.int().min(1),
  stream: z.boolean().nullish(),
})
export type MessagesRequest = z.infer<typeof MessagesRequest>

/** Body of `POST /v1/messages/count_tokens` (docs/protocol.md, Counting tokens). */
export const CountTokensRequest = z.looseObject(promptFields)
export type CountTokensRequest = z.infer<typeof CountTokensRequest>

/** Why a message ended (docs/protocol.md, Messages answers). An upstream of this dialect may have other reasons. */
export type StopReason =
  | 'end_turn'
  | 'max_tokens'
  | 'stop_sequence'
  | 'tool_use'
  | 'refusal'
  | 'model_context_window_exceeded'

/** Usage of a message. `input_tokens` leaves out what the prompt cache read or wrote. An upstream may add details. */
export interface MessagesUsage {
  input_tokens: number
  output_tokens: number
  cache_creation_input_tokens: number
  cache_read_input_tokens: number
  [detail: string]: unknown
}

/**
 * One block of an answer. `citations` and `caller` belong to the newer dialect (docs/protocol.md, Messages versions). The last
 * form is a block of an upstream of this dialect, or of a search that the service ran.
 */
export type OutputBlock =
  | { type: 'text'; text: string; citations?: readonly unknown[] | null }
  | { type: 'thinking'; thinking: string; signature: string }
  | { type: 'redacted_thinking'; data: string }
  | { type: 'tool_use'; id: string; name: string; input: Record<string, unknown>; caller?: { type: 'direct' } }
  | { type: string; [field: string]: unknown }

/** The refusal that `stop_details` of the newer dialect describes. */
export interface RefusalDetails {
  type: 'refusal'
  category: null
  explanation: null
}

/** The whole answer (docs/protocol.md, Messages answers). The last three fields belong to the newer dialect. */
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
