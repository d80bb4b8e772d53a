import { ListItems } from '#schemas/responses/conversation.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { one } from './answers.ts'

const tag = 'Responses'

/** Conversations that responses go on in (docs/responses.md, Conversations). */
export const CONVERSATIONS: Operations = {
  'POST /v1/conversations': {
    ...{ id: 'createConversation', tag, summary: 'Begins a conversation', body: 'CreateConversationRequest' },
    answers: one('The conversation.', 'Conversation'),
    failures: [429],
  },
  'GET /v1/conversations/:id': {
    ...{ id: 'getConversation', tag, summary: 'A conversation, without its items' },
    answers: one('The conversation.', 'Conversation'),
  },
  'POST /v1/conversations/:id': {
    ...{
      id: 'updateConversation',
      tag,
      summary: 'Gives a conversation other metadata',
      body: 'UpdateConversationRequest',
    },
    answers: one('The conversation.', 'Conversation'),
    failures: [409],
  },
  'DELETE /v1/conversations/:id': {
    ...{ id: 'deleteConversation', tag, summary: 'Forgets a conversation, not its responses' },
    answers: one('It is forgotten.', 'ConversationDeleted'),
  },
  'POST /v1/conversations/:id/items': {
    ...{ id: 'createConversationItems', tag, summary: 'Adds items at the end', body: 'CreateConversationItemsRequest' },
    answers: one('The items that were added.', 'ConversationItemList'),
    failures: [409],
  },
  'GET /v1/conversations/:id/items': {
    ...{ id: 'listConversationItems', tag, summary: 'What was said, newest first', query: ListItems },
    answers: one('A page of items.', 'ConversationItemList'),
  },
  'GET /v1/conversations/:id/items/:item_id': {
    ...{ id: 'getConversationItem', tag, summary: 'One item' },
    answers: one('The item.', 'ConversationItem'),
  },
  'DELETE /v1/conversations/:id/items/:item_id': {
    ...{ id: 'deleteConversationItem', tag, summary: 'Takes an item away' },
    answers: one('The conversation without it.', 'Conversation'),
    failures: [409],
  },
}
