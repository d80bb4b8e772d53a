/** Calls every endpoint of the API once, with large bodies where the endpoint accepts them. Successive requests go to different ingresses. */
import { expect } from 'vitest'
import { WebSocket } from 'ws'
import { WS_PROTOCOL } from '#schemas/ws.ts'
import { SERVICE } from '#services/ingress/openapi/jobs.ts'
import { describedRoutes } from '#services/ingress/openapi/openapi.ts'
import { wav } from './speech/service.ts'
import { TEST_KEY, until } from './stack.ts'

/** Text of 110 KB. A body of more than 64 KiB is stored as a blob, because a queue record cannot carry it. */
export const LARGE = 'large text '.repeat(10_000)
const ENDED = new Set(['completed', 'failed', 'cancelled', 'canceled', 'ended', 'expired'])
const RESEARCH = { model: 'deep-research', messages: [{ role: 'user', content: 'Where do herons nest?' }] }

// biome-ignore lint/suspicious/noExplicitAny: the answers of all endpoints; each step asserts the fields that it reads
type Json = any

interface Step {
  readonly body?: unknown
  readonly form?: Readonly<Record<string, string | Blob>>
  readonly query?: string
  readonly headers?: Record<string, string>
}

export class EndpointWalk {
  readonly #urls: readonly string[]
  readonly #walked = new Set<string>()
  #calls = 0

  /**
   * @param urls Base URLs of the ingresses. Each call goes to the next ingress, so that an object is read at another ingress than the one that
   * created it
   */
  constructor(urls: readonly string[]) {
    this.#urls = urls
  }

