import { z } from 'zod'
import type { Model, ModelInfo } from '#schemas/models.ts'

const Support = z.object({ supported: z.boolean() })

export const ModelAnswer = z.object({
  id: z.string(),
  object: z.literal('model'),
  created: z.int().describe('Creation time, in Unix seconds'),
  owned_by: z.string(),
  permission: z.tuple([]),
  root: z.string(),
  parent: z.string(),
  capabilities: z.array(z.string()).describe('Supported features, such as chat, messages, tools, images'),
  context_length: z.int().optional().describe('Maximum tokens of prompt and output together'),
  max_output_tokens: z.int().optional().describe('Maximum output tokens'),
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
