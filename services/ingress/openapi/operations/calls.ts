import { CALL_HEADERS } from '#services/ingress/openapi/headers.ts'
import type { Answer, Operation, Operations } from '#services/ingress/openapi/operation.ts'

const ACCEPTED: Answer = {
  description: 'The job is on disk and goes on without its caller: `Prefer: respond-async`, or `background`.',
  json: ['Job'],
  headers: ['location', 'retry-after'],
}

/** A call that becomes a job: it answers at once, as a stream, or with the job. */
function call(operation: Omit<Operation, 'answers'>, answer: Answer): Operation {
  const headers = ['prefer', 'idempotency-key', ...(operation.headers ?? [])] as const
  return { ...operation, headers, answers: { 200: { ...answer, headers: CALL_HEADERS }, 202: ACCEPTED } }
}

/** Calls that do work: each may wait for its answer, stream it, or leave a durable job. */
export const CALLS: Operations = {
  'POST /v1/chat/completions': call(
    {
      id: 'createChatCompletion',
      tag: 'Chat',
      summary: 'Chat, whole or streamed',
      description: 'Tools, JSON schemas, images, log probabilities. Guide: docs/protocol.md and docs/clients.md.',
      body: 'ChatCompletionRequest',
    },
    {
      description: 'The completion; with `stream` its chunks, and `[DONE]` after the last.',
      json: ['ChatCompletion'],
      events: 'ChatCompletionChunk',
    },
  ),
  'POST /v1/completions': call(
    {
      id: 'createCompletion',
      tag: 'Chat',
      summary: 'Raw prompts gone on with, whole or streamed',
      description: 'A text or a list of texts or of tokens. Guide: docs/protocol.md, Completions.',
      body: 'CompletionRequest',
    },
    {
      description: 'The completion; with `stream` its frames, and `[DONE]` after the last.',
      json: ['Completion'],
      events: 'Completion',
    },
  ),
  'POST /v1/messages': call(
    {
      id: 'createMessage',
      tag: 'Chat',
      summary: 'Messages, whole or streamed',
      body: 'MessageRequest',
      headers: ['anthropic-version'],
    },
    { description: 'The message; with `stream` its events.', json: ['Message'], events: null },
  ),
  'POST /v1/messages/count_tokens': call(
    {
      id: 'countMessageTokens',
      tag: 'Chat',
      summary: 'How many tokens a prompt has',
      body: 'CountTokensRequest',
      headers: ['anthropic-version'],
    },
    { description: 'The count.', json: ['TokenCount'] },
  ),
  'POST /v1/responses': call(
    {
      id: 'createResponse',
      tag: 'Responses',
      summary: 'A response: whole, streamed or in the background',
      body: 'ResponseRequest',
    },
    { description: 'The response; with `stream` its events.', json: ['Response'], events: null },
  ),
  'POST /v1/responses/input_tokens': call(
    {
      id: 'countInputTokens',
      tag: 'Responses',
      summary: 'How many tokens the input of a response has',
      body: 'InputTokensRequest',
    },
    { description: 'The count.', json: ['InputTokens'] },
  ),
  'POST /v1/embeddings': call(
    { id: 'createEmbeddings', tag: 'Tools', summary: 'Texts to vectors', body: 'EmbeddingsRequest' },
    { description: 'A vector for each input, in their order.', json: ['Embeddings'] },
  ),
  'POST /v1/rerank': call(
    { id: 'rerank', tag: 'Tools', summary: 'Documents by how near they are to a query', body: 'RerankRequest' },
    { description: 'The documents, nearest first.', json: ['Reranked'] },
  ),
  'POST /v1/moderations': call(
    { id: 'createModeration', tag: 'Tools', summary: 'What texts and images hold', body: 'ModerationRequest' },
    { description: 'A result for each input, in their order.', json: ['Moderation'] },
  ),
  'POST /v1/audio/transcriptions': call(
    {
      id: 'createTranscription',
      tag: 'Tools',
      summary: 'Speech to text, and who spoke when',
      form: 'multipart/form-data',
      body: 'TranscriptionForm',
    },
    {
      description: 'The transcript in its `response_format`; with `stream` its text as it becomes known.',
      json: ['Transcript'],
      media: ['text/plain'],
      events: null,
    },
  ),
  'POST /v1/audio/translations': call(
    {
      id: 'createTranslation',
      tag: 'Tools',
      summary: 'Speech to English text',
      form: 'multipart/form-data',
      body: 'TranslationForm',
    },
    { description: 'The text in its `response_format`.', json: ['Transcript'], media: ['text/plain'] },
  ),
  'POST /v1/audio/speech': call(
    { id: 'createSpeech', tag: 'Tools', summary: 'Text to speech', body: 'SpeechRequest' },
    {
      description:
        'The audio as it is made, in its `response_format`; JSON of a durable job; with `stream_format: sse` events.',
      media: ['audio/mpeg', 'audio/ogg', 'audio/aac', 'audio/flac', 'audio/wav', 'audio/pcm'],
      json: ['Speech'],
      events: null,
    },
  ),
  'POST /v1/tools/code': call(
    { id: 'runCode', tag: 'Tools', summary: 'Runs Python in a sandbox', body: 'CodeRequest' },
    { description: 'What it printed and drew; with `stream` as it comes.', json: ['CodeResult'], events: null },
  ),
  'POST /v1/deep-research': call(
    { id: 'createResearch', tag: 'Tools', summary: 'A report that cites what it read', body: 'ResearchRequest' },
    {
      description: 'A chat completion whose message is the report; with `stream` its progress and its text.',
      json: ['ResearchCompletion'],
      events: 'ChatCompletionChunk',
    },
  ),
}
