import type { Route } from '#services/ingress/routes.ts'
import { STATUS_CODES } from '#shared/process/node-http.ts'
import { type AnswerName, type JsonSchema, refTo } from './components.ts'
import { CALL_HEADERS, type HeaderName } from './headers.ts'
import type { Answer, Operation } from './operation.ts'

/** Media types of bytes rather than text. */
const BYTES: ReadonlySet<string> = new Set(['application/octet-stream', 'application/x-jsonl'])

/** What failures mean, where their name does not say it. */
const MEANINGS: Readonly<Record<number, string>> = {
  400: 'The request is wrong: `param` says where, the message how.',
  401: 'No key was sent, or one that is not valid.',
  403: 'The key may not do this.',
  404: 'There is no such thing, or it belongs to another project.',
  408: 'The body stalled, or the output was read too slowly.',
  409: 'It is not in a state in which this can be done.',
  410: 'It is not kept any more.',
  413: 'The body is too large.',
  415: 'The body has a type or an encoding that is not understood.',
  422: 'This Idempotency-Key stands for another request.',
  429: 'A limit or a budget is used up; `Retry-After` says until when.',
  500: 'A defect of ours, or a worker that died over it.',
  502: "The model's server failed.",
  503: 'Overloaded, or not ready; `Retry-After` says when to come back.',
  504: 'It took too long.',
  529: 'Overloaded, or not ready, in the messages format.',
}

/** Paths that answer in either format, as the caller asks or as its job was asked for. */
const TWO_FORMATS = /^\/v1\/(models|jobs\/:id\/result$)/

/** Statuses of failures of one route. */
export function failuresOf({ method, path, format, isCall, hasBody }: Route, { failures = [] }: Operation): number[] {
  const overload = format === 'anthropic' ? [529] : TWO_FORMATS.test(path) ? [503, 529] : [503]
  const statuses = [400, 401, 403, 500, ...overload, ...failures]
  if (/[:*]/.test(path)) statuses.push(404)
  if (isCall) statuses.push(404, 409, 410, 422, 429, 502, 504)
  if (hasBody) statuses.push(404, 408, 413, 415)
  if (method !== 'GET') statuses.push(429)
  return [...new Set(statuses)].toSorted((a, b) => a - b)
}

/** The failure of a status, in the format of its route. */
export function failureOf(
  status: number,
  { path, format, isCall }: Pick<Route, 'path' | 'format' | 'isCall'>,
): JsonSchema {
  const json: AnswerName[] = TWO_FORMATS.test(path)
    ? ['Error', 'MessagesError']
    : [format === 'anthropic' ? 'MessagesError' : 'Error']
  const description = MEANINGS[status] ?? STATUS_CODES[status] ?? 'A failure.'
  const headers: HeaderName[] = ['x-should-retry', ...(isCall ? CALL_HEADERS : [])]
  if (status === 401) headers.push('www-authenticate')
  if ([409, 429, 503, 529].includes(status)) headers.push('retry-after')
  return answerOf({ description, json, headers })
}

/** One answer as OpenAPI has it. */
export function answerOf({ description, json, media = [], events, headers = [] }: Answer): JsonSchema {
  const content: Record<string, JsonSchema> = {}
  if (json) content['application/json'] = { schema: schemaOf(json) }
  for (const type of media) content[type] = { schema: BYTES.has(type) ? {} : { type: 'string' } }
  if (events !== undefined) content['text/event-stream'] = eventsOf(events)
  const named = ['x-request-id', ...headers].map((name) => [name, { $ref: `#/components/headers/${name}` }])
  return { description, headers: Object.fromEntries(named), ...(Object.keys(content).length > 0 && { content }) }
}

function schemaOf(names: readonly AnswerName[]): JsonSchema {
  const [first, ...more] = names.map(refTo)
  if (!first) return {}
  return more.length === 0 ? first : { anyOf: [first, ...more] }
}

/** OpenAPI 3.1 has no word for the items of a stream, as 3.2 has: what is described is each event of it. */
function eventsOf(data: AnswerName | null): JsonSchema {
  const content = { type: 'string', contentMediaType: 'application/json', ...(data && { contentSchema: refTo(data) }) }
  const properties = { event: { type: 'string' }, id: { type: 'string' }, retry: { type: 'integer' }, data: content }
  return { schema: { type: 'object', description: 'Each event of the stream', properties } }
}
