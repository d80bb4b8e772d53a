import { ListCompletions, ListParams } from '#services/ingress/endpoints/chat/stored.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { one } from './answers.ts'

const tag = 'Chat'

/** Chat completions that were sent with `store: true` (docs/protocol.md, Stored chat completions). */
export const STORED: Operations = {
  'GET /v1/chat/completions': {
    ...{ id: 'listChatCompletions', tag, summary: 'Stored completions, oldest first', query: ListCompletions },
    pairs: 'metadata',
    answers: one('A page of completions.', 'StoredChatCompletionList'),
  },
  'GET /v1/chat/completions/:id': {
    ...{ id: 'getChatCompletion', tag, summary: 'A stored completion' },
    answers: one('The completion.', 'StoredChatCompletion'),
  },
  'POST /v1/chat/completions/:id': {
    ...{ id: 'updateChatCompletion', tag, summary: 'Gives a stored completion other metadata' },
    body: 'UpdateChatCompletionRequest',
    answers: one('The completion.', 'StoredChatCompletion'),
  },
  'DELETE /v1/chat/completions/:id': {
    ...{ id: 'deleteChatCompletion', tag, summary: 'Forgets a stored completion' },
    answers: one('It is forgotten.', 'ChatCompletionDeleted'),
    failures: [409],
  },
  'GET /v1/chat/completions/:id/messages': {
    ...{ id: 'listChatCompletionMessages', tag, summary: 'What the model was given', query: ListParams },
    answers: one('A page of messages.', 'ChatCompletionMessageList'),
  },
}
