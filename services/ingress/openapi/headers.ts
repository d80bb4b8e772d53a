import type { JsonSchema } from './components.ts'

/** A header, of requests or of answers. */
interface Header {
  readonly description: string
  readonly schema: JsonSchema
  readonly required?: boolean
}

const text = { type: 'string' }

/** Headers that callers may send. */
export const REQUEST_HEADERS = {
  prefer: {
    description: '`respond-async` makes a durable job and answers 202; `respond-async, wait=10` waits that long first.',
    schema: text,
  },
  'idempotency-key': {
    description: 'One to 255 visible ASCII characters of your own: the same key within 24 hours is the same job.',
    schema: { type: 'string', pattern: '^[\\x21-\\x7e]{1,255}$' },
  },
  'anthropic-version': { description: 'A date, which picks the dialect of the messages format.', schema: text },
  'last-event-id': {
    description: 'Number of the last event that you have; an EventSource sends it by itself.',
    schema: { type: 'string', pattern: '^[0-9]{1,15}$' },
  },
} as const satisfies Record<string, Header>

/** Headers of answers. */
export const ANSWER_HEADERS = {
  'x-request-id': { description: 'Names this request, also in the log.', schema: text, required: true },
  'retry-after': {
    description: 'Seconds until it is worth to ask again.',
    schema: { type: 'string', pattern: '^[0-9]+$' },
  },
  'x-should-retry': { description: '`false`: asking again is of no use.', schema: { enum: ['true', 'false'] } },
  'www-authenticate': { description: 'How to send a key.', schema: { const: 'Bearer' }, required: true },
  location: { description: 'Address of the job.', schema: text, required: true },
  'x-job-id': { description: 'Id of the durable job behind this answer.', schema: text },
  'idempotency-replayed': { description: 'The answer is that of an earlier request.', schema: { const: 'true' } },
  'x-ratelimit-limit-requests': { description: 'Calls a minute, where there is a limit.', schema: text },
  'x-ratelimit-remaining-requests': { description: 'What is left of them.', schema: text },
  'x-ratelimit-reset-requests': { description: 'Until when, such as `20ms` or `6s`.', schema: text },
} as const satisfies Record<string, Header>

export type HeaderName = keyof typeof REQUEST_HEADERS | keyof typeof ANSWER_HEADERS

/** Headers of every answer to a call. */
export const CALL_HEADERS = [
  'x-job-id',
  'idempotency-replayed',
  'x-ratelimit-limit-requests',
  'x-ratelimit-remaining-requests',
  'x-ratelimit-reset-requests',
] as const
