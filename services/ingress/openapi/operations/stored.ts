import { ListCompletions, ListParams } from '#services/ingress/endpoints/chat/stored.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { ok } from './shared.ts'

const tag = 'Chat'
const guide = 'protocol#stored-chat-completions'

/** Chat completions that were created with `store: true`. */
export const STORED: Operations = {
  'GET /v1/chat/completions': {
    ...{ id: 'listChatCompletions', tag, guide, summary: 'List stored chat completions' },
    description: 'Oldest first by default.',
    query: ListCompletions,
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
    query: ListParams,
    answers: ok('A page of messages.', 'ChatCompletionMessageList'),
  },
}
