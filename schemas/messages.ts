import { z } from 'zod'

/**
 * The wire shapes of `POST /v1/messages` and `/v1/messages/count_tokens` (docs/protocol.md, Messages requests).
 *
 * Objects are loose: unknown fields pass, and the decoder hands them on to an upstream of the same dialect. `null` stands
 * for absent wherever a field is optional. A bound whose message is `decimal` is reported as one on a decimal number.
 */

const DECIMAL = 'decimal'
const fraction = z.number().min(0, DECIMAL).max(1, DECIMAL)
const JsonObject = z.record(z.string(), z.unknown())

const TextBlock = z.looseObject({ type: z.literal('text'), text: z.string() })

const ImageBlock = z.looseObject({
  type: z.literal('image'),
  source: z.discriminatedUnion('type', [
    z.looseObject({
      type: z.literal('base64'),
      media_type: z.enum(['image/png', 'image/jpeg', 'image/gif', 'image/webp']),
      data: z.string().min(1),
    }),
    z.looseObject({ type: z.literal('url'), url: z.string().min(1) }),
  ]),
})

const DocumentBlock = z.looseObject({
  type: z.literal('document'),
  source: z.discriminatedUnion('type', [
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
  title: z.string().nullish(),
  context: z.string().nullish(),
})

const SearchResultBlock = z.looseObject({
  type: z.literal('search_result'),
  source: z.string(),
  title: z.string(),
  content: z.array(TextBlock),
})

/** A block that carries something to read. */
export const ReadableBlock = z.discriminatedUnion('type', [TextBlock, ImageBlock, DocumentBlock, SearchResultBlock])
export type ReadableBlock = z.infer<typeof ReadableBlock>

const ToolResultBlock = z.looseObject({
  type: z.literal('tool_result'),
  tool_use_id: z.string().min(1),
  content: z.union([z.string(), z.array(ReadableBlock)]).nullish(),
  is_error: z.boolean().nullish(),
})

/** A block of a user turn. */
export const UserBlock = z.discriminatedUnion('type', [
  TextBlock,
  ImageBlock,
  DocumentBlock,
  SearchResultBlock,
  ToolResultBlock,
])
export type UserBlock = z.infer<typeof UserBlock>

/** A block of an assistant turn. */
export const AssistantBlock = z.discriminatedUnion('type', [
  TextBlock,
  z.looseObject({
    type: z.literal('tool_use'),
    id: z.string().min(1),
    name: z.string().min(1),
    input: JsonObject,
  }),
  z.looseObject({ type: z.literal('thinking'), thinking: z.string(), signature: z.string().nullish() }),
  z.looseObject({ type: z.literal('redacted_thinking'), data: z.string() }),
])
export type AssistantBlock = z.infer<typeof AssistantBlock>

const Texts = z.union([z.string(), z.array(TextBlock)])

/** One turn (docs/protocol.md, Turns and blocks). `system` parses, so that it can be refused by name. */
export const InputMessage = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal('user'), content: z.union([z.string(), z.array(UserBlock)]) }),
  z.looseObject({ role: z.literal('assistant'), content: z.union([z.string(), z.array(AssistantBlock)]) }),
  z.looseObject({ role: z.literal('system'), content: Texts }),
])
export type InputMessage = z.infer<typeof InputMessage>

const CustomTool = z.looseObject({
  type: z.literal('custom').nullish(),
  name: z.string().regex(/^[A-Za-z0-9_-]{1,128}$/),
  description: z.string().nullish(),
  input_schema: z.looseObject({ type: z.literal('object') }),
  strict: z.boolean().nullish(),
})

/** One tool definition (docs/protocol.md, Messages requests). */
export const MessagesTool = CustomTool
export type MessagesTool = z.infer<typeof MessagesTool>

const alone = { disable_parallel_tool_use: z.boolean().nullish() }

/** How the model must choose among the tools (docs/protocol.md, Messages requests). */
export const MessagesToolChoice = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('auto'), ...alone }),
  z.looseObject({ type: z.literal('any'), ...alone }),
  z.looseObject({ type: z.literal('tool'), name: z.string().min(1), ...alone }),
  z.looseObject({ type: z.literal('none') }),
])
export type MessagesToolChoice = z.infer<typeof MessagesToolChoice>

/** Whether and how long the model thinks first (docs/protocol.md, Messages requests). */
const Thinking = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('enabled'), budget_tokens: z.int().min(1024), display: z.string().nullish() }),
  z.looseObject({ type: z.literal('adaptive'), display: z.string().nullish() }),
  z.looseObject({ type: z.literal('between_tools'), display: z.string().nullish() }),
  z.looseObject({ type: z.literal('disabled') }),
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
      format: z.looseObject({ type: z.literal('json_schema'), schema: JsonObject }).nullish(),
      effort: z.string().nullish(),
    })
    .nullish(),
  service_tier: z.enum(['auto', 'standard_only']).nullish(),
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

/** Why a message ended (docs/protocol.md, Messages answers). */
export type StopReason =
  | 'end_turn'
  | 'max_tokens'
  | 'stop_sequence'
  | 'tool_use'
  | 'refusal'
  | 'model_context_window_exceeded'

/** Usage of a message. `input_tokens` leaves out what the prompt cache read or wrote; the rest is the newer dialect. */
export interface MessagesUsage {
  input_tokens: number
  output_tokens: number
  cache_creation_input_tokens: number
  cache_read_input_tokens: number
  cache_creation?: null
  inference_geo?: null
  output_tokens_details?: { thinking_tokens: number } | null
  server_tool_use?: null
  service_tier?: 'standard'
  speed?: null
}

/** One block of an answer. `citations` and `caller` belong to the newer dialect (docs/protocol.md, Messages versions). */
export type OutputBlock =
  | { type: 'text'; text: string; citations?: null }
  | { type: 'thinking'; thinking: string; signature: string }
  | { type: 'redacted_thinking'; data: string }
  | { type: 'tool_use'; id: string; name: string; input: Record<string, unknown>; caller?: { type: 'direct' } }

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
  container?: null
  stop_details?: RefusalDetails | null
  diagnostics?: null
}