  /** Endpoints of the product's route table that no step has called, as `METHOD path`. */
  async missing(): Promise<string[]> {
    const routes = (await describedRoutes()).map(({ route }) => `${route.method} ${route.path}`)
    return [...routes, ...Object.keys(SERVICE)].filter((name) => !this.#walked.has(name))
  }

  /** @param name Endpoint in the route table, as `METHOD path`. `ids` replace the parameters of the path in order */
  async call(name: string, ids: readonly string[] = [], step: Step = {}): Promise<Json> {
    const response = await this.send(name, ids, step)
    const text = await response.text()
    expect(response.ok, `${name}: ${response.status} ${text.slice(0, 400)}`).toBe(true)
    const isJson = response.headers.get('content-type')?.startsWith('application/json')
    return isJson ? JSON.parse(text) : text
  }

  async send(name: string, ids: readonly string[], { body, form, query = '', headers }: Step): Promise<Response> {
    this.#walked.add(name)
    const [method = '', path = ''] = name.split(' ')
    const rest = [...ids]
    const filled = path.replaceAll(/:\w+|\*$/g, () => rest.shift() ?? '')
    const data = new FormData()
    for (const [field, value] of Object.entries(form ?? {})) data.append(field, value)
    return await fetch(`${this.#next()}${filled}${query}`, {
      method,
      headers: {
        authorization: `Bearer ${TEST_KEY}`,
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      ...(form && { body: data }),
    })
  }

  /** Polls an object until its status is final, such as completed or failed, and returns the object. */
  async ended(name: string, id: string): Promise<Json> {
    const read = async () => {
      const found = await this.call(name, [id])
      return ENDED.has(found.status ?? found.processing_status) && found
    }
    return await until(read, { withinMs: 120_000 })
  }

  /** Sends a chat completion over `GET /v1/ws` and returns the text of its frames. */
  async webSocket(content: string): Promise<string> {
    this.#walked.add('GET /v1/ws')
    const headers = { authorization: `Bearer ${TEST_KEY}` }
    const ws = new WebSocket(`${this.#next().replace('http', 'ws')}/v1/ws`, [WS_PROTOCOL], { headers })
    const frames: string[] = []
    ws.on('message', (data) => frames.push(String(data)))
    await new Promise((resolve, reject) => ws.once('open', resolve).once('error', reject))
    const body = { model: 'echo-1', messages: [{ role: 'user', content }] }
    ws.send(JSON.stringify({ type: 'request.create', id: 'a', endpoint: '/v1/chat/completions', body }))
    await until(() => frames.some((frame) => /"request\.(completed|failed)"/.test(frame)), { withinMs: 60_000 })
    ws.close()
    return frames.join('\n')
  }

  #next(): string {
    return this.#urls[this.#calls++ % this.#urls.length] ?? ''
  }
}

const chat = (content: string, more = {}) => ({ model: 'echo-1', messages: [{ role: 'user', content }], ...more })

export async function walkText(walk: EndpointWalk): Promise<void> {
  const kept = await walk.call('POST /v1/chat/completions', [], { body: chat(LARGE, { store: true }) })
  expect(kept.choices[0].message.content).toBe(LARGE)
  await until(async () => (await walk.send('GET /v1/chat/completions/:id', [kept.id], {})).ok)
  await walk.call('GET /v1/chat/completions')
  expect(JSON.stringify(await walk.call('GET /v1/chat/completions/:id/messages', [kept.id]))).toContain(LARGE)
  await walk.call('POST /v1/chat/completions/:id', [kept.id], { body: { metadata: { a: 'b' } } })
  await walk.call('DELETE /v1/chat/completions/:id', [kept.id])
  const raw = await walk.call('POST /v1/completions', [], {
    body: { model: 'echo-1', prompt: LARGE, max_tokens: 90_000 },
  })
  expect(raw.choices[0].text).toBe(LARGE)
  const message = await walk.call('POST /v1/messages', [], { body: chat(LARGE, { max_tokens: 90_000 }) })
  expect(message.content[0].text).toBe(LARGE)
  expect((await walk.call('POST /v1/messages/count_tokens', [], { body: chat(LARGE) })).input_tokens).toBeGreaterThan(1)
  expect(await walk.webSocket(LARGE)).toContain('large text large text')
}

export async function walkResponses(walk: EndpointWalk): Promise<void> {
  const body = { model: 'echo-1', input: LARGE }
  const { id } = await walk.call('POST /v1/responses', [], { body })
  expect(JSON.stringify(await walk.call('GET /v1/responses/:id', [id]))).toContain(LARGE)
  expect(JSON.stringify(await walk.call('GET /v1/responses/:id/input_items', [id]))).toContain(LARGE)
  await walk.call('POST /v1/responses/input_tokens', [], { body })
  const slow = { ...body, input: `!echo tokens=900 delay_ms=500\n${LARGE}`, background: true }
  const running = await walk.call('POST /v1/responses', [], { body: slow })
  expect((await walk.call('POST /v1/responses/:id/cancel', [running.id])).status).toBe('cancelled')
  await walk.call('DELETE /v1/responses/:id', [id])

  const item = { type: 'message', role: 'user', content: LARGE }
  const created = await walk.call('POST /v1/conversations', [], { body: { items: [item] } })
  const at = [created.id]
  const next = await walk.call('POST /v1/responses', [], { body: { ...body, input: 'more', conversation: created.id } })
  expect(next.status).toBe('completed')
  await walk.call('GET /v1/conversations/:id', at)
  await walk.call('POST /v1/conversations/:id', at, { body: { metadata: { a: 'b' } } })
  const added = await walk.call('POST /v1/conversations/:id/items', at, { body: { items: [item] } })
  const both = [created.id, added.data[0].id]
  expect(JSON.stringify(await walk.call('GET /v1/conversations/:id/items', at))).toContain(LARGE)
  expect(JSON.stringify(await walk.call('GET /v1/conversations/:id/items/:item_id', both))).toContain(LARGE)
  await walk.call('DELETE /v1/conversations/:id/items/:item_id', both)
  await walk.call('DELETE /v1/conversations/:id', at)
}

export async function walkModels(walk: EndpointWalk, hasSandbox: boolean): Promise<void> {
  const texts = Array.from({ length: 200 }, (_, at) => `text ${at} `.repeat(50))
  const vectors = await walk.call('POST /v1/embeddings', [], { body: { model: 'embed-1', input: texts } })
  expect(vectors.data).toHaveLength(200)
  const documents = { model: 'embed-1', query: 'text', documents: texts }
  expect((await walk.call('POST /v1/rerank', [], { body: documents })).results).toHaveLength(200)
  const form = { model: 'speech-1', file: new File([wav(10)], 'speech.wav', { type: 'audio/wav' }) }
  for (const path of ['transcriptions', 'translations'])
    expect(await walk.call(`POST /v1/audio/${path}`, [], { form })).toMatchObject({ text: 'Hello world.' })
  const speech = { model: 'voice-1', voice: 'alloy', input: 'hello' }
  expect((await walk.call('POST /v1/audio/speech', [], { body: speech })).length).toBe(200_000)
  const flagged = await walk.call('POST /v1/moderations', [], { body: { input: [LARGE, LARGE] } })
  expect(flagged.results).toHaveLength(2)
  const code = `import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig("plot.png")\nprint("x" * ${LARGE.length})`
  // The code endpoint is called only if this machine has a sandbox. Without a sandbox, the code pool has no worker.
  if (hasSandbox)
    expect((await walk.call('POST /v1/tools/code', [], { body: { code, lang: 'python' } })).plots).toHaveLength(1)
  const report = await walk.call('POST /v1/deep-research', [], { body: RESEARCH })
  expect(report.choices[0].message.content).toContain('eron')
}

/**
 * Calls the endpoints of durable jobs and of webhook deliveries.
 * @param hook URL of a webhook receiver that refuses every delivery, so that the test can read and retry a failed delivery
 * @returns Id of the completed job
 */
export async function walkJobs(walk: EndpointWalk, hook: string): Promise<string> {
  const endpoint = '/v1/chat/completions'
  const body = { endpoint, body: chat(LARGE), webhook: { url: hook } }
  const { id } = await walk.call('POST /v1/jobs', [], { body })
  expect((await walk.ended('GET /v1/jobs/:id', id)).status).toBe('completed')
  for (const part of ['input', 'result', 'events'])
    expect(JSON.stringify(await walk.call(`GET /v1/jobs/:id/${part}`, [id])), part).toContain('large text large text')
  await walk.call('GET /v1/jobs')
  const slow = { endpoint, body: chat(`!echo tokens=900 delay_ms=500\n${LARGE}`) }
  const running = await walk.call('POST /v1/jobs', [], { body: slow })
  await walk.call('POST /v1/jobs/:id/cancel', [running.id])
  await walk.ended('GET /v1/jobs/:id', running.id)
  const again = await walk.call('POST /v1/jobs/:id/redrive', [running.id])
  await walk.call('POST /v1/jobs/:id/cancel', [again.id])
  await walk.ended('GET /v1/jobs/:id', again.id)
  await walk.call('DELETE /v1/jobs/:id', [again.id])
  const research = { body: { endpoint: '/v1/deep-research', body: RESEARCH } }
  const composed = await walk.call('POST /v1/jobs', [], research)
  await walk.ended('GET /v1/jobs/:id', composed.id)
  expect((await walk.call('GET /v1/jobs/:id/steps', [composed.id])).data.length).toBeGreaterThan(0)
  const replayed = await walk.call('POST /v1/jobs/:id/replay', [composed.id])
  expect((await walk.ended('GET /v1/jobs/:id', replayed.id)).status).toBe('completed')
  return id
}

export async function walkBatches(walk: EndpointWalk): Promise<void> {
  const [method, url] = ['POST', '/v1/chat/completions']
  const text = ['a', 'b'].map((id) => JSON.stringify({ custom_id: id, method, url, body: chat(LARGE) })).join('\n')
  const form = { purpose: 'batch', file: new File([text], 'batch.jsonl') }
  const file = await walk.call('POST /v1/files', [], { form })
  await walk.call('GET /v1/files')
  await walk.call('GET /v1/files/:id', [file.id])
  expect(await walk.call('GET /v1/files/:id/content', [file.id])).toBe(text)
  const body = { input_file_id: file.id, endpoint: url, completion_window: '24h' }
  const batch = await walk.call('POST /v1/batches', [], { body })
  const done = await walk.ended('GET /v1/batches/:id', batch.id)
  const lines = String(await walk.call('GET /v1/files/:id/content', [done.output_file_id])).split('\n')
  expect(lines.filter((line) => line.includes(LARGE))).toHaveLength(2)
  expect(await walk.call('GET /v1/batches/:id/results', [batch.id])).toContain(LARGE)
  await walk.call('GET /v1/batches')
  const cancelled = await walk.call('POST /v1/batches', [], { body })
  await walk.call('POST /v1/batches/:id/cancel', [cancelled.id])
  await walk.call('GET /v1/admin/batches')
  await walk.call('GET /v1/admin/batches/:id', [batch.id])
  const other = await walk.call('POST /v1/batches', [], { body })
  await walk.call('POST /v1/admin/batches/:id/cancel', [other.id])
  await walk.call('DELETE /v1/files/:id', [done.output_file_id])

  const requests = ['a', 'b'].map((id) => ({ custom_id: id, params: chat(LARGE, { max_tokens: 90_000 }) }))
  const messages = await walk.call('POST /v1/messages/batches', [], { body: { requests } })
  await walk.ended('GET /v1/messages/batches/:id', messages.id)
  expect(await walk.call('GET /v1/messages/batches/:id/results', [messages.id])).toContain(LARGE)
  await walk.call('GET /v1/messages/batches')
  await walk.call('DELETE /v1/messages/batches/:id', [messages.id])
  const second = await walk.call('POST /v1/messages/batches', [], { body: { requests } })
  await walk.call('POST /v1/messages/batches/:id/cancel', [second.id])
}

/**
 * Calls the endpoints of the admin API.
 * @param job Id of a completed durable job that has a failed webhook delivery
 */
export async function walkAdmin(walk: EndpointWalk, job: string): Promise<void> {
  const at = (path: string) => `/v1/admin/${path}`
  for (const path of [
    'jobs',
    'audit',
    'pools',
    'models',
    'findings',
    'metrics',
    'pauses',
    'requests',
    'requests/failures',
  ])
    await walk.call(`GET ${at(path)}`)
  expect(JSON.stringify(await walk.call(`GET ${at('jobs/:id')}`, [job]))).toContain(job)
  for (const how of ['cancel', 'redrive'])
    await walk.call(`POST ${at(`jobs/${how}`)}`, [], { body: { status: 'failed', dry_run: true } })
  const slow = { endpoint: '/v1/chat/completions', body: chat(`!echo tokens=900 delay_ms=500\n${LARGE}`) }
  const running = await walk.call('POST /v1/jobs', [], { body: slow })
  await walk.call(`POST ${at('jobs/:id/cancel')}`, [running.id])
  await walk.ended('GET /v1/jobs/:id', running.id)
  const again = await walk.call(`POST ${at('jobs/:id/redrive')}`, [running.id])
  await walk.call(`POST ${at('jobs/:id/cancel')}`, [again.id])
  await walkCalls(walk)
  await walkKeys(walk)
  await walkFleet(walk)
  const failed = async () => (await walk.call(`GET ${at('deliveries')}`)).data[0]
  const delivery = await until(failed, { withinMs: 60_000 })
  await walk.call(`POST ${at('deliveries/:id/retry')}`, [delivery.id])
  const letters = async () => {
    const { data } = await walk.call(`GET ${at('dead-letters')}`)
    return data.length > 1 && data
  }
  const [first, second] = await until(letters, { withinMs: 60_000 })
  await walk.call(`POST ${at('dead-letters/redrive')}`, [], { body: { dry_run: true } })
  await walk.call(`POST ${at('dead-letters/:id/redrive')}`, [first.id])
  await walk.call(`DELETE ${at('dead-letters/:id')}`, [second.id])
}

async function walkCalls(walk: EndpointWalk): Promise<void> {
  const content = `!echo tokens=900 delay_ms=500\n${LARGE}`
  const call = walk.send('POST /v1/chat/completions', [], { body: chat(content) })
  const find = async () => (await walk.call('GET /v1/admin/requests/active')).data[0]
  const { id } = await until(find, { withinMs: 30_000 })
  // The cancel is repeated until it succeeds. Only the ingress that runs the call can cancel it, and each request goes to the next ingress.
  await until(async () => (await walk.send('POST /v1/admin/requests/:id/cancel', [id], {})).ok)
  expect((await call).ok).toBe(false)
  await until(async () => (await walk.send('GET /v1/admin/requests/:id', [id], {})).ok, { withinMs: 30_000 })
}

async function walkKeys(walk: EndpointWalk): Promise<void> {
  const project = await walk.call('POST /v1/admin/projects', [], { body: { name: 'team' } })
  await walk.call('GET /v1/admin/projects')
  await walk.call('GET /v1/admin/projects/:id', [project.id])
  await walk.call('POST /v1/admin/projects/:id', [project.id], { body: { name: 'group' } })
  const key = await walk.call('POST /v1/admin/keys', [], { body: { project: project.id, name: 'laptop' } })
  await walk.call('GET /v1/admin/keys')
  await walk.call('GET /v1/admin/keys/:id', [key.id])
  await walk.call('POST /v1/admin/keys/:id', [key.id], { body: { name: 'desktop' } })
  await walk.call('POST /v1/admin/keys/:id/rotate', [key.id], { body: {} })
  await walk.call('POST /v1/admin/keys/:id/revoke', [key.id])
  for (const path of ['models', 'key', 'usage', 'history', 'webhook-secrets']) await walk.call(`GET /v1/${path}`)
  await walk.call('GET /v1/models/*', ['echo-1'])
}

async function walkFleet(walk: EndpointWalk): Promise<void> {
  const { data } = await walk.call('GET /v1/admin/workers')
  const worker = data.find(({ role }: { role: string }) => role === 'inference')
  for (const how of ['drain', 'undrain']) await walk.call(`POST /v1/admin/workers/:id/${how}`, [worker.id])
  for (const how of ['pause', 'resume']) {
    await walk.call(`POST /v1/admin/pools/:id/${how}`, ['embeddings'])
    await walk.call(`POST /v1/admin/models/:id/${how}`, ['embed-1'])
  }
  for (const name of Object.keys(SERVICE)) await walk.call(name)
}
