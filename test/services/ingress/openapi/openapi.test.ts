/* Tests that the OpenAPI document describes every served route, and that responses match the schemas of the document. */

import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { JOB_ENDPOINTS } from '#services/ingress/endpoints/endpoints.ts'
import { routesOf } from '#services/ingress/routes.ts'
import { type Admin, openAdmin, secretOf } from '../../../support/admin.ts'

const ROUTES = routesOf(JOB_ENDPOINTS)

interface Operation {
  readonly operationId: string
  readonly parameters?: readonly { readonly name: string; readonly in: string }[]
  readonly responses: Record<string, { content?: Record<string, { schema: object }>; headers?: object }>
}
interface Document {
  readonly openapi: string
  readonly paths: Record<string, Record<string, Operation>>
}

const NEW_VERSION = { 'anthropic-version': '2023-06-01' }
const CHAT = { model: 'echo-1', messages: [{ role: 'user', content: 'One two three.' }] }

let admin: Admin
let document: Document
beforeAll(async () => {
  admin = await openAdmin()
  document = (await (await fetch(`${admin.stack.url}/openapi.json`)).json()) as Document
})
afterAll(() => admin[Symbol.asyncDispose]())

/** Sends a request and asserts that the document describes the response: status, content type and body. */
async function call(
  method: string,
  template: string,
  path: string,
  options: { as?: string; body?: unknown; headers?: object } = {},
) {
  const { as: caller = 'alice', body, headers } = options
  const isForm = body instanceof FormData
  const response = await fetch(admin.stack.url + path, {
    method,
    headers: {
      authorization: `Bearer ${secretOf(caller)}`,
      ...(body !== undefined && !isForm && { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body !== undefined && { body: isForm ? body : JSON.stringify(body) }),
  })
  const documented = document.paths[template]?.[method.toLowerCase()]?.responses[response.status]
  expect(documented, `documented status ${response.status} of ${method} ${template}`).toBeDefined()
  const type = response.headers.get('content-type')?.split(';')[0] ?? ''
  const text = await response.text()
  if (response.status === 204) return { response, json: undefined }
  const content = documented?.content?.[type]
  expect(content, `documented content type ${type} of status ${response.status} of ${method} ${template}`).toBeDefined()
  if (type !== 'application/json') return { response, json: text }
  const json = JSON.parse(text)
  const validate = validatorOf(content?.schema ?? {})
  expect(
    validate(json) ? [] : validate.errors,
    `schema errors of ${method} ${template} in ${text.slice(0, 2_000)}`,
  ).toEqual([])
  return { response, json }
}

/** Returns a validator that also rejects undocumented fields. The schema itself allows them, because a later version may add fields. */
function validatorOf(schema: object): ValidateFunction {
  const ajv = new Ajv2020({ strict: false, allErrors: true, validateFormats: false })
  return ajv.compile({
    ...schema,
    components: closed({ schemas: (document as { components?: { schemas: object } }).components?.schemas }),
  })
}

function closed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(closed)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, closed(inner)]))
  const isObject = entries.type === 'object' && 'properties' in entries && !('additionalProperties' in entries)
  return isObject ? { ...entries, additionalProperties: false } : entries
}

describe('the OpenAPI document', () => {
  it('has an operation for every route, with its path parameters', () => {
    expect(document.openapi).toBe('3.1.0')
    for (const { method, path } of ROUTES) {
      const template = path.replace(/\/\*$/, '/{id}').replaceAll(/:(\w+)/g, '{$1}')
      const operation = document.paths[template]?.[method.toLowerCase()]
      expect(operation, `operation of ${method} ${path}`).toBeDefined()
      const inPath = operation?.parameters?.filter((one) => one.in === 'path').map(({ name }) => name) ?? []
      expect(inPath, `path parameters of ${method} ${path}`).toEqual(
        [...template.matchAll(/\{(\w+)\}/g)].map(([, name]) => name),
      )
    }
    const ids = Object.values(document.paths).flatMap((path) => Object.values(path).map((one) => one.operationId))
    expect(new Set(ids).size).toBe(ids.length)
    expect(ids.length).toBe(ROUTES.length + 5)
  })

  it('describes only operations that the ingress serves', async () => {
    for (const [path, operations] of Object.entries(document.paths)) {
      for (const method of Object.keys(operations)) {
        const isPublic = !path.startsWith('/v1/')
        const { status } = await fetch(admin.stack.url + path.replace('{id}', 'some'), { method: method.toUpperCase() })
        expect([path, method, status]).toEqual([path, method, isPublic ? 200 : 401])
      }
    }
  })

  it('has no reference to a missing component', () => {
    const text = JSON.stringify(document)
    const names = new Set(
      [...text.matchAll(/"#\/components\/(\w+)\/([\w-]+)"/g)].map(([, kind, name]) => `${kind}/${name}`),
    )
    const { components } = document as unknown as { components: Record<string, Record<string, unknown>> }
    expect([...names].filter((name) => !components[name.split('/')[0] ?? '']?.[name.split('/')[1] ?? ''])).toEqual([])
    expect(names.size).toBeGreaterThan(60)
  })
})

