import { ListItems } from '#schemas/responses/conversation.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { ok } from './shared.ts'

const tag = 'Responses'
const guide = 'responses#conversations'

export const CONVERSATIONS: Operations = {
  'POST /v1/conversations': {
    ...{ id: 'createConversation', tag, guide, summary: 'Create a conversation' },
    body: 'CreateConversationRequest',
    answers: ok('The conversation.', 'Conversation'),
    failures: [429],
  },
  'GET /v1/conversations/:id': {
    ...{ id: 'getConversation', tag, guide, summary: 'Retrieve a conversation' },
    description: 'Does not include the items of the conversation.',
    answers: ok('The conversation.', 'Conversation'),
  },
  'POST /v1/conversations/:id': {
    ...{ id: 'updateConversation', tag, guide, summary: 'Update the metadata of a conversation' },
    body: 'UpdateConversationRequest',
    answers: ok('The conversation.', 'Conversation'),
    failures: [409],
  },
  'DELETE /v1/conversations/:id': {
    ...{ id: 'deleteConversation', tag, guide, summary: 'Delete a conversation' },
    description: 'Responses of the conversation are not deleted.',
    answers: ok('The conversation is deleted.', 'ConversationDeleted'),
  },
  'POST /v1/conversations/:id/items': {
    ...{ id: 'createConversationItems', tag, guide, summary: 'Add items to a conversation' },
    body: 'CreateConversationItemsRequest',
    answers: ok('The added items.', 'ConversationItemList'),
    failures: [409],
  },
  'GET /v1/conversations/:id/items': {
    ...{ id: 'listConversationItems', tag, guide, summary: 'List the items of a conversation' },
    description: 'Newest first by default.',
    query: ListItems,
    answers: ok('A page of items.', 'ConversationItemList'),
  },
  'GET /v1/conversations/:id/items/:item_id': {
    ...{ id: 'getConversationItem', tag, guide, summary: 'Retrieve an item of a conversation' },
    answers: ok('The item.', 'ConversationItem'),
  },
  'DELETE /v1/conversations/:id/items/:item_id': {
    ...{ id: 'deleteConversationItem', tag, guide, summary: 'Delete an item of a conversation' },
    answers: ok('The conversation.', 'Conversation'),
    failures: [409],
  },
}
