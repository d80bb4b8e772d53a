import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ROUTES } from '#services/ingress/routes.ts'
import { type Admin, openAdmin, secretOf } from '../../../support/admin.ts'

/** The description of the API says what is served, and what is answered is what it says. */

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

/** One request, and whether its answer is what the document says of it. */
async function ask(
  method: string,
  written: string,
  path: string,
  options: { who?: string; body?: unknown; headers?: object } = {},
) {
  const { who = 'alice', body, headers } = options
  const isForm = body instanceof FormData
  const response = await fetch(admin.stack.url + path, {
    method,
    headers: {
      authorization: `Bearer ${secretOf(who)}`,
      ...(body !== undefined && !isForm && { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body !== undefined && { body: isForm ? body : JSON.stringify(body) }),
  })
  const said = document.paths[written]?.[method.toLowerCase()]?.responses[response.status]
  expect(said, `${method} ${written} may answer ${response.status}`).toBeDefined()
  const type = response.headers.get('content-type')?.split(';')[0] ?? ''
  const text = await response.text()
  if (response.status === 204) return { response, json: undefined }
  const content = said?.content?.[type]
  expect(content, `${method} ${written} may answer ${response.status} as ${type}`).toBeDefined()
  if (type !== 'application/json') return { response, json: text }
  const json = JSON.parse(text)
  const validate = checkOf(content?.schema ?? {})
  expect(validate(json) ? [] : validate.errors, `${method} ${written}: ${text.slice(0, 2_000)}`).toEqual([])
  return { response, json }
}

/** Nothing that is not described: a tested answer has no other fields, though those of later versions may. */
function checkOf(schema: object): ValidateFunction {
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

describe('the description of the API', () => {
  it('has every route, under its method, with the parameters of its path', () => {
    expect(document.openapi).toBe('3.1.0')
    for (const { method, path } of ROUTES) {
      const written = path.replace('/*', '/{id}').replaceAll(/:(\w+)/g, '{$1}')
      const operation = document.paths[written]?.[method.toLowerCase()]
      expect(operation, `${method} ${path}`).toBeDefined()
      const inPath = operation?.parameters?.filter((one) => one.in === 'path').map(({ name }) => name) ?? []
      expect(inPath).toEqual([...written.matchAll(/\{(\w+)\}/g)].map(([, name]) => name))
    }
    const ids = Object.values(document.paths).flatMap((path) => Object.values(path).map((one) => one.operationId))
    expect(new Set(ids).size).toBe(ids.length)
    expect(ids.length).toBe(ROUTES.length + 5)
  })

  it('has nothing that is not served', async () => {
    for (const [path, operations] of Object.entries(document.paths)) {
      for (const method of Object.keys(operations)) {
        const isOpen = !path.startsWith('/v1/')
        const { status } = await fetch(admin.stack.url + path.replace('{id}', 'some'), { method: method.toUpperCase() })
        expect([path, method, status]).toEqual([path, method, isOpen ? 200 : 401])
      }
    }
  })

  it('points at nothing that is not in it', () => {
    const text = JSON.stringify(document)
    const names = new Set(
      [...text.matchAll(/"#\/components\/(\w+)\/([\w-]+)"/g)].map(([, kind, name]) => `${kind}/${name}`),
    )
    const { components } = document as unknown as { components: Record<string, Record<string, unknown>> }
    expect([...names].filter((name) => !components[name.split('/')[0] ?? '']?.[name.split('/')[1] ?? ''])).toEqual([])
    expect(names.size).toBeGreaterThan(60)
  })
})

describe('what is answered is what the description says', () => {
  it('for calls of each format, whole and streamed', async () => {
    await ask('POST', '/v1/chat/completions', '/v1/chat/completions', { body: CHAT })
    await ask('POST', '/v1/chat/completions', '/v1/chat/completions', { body: { ...CHAT, stream: true } })
    const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }]
    await ask('POST', '/v1/chat/completions', '/v1/chat/completions', {
      body: { ...CHAT, tools, tool_choice: 'required', logprobs: true, n: 2 },
    })
    const message = { ...CHAT, max_tokens: 50 }
    await ask('POST', '/v1/messages', '/v1/messages', { body: message })
    await ask('POST', '/v1/messages', '/v1/messages', { body: message, headers: NEW_VERSION })
    await ask('POST', '/v1/messages', '/v1/messages', { body: { ...message, stream: true } })
    await ask('POST', '/v1/messages', '/v1/messages', { body: CHAT })
    await ask('POST', '/v1/messages/count_tokens', '/v1/messages/count_tokens', { body: CHAT })
    await ask('POST', '/v1/responses/input_tokens', '/v1/responses/input_tokens', {
      body: { model: 'echo-1', input: 'Hi' },
    })
    const { response } = await ask('POST', '/v1/embeddings', '/v1/embeddings', {
      body: { model: 'echo-1', input: 'Hi' },
    })
    expect(response.status).toBe(400)
  })

  it('for completions of raw prompts, and for stored chat completions', async () => {
    await ask('POST', '/v1/completions', '/v1/completions', { body: { model: 'echo-1', prompt: 'One two.' } })
    const stored = { ...CHAT, store: true, metadata: { of: 'test' } }
    const { json } = await ask('POST', '/v1/chat/completions', '/v1/chat/completions', { body: stored })
    const one = `/v1/chat/completions/${json.id}`
    const list = await ask('GET', '/v1/chat/completions', '/v1/chat/completions?limit=5&metadata[of]=test')
    expect(list.json.data).toHaveLength(1)
    await ask('GET', '/v1/chat/completions/{id}', one)
    await ask('GET', '/v1/chat/completions/{id}/messages', `${one}/messages`)
    await ask('POST', '/v1/chat/completions/{id}', one, { body: { metadata: { a: 'b' } } })
    await ask('DELETE', '/v1/chat/completions/{id}', one)
    await ask('GET', '/v1/chat/completions/{id}', one)
  })

  it('for conversations', async () => {
    const message = { role: 'user', content: 'Hi.' }
    const { json } = await ask('POST', '/v1/conversations', '/v1/conversations', { body: { items: [message] } })
    const one = `/v1/conversations/${json.id}`
    await ask('GET', '/v1/conversations/{id}', one)
    await ask('POST', '/v1/conversations/{id}', one, { body: { metadata: { a: 'b' } } })
    await ask('POST', '/v1/conversations/{id}/items', `${one}/items`, { body: { items: [message] } })
    const { json: items } = await ask('GET', '/v1/conversations/{id}/items', `${one}/items`)
    const item = `${one}/items/${(items.data as { id: string }[])[0]?.id}`
    await ask('GET', '/v1/conversations/{id}/items/{item_id}', item)
    await ask('DELETE', '/v1/conversations/{id}/items/{item_id}', item)
    await ask('DELETE', '/v1/conversations/{id}', one)
  })

  it('for kept responses', async () => {
    const { json } = await ask('POST', '/v1/responses', '/v1/responses', {
      body: { model: 'echo-1', input: 'One two.' },
    })
    const one = `/v1/responses/${json.id}`
    await ask('GET', '/v1/responses/{id}', one)
    await ask('GET', '/v1/responses/{id}/input_items', `${one}/input_items`)
    await ask('POST', '/v1/responses/{id}/cancel', `${one}/cancel`)
    await ask('DELETE', '/v1/responses/{id}', one)
    await ask('GET', '/v1/responses/{id}', one)
  })

  it('for jobs, from their submission to their deletion', async () => {
    const body = { endpoint: '/v1/chat/completions', body: { ...CHAT, stream: true }, metadata: { of: 'test' } }
    const { json, response } = await ask('POST', '/v1/jobs', '/v1/jobs', { body })
    expect(response.status).toBe(202)
    const one = `/v1/jobs/${json.id}`
    await ask('GET', '/v1/jobs/{id}/events', `${one}/events`)
    await ask('GET', '/v1/jobs/{id}', `${one}?wait=30`)
    await ask('GET', '/v1/jobs/{id}/result', `${one}/result`)
    await ask('GET', '/v1/jobs/{id}/steps', `${one}/steps`)
    const list = await ask('GET', '/v1/jobs', '/v1/jobs?limit=5&include=result&metadata[of]=test')
    expect(list.json.data).toHaveLength(1)
    expect((await ask('GET', '/v1/admin/jobs', '/v1/admin/jobs', { who: 'op' })).json.data.length).toBeGreaterThan(0)
    await ask('GET', '/v1/admin/jobs/{id}', `/v1/admin/jobs/${json.id}`, { who: 'op' })
    for (const deed of ['cancel', 'redrive', 'replay']) {
      expect((await ask('POST', `/v1/jobs/{id}/${deed}`, `${one}/${deed}`)).response.status).toBeGreaterThanOrEqual(400)
    }
    await ask('DELETE', '/v1/jobs/{id}', one)
    await ask('GET', '/v1/jobs/{id}', one)
    await ask('GET', '/v1/webhook-secrets', '/v1/webhook-secrets')
  })

  it('for files and batches', async () => {
    const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: CHAT }
    const body = new FormData()
    body.set('purpose', 'batch')
    body.set('file', new Blob([`${JSON.stringify(line)}\n`]), 'calls.jsonl')
    const { json: file } = await ask('POST', '/v1/files', '/v1/files', { body })
    await ask('GET', '/v1/files/{id}', `/v1/files/${file.id}`)
    await ask('GET', '/v1/files/{id}/content', `/v1/files/${file.id}/content`)
    await ask('GET', '/v1/files', '/v1/files')
    const asked = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const { json: batch } = await ask('POST', '/v1/batches', '/v1/batches', { body: asked })
    await ask('GET', '/v1/batches/{id}', `/v1/batches/${batch.id}`)
    await ask('GET', '/v1/batches', '/v1/batches')
    await ask('DELETE', '/v1/files/{id}', `/v1/files/${file.id}`)
    const requests = [{ custom_id: 'a', params: { ...CHAT, max_tokens: 5 } }]
    const { json: many } = await ask('POST', '/v1/messages/batches', '/v1/messages/batches', { body: { requests } })
    await ask('GET', '/v1/messages/batches/{id}', `/v1/messages/batches/${many.id}`)
    await ask('GET', '/v1/messages/batches', '/v1/messages/batches')
    await ask('POST', '/v1/messages/batches/{id}/cancel', `/v1/messages/batches/${many.id}/cancel`)
  })

  it('for models, usage and refusals of both formats', async () => {
    await ask('GET', '/v1/models', '/v1/models')
    await ask('GET', '/v1/models', '/v1/models', { headers: NEW_VERSION })
    await ask('GET', '/v1/models/{id}', '/v1/models/echo-1', { headers: NEW_VERSION })
    await ask('GET', '/v1/models/{id}', '/v1/models/none', { headers: NEW_VERSION })
    await ask('GET', '/v1/key', '/v1/key')
    await ask('GET', '/v1/key', '/v1/key', { who: 'op' })
    await ask('GET', '/v1/usage', '/v1/usage?group_by=model')
    await ask('GET', '/v1/admin/pools', '/v1/admin/pools')
    await ask('GET', '/v1/ws', '/v1/ws')
    await ask('GET', '/v1/jobs', '/v1/jobs?limit=0')
    await ask('POST', '/v1/tools/code', '/v1/tools/code', { body: { lang: 'python', code: 'print(1)' } })
  })

  it('for operators', async () => {
    const who = 'op'
    const { json } = await ask('GET', '/v1/admin/workers', '/v1/admin/workers', { who })
    const { id } = json.data.find(({ role }: { role: string }) => role === 'inference')
    await ask('POST', '/v1/admin/workers/{id}/drain', `/v1/admin/workers/${id}/drain`, { who })
    await ask('POST', '/v1/admin/workers/{id}/undrain', `/v1/admin/workers/${id}/undrain`, { who })
    await ask('POST', '/v1/admin/pools/{id}/pause', '/v1/admin/pools/code/pause', { who })
    await ask('GET', '/v1/admin/pauses', '/v1/admin/pauses', { who })
    await ask('POST', '/v1/admin/pools/{id}/resume', '/v1/admin/pools/code/resume', { who })
    await ask('POST', '/v1/admin/models/{id}/pause', '/v1/admin/models/echo-1/pause', { who })
    await ask('POST', '/v1/admin/models/{id}/resume', '/v1/admin/models/echo-1/resume', { who })
    await ask('GET', '/v1/admin/pools', '/v1/admin/pools', { who })
    await ask('GET', '/v1/admin/deliveries', '/v1/admin/deliveries', { who })
    await ask('GET', '/v1/admin/dead-letters', '/v1/admin/dead-letters', { who })
    await ask('GET', '/v1/admin/audit', '/v1/admin/audit', { who })
    const dry = { dry_run: true }
    await ask('POST', '/v1/admin/jobs/cancel', '/v1/admin/jobs/cancel', { who, body: dry })
    await ask('POST', '/v1/admin/jobs/redrive', '/v1/admin/jobs/redrive', { who, body: dry })
    await ask('POST', '/v1/admin/dead-letters/redrive', '/v1/admin/dead-letters/redrive', { who, body: dry })
  })
})

