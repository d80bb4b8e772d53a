import { z } from 'zod'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { AFTER_EVENT, one } from './answers.ts'

/** Responses that are kept (docs/responses.md, Kept responses). */
export const RESPONSES: Operations = {
  'GET /v1/responses/:id': {
    id: 'getResponse',
    tag: 'Responses',
    summary: 'A kept response; with `stream` every event of it',
    query: AFTER_EVENT.extend({ stream: z.boolean().optional() }),
    answers: { 200: { description: 'The response.', json: ['Response'], events: null } },
    failures: [429],
  },
  'DELETE /v1/responses/:id': {
    id: 'deleteResponse',
    tag: 'Responses',
    summary: 'Forgets a response that has ended',
    answers: one('It is forgotten.', 'ResponseDeleted'),
    failures: [409],
  },
  'GET /v1/responses/:id/input_items': {
    id: 'listInputItems',
    tag: 'Responses',
    summary: 'What the model of a response was given',
    query: z.object({
      limit: z.int().min(1).max(100).default(20),
      order: z.enum(['asc', 'desc']).default('desc'),
      after: z.string().optional().describe('Cursor: last_id of the page before'),
    }),
    answers: one('A page of items.', 'InputItems'),
  },
  'POST /v1/responses/:id/cancel': {
    id: 'cancelResponse',
    tag: 'Responses',
    summary: 'Stops a response that runs in the background',
    answers: one('The response.', 'Response'),
    failures: [409],
  },
}
