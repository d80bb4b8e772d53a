import { z } from 'zod'
import { ListItems } from '#schemas/responses/request.ts'
import { ListCompletions, ListParams } from '#services/ingress/endpoints/chat/stored.ts'
import { AFTER_EVENT, type Answer, CALL_HEADERS, type Operation, type Operations, ok } from './operation.ts'

const ACCEPTED: Answer = {
  description:
    'The durable job that runs the request (`Prefer: respond-async`, or `background: true`). The job survives a disconnect of the client.',
  json: ['Job'],
  headers: ['location', 'retry-after'],
}

function call(operation: Omit<Operation, 'answers'>, answer: Answer): Operation {
  const headers = ['prefer', 'idempotency-key', ...(operation.headers ?? [])] as const
  return { ...operation, headers, answers: { 200: { ...answer, headers: CALL_HEADERS }, 202: ACCEPTED } }
}

export const CALLS: Operations = {
  'POST /v1/chat/completions': call(
    {
      id: 'createChatCompletion',
      tag: 'Chat',
      summary: 'Create a chat completion',
      description: 'Supports streaming, tools, JSON schemas, image input and log probabilities.',
      guide: 'text',
      body: 'ChatCompletionRequest',
    },
    {
      description: 'The completion. With `stream: true`: its chunks, followed by `[DONE]`.',
      json: ['ChatCompletion'],
      events: 'ChatCompletionChunk',
    },
  ),
  'POST /v1/completions': call(
    {
      id: 'createCompletion',
      tag: 'Chat',
      summary: 'Create a completion of a raw prompt',
      description: '`prompt` is a string, a list of strings, a list of tokens, or a list of token lists.',
      guide: 'text',
      body: 'CompletionRequest',
    },
    {
      description: 'The completion. With `stream: true`: its chunks, followed by `[DONE]`.',
      json: ['Completion'],
      events: 'Completion',
    },
  ),
  'POST /v1/messages': call(
    {
      id: 'createMessage',
      tag: 'Chat',
      summary: 'Create a message (Anthropic format)',
      guide: 'text',
      body: 'MessageRequest',
      headers: ['anthropic-version'],
    },
    { description: 'The message. With `stream: true`: its events.', json: ['Message'], events: null },
  ),
  'POST /v1/messages/count_tokens': call(
    {
      id: 'countMessageTokens',
      tag: 'Chat',
      summary: 'Count the tokens of a message request',
      guide: 'text',
      body: 'CountTokensRequest',
      headers: ['anthropic-version'],
    },
    { description: 'The number of input tokens.', json: ['TokenCount'] },
  ),
  'POST /v1/responses': call(
    {
      id: 'createResponse',
      tag: 'Responses',
      summary: 'Create a response',
      description: 'Supports streaming, background processing, hosted tools and conversations.',
      guide: 'responses',
      body: 'ResponseRequest',
    },
    { description: 'The response. With `stream: true`: its events.', json: ['Response'], events: null },
  ),
  'POST /v1/responses/input_tokens': call(
    {
      id: 'countInputTokens',
      tag: 'Responses',
      summary: 'Count the input tokens of a response request',
      guide: 'responses',
      body: 'InputTokensRequest',
    },
    { description: 'The number of input tokens.', json: ['InputTokens'] },
  ),
  'POST /v1/embeddings': call(
    {
      id: 'createEmbeddings',
      tag: 'Embeddings',
      summary: 'Create embeddings',
      guide: 'embeddings',
      body: 'EmbeddingsRequest',
    },
    { description: 'One vector per input, in input order.', json: ['Embeddings'] },
  ),
  'POST /v1/rerank': call(
    {
      id: 'rerank',
      tag: 'Embeddings',
      summary: 'Rerank documents by relevance to a query',
      guide: 'embeddings#reranking',
      body: 'RerankRequest',
    },
    { description: 'The documents, most relevant first.', json: ['Reranked'] },
  ),
  'POST /v1/moderations': call(
    {
      id: 'createModeration',
      tag: 'Tools',
      summary: 'Classify text and images for harmful content',
      guide: 'moderations',
      body: 'ModerationRequest',
    },
    { description: 'One result per input, in input order.', json: ['Moderation'] },
  ),
  'POST /v1/audio/transcriptions': call(
    {
      id: 'createTranscription',
      tag: 'Audio',
      summary: 'Transcribe audio',
      description: 'Supports timestamps, speaker labels and streaming.',
      guide: 'transcription',
      form: 'multipart/form-data',
      body: 'TranscriptionForm',
    },
    {
      description: 'The transcript in the requested `response_format`. With `stream: true`: its text in events.',
      json: ['Transcript'],
      media: ['text/plain'],
      events: null,
    },
  ),
  'POST /v1/audio/translations': call(
    {
      id: 'createTranslation',
      tag: 'Audio',
      summary: 'Translate audio to English text',
      guide: 'transcription#translations',
      form: 'multipart/form-data',
      body: 'TranslationForm',
    },
    {
      description: 'The English text in the requested `response_format`.',
      json: ['Transcript'],
      media: ['text/plain'],
    },
  ),
  'POST /v1/audio/speech': call(
    { id: 'createSpeech', tag: 'Audio', summary: 'Generate speech from text', guide: 'speech', body: 'SpeechRequest' },
    {
      description:
        'The audio in the requested `response_format`, sent while it is generated. With `stream_format: sse`: events. The result of a durable job is JSON.',
      media: ['audio/mpeg', 'audio/ogg', 'audio/aac', 'audio/flac', 'audio/wav', 'audio/pcm'],
      json: ['Speech'],
      events: null,
    },
  ),
  'POST /v1/tools/code': call(
    { id: 'runCode', tag: 'Tools', summary: 'Run Python code in a sandbox', guide: 'code', body: 'CodeRequest' },
    {
      description: 'Output, exit code and plots of the run. With `stream: true`: its output in events.',
      json: ['CodeResult'],
      events: null,
    },
  ),
  'POST /v1/deep-research': call(
    {
      id: 'createResearch',
      tag: 'Tools',
      summary: 'Create a research report with citations',
      guide: 'deep-research',
      body: 'ResearchRequest',
    },
    {
      description: 'A chat completion whose message is the report. With `stream: true`: progress, then the text.',
      json: ['ResearchCompletion'],
      events: 'ChatCompletionChunk',
    },
  ),
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
