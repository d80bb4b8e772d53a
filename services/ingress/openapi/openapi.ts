import { ROUTES, type Route } from '#services/ingress/routes.ts'
import packageJson from '../../../package.json' with { type: 'json' }
import { answerOf, failureOf, failuresOf } from './answers.ts'
import { componentSchemas, type JsonSchema, jsonSchemaOf, refTo } from './components.ts'
import { ANSWER_HEADERS, REQUEST_HEADERS } from './headers.ts'
import { type Operation, type Operations, TAGS } from './operation.ts'
import { ACCOUNT } from './operations/account.ts'
import { ADMIN } from './operations/admin.ts'
import { ADMIN_KEYS } from './operations/admin-keys.ts'
import { BATCHES } from './operations/batches.ts'
import { CALLS } from './operations/calls.ts'
import { CONVERSATIONS } from './operations/conversations.ts'
import { JOBS } from './operations/jobs.ts'
import { RESPONSES } from './operations/responses.ts'
import { SERVICE } from './operations/service.ts'
import { STORED } from './operations/stored.ts'

/** One operation per row of the route table, by `METHOD /path`. */
export const OPERATIONS: Operations = {
  ...CALLS,
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

/**
 * Generates the OpenAPI 3.1 document from the route table, the operations and the zod schemas that validate requests.
 * Generation takes long, so the generator yields to the event loop after each group of schemas.
 *
 * @throws Error if a route has no operation, or an operation no route
 */
export function* openApiDocument(): Generator<undefined, JsonSchema> {
  const paths: Record<string, Record<string, JsonSchema>> = {}
  const unused = new Set(Object.keys(OPERATIONS))
  for (const route of ROUTES) {
    const name = `${route.method} ${route.path}`
    const operation = OPERATIONS[name]
    if (!operation) throw new Error(`services/ingress/openapi/operations has no operation for the route ${name}.`)
    unused.delete(name)
    add(paths, route.method, route.path, operationOf(route, operation))
  }
  if (unused.size > 0) throw new Error(`The route table has no row for the operation ${[...unused].join(', ')}.`)
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
    tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
    security: [{ bearer: [] }, { apiKey: [] }],
    paths,
    components: {
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer' },
        apiKey: { type: 'apiKey', in: 'header', name: 'x-api-key' },
      },
      headers: ANSWER_HEADERS,
      schemas: yield* componentSchemas(),
    },
  }
}

/** The path of a route in OpenAPI syntax: `/v1/jobs/:id` becomes `/v1/jobs/{id}`. */
export function templateOf(path: string): string {
  return path.replace(/\/\*$/, '/{id}').replaceAll(/:(\w+)/g, '{$1}')
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

/** Responses of endpoints outside the route table have no headers, because no request id is assigned. */
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
