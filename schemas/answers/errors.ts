import { z } from 'zod'

/** An error in the OpenAI format (docs/reference/errors.md). All four keys are always present. */
export const ErrorAnswer = z.object({
  error: z.object({
    message: z.string().describe('The problem and how to fix it'),
    type: z.string().describe('invalid_request_error, requests, tokens, insufficient_quota or server_error'),
    param: z.string().nullable().describe('Path of the invalid field, such as messages[2].content'),
    code: z.string().nullable().describe('Error code (docs/reference/errors.md). null: a general error of this type'),
  }),
})

/** An error in the Anthropic format (docs/reference/errors.md). */
export const MessagesErrorAnswer = z.object({
  type: z.literal('error'),
  error: z.object({
    type: z.string().describe('Error type, such as invalid_request_error or overloaded_error'),
    message: z.string(),
    details: z.object({ error_code: z.string() }).optional(),
  }),
  request_id: z.string().describe('Value of the x-request-id header'),
})
