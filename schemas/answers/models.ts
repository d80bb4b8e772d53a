import { z } from 'zod'
import type { Model, ModelInfo } from '#schemas/models.ts'
import { Price } from '#schemas/price.ts'

const Support = z.object({ supported: z.boolean() })

export const ModelAnswer = z.object({
  id: z.string(),
  object: z.literal('model'),
  created: z.int().describe('Creation time, in Unix seconds'),
  owned_by: z.string(),
  permission: z.tuple([]),
  root: z.string(),
  parent: z.string(),
  alias_of: z.string().optional().describe('Id of the model, if this entry is an alias'),
  status: z
    .enum(['failing'])
    .optional()
    .describe('failing: the last calls to all servers of the model failed. Absent: no such failure is known'),
  capabilities: z.array(z.string()).describe('Supported features, such as chat, messages, tools, images'),
  context_length: z.int().optional().describe('Maximum tokens of prompt and output together'),
  max_output_tokens: z.int().optional().describe('Maximum output tokens'),
  price: Price.optional().describe('Price in US dollars. Missing: the model has no price'),
}) satisfies z.ZodType<Model>

export const ModelInfoAnswer = z.object({
  id: z.string(),
  type: z.literal('model'),
  display_name: z.string(),
  created_at: z.string().describe('RFC 3339 timestamp'),
  lifecycle: z.literal('active'),
  line: z.null(),
  deprecated_at: z.null(),
  retires_at: z.null(),
  max_input_tokens: z.int().nullable(),
  max_tokens: z.int().nullable(),
  capabilities: z.object({
    batch: Support,
    citations: Support,
    code_execution: Support,
    context_management: Support.extend({
      clear_thinking_20251015: z.null(),
      clear_tool_uses_20250919: z.null(),
      compact_20260112: z.null(),
    }),
    effort: Support.extend({ low: Support, medium: Support, high: Support, xhigh: Support, max: Support }),
    image_input: Support,
    pdf_input: Support,
    server_tools: Support.extend({ code_execution: Support, web_search: Support }),
    structured_outputs: Support,
    thinking: Support.extend({
      types: z.object({ adaptive: Support, between_tools: Support, disabled: Support, enabled: Support }),
    }),
  }),
}) satisfies z.ZodType<ModelInfo>

export const ModelListAnswer = z.object({ object: z.literal('list'), data: z.array(ModelAnswer) })

export const ModelInfoListAnswer = z.object({
  data: z.array(ModelInfoAnswer),
  has_more: z.boolean(),
  first_id: z.string().nullable(),
  last_id: z.string().nullable(),
})

export const HealthAnswer = z.object({ status: z.literal('ok') })

export const ReadyAnswer = z.object({
  status: z.enum(['ready', 'not ready']),
  problems: z.array(z.string()).optional().describe('Reasons why the process is not ready'),
  preparing: z.array(z.string()).optional().describe('Models and sandboxes in preparation, with their progress'),
})

/** An error in the OpenAI format (docs/reference/errors.md). All four keys are always present. */
export const ErrorAnswer = z.object({
  error: z.object({
    message: z.string().describe('The problem and how to fix it'),
    type: z.string().describe('invalid_request_error, requests, tokens, insufficient_quota or server_error'),
    param: z.string().nullable().describe('Path of the invalid field, such as messages[2].content'),
    code: z.string().nullable().describe('Error code (docs/reference/errors.md). null: a general error of this type'),
  }),
})

export const MessagesErrorAnswer = z.object({
  type: z.literal('error'),
  error: z.object({
    type: z.string().describe('Error type, such as invalid_request_error or overloaded_error'),
    message: z.string(),
    details: z.object({ error_code: z.string() }).optional(),
  }),
  request_id: z.string().describe('Value of the x-request-id header'),
})

export const Seconds = z.int().describe('Unix seconds')

export function listOf<Item extends z.ZodType>(item: Item) {
  return z.object({
    object: z.literal('list'),
    data: z.array(item),
    first_id: z.string().nullable(),
    last_id: z.string().nullable().describe('Cursor of the next page, for the parameter `after`'),
    has_more: z.boolean().describe('true: more pages follow'),
  })
}
