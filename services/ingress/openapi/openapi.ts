import { ROUTES, type Route } from '#services/ingress/routes.ts'
import packageJson from '../../../package.json' with { type: 'json' }
import { answerOf, failureOf, failuresOf } from './answers.ts'
import { componentSchemas, type JsonSchema, jsonSchemaOf, refTo } from './components.ts'
import { ANSWER_HEADERS, REQUEST_HEADERS } from './headers.ts'
import { type Operation, type Operations, TAGS } from './operation.ts'
import { ACCOUNT } from './operations/account.ts'
import { BATCHES } from './operations/batches.ts'
import { CALLS } from './operations/calls.ts'
import { CONVERSATIONS } from './operations/conversations.ts'
import { JOBS } from './operations/jobs.ts'
import { KEYS } from './operations/keys.ts'
import { OPERATORS } from './operations/operators.ts'
import { RESPONSES } from './operations/responses.ts'
import { SERVICE } from './operations/service.ts'
import { STORED } from './operations/stored.ts'

/** Operations by the rows of the table of routes. */
const OPERATIONS: Operations = {
  ...CALLS,
  ...STORED,
  ...RESPONSES,
  ...CONVERSATIONS,
  ...JOBS,
  ...BATCHES,
  ...ACCOUNT,
  ...OPERATORS,
  ...KEYS,
}

const DESCRIPTION = `Text, embeddings, speech to text, Python in a sandbox and researched reports, behind a durable queue.

Send a key as \`Authorization: Bearer KEY\` or as \`x-api-key: KEY\`. Every failure has the shape that the SDK of its path
expects; the header \`x-request-id\` names the request in the log. Where GET is answered, HEAD is as well.`

/**
 * The description of every route as OpenAPI 3.1, made of the table of routes and of the schemas that check its requests. It takes
 * longer than a handler may, so it is written in turns.
 *
 * @throws Error where the table has a route that nothing is said of, or the other way about
 */
export function* openApiDocument(): Generator<undefined, JsonSchema> {
  const paths: Record<string, Record<string, JsonSchema>> = {}
  const said = new Set(Object.keys(OPERATIONS))
  for (const route of ROUTES) {
    const name = `${route.method} ${route.path}`
    const operation = OPERATIONS[name]
    if (!operation) throw new Error(`services/ingress/openapi says nothing of ${name}.`)
    said.delete(name)
    add(paths, route.method, route.path, operationOf(route, operation))
  }
  if (said.size > 0)
    throw new Error(`services/ingress/openapi says something of ${[...said].join(', ')}: no such route.`)
  for (const [name, operation] of Object.entries(SERVICE)) {
    const [method = '', path = ''] = name.split(' ')
    add(paths, method, path, { ...headOf(operation), security: [], responses: plainAnswers(operation) })
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

function add(paths: Record<string, Record<string, JsonSchema>>, method: string, path: string, said: JsonSchema): void {
  const written = path.replace('/*', '/{id}').replaceAll(/:(\w+)/g, '{$1}')
  paths[written] = { ...paths[written], [method.toLowerCase()]: said }
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

function headOf({ id, tag, summary, description }: Operation): JsonSchema {
  return { operationId: id, tags: [tag], summary, ...(description && { description }) }
}

/** Health is answered before requests get an id. */
function plainAnswers({ answers }: Operation): JsonSchema {
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
  const inPath = [...path.replace('/*', '/:id').matchAll(/:(\w+)/g)].map(([, name]) => {
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
  const values = { type: 'object', additionalProperties: { type: 'string' } }
  return [...inPath, ...inHeader, ...inQuery, { name: pairs, in: 'query', style: 'deepObject', schema: values }]
}
