import { z } from 'zod'

const Count = z.int().min(0)

const OutputBlock = z.union([
  z.discriminatedUnion('type', [
    z.looseObject({
      type: z.literal('text'),
      text: z.string(),
      citations: z
        .array(z.looseObject({ type: z.string() }))
        .nullable()
        .optional(),
    }),
    z.looseObject({ type: z.literal('thinking'), thinking: z.string(), signature: z.string() }),
    z.looseObject({ type: z.literal('redacted_thinking'), data: z.string() }),
    z.looseObject({
      type: z.literal('tool_use'),
      id: z.string(),
      name: z.string(),
      input: z.record(z.string(), z.unknown()),
      caller: z.looseObject({ type: z.string() }).optional(),
    }),
  ]),
  z
    .looseObject({ type: z.string() })
    .describe('Block of an upstream server with the Anthropic API, or of a web search'),
])

/**
 * Response of `POST /v1/messages` (docs/reference/compatibility.md, Messages answers). A field is optional if only newer versions of the API define
 * it, or if only an upstream server with the Anthropic API sends it.
 */
export const MessageAnswer = z.looseObject({
  id: z.string(),
  type: z.literal('message'),
  role: z.literal('assistant'),
  model: z.string(),
  content: z.array(OutputBlock),
  stop_reason: z
    .string()
    .nullable()
    .describe(
      'end_turn, max_tokens, stop_sequence, tool_use, refusal, model_context_window_exceeded, or a reason of the upstream server, such as pause_turn',
    ),
  stop_sequence: z.string().nullable(),
  usage: z.looseObject({
    input_tokens: Count,
    output_tokens: Count,
    cache_creation_input_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation: z.looseObject({}).nullable().optional(),
    inference_geo: z.string().nullable().optional(),
    output_tokens_details: z.looseObject({ thinking_tokens: Count }).nullable().optional(),
    server_tool_use: z.looseObject({ web_search_requests: Count.optional() }).nullable().optional(),
    service_tier: z.string().nullable().optional(),
    speed: z.string().nullable().optional(),
  }),
  container: z.looseObject({}).nullable().optional(),
  stop_details: z
    .looseObject({ type: z.string(), category: z.string().nullable(), explanation: z.string().nullable() })
    .nullable()
    .optional(),
  diagnostics: z.looseObject({}).nullable().optional(),
})

export const TokenCountAnswer = z.looseObject({ input_tokens: Count })
