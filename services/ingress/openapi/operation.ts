import { z } from 'zod'
import type { AnswerName, CallSchema, JsonSchema, RequestName } from './components.ts'

export const TAGS = {
  Chat: 'Text generation with the request formats of the OpenAI and Anthropic APIs.',
  Responses: 'The OpenAI Responses API: stored responses, conversations and background responses.',
  Embeddings: 'Embedding vectors, and reranking of documents by relevance.',
  Audio: 'Speech to text, translation to English, and text to speech.',
  Tools: 'Moderation, Python in a sandbox, and deep research.',
  Extensions: 'Endpoints that the operator added with the setting EXTENSIONS.',
  Jobs: 'Durable background jobs: submit, poll, follow, cancel and rerun.',
  Batches: 'Files, and batches of up to 50,000 requests.',
  Account: 'Models, the calling API key, usage and webhook secrets.',
  Admin:
    'Jobs of all projects, workers, pools, API keys and webhook deliveries. Requires the `admin` scope. Other keys can read and cancel only requests of their own project.',
  Service: 'Health checks, metrics and this document. No API key is required.',
} as const
type TagName = keyof typeof TAGS

export interface Answer {
  readonly description: string
  /** Schemas of the JSON body. The body matches one of them. If the list is empty, then the body may be any JSON. */
  readonly json?: readonly (AnswerName | CallSchema)[]
  readonly media?: readonly string[]
  /** Schema of each `data:` line of a `text/event-stream`. Null if events have several schemas. */
  readonly events?: AnswerName | CallSchema | null
  readonly headers?: readonly HeaderName[]
}

export interface Operation {
  readonly id: string
  readonly tag: TagName
  /** Summary as an imperative without a full stop, such as "Create a batch". */
  readonly summary: string
  readonly description?: string
  /** Page of the guide, optionally with an anchor: `embeddings#reranking`. */
  readonly guide?: string
  readonly query?: z.ZodObject
  /**
   * Name of a query parameter with arbitrary keys. The name `metadata` describes parameters such as
   * `metadata[color]=red`.
   */
  readonly pairs?: string
  readonly headers?: readonly HeaderName[]
  readonly form?: 'multipart/form-data'
  readonly body?: RequestName | CallSchema
  readonly answers: Readonly<Record<number, Answer>>
  /** Error statuses in addition to those that `failuresOf` derives from the route table. */
  readonly failures?: readonly number[]
}

export type Operations = Readonly<Record<string, Operation>>

interface Header {
  readonly description: string
  readonly schema: JsonSchema
  readonly required?: boolean
}

const text = { type: 'string' }

export const REQUEST_HEADERS = {
  prefer: {
    description:
      '`respond-async` creates a durable job and returns 202 (RFC 7240). `respond-async, wait=10` returns the result if it is ready within 10 seconds (at most 60), otherwise 202.',
    schema: text,
  },
  'idempotency-key': {
    description:
      '1 to 255 visible ASCII characters, chosen by the client. A repeated request with the same key within 24 hours returns the job or result of the first.',
    schema: { type: 'string', pattern: '^[\\x21-\\x7e]{1,255}$' },
  },
  'anthropic-version': {
    description: 'Date that selects the version of the Anthropic format, such as 2023-06-01.',
    schema: text,
  },
  'last-event-id': {
    description: 'Sequence number of the last event received. An EventSource sends this header when it reconnects.',
    schema: { type: 'string', pattern: '^[0-9]{1,15}$' },
  },
} as const satisfies Record<string, Header>

export const ANSWER_HEADERS = {
  'x-request-id': { description: 'Id of the request. Log entries contain the same id.', schema: text, required: true },
  'retry-after': {
    description: 'Minimum time before a retry, in seconds.',
    schema: { type: 'string', pattern: '^[0-9]+$' },
  },
  'x-should-retry': {
    description: '`false` means that a retry would fail again. SDKs of OpenAI and Anthropic obey this header.',
    schema: { enum: ['true', 'false'] },
  },
  'www-authenticate': { description: 'Authentication scheme.', schema: { const: 'Bearer' }, required: true },
  location: { description: 'URL of the created object.', schema: text, required: true },
  'x-job-id': { description: 'Id of the durable job that produced the response.', schema: text },
  'idempotency-replayed': {
    description: 'The response belongs to an earlier request with the same Idempotency-Key.',
    schema: { const: 'true' },
  },
  'x-max-tokens': {
    description:
      'Maximum output tokens of the model. Present if the request asked for more tokens and ran with this maximum instead.',
    schema: { type: 'string', pattern: '^[0-9]+$' },
  },
  'x-unknown-parameters': {
    description: 'Fields of the request body that the API does not define, such as misspelled ones.',
    schema: text,
  },
  'x-format-ignored': {
    description:
      '`json`: the model did not follow `response_format`. `tool_call`: the model did not make the call that `tool_choice` requires.',
    schema: { enum: ['json', 'tool_call'] },
  },
  'x-ratelimit-limit-requests': { description: 'Maximum requests per minute. Absent: no limit.', schema: text },
  'x-ratelimit-remaining-requests': { description: 'Requests left in the current window.', schema: text },
  'x-ratelimit-reset-requests': {
    description: 'Time until the limit is fully available again, such as `20ms` or `6s`.',
    schema: text,
  },
} as const satisfies Record<string, Header>

export type HeaderName = keyof typeof REQUEST_HEADERS | keyof typeof ANSWER_HEADERS

export const CALL_HEADERS = [
  'x-job-id',
  'idempotency-replayed',
  'x-max-tokens',
  'x-unknown-parameters',
  'x-format-ignored',
  'x-ratelimit-limit-requests',
  'x-ratelimit-remaining-requests',
  'x-ratelimit-reset-requests',
] as const

export function ok(description: string, ...json: AnswerName[]): Operation['answers'] {
  return { 200: { description, json } }
}

export const AFTER_EVENT = z.object({
  starting_after: z
    .int()
    .min(0)
    .optional()
    .describe('Sequence number of the last event received. Default: from the start'),
})
