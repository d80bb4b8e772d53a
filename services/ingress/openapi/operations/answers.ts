import { z } from 'zod'
import type { AnswerName } from '#services/ingress/openapi/components.ts'
import type { Operation } from '#services/ingress/openapi/operation.ts'

/** A route that answers 200 with JSON of one shape. */
export function one(description: string, ...json: AnswerName[]): Operation['answers'] {
  return { 200: { description, json } }
}

/** Where in a history to begin. */
export const AFTER_EVENT = z.object({
  starting_after: z.int().min(0).optional().describe('Number of the last event that you have'),
})
