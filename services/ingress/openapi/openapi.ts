import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import { JOB_ENDPOINTS } from '#services/ingress/endpoints/endpoints.ts'
import { type Route, routesOf } from '#services/ingress/routes.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { STATUS_CODES } from '#shared/process/node-http.ts'
import packageJson from '../../../package.json' with { type: 'json' }
import { ADMIN, ADMIN_KEYS } from './admin.ts'
import { type Calls, CONVERSATIONS, describeCalls, RESPONSES, STORED } from './calls.ts'
import { type AnswerName, componentSchemas, type JsonSchema, jsonSchemaOf, refTo } from './components.ts'
import { ACCOUNT, BATCHES, JOBS, SERVICE } from './jobs.ts'
import {
  ANSWER_HEADERS,
  type Answer,
  CALL_HEADERS,
  type HeaderName,
  type Operation,
  type Operations,
  REQUEST_HEADERS,
  TAGS,
} from './operation.ts'

const OPERATIONS: Operations = {
  ...STORED,
  ...RESPONSES,
  ...CONVERSATIONS,
  ...JOBS,
  ...BATCHES,
  ...ACCOUNT,
  ...ADMIN,
  ...ADMIN_KEYS,
}

const DESCRIPTION = `One OpenAI- and Anthropic-compatible API for text generation, embeddings, audio, code execution and deep research.

**Authentication:** send the API key as \`Authorization: Bearer KEY\` or as \`x-api-key: KEY\`.

**Errors** have the format of the OpenAI API; below \`/v1/messages\`, the format of the Anthropic API. The \`x-request-id\`
response header identifies a request in the log.

Every path with a GET operation also accepts HEAD.`

export interface DescribedRoute {
  readonly route: Route
  readonly operation: Operation
}

function describeRoutes(endpoints: readonly JobEndpoint[], calls: Calls): DescribedRoute[] {
  const operations: Operations = { ...calls.operations, ...OPERATIONS }
  const unused = new Set(Object.keys(operations))
  const described = routesOf(endpoints).map((route) => {
    const name = `${route.method} ${route.path}`
    const operation = operations[name]
    if (!operation) throw new Error(`services/ingress/openapi has no operation for the route ${name}.`)
    unused.delete(name)
    return { route, operation }
  })
  if (unused.size > 0) throw new Error(`The route table has no row for the operation ${[...unused].join(', ')}.`)
  return described
}

export async function describedRoutes(): Promise<DescribedRoute[]> {
  return describeRoutes(JOB_ENDPOINTS, await describeCalls(JOB_ENDPOINTS))
}

/**
 * Generates the OpenAPI 3.1 document from the records of the endpoints, the route table, the operations and the zod
 * schemas that validate requests.
 */
export async function openApiDocument(endpoints: readonly JobEndpoint[] = JOB_ENDPOINTS): Promise<JsonSchema> {
  const calls = await describeCalls(endpoints)
  return await runYielding(documentOf(describeRoutes(endpoints, calls), calls))
}

/**
 * Makes the document. Converting the schemas takes long, so the generator yields to the event loop after each group of
 * schemas.
 */
function* documentOf(described: readonly DescribedRoute[], calls: Calls): Generator<undefined, JsonSchema> {
  const paths: Record<string, Record<string, JsonSchema>> = {}
  for (const { route, operation } of described) add(paths, route.method, route.path, operationOf(route, operation))
  for (const [name, operation] of Object.entries(SERVICE)) {
    const [method = '', path = ''] = name.split(' ')
    add(paths, method, path, { ...headOf(operation), security: [], responses: answersWithoutHeaders(operation) })
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Sluice',
      version: packageJson.version,
      description: DESCRIPTION,
      license: { name: 'Apache 2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/', description: 'This service' }],
    tags: tagsOf(described),
    security: [{ bearer: [] }, { apiKey: [] }],
    paths,
    components: {
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer' },
        apiKey: { type: 'apiKey', in: 'header', name: 'x-api-key' },
      },
      headers: ANSWER_HEADERS,
      schemas: yield* componentSchemas(calls),
    },
  }
}

export function templateOf(path: string): string {
  return path.replace(/\/\*$/, '/{id}').replaceAll(/:(\w+)/g, '{$1}')
}

function tagsOf(described: readonly DescribedRoute[]): JsonSchema[] {
  const operations = [...described.map(({ operation }) => operation), ...Object.values(SERVICE)]
  const used = new Set<string>(operations.map(({ tag }) => tag))
  return Object.entries(TAGS).flatMap(([name, description]) => (used.has(name) ? [{ name, description }] : []))
}

function add(
  paths: Record<string, Record<string, JsonSchema>>,
  method: string,
  path: string,
  operation: JsonSchema,
): void {
  const template = templateOf(path)
  paths[template] = { ...paths[template], [method.toLowerCase()]: operation }
}

function operationOf(route: Route, operation: Operation): JsonSchema {
  const parameters = parametersOf(route, operation)
  const answers = Object.entries(operation.answers).map(([status, answer]) => [status, answerOf(answer)])
  const failures = failuresOf(route, operation).map((status) => [status, failureOf(status, route)])
  return {
    ...headOf(operation),
    ...(parameters.length > 0 && { parameters }),
    ...(operation.body && { requestBody: bodyOf(operation.body, operation.form) }),
    responses: Object.fromEntries([...answers, ...failures]),
  }
}

