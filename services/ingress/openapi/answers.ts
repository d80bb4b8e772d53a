import type { Route } from '#services/ingress/routes.ts'
import { STATUS_CODES } from '#shared/process/node-http.ts'
import { type AnswerName, type JsonSchema, refTo } from './components.ts'
import { CALL_HEADERS, type HeaderName } from './headers.ts'
import type { Answer, Operation } from './operation.ts'

/** Media types with a binary body. */
const BYTES: ReadonlySet<string> = new Set(['application/octet-stream', 'application/x-jsonl'])

const ERROR_DESCRIPTIONS: Readonly<Record<number, string>> = {
  400: 'Invalid request. `param` names the field, `message` the problem.',
  401: 'Missing or invalid API key.',
  403: 'The API key lacks the required permission.',
  404: 'Not found, or the object belongs to another project.',
  408: 'The upload stalled, or the client read the output too slowly.',
  409: 'The operation conflicts with the current state of the object.',
  410: 'The result has expired.',
  413: 'The request body is too large.',
  415: 'Unsupported content type or content encoding.',
  422: 'The Idempotency-Key was used with a different request.',
  429: 'A rate limit, quota or budget is exceeded. `Retry-After` is the minimum time before a retry.',
  500: 'Internal error, or the worker crashed during the request.',
  502: "The model's server failed.",
  503: 'Overloaded or not ready. `Retry-After` is the minimum time before a retry.',
  504: 'The request timed out.',
  529: 'Overloaded or not ready (Anthropic format).',
}

/** Paths with two response formats. The header `anthropic-version` or the endpoint of the job decides. */
const TWO_FORMATS = /^\/v1\/(models|jobs\/:id\/result$)/

/** Error statuses of a route, derived from its row in the route table and from its operation. */
export function failuresOf({ method, path, format, isCall, hasBody }: Route, { failures = [] }: Operation): number[] {
  const overload = format === 'anthropic' ? [529] : TWO_FORMATS.test(path) ? [503, 529] : [503]
  const statuses = [400, 401, 403, 500, ...overload, ...failures]
  if (/[:*]/.test(path)) statuses.push(404)
  if (isCall) statuses.push(404, 409, 410, 422, 429, 502, 504)
  if (hasBody) statuses.push(404, 408, 413, 415)
  if (method !== 'GET') statuses.push(429)
  return [...new Set(statuses)].toSorted((a, b) => a - b)
}

export function failureOf(
  status: number,
  { path, format, isCall }: Pick<Route, 'path' | 'format' | 'isCall'>,
): JsonSchema {
  const json: AnswerName[] = TWO_FORMATS.test(path)
    ? ['Error', 'MessagesError']
    : [format === 'anthropic' ? 'MessagesError' : 'Error']
  const description = ERROR_DESCRIPTIONS[status] ?? STATUS_CODES[status] ?? 'Error.'
  const headers: HeaderName[] = ['x-should-retry', ...(isCall ? CALL_HEADERS : [])]
  if (status === 401) headers.push('www-authenticate')
  if ([409, 429, 503, 529].includes(status)) headers.push('retry-after')
  return answerOf({ description, json, headers })
}

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

/** Describes one server-sent event, because OpenAPI 3.1 cannot describe a stream of events. OpenAPI 3.2 can. */
function eventsOf(data: AnswerName | null): JsonSchema {
  const content = { type: 'string', contentMediaType: 'application/json', ...(data && { contentSchema: refTo(data) }) }
  const properties = { event: { type: 'string' }, id: { type: 'string' }, retry: { type: 'integer' }, data: content }
  return { schema: { type: 'object', description: 'One server-sent event', properties } }
}
