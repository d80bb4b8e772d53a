import { z } from 'zod'

/** A failure in the OpenAI format (docs/errors.md). All four keys are always there. */
export const ErrorAnswer = z.object({
  error: z.object({
    message: z.string().describe('What was wrong, and what to do next'),
    type: z.string().describe('invalid_request_error, requests, tokens, insufficient_quota or server_error'),
    param: z.string().nullable().describe('Path of the offending field, such as messages[2].content'),
    code: z.string().nullable().describe('A row of docs/errors.md; null for the most general ones'),
  }),
})

/** A failure in the messages format (docs/errors.md). */
export const MessagesErrorAnswer = z.object({
  type: z.literal('error'),
  error: z.object({
    type: z.string().describe('Such as invalid_request_error or overloaded_error'),
    message: z.string(),
    details: z.object({ error_code: z.string() }).optional(),
  }),
  request_id: z.string().describe('The same as the header'),
})