describe('the answer schemas of the OpenAPI document', () => {
  it('match the answers of chat completions, messages and embeddings, with and without streaming', async () => {
    await call('POST', '/v1/chat/completions', '/v1/chat/completions', { body: CHAT })
    await call('POST', '/v1/chat/completions', '/v1/chat/completions', { body: { ...CHAT, stream: true } })
    const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }]
    await call('POST', '/v1/chat/completions', '/v1/chat/completions', {
      body: { ...CHAT, tools, tool_choice: 'required', logprobs: true, n: 2 },
    })
    const message = { ...CHAT, max_tokens: 50 }
    await call('POST', '/v1/messages', '/v1/messages', { body: message })
    await call('POST', '/v1/messages', '/v1/messages', { body: message, headers: NEW_VERSION })
    await call('POST', '/v1/messages', '/v1/messages', { body: { ...message, stream: true } })
    await call('POST', '/v1/messages', '/v1/messages', { body: CHAT })
    await call('POST', '/v1/messages/count_tokens', '/v1/messages/count_tokens', { body: CHAT })
    await call('POST', '/v1/responses/input_tokens', '/v1/responses/input_tokens', {
      body: { model: 'echo-1', input: 'Hi' },
    })
    const { response } = await call('POST', '/v1/embeddings', '/v1/embeddings', {
      body: { model: 'echo-1', input: 'Hi' },
    })
    expect(response.status).toBe(400)
  })

  it('match the answers of raw completions and stored chat completions', async () => {
    await call('POST', '/v1/completions', '/v1/completions', { body: { model: 'echo-1', prompt: 'One two.' } })
    const stored = { ...CHAT, store: true, metadata: { of: 'test' } }
    const { json } = await call('POST', '/v1/chat/completions', '/v1/chat/completions', { body: stored })
    const one = `/v1/chat/completions/${json.id}`
    const list = await call('GET', '/v1/chat/completions', '/v1/chat/completions?limit=5&metadata[of]=test')
    expect(list.json.data).toHaveLength(1)
    await call('GET', '/v1/chat/completions/{id}', one)
    await call('GET', '/v1/chat/completions/{id}/messages', `${one}/messages`)
    await call('POST', '/v1/chat/completions/{id}', one, { body: { metadata: { a: 'b' } } })
    await call('DELETE', '/v1/chat/completions/{id}', one)
    await call('GET', '/v1/chat/completions/{id}', one)
  })

  it('match the answers of conversations', async () => {
    const message = { role: 'user', content: 'Hi.' }
    const { json } = await call('POST', '/v1/conversations', '/v1/conversations', { body: { items: [message] } })
    const one = `/v1/conversations/${json.id}`
    await call('GET', '/v1/conversations/{id}', one)
    await call('POST', '/v1/conversations/{id}', one, { body: { metadata: { a: 'b' } } })
    await call('POST', '/v1/conversations/{id}/items', `${one}/items`, { body: { items: [message] } })
    const { json: items } = await call('GET', '/v1/conversations/{id}/items', `${one}/items`)
    const item = `${one}/items/${(items.data as { id: string }[])[0]?.id}`
    await call('GET', '/v1/conversations/{id}/items/{item_id}', item)
    await call('DELETE', '/v1/conversations/{id}/items/{item_id}', item)
    await call('DELETE', '/v1/conversations/{id}', one)
  })

  it('match the answers of stored responses', async () => {
    const { json } = await call('POST', '/v1/responses', '/v1/responses', {
      body: { model: 'echo-1', input: 'One two.' },
    })
    const one = `/v1/responses/${json.id}`
    await call('GET', '/v1/responses/{id}', one)
    await call('GET', '/v1/responses/{id}/input_items', `${one}/input_items`)
    await call('POST', '/v1/responses/{id}/cancel', `${one}/cancel`)
    await call('DELETE', '/v1/responses/{id}', one)
    await call('GET', '/v1/responses/{id}', one)
  })

  it('match the answers of jobs, from submission to deletion', async () => {
    const body = { endpoint: '/v1/chat/completions', body: { ...CHAT, stream: true }, metadata: { of: 'test' } }
    const { json, response } = await call('POST', '/v1/jobs', '/v1/jobs', { body })
    expect(response.status).toBe(202)
    const one = `/v1/jobs/${json.id}`
    await call('GET', '/v1/jobs/{id}/events', `${one}/events`)
    await call('GET', '/v1/jobs/{id}', `${one}?wait=30`)
    await call('GET', '/v1/jobs/{id}/result', `${one}/result`)
    await call('GET', '/v1/jobs/{id}/steps', `${one}/steps`)
    const list = await call('GET', '/v1/jobs', '/v1/jobs?limit=5&include=result&metadata[of]=test')
    expect(list.json.data).toHaveLength(1)
    expect((await call('GET', '/v1/admin/jobs', '/v1/admin/jobs', { as: 'op' })).json.data.length).toBeGreaterThan(0)
    await call('GET', '/v1/admin/jobs/{id}', `/v1/admin/jobs/${json.id}`, { as: 'op' })
    for (const action of ['cancel', 'redrive', 'replay']) {
      expect(
        (await call('POST', `/v1/jobs/{id}/${action}`, `${one}/${action}`)).response.status,
      ).toBeGreaterThanOrEqual(400)
    }
    await call('DELETE', '/v1/jobs/{id}', one)
    await call('GET', '/v1/jobs/{id}', one)
    await call('GET', '/v1/webhook-secrets', '/v1/webhook-secrets')
  })

  it('match the answers of files and batches', async () => {
    const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: CHAT }
    const body = new FormData()
    body.set('purpose', 'batch')
    body.set('file', new Blob([`${JSON.stringify(line)}\n`]), 'calls.jsonl')
    const { json: file } = await call('POST', '/v1/files', '/v1/files', { body })
    await call('GET', '/v1/files/{id}', `/v1/files/${file.id}`)
    await call('GET', '/v1/files/{id}/content', `/v1/files/${file.id}/content`)
    await call('GET', '/v1/files', '/v1/files')
    const create = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const { json: batch } = await call('POST', '/v1/batches', '/v1/batches', { body: create })
    await call('GET', '/v1/batches/{id}', `/v1/batches/${batch.id}`)
    await call('GET', '/v1/batches', '/v1/batches')
    await call('DELETE', '/v1/files/{id}', `/v1/files/${file.id}`)
    const requests = [{ custom_id: 'a', params: { ...CHAT, max_tokens: 5 } }]
    const { json: messageBatch } = await call('POST', '/v1/messages/batches', '/v1/messages/batches', {
      body: { requests },
    })
    await call('GET', '/v1/messages/batches/{id}', `/v1/messages/batches/${messageBatch.id}`)
    await call('GET', '/v1/messages/batches', '/v1/messages/batches')
    await call('POST', '/v1/messages/batches/{id}/cancel', `/v1/messages/batches/${messageBatch.id}/cancel`)
  })

  it('match the answers of models, usage, and errors in the OpenAI and Anthropic formats', async () => {
    await call('GET', '/v1/models', '/v1/models')
    await call('GET', '/v1/models', '/v1/models', { headers: NEW_VERSION })
    await call('GET', '/v1/models/{id}', '/v1/models/echo-1', { headers: NEW_VERSION })
    await call('GET', '/v1/models/{id}', '/v1/models/none', { headers: NEW_VERSION })
    await call('GET', '/v1/key', '/v1/key')
    await call('GET', '/v1/key', '/v1/key', { as: 'op' })
    await call('GET', '/v1/usage', '/v1/usage?group_by=model')
    await call('GET', '/v1/admin/pools', '/v1/admin/pools')
    await call('GET', '/v1/ws', '/v1/ws')
    await call('GET', '/v1/jobs', '/v1/jobs?limit=0')
    await call('POST', '/v1/tools/code', '/v1/tools/code', { body: { lang: 'python', code: 'print(1)' } })
  })

  it('match the answers of the admin API', async () => {
    const as = 'op'
    const { json } = await call('GET', '/v1/admin/workers', '/v1/admin/workers', { as })
    const { id } = json.data.find(({ role }: { role: string }) => role === 'inference')
    await call('POST', '/v1/admin/workers/{id}/drain', `/v1/admin/workers/${id}/drain`, { as })
    await call('POST', '/v1/admin/workers/{id}/undrain', `/v1/admin/workers/${id}/undrain`, { as })
    await call('POST', '/v1/admin/pools/{id}/pause', '/v1/admin/pools/code/pause', { as })
    await call('GET', '/v1/admin/pauses', '/v1/admin/pauses', { as })
    await call('POST', '/v1/admin/pools/{id}/resume', '/v1/admin/pools/code/resume', { as })
    await call('POST', '/v1/admin/models/{id}/pause', '/v1/admin/models/echo-1/pause', { as })
    await call('POST', '/v1/admin/models/{id}/resume', '/v1/admin/models/echo-1/resume', { as })
    await call('GET', '/v1/admin/pools', '/v1/admin/pools', { as })
    await call('GET', '/v1/admin/models', '/v1/admin/models', { as })
    await call('GET', '/v1/admin/deliveries', '/v1/admin/deliveries', { as })
    await call('GET', '/v1/admin/dead-letters', '/v1/admin/dead-letters', { as })
    await call('GET', '/v1/admin/audit', '/v1/admin/audit', { as })
    const dry = { dry_run: true }
    await call('POST', '/v1/admin/jobs/cancel', '/v1/admin/jobs/cancel', { as, body: dry })
    await call('POST', '/v1/admin/jobs/redrive', '/v1/admin/jobs/redrive', { as, body: dry })
    await call('POST', '/v1/admin/dead-letters/redrive', '/v1/admin/dead-letters/redrive', { as, body: dry })
  })

  it('match the answers of keys and projects', async () => {
    const as = 'op'
    const limits = { running: 2, budget_usd_per_month: 3 }
    const { json: project } = await call('POST', '/v1/admin/projects', '/v1/admin/projects', { as, body: { limits } })
    await call('GET', '/v1/admin/projects', '/v1/admin/projects', { as })
    const of = `/v1/admin/projects/${project.id}`
    await call('GET', '/v1/admin/projects/{id}', of, { as })
    await call('POST', '/v1/admin/projects/{id}', of, { as, body: { name: 'search' } })
    const body = { scopes: ['admin'], project: project.id, limits }
    const { json: key } = await call('POST', '/v1/admin/keys', '/v1/admin/keys', { as, body })
    const one = `/v1/admin/keys/${key.id}`
    await call('GET', '/v1/admin/keys', '/v1/admin/keys?limit=5&state=valid', { as })
    await call('GET', '/v1/admin/keys/{id}', one, { as })
    await call('POST', '/v1/admin/keys/{id}', one, { as, body: { name: 'x', limits: null } })
    await call('POST', '/v1/admin/keys/{id}/rotate', `${one}/rotate`, { as, body: {} })
    await call('POST', '/v1/admin/keys/{id}/revoke', `${one}/revoke`, { as })
    await call('POST', '/v1/admin/keys/{id}/rotate', `${one}/rotate`, { as, body: {} })
    await call('POST', '/v1/admin/keys', '/v1/admin/keys', { as, body: {} })
    await call('POST', '/v1/admin/keys', '/v1/admin/keys', { body: {} })
  })
})

