/* Tests of keys that share a project, that expire, or that have only the admin scope. */

import { createHash } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { ApiKeys } from '#services/ingress/callers/keys.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { newKey } from '#shared/keys/keys.ts'
import { newWebhookSecret } from '#shared/keys/webhook-secrets.ts'
import { silentLog } from '../../../support/jobs/jobs.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'
import { openWs, refusalOf } from '../../../support/ws.ts'

const CHAT = '/v1/chat/completions'
const ENDLESS = '!echo tokens=100000 delay_ms=40'
const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 100_000,
  messages: [{ role: 'user', content }],
  ...more,
})

const as = (secret: string, more: Record<string, string> = {}) => ({
  headers: { authorization: `Bearer ${secret}`, ...more },
})

const keyOf = (id: string, more: object = {}) => ({
  ...{ id, hash: createHash('sha256').update(`sk-${id}`).digest('hex'), hint: 'sk-...', created_at: 1_790_000_000 },
  ...more,
})

/** Starts a service with the given keys. The secret of each key is `sk-` followed by its id. */
async function startWith(...keys: { id: string }[]): Promise<Stack> {
  const stack = await startStack()
  writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys }))
  const last = keys.at(-1)?.id
  await until(async () => (await stack.get('/v1/models', as(`sk-${last}`))).status !== 401)
  return stack
}

async function submit(stack: Stack, secret: string, headers: Record<string, string> = {}): Promise<string> {
  const response = await stack.post('/v1/jobs', { endpoint: CHAT, body: say('hi') }, as(secret, headers))
  expect(response.status).toBe(202)
  return ((await response.json()) as { id: string }).id
}

describe('the keys of one project', () => {
  it('share jobs, idempotency keys and event streams, which other projects cannot read', async () => {
    const shared = { project: 'proj_1' }
    await using stack = await startWith(
      keyOf('old', shared),
      keyOf('new', shared),
      keyOf('alien', { project: 'proj_2' }),
    )
    const id = await submit(stack, 'sk-old', { 'idempotency-key': 'once' })
    expect(await submit(stack, 'sk-new', { 'idempotency-key': 'once' })).toBe(id)
    expect(await submit(stack, 'sk-alien', { 'idempotency-key': 'once' })).not.toBe(id)
    const listed = async (secret: string) => {
      const list = (await (await stack.get('/v1/jobs', as(secret))).json()) as { data: { id: string }[] }
      return list.data.map((job) => job.id)
    }
    expect(await listed('sk-new')).toEqual([id])
    expect(await listed('sk-alien')).not.toContain(id)
    const result = async (secret: string) => (await stack.get(`/v1/jobs/${id}/result`, as(secret))).status
    await until(async () => (await result('sk-new')) === 200)
    expect(await result('sk-alien')).toBe(404)
    expect(await (await stack.get(`/v1/jobs/${id}/events`, as('sk-new'))).text()).toContain('job.completed')
    using socket = await openWs(stack, as('sk-new'))
    socket.send({ type: 'job.subscribe', id: 's1', job_id: id })
    expect(await socket.end('s1')).toMatchObject({ type: 'request.completed' })
    const forget = { method: 'DELETE', ...as('sk-new') }
    expect((await fetch(`${stack.url}/v1/jobs/${id}`, forget)).status).toBe(200)
  })

  it("can continue each other's responses in a batch, unlike keys of other projects", async () => {
    await using stack = await startWith(keyOf('one', { project: 'proj_1' }), keyOf('alien', { project: 'proj_2' }))
    const said = await stack.post('/v1/responses', { model: 'echo-1', input: 'first' }, as('sk-one'))
    const { id: previous_response_id } = (await said.json()) as { id: string }
    const counts = async (secret: string) => {
      const body = { model: 'echo-1', input: 'second', previous_response_id }
      const line = { custom_id: 'a', method: 'POST', url: '/v1/responses', body }
      const form = new FormData()
      form.set('purpose', 'batch')
      form.set('file', new Blob([JSON.stringify(line)]), 'in.jsonl')
      const uploaded = await fetch(`${stack.url}/v1/files`, { method: 'POST', body: form, ...as(secret) })
      const { id: input_file_id } = (await uploaded.json()) as { id: string }
      const batch = { input_file_id, endpoint: '/v1/responses', completion_window: '1h' }
      const { id } = (await (await stack.post('/v1/batches', batch, as(secret))).json()) as { id: string }
      return await until(async () => {
        const shown = await (await stack.get(`/v1/batches/${id}`, as(secret))).json()
        const { status, request_counts } = shown as { status: string; request_counts: object }
        return status === 'completed' ? request_counts : undefined
      })
    }
    expect(await counts('sk-one')).toEqual({ total: 1, completed: 1, failed: 0 })
    expect(await counts('sk-alien')).toEqual({ total: 1, completed: 0, failed: 1 })
  })

  it('can read the jobs of a key whose id became the project id', async () => {
    await using stack = await startWith(keyOf('key_old'), keyOf('heir', { project: 'key_old' }))
    const id = await submit(stack, 'sk-key_old')
    expect((await stack.get(`/v1/jobs/${id}`, as('sk-heir'))).status).toBe(200)
    expect((await stack.get(`/v1/jobs/${id}`, as(TEST_KEY))).status).toBe(404)
  })
})

