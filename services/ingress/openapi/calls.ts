import { z } from 'zod'
import { ListItems } from '#schemas/responses/request.ts'
import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import { ListCompletions, ListParams } from '#services/ingress/endpoints/chat/stored.ts'
import type { CallSchema, CallSchemas } from './components.ts'
import { AFTER_EVENT, type Answer, CALL_HEADERS, type Operation, type Operations, ok } from './operation.ts'

const ACCEPTED: Answer = {
  description:
    'The durable job that runs the request (`Prefer: respond-async`, or `background: true`). The job survives a disconnect of the client.',
  json: ['Job'],
  headers: ['location', 'retry-after'],
}

/** Part of the OpenAPI document that is derived from the records of the job endpoints. */
export interface Calls extends CallSchemas {
  readonly operations: Operations
}

export async function describeCalls(endpoints: readonly JobEndpoint[]): Promise<Calls> {
  const operations: Record<string, Operation> = {}
  const schemas: Record<string, z.ZodType> = {}
  const forms: string[] = []
  for (const { path, describe } of endpoints) {
    const { body, answer, ...reference } = await describe()
    const { json, events, ...rest } = answer
    Object.assign(schemas, body, json, events)
    if (reference.form) forms.push(nameOf(body))
    const streamed = events === undefined ? {} : { events: events && nameOf(events) }
    const whole = { ...rest, ...streamed, json: Object.keys(json) as CallSchema[] }
    operations[`POST ${path}`] = {
      ...reference,
      body: nameOf(body),
      headers: ['prefer', 'idempotency-key', ...(reference.headers ?? [])],
      answers: { 200: { ...whole, headers: CALL_HEADERS }, 202: ACCEPTED },
    }
  }
  return { operations, schemas, forms }
}

function nameOf(named: Readonly<Record<string, z.ZodType>>): CallSchema {
  return Object.keys(named)[0] as CallSchema
}

export const RESPONSES: Operations = {
  'GET /v1/responses/:id': {
    ...{ id: 'getResponse', tag: 'Responses', guide: 'responses', summary: 'Retrieve a response' },
    description: 'With `stream=true`, the stored events of the response are streamed.',
    query: AFTER_EVENT.extend({ stream: z.boolean().optional().describe('Stream the events. Default: false') }),
    answers: { 200: { description: 'The response, or its events.', json: ['Response'], events: null } },
    failures: [429],
  },
  'DELETE /v1/responses/:id': {
    ...{ id: 'deleteResponse', tag: 'Responses', guide: 'responses', summary: 'Delete a response' },
    description: 'The response must have ended.',
    answers: ok('The response is deleted.', 'ResponseDeleted'),
    failures: [409],
  },
  'GET /v1/responses/:id/input_items': {
    ...{ id: 'listInputItems', tag: 'Responses', guide: 'responses', summary: 'List the input items of a response' },
    query: z.object({
      limit: z.int().min(1).max(100).default(20).describe('Maximum items per page'),
      order: z.enum(['asc', 'desc']).default('desc').describe('desc: newest first'),
      after: z.string().optional().describe('Cursor: last_id of the previous page'),
    }),
    answers: ok('A page of items.', 'InputItems'),
  },
  'POST /v1/responses/:id/cancel': {
    ...{ id: 'cancelResponse', tag: 'Responses', guide: 'responses', summary: 'Cancel a background response' },
    answers: ok('The response.', 'Response'),
    failures: [409],
  },
}

export const CONVERSATIONS: Operations = {
  'POST /v1/conversations': {
    ...{
      id: 'createConversation',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'Create a conversation',
    },
    body: 'CreateConversationRequest',
    answers: ok('The conversation.', 'Conversation'),
    failures: [429],
  },
  'GET /v1/conversations/:id': {
    ...{
      id: 'getConversation',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'Retrieve a conversation',
    },
    description: 'Does not include the items of the conversation.',
    answers: ok('The conversation.', 'Conversation'),
  },
  'POST /v1/conversations/:id': {
    ...{
      id: 'updateConversation',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'Update the metadata of a conversation',
    },
    body: 'UpdateConversationRequest',
    answers: ok('The conversation.', 'Conversation'),
    failures: [409],
  },
  'DELETE /v1/conversations/:id': {
    ...{
      id: 'deleteConversation',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'Delete a conversation',
    },
    description: 'Responses of the conversation are not deleted.',
    answers: ok('The conversation is deleted.', 'ConversationDeleted'),
  },
  'POST /v1/conversations/:id/items': {
    ...{
      id: 'createConversationItems',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'Add items to a conversation',
    },
    body: 'CreateConversationItemsRequest',
    answers: ok('The added items.', 'ConversationItemList'),
    failures: [409],
  },
  'GET /v1/conversations/:id/items': {
    ...{
      id: 'listConversationItems',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'List the items of a conversation',
    },
    description: 'Newest first by default.',
    query: ListItems,
    answers: ok('A page of items.', 'ConversationItemList'),
  },
  'GET /v1/conversations/:id/items/:item_id': {
    ...{
      id: 'getConversationItem',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'Retrieve an item of a conversation',
    },
    answers: ok('The item.', 'ConversationItem'),
  },
  'DELETE /v1/conversations/:id/items/:item_id': {
    ...{
      id: 'deleteConversationItem',
      tag: 'Responses',
      guide: 'responses#conversations',
      summary: 'Delete an item of a conversation',
    },
    answers: ok('The conversation.', 'Conversation'),
    failures: [409],
  },
}

const { limit, after, order } = ListParams.shape
const PAGE = {
  limit: limit.describe('Maximum items per page'),
  after: after.describe('Cursor: last_id of the previous page'),
  order: order.describe('asc: oldest first'),
}

export const STORED: Operations = {
  'GET /v1/chat/completions': {
    ...{
      id: 'listChatCompletions',
      tag: 'Chat',
      guide: 'compatibility#stored-chat-completions',
      summary: 'List stored chat completions',
    },
    description: 'Oldest first by default.',
    query: ListCompletions.extend({
      ...PAGE,
      model: ListCompletions.shape.model.describe('Only completions of this model'),
    }),
    pairs: 'metadata',
    answers: ok('A page of completions.', 'StoredChatCompletionList'),
  },
  'GET /v1/chat/completions/:id': {
    ...{
      id: 'getChatCompletion',
      tag: 'Chat',
      guide: 'compatibility#stored-chat-completions',
      summary: 'Retrieve a stored chat completion',
    },
    answers: ok('The completion.', 'StoredChatCompletion'),
  },
  'POST /v1/chat/completions/:id': {
    ...{
      id: 'updateChatCompletion',
      tag: 'Chat',
      guide: 'compatibility#stored-chat-completions',
      summary: 'Update the metadata of a stored chat completion',
    },
    body: 'UpdateChatCompletionRequest',
    answers: ok('The completion.', 'StoredChatCompletion'),
  },
  'DELETE /v1/chat/completions/:id': {
    ...{
      id: 'deleteChatCompletion',
      tag: 'Chat',
      guide: 'compatibility#stored-chat-completions',
      summary: 'Delete a stored chat completion',
    },
    answers: ok('The completion is deleted.', 'ChatCompletionDeleted'),
    failures: [409],
  },
  'GET /v1/chat/completions/:id/messages': {
    ...{
      id: 'listChatCompletionMessages',
      tag: 'Chat',
      guide: 'compatibility#stored-chat-completions',
      summary: 'List the messages of a stored chat completion',
    },
    query: ListParams.extend(PAGE),
    answers: ok('A page of messages.', 'ChatCompletionMessageList'),
  },
}
