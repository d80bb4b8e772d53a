import type { JsonSchema } from './components.ts'

interface Header {
  readonly description: string
  readonly schema: JsonSchema
  readonly required?: boolean
}

const text = { type: 'string' }

/** Request headers, without authentication and content negotiation. */
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
    description: '`false`: a retry would fail again. SDKs of OpenAI and Anthropic obey this header.',
    schema: { enum: ['true', 'false'] },
  },
  'www-authenticate': { description: 'Authentication scheme.', schema: { const: 'Bearer' }, required: true },
  location: { description: 'URL of the created object.', schema: text, required: true },
  'x-job-id': { description: 'Id of the durable job that produced the response.', schema: text },
  'idempotency-replayed': {
    description: 'The response belongs to an earlier request with the same Idempotency-Key.',
    schema: { const: 'true' },
  },
  'x-ratelimit-limit-requests': { description: 'Maximum requests per minute. Absent: no limit.', schema: text },
  'x-ratelimit-remaining-requests': { description: 'Requests left in the current window.', schema: text },
  'x-ratelimit-reset-requests': {
    description: 'Time until the limit is fully available again, such as `20ms` or `6s`.',
    schema: text,
  },
} as const satisfies Record<string, Header>

export type HeaderName = keyof typeof REQUEST_HEADERS | keyof typeof ANSWER_HEADERS

/** Headers of every response of an inference endpoint. */
export const CALL_HEADERS = [
  'x-job-id',
  'idempotency-replayed',
  'x-ratelimit-limit-requests',
  'x-ratelimit-remaining-requests',
  'x-ratelimit-reset-requests',
] as const
