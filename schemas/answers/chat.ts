import { z } from 'zod'
import type { ChatChunk, ChatCompletion } from '#schemas/chat.ts'
import { ResearchAnnotation, ResearchQuality, ResearchSource, ResearchStop } from '#schemas/kinds/research.ts'
import { listOf } from './models.ts'

const Count = z.int().min(0)
const FinishReason = z
  .enum(['stop', 'length', 'tool_calls', 'content_filter', 'function_call'])
  .describe('function_call: only for requests with the deprecated field functions')
const Logprobs = z
  .object({ content: z.array(z.unknown()).nullable(), refusal: z.array(z.unknown()).nullable() })
  .nullable()
const FilterResults = z
  .record(z.string(), z.unknown())
  .describe('Results by category. An upstream server may add categories')

export const Usage = z.looseObject({
  prompt_tokens: Count,
  completion_tokens: Count,
  total_tokens: Count,
  prompt_tokens_details: z
    .looseObject({ cached_tokens: Count.optional(), cache_write_tokens: Count.optional() })
    .nullable()
    .describe('null: the model does not report details'),
  completion_tokens_details: z.looseObject({ reasoning_tokens: Count.optional() }).nullable(),
})

const ToolCall = z.discriminatedUnion('type', [
  z.looseObject({
    id: z.string(),
    type: z.literal('function'),
    function: z.object({ name: z.string(), arguments: z.string().describe('JSON text') }),
  }),
  z.looseObject({
    id: z.string(),
    type: z.literal('custom'),
    custom: z.object({ name: z.string(), input: z.string().describe('Free text') }),
  }),
])

const Choice = z.object({
  index: Count,
  message: z.looseObject({
    role: z.literal('assistant'),
    content: z.string().nullable(),
    refusal: z.string().nullable(),
    annotations: z.array(z.unknown()),
    reasoning_content: z.string().optional(),
    tool_calls: z.array(ToolCall).optional(),
  }),
  logprobs: Logprobs,
  finish_reason: FinishReason,
  content_filter_results: FilterResults,
})

const completion = {
  id: z.string(),
  object: z.literal('chat.completion'),
  created: z.int().describe('Creation time, in Unix seconds'),
  model: z.string(),
  service_tier: z.string().describe('default, or the tier of an upstream server with the same API'),
  system_fingerprint: z.string(),
  choices: z.array(Choice),
  usage: Usage,
}

/** Response of `POST /v1/chat/completions` without streaming (docs/reference/compatibility.md, Chat answers). */
export const ChatCompletionAnswer = z.looseObject(completion) satisfies z.ZodType<ChatCompletion>

/** One `data:` line of a streamed response (docs/internals/protocol.md, Chat streams). */
export const ChatCompletionChunk = z.looseObject({
  id: z.string(),
  object: z.literal('chat.completion.chunk'),
  created: z.int().describe('Creation time, in Unix seconds'),
  model: z.string(),
  system_fingerprint: z.string(),
  choices: z.array(
    z.object({
      index: Count,
      delta: z.looseObject({
        role: z.literal('assistant').optional(),
        content: z.string().nullable().optional(),
        refusal: z.string().nullable().optional(),
        reasoning_content: z.string().optional(),
        tool_calls: z
          .array(
            z.looseObject({
              index: Count,
              id: z.string().optional(),
              type: z.enum(['function', 'custom']).optional(),
              function: z.object({ name: z.string().optional(), arguments: z.string() }).optional(),
              custom: z.object({ name: z.string().optional(), input: z.string() }).optional(),
            }),
          )
          .optional(),
      }),
      logprobs: Logprobs,
      finish_reason: FinishReason.nullable(),
      content_filter_results: FilterResults.optional(),
    }),
  ),
  usage: Usage.nullable().optional().describe('Present only with stream_options.include_usage'),
}) satisfies z.ZodType<ChatChunk>

export const ResearchAnswer = z.object({
  ...completion,
  choices: z.array(
    Choice.extend({ message: Choice.shape.message.extend({ annotations: z.array(ResearchAnnotation) }) }),
  ),
  search_results: z.array(ResearchSource),
  citations: z.array(z.string()).describe('URLs of the cited sources, in citation order'),
  research: z.object({
    ...ResearchQuality.shape,
    stop_reason: ResearchStop,
    searches: Count,
    pages: Count,
    cost_usd: z.number().min(0),
  }),
})

export const StoredCompletionAnswer = ChatCompletionAnswer.extend({ metadata: z.record(z.string(), z.string()) })

export const StoredCompletionListAnswer = listOf(StoredCompletionAnswer)

export const CompletionDeletedAnswer = z.object({
  id: z.string(),
  object: z.literal('chat.completion.deleted'),
  deleted: z.literal(true),
})

export const CompletionMessageListAnswer = listOf(z.looseObject({ id: z.string(), role: z.string() }))

const Numbers = z.array(z.number().nullable())

/** Response of `POST /v1/completions`, or one `data:` line of its stream (docs/reference/compatibility.md, Completions). */
export const CompletionAnswer = z.object({
  id: z.string(),
  object: z.literal('text_completion'),
  created: z.int().describe('Creation time, in Unix seconds'),
  model: z.string(),
  system_fingerprint: z.string(),
  choices: z.array(
    z.object({
      index: z.int().min(0),
      text: z.string(),
      logprobs: z
        .object({
          tokens: z.array(z.string()),
          token_logprobs: Numbers,
          top_logprobs: z.array(z.record(z.string(), z.number()).nullable()).nullable(),
          text_offset: z.array(z.int().min(0)),
        })
        .nullable(),
      finish_reason: z.enum(['stop', 'length', 'content_filter']).nullable(),
      content_filter_results: z.record(z.string(), z.unknown()).optional(),
    }),
  ),
  usage: Usage.nullable().optional().describe('In a stream: present only with stream_options.include_usage'),
})
