import type { z } from 'zod'
import type { AnswerName, RequestName } from './components.ts'
import type { HeaderName } from './headers.ts'

/** The groups of the reference, in their order, and what each is for. */
export const TAGS = {
  Chat: 'Text generation in the formats of the OpenAI and Anthropic SDKs.',
  Responses: 'The Responses API: kept answers, conversations by id, work in the background.',
  Tools: 'Embeddings, speech to text, Python in a sandbox, and researched reports.',
  Jobs: 'Durable jobs: submit, wait, follow, cancel, run again.',
  Batches: 'Files, and batches of up to 50,000 requests.',
  Account: 'What a key may call, what was used, and what signs webhooks.',
  Operators: 'All projects, workers, pools and pauses. For keys with the scope `admin`.',
  Service: 'Health, metrics and this document. No key is needed.',
} as const

/** What a status answers with. */
export interface Answer {
  readonly description: string
  /** JSON of one of these shapes. */
  readonly json?: readonly AnswerName[]
  /** Another media type whose content is text or bytes. */
  readonly media?: readonly string[]
  /** `text/event-stream`: the shape of the `data:` line of each event; null where it has several. */
  readonly events?: AnswerName | null
  readonly headers?: readonly HeaderName[]
}

/** What the reference says of one route, beside what its row in the table of routes does. */
export interface Operation {
  /** Name of the method in generated clients. */
  readonly id: string
  readonly tag: keyof typeof TAGS
  readonly summary: string
  readonly description?: string
  readonly query?: z.ZodObject
  /** What the query takes that no name is known of before, such as `metadata[name]`. */
  readonly pairs?: string
  readonly headers?: readonly HeaderName[]
  /** Media type of its body where that is not JSON. */
  readonly form?: 'multipart/form-data'
  readonly body?: RequestName
  readonly answers: Readonly<Record<number, Answer>>
  /** Statuses of failures beside those that every route of its sort has. */
  readonly failures?: readonly number[]
}

/** Operations by method and path, as the table of routes writes them. */
export type Operations = Readonly<Record<string, Operation>>
