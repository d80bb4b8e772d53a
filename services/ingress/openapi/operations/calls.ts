import { CALL_HEADERS } from '#services/ingress/openapi/headers.ts'
import type { Answer, Operation, Operations } from '#services/ingress/openapi/operation.ts'

const ACCEPTED: Answer = {
  description:
    'The durable job that runs the request (`Prefer: respond-async`, or `background: true`). The job survives a disconnect of the client.',
  json: ['Job'],
  headers: ['location', 'retry-after'],
}

/** Adds the headers and the 202 response that all inference endpoints share. */
function call(operation: Omit<Operation, 'answers'>, answer: Answer): Operation {
  const headers = ['prefer', 'idempotency-key', ...(operation.headers ?? [])] as const
  return { ...operation, headers, answers: { 200: { ...answer, headers: CALL_HEADERS }, 202: ACCEPTED } }
}

/** Inference endpoints. Each returns the result, streams it, or creates a durable job. */
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
