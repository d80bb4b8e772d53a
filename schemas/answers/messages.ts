import { z } from 'zod'

const Count = z.int().min(0)

const OutputBlock = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text'), text: z.string(), citations: z.null().optional() }),
  z.object({ type: z.literal('thinking'), thinking: z.string(), signature: z.string() }),
  z.object({ type: z.literal('redacted_thinking'), data: z.string() }),
  z.object({
    type: z.literal('tool_use'),
    id: z.string(),
    name: z.string(),
    input: z.record(z.string(), z.unknown()),
    caller: z.object({ type: z.literal('direct') }).optional(),
  }),
])

/** The whole answer of `POST /v1/messages` (docs/protocol.md, Messages answers). Optional fields are the newer dialect. */
export const MessageAnswer = z.object({
  id: z.string(),
  type: z.literal('message'),
  role: z.literal('assistant'),
  model: z.string(),
  content: z.array(OutputBlock),
  stop_reason: z
    .enum(['end_turn', 'max_tokens', 'stop_sequence', 'tool_use', 'refusal', 'model_context_window_exceeded'])
    .nullable(),
  stop_sequence: z.string().nullable(),
  usage: z.object({
    input_tokens: Count,
    output_tokens: Count,
    cache_creation_input_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation: z.null().optional(),
    inference_geo: z.null().optional(),
    output_tokens_details: z.object({ thinking_tokens: Count }).nullable().optional(),
    server_tool_use: z.null().optional(),
    service_tier: z.literal('standard').optional(),
    speed: z.null().optional(),
  }),
  container: z.null().optional(),
  stop_details: z
    .object({ type: z.literal('refusal'), category: z.null(), explanation: z.null() })
    .nullable()
    .optional(),
  diagnostics: z.null().optional(),
})

/** The answer of `POST /v1/messages/count_tokens`. */
export const TokenCountAnswer = z.looseObject({ input_tokens: Count })
