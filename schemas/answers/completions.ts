import { z } from 'zod'
import { Usage } from './chat.ts'

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
