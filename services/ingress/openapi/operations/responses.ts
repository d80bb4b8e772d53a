import { z } from 'zod'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { AFTER_EVENT, ok } from './shared.ts'

const tag = 'Responses'
const guide = 'responses'

export const RESPONSES: Operations = {
  'GET /v1/responses/:id': {
    ...{ id: 'getResponse', tag, guide, summary: 'Retrieve a response' },
    description: 'With `stream=true`, the stored events of the response are streamed.',
    query: AFTER_EVENT.extend({ stream: z.boolean().optional().describe('Stream the events. Default: false') }),
    answers: { 200: { description: 'The response, or its events.', json: ['Response'], events: null } },
    failures: [429],
  },
  'DELETE /v1/responses/:id': {
    ...{ id: 'deleteResponse', tag, guide, summary: 'Delete a response' },
    description: 'The response must have ended.',
    answers: ok('The response is deleted.', 'ResponseDeleted'),
    failures: [409],
  },
  'GET /v1/responses/:id/input_items': {
    ...{ id: 'listInputItems', tag, guide, summary: 'List the input items of a response' },
    query: z.object({
      limit: z.int().min(1).max(100).default(20).describe('Maximum items per page'),
      order: z.enum(['asc', 'desc']).default('desc').describe('desc: newest first'),
      after: z.string().optional().describe('Cursor: last_id of the previous page'),
    }),
    answers: ok('A page of items.', 'InputItems'),
  },
  'POST /v1/responses/:id/cancel': {
    ...{ id: 'cancelResponse', tag, guide, summary: 'Cancel a background response' },
    answers: ok('The response.', 'Response'),
    failures: [409],
  },
}
