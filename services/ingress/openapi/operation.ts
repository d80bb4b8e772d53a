import type { z } from 'zod'
import type { AnswerName, RequestName } from './components.ts'
import type { HeaderName } from './headers.ts'

/** Tags of the API reference, in display order, with their descriptions. */
export const TAGS = {
  Chat: 'Text generation with the request formats of the OpenAI and Anthropic APIs.',
  Responses: 'The OpenAI Responses API: stored responses, conversations and background responses.',
  Embeddings: 'Embedding vectors, and reranking of documents by relevance.',
  Audio: 'Speech to text, translation to English, and text to speech.',
  Tools: 'Moderation, Python in a sandbox, and deep research.',
  Jobs: 'Durable background jobs: submit, poll, follow, cancel and rerun.',
  Batches: 'Files, and batches of up to 50,000 requests.',
  Account: 'Models, the calling API key, usage and webhook secrets.',
  Admin: 'Jobs of all projects, workers, pools, API keys and webhook deliveries. Requires the `admin` scope.',
  Service: 'Health checks, metrics and this document. No API key is required.',
} as const
export type TagName = keyof typeof TAGS

export interface Answer {
  readonly description: string
  /**
   * Schemas of the JSON body. If there are several, then the body matches one of them. An empty list stands for any
   * JSON.
   */
  readonly json?: readonly AnswerName[]
  /** Other media types of the body. Each is either text or binary. */
  readonly media?: readonly string[]
  /** Schema of each `data:` line of a `text/event-stream`; null if events have several schemas. */
  readonly events?: AnswerName | null
  readonly headers?: readonly HeaderName[]
}

/** Documentation of one route. Method, path and required scope are in the route table (services/ingress/routes.ts). */
export interface Operation {
  /** OpenAPI `operationId`: the method name in generated clients. */
  readonly id: string
  readonly tag: TagName
  /** Summary as an imperative without a full stop, such as "Create a batch". */
  readonly summary: string
  readonly description?: string
  /** Page of the guide, optionally with an anchor: `embeddings#reranking`. */
  readonly guide?: string
  readonly query?: z.ZodObject
  /** Query parameter with arbitrary keys. `metadata` stands for `metadata[name]=value`. */
  readonly pairs?: string
  readonly headers?: readonly HeaderName[]
  /** Media type of the request body; JSON by default. */
  readonly form?: 'multipart/form-data'
  readonly body?: RequestName
  readonly answers: Readonly<Record<number, Answer>>
  /** Error statuses in addition to those that `failuresOf` derives from the route. */
  readonly failures?: readonly number[]
}

export type Operations = Readonly<Record<string, Operation>>
