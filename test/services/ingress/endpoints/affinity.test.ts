import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { stringify } from 'yaml'
import { keyOf } from '#shared/keys/keys.ts'
import { type Script, type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { type Stack, startStack, until } from '../../../support/stack.ts'

type Json = Record<string, unknown>

const answering: Script = (_call, answer) => {
  const message = { role: 'assistant', content: 'ok' }
  const usage = { prompt_tokens: 100, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 75 } }
  answer.json({ choices: [{ index: 0, message, finish_reason: 'stop' }], usage })
}

const OPERATOR = { headers: { authorization: 'Bearer sk-op-0123456789' } }

let servers: ScriptedUpstream[]
let stack: Stack
const modelsOn = (used: readonly ScriptedUpstream[]) => [
  { id: 'm', engine: { type: 'openai', base_urls: used.map(({ url }) => `${url}/v1`) } },
]
beforeAll(async () => {
  servers = await Promise.all([1, 2, 3, 4].map(() => startUpstream(answering)))
  stack = await startStack({ models: modelsOn(servers) })
  const operator = keyOf('sk-op-0123456789', { id: 'op', project: 'ops', scopes: ['admin'] })
  await writeFile(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys: [operator] }))
  await until(async () => (await stack.get('/v1/admin/models', OPERATOR)).status === 200)
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await Promise.all(servers.map((server) => server[Symbol.asyncDispose]()))
})

let before: number[]
beforeEach(() => {
  before = servers.map(({ calls }) => calls.length)
})
const countsNow = () => servers.map(({ calls }, at) => calls.length - (before[at] ?? 0))
const used = () => countsNow().filter((count) => count > 0)

async function post(path: string, body: Json, headers: Record<string, string> = {}): Promise<Json> {
  const answer = await stack.post(path, { model: 'm', ...body }, { headers })
  const json = (await answer.json()) as Json
  expect(answer.status, JSON.stringify(json)).toBe(200)
  return json
}

const userSays = (content: string) => ({ role: 'user', content })
const CONVERSATION = [userSays('first'), { role: 'assistant', content: 'ok' }, userSays('second')]

test('all turns of a conversation reach one upstream server, without a session id', async () => {
  for (const path of ['/v1/chat/completions', '/v1/messages']) {
    before = servers.map(({ calls }) => calls.length)
    const more = path === '/v1/messages' ? { max_tokens: 10 } : {}
    for (const turns of [1, 3, 3, 1]) await post(path, { messages: CONVERSATION.slice(0, turns), ...more })
    expect(used(), path).toEqual([4])
  }
})

test('all responses of a chain or of a stored conversation run on one upstream server', async () => {
  let previous: unknown
  for (const input of ['one', 'two', 'three']) {
    const { id } = await post('/v1/responses', {
      input,
      ...(previous !== undefined && { previous_response_id: previous }),
    })
    previous = id
  }
  expect(used()).toEqual([3])
  before = servers.map(({ calls }) => calls.length)
  const created = await stack.post('/v1/conversations', {})
  const { id: conversation } = (await created.json()) as { id: string }
  for (const input of ['a', 'b', 'c']) await post('/v1/responses', { input, conversation })
  expect(used()).toEqual([3])
})

test('calls with equal session headers or prompt_cache_key values reach the same upstream server, whatever their prompts', async () => {
  for (const text of ['a', 'b', 'c', 'd', 'e', 'f']) {
    await post('/v1/chat/completions', { messages: [userSays(text)] }, { 'x-session-id': 's1' })
  }
  expect(used()).toEqual([6])
  before = servers.map(({ calls }) => calls.length)
  for (const text of ['a', 'b', 'c', 'd', 'e', 'f']) {
    await post('/v1/chat/completions', { messages: [userSays(text)], prompt_cache_key: 'k1' }, { 'x-session-id': text })
  }
  expect(used()).toEqual([6])
  before = servers.map(({ calls }) => calls.length)
  for (const text of 'abcdefghijklmnop') {
    await post('/v1/chat/completions', { messages: [userSays(text)] }, { 'x-session-id': 'x'.repeat(8_000) })
  }
  expect(used().length).toBeGreaterThan(1)
})