describe('the webhook secrets of a project', () => {
  it('are returned to keys of the project, and follow the store', async () => {
    const shared = { project: 'proj_1' }
    const few = { ...shared, endpoints: [CHAT] }
    await using stack = await startWith(keyOf('one', shared), keyOf('few', few), keyOf('alien', { project: 'proj_2' }))
    const read = (secret: string) => stack.get('/v1/webhook-secrets', as(secret))
    const response = await read('sk-one')
    expect([response.status, response.headers.get('cache-control')]).toEqual([200, 'no-store'])
    const { data } = (await response.json()) as { data: { secret: string }[] }
    const derived = { id: 'default', object: 'webhook_secret', created_at: null, is_default: true }
    expect(data).toEqual([{ ...derived, secret: expect.stringMatching(/^whsec_/) }])
    const other = (await (await read('sk-alien')).json()) as { data: { secret: string }[] }
    expect(other.data[0]?.secret).not.toBe(data[0]?.secret)
    expect((await read('sk-few')).status).toBe(403)
    const [first, next] = [newWebhookSecret('proj_1', data[0]?.secret), newWebhookSecret('proj_1')]
    await openFileKeys(stack.dataDir).createWebhookSecret(next, first)
    const both = (await (await read('sk-one')).json()) as { data: { secret: string }[] }
    expect(both.data.map(({ secret }) => secret)).toEqual([first.secret, next.secret])
  })
})

describe('a key with an expiry', () => {
  it('is refused after the expiry, and its open streams end', async () => {
    const expires_at = Math.floor(Date.now() / 1_000) + 6
    await using stack = await startWith(keyOf('gone', { expires_at: 1_790_000_000 }), keyOf('brief', { expires_at }))
    const refused = await stack.get('/v1/models', as('sk-gone'))
    expect([refused.status, await refused.json()]).toMatchObject([
      401,
      { error: { code: 'invalid_api_key', message: 'This API key expired on 2026-09-21T14:13:20Z.' } },
    ])
    using socket = await openWs(stack, as('sk-brief'))
    const stream = await stack.post(CHAT, say(ENDLESS, { stream: true }), as('sk-brief'))
    expect(stream.status).toBe(200)
    expect(await stream.text()).toMatch(/This API key expired on .*"code":"invalid_api_key"/)
    await until(() => socket.closed)
    expect(socket.closed).toMatchObject({ code: 4401 })
  })

  describe('and a changed system clock', () => {
    afterEach(() => vi.useRealTimers())

    it('expires once the clock passes the expiry, and is valid again after the clock is set back', async () => {
      const directory = await mkdtemp(join(tmpdir(), 'sluice-keys-'))
      onTestFinished(() => rm(directory, { recursive: true, force: true }))
      const store = openFileKeys(directory)
      const now = Date.now()
      const { key, secret } = newKey()
      await store.create({ ...key, expires_at: Math.floor(now / 1_000) + 40 * 86_400 })
      const keys = await ApiKeys.open(store, undefined, silentLog)
      onTestFinished(() => keys.close())
      const ends: string[] = []
      keys.watch(keys.get(secret), ({ message }) => ends.push(message))
      vi.useFakeTimers({ now: now + 41 * 86_400_000, toFake: ['Date'] })
      expect(keys.find(secret)).toBeUndefined()
      expect(() => keys.get(secret)).toThrow('This API key expired on')
      await until(() => ends.length > 0)
      expect(ends).toHaveLength(1)
      vi.setSystemTime(now - 86_400_000)
      expect(keys.find(secret)?.id).toBe(key.id)
    })
  })
})

describe('a key with the admin scope only', () => {
  it('is refused for calls over HTTP and WebSocket', async () => {
    await using stack = await startWith(
      keyOf('admin', { scopes: ['admin'] }),
      keyOf('nothing', { scopes: [] }),
      keyOf('both', { scopes: ['calls', 'admin'] }),
    )
    for (const secret of ['sk-admin', 'sk-nothing']) {
      for (const path of ['/v1/models', '/v1/jobs', '/v1/jobs/job_0123456789', '/v1/ws']) {
        expect((await stack.get(path, as(secret))).status).toBe(403)
      }
      const refused = await stack.post(CHAT, say('hi'), as(secret))
      expect([refused.status, await refused.json()]).toMatchObject([403, { error: { code: 'permission_denied' } }])
      expect((await refusalOf(stack, as(secret))).status).toBe(403)
    }
    expect((await stack.post(CHAT, say('hi'), as('sk-both'))).status).toBe(200)
  })
})