describe('the pages that the ingress serves to browsers', () => {
  it('redirect a browser from / to the console or the API reference', async () => {
    const { url } = admin.stack
    const page = await fetch(`${url}/`, { headers: { accept: 'text/html,*/*' }, redirect: 'manual' })
    expect(page.status).toBe(302)
    expect(['/console', '/docs']).toContain(page.headers.get('location'))
    const program = await fetch(`${url}/`, { headers: { accept: 'application/json' } })
    expect([program.status, ((await program.json()) as { error: { type: string } }).error.type]).toEqual([
      404,
      'invalid_request_error',
    ])
  })

  it('below /docs load nothing from other hosts, and are revalidated by ETags', async () => {
    const { url } = admin.stack
    const page = await fetch(`${url}/docs`)
    const text = await page.text()
    expect(page.headers.get('content-security-policy')).toContain("script-src 'self';")
    expect(text).not.toMatch(/https?:\/\//)
    for (const [, path = ''] of text.matchAll(/(?:src|href)="(\/[^"]+)"/g)) {
      const file = await fetch(url + path)
      const hint = path === '/console' ? 'the console is not built: run `npm run prepare`' : `status of ${path}`
      expect(file.status, hint).toBe(200)
      const again = await fetch(url + path, { headers: { 'if-none-match': file.headers.get('etag') ?? '' } })
      expect(again.status).toBe(304)
    }
    const post = await fetch(`${url}/docs`, { method: 'POST' })
    expect(post.status).toBe(404)
  })
})
