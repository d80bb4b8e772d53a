import { z } from 'zod'
import { ConversationItem } from '#schemas/responses/request.ts'
import { listOf, Seconds } from './models.ts'

/** A response (docs/guides/responses.md, Answers). Fields copied from the request are not listed. */
export const ResponseAnswer = z.looseObject({
  id: z.string(),
  object: z.literal('response'),
  created_at: z.number().describe('Creation time, in Unix seconds'),
  completed_at: z.number().nullable(),
  status: z.enum(['queued', 'in_progress', 'completed', 'failed', 'cancelled', 'incomplete']),
  error: z.object({ code: z.string(), message: z.string(), type: z.string(), param: z.string().nullable() }).nullable(),
  incomplete_details: z
    .object({ reason: z.enum(['max_output_tokens', 'content_filter', 'max_tool_calls']) })
    .nullable(),
  model: z.string(),
  output: z.array(
    z.looseObject({
      id: z.string(),
      type: z.enum([
        'message',
        'reasoning',
        'function_call',
        'code_interpreter_call',
        'web_search_call',
        'file_search_call',
      ]),
    }),
  ),
  usage: z
    .looseObject({ input_tokens: z.int().min(0), output_tokens: z.int().min(0), total_tokens: z.int().min(0) })
    .nullable(),
})

export const ResponseDeletedAnswer = z.object({
  id: z.string(),
  object: z.literal('response'),
  deleted: z.literal(true),
})

export const InputItemsAnswer = z.object({
  object: z.literal('list'),
  data: z.array(z.looseObject({ id: z.string(), type: z.string() })),
  first_id: z.string().nullable(),
  last_id: z.string().nullable(),
  has_more: z.boolean(),
})

export const InputTokensAnswer = z.object({
  object: z.literal('response.input_tokens'),
  input_tokens: z.int().min(0),
})

export const ConversationAnswer = z.object({
  id: z.string(),
  object: z.literal('conversation'),
  created_at: Seconds,
  metadata: z.record(z.string(), z.string()),
})

export const ConversationDeletedAnswer = z.object({
  id: z.string(),
  object: z.literal('conversation.deleted'),
  deleted: z.literal(true),
})

export const ConversationItemAnswer = ConversationItem

export const ConversationItemListAnswer = listOf(ConversationItem)
