import { ListCompletions, ListParams } from '#services/ingress/endpoints/chat/stored.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { ok } from './shared.ts'

const tag = 'Chat'
const guide = 'compatibility#stored-chat-completions'
const { limit, after, order } = ListParams.shape
const PAGE = {
  limit: limit.describe('Maximum items per page'),
  after: after.describe('Cursor: last_id of the previous page'),
  order: order.describe('asc: oldest first'),
}

export const STORED: Operations = {
  'GET /v1/chat/completions': {
    ...{ id: 'listChatCompletions', tag, guide, summary: 'List stored chat completions' },
    description: 'Oldest first by default.',
    query: ListCompletions.extend({
      ...PAGE,
      model: ListCompletions.shape.model.describe('Only completions of this model'),
    }),
    pairs: 'metadata',
    answers: ok('A page of completions.', 'StoredChatCompletionList'),
  },
  'GET /v1/chat/completions/:id': {
    ...{ id: 'getChatCompletion', tag, guide, summary: 'Retrieve a stored chat completion' },
    answers: ok('The completion.', 'StoredChatCompletion'),
  },
  'POST /v1/chat/completions/:id': {
    ...{ id: 'updateChatCompletion', tag, guide, summary: 'Update the metadata of a stored chat completion' },
    body: 'UpdateChatCompletionRequest',
    answers: ok('The completion.', 'StoredChatCompletion'),
  },
  'DELETE /v1/chat/completions/:id': {
    ...{ id: 'deleteChatCompletion', tag, guide, summary: 'Delete a stored chat completion' },
    answers: ok('The completion is deleted.', 'ChatCompletionDeleted'),
    failures: [409],
  },
  'GET /v1/chat/completions/:id/messages': {
    ...{ id: 'listChatCompletionMessages', tag, guide, summary: 'List the messages of a stored chat completion' },
    query: ListParams.extend(PAGE),
    answers: ok('A page of messages.', 'ChatCompletionMessageList'),
  },
}