describe('answers are as they are described', () => {
  it('for keys and projects', async () => {
    const who = 'op'
    const limits = { running: 2, budget_usd_per_month: 3 }
    const { json: project } = await ask('POST', '/v1/admin/projects', '/v1/admin/projects', { who, body: { limits } })
    await ask('GET', '/v1/admin/projects', '/v1/admin/projects', { who })
    const of = `/v1/admin/projects/${project.id}`
    await ask('GET', '/v1/admin/projects/{id}', of, { who })
    await ask('POST', '/v1/admin/projects/{id}', of, { who, body: { name: 'search' } })
    const body = { scopes: ['admin'], project: project.id, limits }
    const { json: key } = await ask('POST', '/v1/admin/keys', '/v1/admin/keys', { who, body })
    const one = `/v1/admin/keys/${key.id}`
    await ask('GET', '/v1/admin/keys', '/v1/admin/keys?limit=5&state=valid', { who })
    await ask('GET', '/v1/admin/keys/{id}', one, { who })
    await ask('POST', '/v1/admin/keys/{id}', one, { who, body: { name: 'x', limits: null } })
    await ask('POST', '/v1/admin/keys/{id}/rotate', `${one}/rotate`, { who, body: {} })
    await ask('POST', '/v1/admin/keys/{id}/revoke', `${one}/revoke`, { who })
    await ask('POST', '/v1/admin/keys/{id}/rotate', `${one}/rotate`, { who, body: {} })
    await ask('POST', '/v1/admin/keys', '/v1/admin/keys', { who, body: {} })
    await ask('POST', '/v1/admin/keys', '/v1/admin/keys', { body: {} })
  })
})

describe('the pages', () => {
  it('lead a browser to the console, or to the reference where none was built, and answer programs as the API does', async () => {
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

  it('ask nothing of other hosts, run no script of others, and are kept by browsers as long as they are the same', async () => {
    const { url } = admin.stack
    const page = await fetch(`${url}/docs`)
    const text = await page.text()
    expect(page.headers.get('content-security-policy')).toContain("script-src 'self';")
    expect(text).not.toMatch(/https?:\/\//)
    for (const [, path = ''] of text.matchAll(/(?:src|href)="(\/[^"]+)"/g)) {
      const file = await fetch(url + path)
      expect([path, file.status]).toEqual([path, 200])
      const again = await fetch(url + path, { headers: { 'if-none-match': file.headers.get('etag') ?? '' } })
      expect(again.status).toBe(304)
    }
    const post = await fetch(`${url}/docs`, { method: 'POST' })
    expect(post.status).toBe(404)
  })
})
