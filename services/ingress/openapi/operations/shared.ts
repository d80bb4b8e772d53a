import { z } from 'zod'
import type { AnswerName } from '#services/ingress/openapi/components.ts'
import type { Operation } from '#services/ingress/openapi/operation.ts'

/** Status 200 with a JSON body that matches one of these schemas. */
export function ok(description: string, ...json: AnswerName[]): Operation['answers'] {
  return { 200: { description, json } }
}

/** Query parameters of a resumable event stream. */
export const AFTER_EVENT = z.object({
  starting_after: z
    .int()
    .min(0)
    .optional()
    .describe('Sequence number of the last event received. Default: from the start'),
})