test('the admin API and a metric show the share of cached prompt tokens by server', async () => {
  const model = async () => {
    const { data } = (await (await stack.get('/v1/admin/models', OPERATOR)).json()) as { data: Json[] }
    return data[0] as { id: string; cached_share: number | null; servers: Json[] }
  }
  await post('/v1/chat/completions', { messages: CONVERSATION })
  // The test waits, because a worker publishes its token counts only every two seconds.
  await until(async () => (await model()).cached_share === 0.75)
  const { servers: shown } = await model()
  expect(shown.map(({ host }) => host)).toEqual(servers.map(({ url }) => new URL(url).host))
  expect(shown.some(({ input_tokens, cached_tokens }) => Number(input_tokens) > 0 && Number(cached_tokens) > 0)).toBe(
    true,
  )
  const metrics = await (await stack.get('/metrics')).text()
  expect(metrics).toMatch(/sluice_server_prompt_tokens_total\{model="m",server="\d",cache="hit"\} [1-9]/)
})

test('the endpoint for the input of a job does not return the affinity key', async () => {
  const accepted = await stack.post(
    '/v1/chat/completions',
    { model: 'm', messages: [userSays('hi')] },
    { headers: { prefer: 'respond-async' } },
  )
  const { id } = (await accepted.json()) as { id: string }
  const { input } = (await (await stack.get(`/v1/jobs/${id}/input`)).json()) as { input: Json }
  expect(input.model).toBe('m')
  expect(input).not.toHaveProperty('affinity')
  await until(async () => ((await (await stack.get(`/v1/jobs/${id}`)).json()) as Json).status === 'completed')
})

test('the request log shows and filters the upstream server of calls and durable jobs', async () => {
  const headers = { 'x-session-id': 'logged' }
  const send = async (more: Record<string, string>) => {
    const body = { model: 'm', messages: [userSays('hi')] }
    const answer = await stack.post('/v1/chat/completions', body, { headers: { ...headers, ...more } })
    return String(answer.headers.get('x-request-id'))
  }
  const ids = [await send({}), await send({ 'idempotency-key': 'logged' })]
  const server = String(countsNow().findIndex((count) => count > 0))
  const list = async (query: string) => {
    const answer = await stack.get(`/v1/admin/requests?limit=100&${query}`, OPERATOR)
    return ((await answer.json()) as { data: Json[] }).data
  }
  await until(async () => (await list(`server=${server}`)).filter(({ id }) => ids.includes(String(id))).length === 2)
  expect((await list('')).filter((row) => row.server === server)).toEqual(await list(`server=${server}`))
  expect(await list('server=9')).toEqual([])
})

test('no call fails under load when models.yaml removes an upstream server and adds another server', async () => {
  const session = (at: number) => ({ 'x-session-id': `churn-${at}` })
  const ask = async (at: number) => {
    await post('/v1/chat/completions', { messages: [userSays('hi')] }, session(at))
  }
  const sessions = Array.from({ length: 16 }, (_, at) => at)
  let isChanging = true
  const load = Promise.all(
    sessions.slice(0, 4).map(async (at) => {
      while (isChanging) await ask(at)
    }),
  )
  const change = (used: readonly ScriptedUpstream[]) =>
    writeFile(join(stack.dataDir, 'models.yaml'), stringify({ models: modelsOn(used) }))
  await change(servers.slice(0, 3))
  // The service reads the changed models file after a while. From then on, the removed server gets no more calls.
  await until(async () => {
    const seen = servers[3]?.calls.length
    for (const at of sessions) await ask(at)
    return servers[3]?.calls.length === seen
  })
  await change(servers)
  await until(async () => {
    const seen = servers[3]?.calls.length ?? 0
    for (const at of sessions) await ask(at)
    return (servers[3]?.calls.length ?? 0) > seen
  })
  isChanging = false
  await load
})