function headOf({ id, tag, summary, description, guide }: Operation): JsonSchema {
  const externalDocs = guide && { description: 'Guide', url: `/docs/guide/${guide}` }
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(description && { description }),
    ...(externalDocs && { externalDocs }),
  }
}

/**
 * Returns the answers of endpoints outside the route table, such as health checks. The answers of these endpoints have no
 * header with a request id.
 */
function answersWithoutHeaders({ answers }: Operation): JsonSchema {
  const rendered = Object.entries(answers).map(([status, answer]) => {
    const { headers: _, ...plain } = answerOf(answer)
    return [status, plain]
  })
  return Object.fromEntries(rendered)
}

function bodyOf(name: NonNullable<Operation['body']>, form: Operation['form']): JsonSchema {
  return { required: true, content: { [form ?? 'application/json']: { schema: refTo(name) } } }
}

function parametersOf({ path }: Route, { query, pairs, headers = [] }: Operation): JsonSchema[] {
  const inPath = [...templateOf(path).matchAll(/\{(\w+)\}/g)].map(([, name]) => {
    return { name, in: 'path', required: true, schema: { type: 'string', minLength: 1 } }
  })
  const inHeader = headers.flatMap((name) => {
    const known = Object.entries(REQUEST_HEADERS).find(([one]) => one === name)?.[1]
    return known ? [{ name, in: 'header', ...known }] : []
  })
  const inQuery = Object.entries(query?.shape ?? {}).map(([name, schema]) => {
    const { description, ...rest } = jsonSchemaOf(schema)
    return { name, in: 'query', ...(description !== undefined && { description }), schema: rest }
  })
  if (!pairs) return [...inPath, ...inHeader, ...inQuery]
  const description = `Only objects with these values, such as ${pairs}[team]=search. All pairs must match`
  const values = { type: 'object', additionalProperties: { type: 'string' } }
  return [
    ...inPath,
    ...inHeader,
    ...inQuery,
    { name: pairs, in: 'query', description, style: 'deepObject', schema: values },
  ]
}

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

/**
 * Matches paths whose responses have two formats. The format depends on the header `anthropic-version`, or on the
 * endpoint of the job.
 */
const TWO_FORMATS = /^\/v1\/(models|jobs\/:id\/result$)/

function failuresOf({ method, path, format, isCall, hasBody }: Route, { failures = [] }: Operation): number[] {
  const overload = format === 'anthropic' ? [529] : TWO_FORMATS.test(path) ? [503, 529] : [503]
  const statuses = [400, 401, 403, 500, ...overload, ...failures]
  if (/[:*]/.test(path)) statuses.push(404)
  if (isCall) statuses.push(404, 409, 410, 422, 429, 502, 504)
  if (hasBody) statuses.push(404, 408, 413, 415)
  if (method !== 'GET') statuses.push(429)
  return [...new Set(statuses)].toSorted((a, b) => a - b)
}

function failureOf(status: number, { path, format, isCall }: Pick<Route, 'path' | 'format' | 'isCall'>): JsonSchema {
  const json: AnswerName[] = TWO_FORMATS.test(path)
    ? ['Error', 'MessagesError']
    : [format === 'anthropic' ? 'MessagesError' : 'Error']
  const description = ERROR_DESCRIPTIONS[status] ?? STATUS_CODES[status] ?? 'Error.'
  const headers: HeaderName[] = ['x-should-retry', ...(isCall ? CALL_HEADERS : [])]
  if (status === 401) headers.push('www-authenticate')
  if ([409, 429, 503, 529].includes(status)) headers.push('retry-after')
  return answerOf({ description, json, headers })
}

function answerOf({ description, json, media = [], events, headers = [] }: Answer): JsonSchema {
  const content: Record<string, JsonSchema> = {}
  if (json) content['application/json'] = { schema: schemaOf(json) }
  for (const type of media) content[type] = { schema: BYTES.has(type) ? {} : { type: 'string' } }
  if (events !== undefined) content['text/event-stream'] = eventsOf(events)
  const named = ['x-request-id', ...headers].map((name) => [name, { $ref: `#/components/headers/${name}` }])
  return { description, headers: Object.fromEntries(named), ...(Object.keys(content).length > 0 && { content }) }
}

function schemaOf(names: NonNullable<Answer['json']>): JsonSchema {
  const [first, ...more] = names.map(refTo)
  if (!first) return {}
  return more.length === 0 ? first : { anyOf: [first, ...more] }
}

/** Describes a single event of a stream, because OpenAPI 3.1 cannot describe the whole stream. */
function eventsOf(data: NonNullable<Answer['events']> | null): JsonSchema {
  const content = { type: 'string', contentMediaType: 'application/json', ...(data && { contentSchema: refTo(data) }) }
  const properties = { event: { type: 'string' }, id: { type: 'string' }, retry: { type: 'integer' }, data: content }
  return { schema: { type: 'object', description: 'One server-sent event', properties } }
}
