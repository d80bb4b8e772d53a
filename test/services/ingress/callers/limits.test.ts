/* Tests of authentication, permissions, usage limits, and the fair queue of keys. */

import { createHash } from 'node:crypto'
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { ApiKeys } from '#services/ingress/callers/keys.ts'
import { isFirstKeyAdmin } from '#services/ingress/ingress.ts'
import { parseConfig } from '#shared/config/config.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { hasScope } from '#shared/keys/keys.ts'
import { silentLog } from '../../../support/jobs/jobs.ts'
import { openRaw, rawRequest } from '../../../support/raw-http.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'
import { openWs } from '../../../support/ws.ts'

const CHAT = '/v1/chat/completions'
const MESSAGES = '/v1/messages'
const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 1_000,
  messages: [{ role: 'user', content }],
  ...more,
})

function storedKey(secret: string, more: object = {}): object {
  const hash = createHash('sha256').update(secret).digest('hex')
  return { id: `key_${secret}`, hash, hint: 'sk-...', created_at: 1_790_000_000, ...more }
}

function writeKeys(dataDir: string, ...keys: object[]): void {
  writeFileSync(join(dataDir, 'keys.json'), JSON.stringify({ keys }))
}

const as = (secret: string) => ({ headers: { authorization: `Bearer ${secret}` } })

describe('the key file', () => {
  async function openKeys(fixed?: string) {
    const dataDir = await mkdtemp(join(tmpdir(), 'sluice-keys-'))
    onTestFinished(() => rm(dataDir, { recursive: true, force: true }))
    const place = join(dataDir, 'data')
    const open = async () => {
      const keys = await ApiKeys.open(openFileKeys(place), fixed, silentLog)
      onTestFinished(() => keys.close())
      return keys
    }
    return { keys: await open(), path: join(place, 'keys.json'), open }
  }

  it('is created at the first start, readable by its owner only and without the secret', async () => {
    const { keys, path, open } = await openKeys()
    const secret = keys.created as string
    expect(secret).toMatch(/^sk-[\w-]{40}$/)
    expect(keys.find(secret)).toMatchObject({ id: 'key_first', revoked: false })
    expect(statSync(path).mode & 0o777).toBe(0o600)
    expect(readFileSync(path, 'utf8')).not.toContain(secret)
    const again = await open()
    expect(again.created).toBeUndefined()
    expect(again.find(secret)?.id).toBe('key_first')
  })

  it.each([
    ['one process', {}, true],
    ['one process with FIRST_KEY_ADMIN=false', { FIRST_KEY_ADMIN: 'false' }, false],
    ['a fleet', { KAFKA_BROKERS: 'kafka:9092' }, false],
    ['a process with Postgres', { DATABASE_URL: 'postgres://db/x' }, false],
    ['a fleet with FIRST_KEY_ADMIN=true', { KAFKA_BROKERS: 'kafka:9092', FIRST_KEY_ADMIN: 'true' }, true],
  ])('contains a first key whose admin scope depends on the deployment: %s', async (_, settings, isAdmin) => {
    expect(isFirstKeyAdmin(parseConfig(settings))).toBe(isAdmin)
    for (const fixed of ['sk-from-the-settings', undefined]) {
      const directory = mkdtempSync(join(tmpdir(), 'sluice-first-key-'))
      const keys = await ApiKeys.open(openFileKeys(directory), fixed, silentLog, isAdmin)
      const key = keys.get(fixed ?? keys.created ?? '')
      expect([hasScope(key, 'calls'), hasScope(key, 'admin')]).toEqual([true, isAdmin])
      await keys.close()
      rmSync(directory, { recursive: true })
    }
  })

  it('is not created if the settings define a key', async () => {
    const { keys, path } = await openKeys('sk-from-the-settings')
    expect(keys.created).toBeUndefined()
    expect(existsSync(path)).toBe(false)
    expect(keys.find('sk-from-the-settings')?.id).toBe('key_env')
  })

  it.each(['', 'sk', 'sk-from-the-setting', 'SK-FROM-THE-SETTINGS', '__proto__', '\u0000', 'x'.repeat(100_000)])(
    'does not make the key %j valid if the settings define another key',
    async (secret) => {
      const { keys } = await openKeys('sk-from-the-settings')
      expect(keys.find(secret)).toBeUndefined()
    },
  )

  it('that is corrupt prevents the start, but does not affect a running service', async () => {
    const { keys, path, open } = await openKeys()
    const secret = keys.created as string
    writeFileSync(path, '{"keys": [{"id":')
    await expect(open()).rejects.toThrow(path)
    // The service polls the key file once per second. After two polls, the corrupt file must not have replaced the known keys.
    await new Promise((resolve) => setTimeout(resolve, 2_100))
    expect(keys.find(secret)?.id).toBe('key_first')
  })

  it('is reloaded after its change or deletion, even right after the start', async () => {
    const { keys, path } = await openKeys()
    const first = keys.created as string
    writeFileSync(path, JSON.stringify({ keys: [storedKey('sk-changed')] }))
    await until(() => keys.find('sk-changed') && !keys.find(first))
    await rm(path)
    await until(() => !keys.find('sk-changed'))
  })

  it('can be edited to add and revoke keys while the service runs', async () => {
    await using stack = await startStack()
    const status = async () => (await stack.get('/v1/models', as('sk-added-later'))).status
    expect(await status()).toBe(401)
    writeKeys(stack.dataDir, storedKey('sk-added-later'))
    await until(async () => (await status()) === 200, { withinMs: 3_000 })
    writeKeys(stack.dataDir, storedKey('sk-added-later', { revoked: true }))
    await until(async () => (await status()) === 401, { withinMs: 3_000 })
    expect((await stack.get('/v1/models')).status).toBe(200)
  })
})

describe('a key with restricted endpoints and models', () => {
  async function startLimited(): Promise<Stack> {
    const stack = await startStack({ models: [ECHO_MODEL, { ...ECHO_MODEL, id: 'echo-2' }] })
    writeKeys(
      stack.dataDir,
      storedKey('sk-only-chat', { endpoints: [CHAT] }),
      storedKey('sk-only-echo-1', { models: ['echo-1'] }),
    )
    await until(async () => (await stack.get('/v1/models', as('sk-only-echo-1'))).status === 200)
    return stack
  }

  it('gets 403 for other endpoints and models, in the error format of the path', async () => {
    await using stack = await startLimited()
    expect((await stack.post(CHAT, say('hi'), as('sk-only-chat'))).status).toBe(200)
    const endpoint = await stack.post(MESSAGES, say('hi'), as('sk-only-chat'))
    expect([endpoint.status, await endpoint.json()]).toEqual([
      403,
      expect.objectContaining({ type: 'error', error: expect.objectContaining({ type: 'permission_error' }) }),
    ])
    const model = await stack.post(CHAT, say('hi', { model: 'echo-2' }), as('sk-only-echo-1'))
    expect([model.status, await model.json()]).toMatchObject([
      403,
      { error: { type: 'invalid_request_error', code: 'model_not_allowed', param: 'model' } },
    ])
  })

  it('gets a list of its allowed endpoints and models in the error', async () => {
    await using stack = await startLimited()
    const said = async (answer: Promise<Response>) =>
      ((await (await answer).json()) as { error: { message: string } }).error.message
    const endpoint = said(stack.post(MESSAGES, say('hi'), as('sk-only-chat')))
    expect(await endpoint).toBe(`This API key may not call ${MESSAGES}. Allowed endpoints: ${CHAT}.`)
    const model = said(stack.post(CHAT, say('hi', { model: 'echo-2' }), as('sk-only-echo-1')))
    expect(await model).toBe("This API key may not use the model 'echo-2'. This key may use: echo-1.")
  })

  it('lists only its allowed models', async () => {
    await using stack = await startLimited()
    const list = (await (await stack.get('/v1/models', as('sk-only-echo-1'))).json()) as { data: { id: string }[] }
    expect(list.data.map(({ id }) => id)).toEqual(['echo-1'])
    expect((await stack.get('/v1/models/echo-2', as('sk-only-echo-1'))).status).toBe(404)
  })
})

describe('the rate limit of requests', () => {
  it('is reported in the headers of each response, and further calls get 429 in the OpenAI format', async () => {
    await using stack = await startStack({ settings: { RATE_LIMIT_REQUESTS: '3' } })
    for (const remaining of ['2', '1', '0']) {
      const response = await stack.post(CHAT, say('hi'))
      expect(response.status).toBe(200)
      expect(response.headers.get('x-ratelimit-limit-requests')).toBe('3')
      expect(response.headers.get('x-ratelimit-remaining-requests')).toBe(remaining)
      expect(response.headers.get('x-ratelimit-reset-requests')).toMatch(/^\d+(s|ms)$/)
    }
    const refused = await stack.post(CHAT, say('hi'))
    expect([refused.status, await refused.json()]).toMatchObject([
      429,
      { error: { type: 'requests', code: 'rate_limit_exceeded', param: null } },
    ])
    expect(refused.headers.get('x-ratelimit-remaining-requests')).toBe('0')
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
    expect(Number(refused.headers.get('retry-after'))).toBeLessThanOrEqual(60)
  })

  it('is reported in the headers and errors of the Anthropic format', async () => {
    await using stack = await startStack({ settings: { RATE_LIMIT_REQUESTS: '1' } })
    const response = await stack.post(MESSAGES, say('hi'))
    const refused = await stack.post(MESSAGES, say('hi'))
    for (const { headers } of [response, refused]) {
      expect(headers.get('anthropic-ratelimit-requests-limit')).toBe('1')
      expect(headers.get('anthropic-ratelimit-requests-remaining')).toBe('0')
      expect(Date.parse(headers.get('anthropic-ratelimit-requests-reset') ?? '')).toBeGreaterThan(Date.now())
    }
    expect([refused.status, await refused.json()]).toMatchObject([429, { error: { type: 'rate_limit_error' } }])
    expect(refused.headers.get('retry-after')).toMatch(/^\d+$/)
  })

  it('is counted per key', async () => {
    await using stack = await startStack({ settings: { RATE_LIMIT_REQUESTS: '1' } })
    writeKeys(stack.dataDir, storedKey('sk-other-key'))
    await until(async () => (await stack.get('/v1/models', as('sk-other-key'))).status === 200)
    expect((await stack.post(CHAT, say('hi'))).status).toBe(200)
    expect((await stack.post(CHAT, say('hi'))).status).toBe(429)
    expect((await stack.post(CHAT, say('hi'), as('sk-other-key'))).status).toBe(200)
  })
})

describe('the rate limit of tokens', () => {
  it('refuses the next call once all tokens are used, and is reported in the headers', async () => {
    await using stack = await startStack({ settings: { RATE_LIMIT_TOKENS: '20' } })
    const first = await stack.post(CHAT, say('!echo tokens=50'))
    expect(first.headers.get('x-ratelimit-remaining-tokens')).toBe('20')
    await first.text()
    const refused = await stack.post(CHAT, say('hi'))
    expect(refused.status).toBe(429)
    expect(await refused.json()).toMatchObject({
      error: { code: 'rate_limit_exceeded', type: 'tokens', message: expect.stringContaining('tokens') },
    })
    expect(refused.headers.get('x-ratelimit-remaining-tokens')).toBe('0')
    const messages = await stack.post(MESSAGES, say('hi'))
    expect(messages.headers.get('anthropic-ratelimit-tokens-remaining')).toBe('0')
  })

  it('includes tokens generated for a caller that disconnected', async () => {
    await using stack = await startStack({ settings: { RATE_LIMIT_TOKENS: '20' } })
    const leave = new AbortController()
    const script = say('!echo tokens=1000 delay_ms=5', { stream: true })
    const response = await stack.post(CHAT, script, { signal: leave.signal })
    const reader = response.body?.getReader()
    for (let chunks = 0; chunks < 60; chunks++) await reader?.read()
    leave.abort()
    await until(async () => (await stack.post(CHAT, say('hi'))).status === 429)
  })
})

describe('the tokens of a durable job', () => {
  it('count against the rate limit like the tokens of a synchronous call', async () => {
    await using stack = await startStack({ settings: { RATE_LIMIT_TOKENS: '20' } })
    const accepted = await stack.post(CHAT, say('!echo tokens=50'), { headers: { prefer: 'respond-async' } })
    expect(accepted.status).toBe(202)
    await until(async () => (await stack.post(CHAT, say('hi'))).status === 429)
  })
})

describe('the concurrency limit of a key', () => {
  const SLOW = say('!echo first_ms=300 text=done')

  it('refuses further calls, and admits a call when a running call has ended', async () => {
    await using stack = await startStack({ settings: { CONCURRENCY_MAX_PER_KEY: '2' } })
    const all = await Promise.all(Array.from({ length: 6 }, () => stack.post(CHAT, SLOW)))
    expect(all.map(({ status }) => status).sort()).toEqual([200, 200, 429, 429, 429, 429])
    expect((await stack.post(CHAT, say('hi'))).status).toBe(200)
  })

  it('includes calls that arrive in one network packet', async () => {
    await using stack = await startStack({ settings: { CONCURRENCY_MAX_PER_KEY: '2' } })
    using client = await openRaw(stack.url)
    const headers = [`authorization: Bearer ${TEST_KEY}`, 'content-type: application/json']
    client.send(rawRequest(`POST ${CHAT}`, headers, JSON.stringify(SLOW)).repeat(6))
    await client.answer(5)
    const statuses = [...client.received.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status)
    expect(statuses).toEqual(['200', '200', '429', '429', '429', '429'])
  })

  it('releases the permit of a caller that disconnects, sends invalid data or is refused', async () => {
    await using stack = await startStack({ settings: { CONCURRENCY_MAX_PER_KEY: '1', RATE_LIMIT_REQUESTS: '100' } })
    for (const body of [{}, say('hi', { model: 'none' }), say('!echo fail=upstream_refused')]) {
      expect((await stack.post(CHAT, body)).status).toBeGreaterThanOrEqual(400)
    }
    const left = AbortSignal.timeout(50)
    await stack.post(CHAT, say('!echo first_ms=60000'), { signal: left }).catch(() => {})
    await until(async () => (await stack.post(CHAT, say('hi'))).status === 200)
  })
})

describe('requests that read, poll, follow or cancel a job', () => {
  const ENDLESS = { endpoint: CHAT, body: say('!echo first_ms=60000 tokens=9') }
  const ASYNC = { headers: { prefer: 'respond-async' } }

  it('succeed even if the key has reached all limits on calls', async () => {
    const settings = { RATE_LIMIT_REQUESTS: '1', CONCURRENCY_MAX_PER_KEY: '1', RATE_LIMIT_TOKENS: '10' }
    await using stack = await startStack({ settings })
    const { id } = (await (await stack.post('/v1/jobs', ENDLESS)).json()) as { id: string }
    for (const [path, init] of [
      [CHAT, {}],
      [CHAT, ASYNC],
      ['/v1/jobs', {}],
    ] as const) {
      expect((await stack.post(path, path === CHAT ? say('hi') : ENDLESS, init)).status).toBe(429)
    }
    const reads = [
      '/v1/usage',
      '/v1/models',
      '/v1/models/echo-1',
      '/v1/jobs',
      `/v1/jobs/${id}`,
      `/v1/jobs/${id}?wait=1`,
    ]
    for (const path of [...reads, ...reads]) {
      const response = await stack.get(path)
      expect([path, response.status]).toEqual([path, 200])
      expect(response.headers.get('x-ratelimit-remaining-requests')).toBe('0')
      await response.text()
    }
    expect((await stack.get(`/v1/jobs/${id}/result`)).status).toBe(409)
    const left = new AbortController()
    expect((await stack.get(`/v1/jobs/${id}/events`, { signal: left.signal })).status).toBe(200)
    left.abort()
    const cancel = await fetch(`${stack.url}/v1/jobs/${id}/cancel`, { method: 'POST', ...as(TEST_KEY) })
    expect(cancel.status).toBe(200)
    const redrive = await fetch(`${stack.url}/v1/jobs/${id}/redrive`, { method: 'POST', ...as(TEST_KEY) })
    expect(redrive.status).toBe(429)
    await until(async () => (await stack.get(`/v1/jobs/${id}/result`)).status === 409)
    const forget = async () => (await fetch(`${stack.url}/v1/jobs/${id}`, { method: 'DELETE', ...as(TEST_KEY) })).status
    await until(async () => (await forget()) === 200)
  })

  it('have a separate limit on open requests, which does not apply to a cancel', async () => {
    await using stack = await startStack({ settings: { FOLLOWS_MAX_PER_KEY: '2' } })
    const { id } = (await (await stack.post('/v1/jobs', ENDLESS)).json()) as { id: string }
    const leave = new AbortController()
    const open = () => stack.get(`/v1/jobs/${id}/events`, { signal: leave.signal })
    const waits = stack.get(`/v1/jobs/${id}?wait=60`)
    expect((await open()).status).toBe(200)
    const refused = await until(async () => {
      const response = await open()
      return response.status === 429 ? response : undefined
    })
    expect(await refused.json()).toMatchObject({ error: { code: 'rate_limit_exceeded', type: 'requests' } })
    expect(refused.headers.get('retry-after')).toBe('1')
    expect((await stack.get(`/v1/jobs/${id}?wait=60`)).status).toBe(429)
    using client = await openWs(stack)
    client.send({ type: 'job.subscribe', id: 's1', job_id: id })
    expect(await client.end('s1')).toMatchObject({ type: 'request.failed', status: 429, retry_after: 1 })
    expect((await stack.get(`/v1/jobs/${id}`)).status).toBe(200)
    expect((await fetch(`${stack.url}/v1/jobs/${id}/cancel`, { method: 'POST', ...as(TEST_KEY) })).status).toBe(200)
    expect((await waits).status).toBe(200)
    leave.abort()
    client.send({ type: 'job.subscribe', id: 's2', job_id: id })
    expect(await client.end('s2')).toMatchObject({ type: 'request.completed' })
  })
})

describe.each(['embedded', 'Kafka'])('the fair queue of keys, %s', (mode) => {
  const kafka = mode === 'Kafka' ? (inject('kafka') ?? undefined) : undefined

  it.skipIf(mode === 'Kafka' && !kafka)(
    'starts a call of one key before earlier waiting calls of another key',
    async () => {
      await using stack = await startStack({ kafka, settings: { INFERENCE_SLOTS: '2' } })
      writeKeys(stack.dataDir, storedKey('sk-other-key'))
      await until(async () => (await stack.get('/v1/models', as('sk-other-key'))).status === 200)
      let answered = 0
      const many = Array.from({ length: 40 }, async () => {
        const response = await stack.post(CHAT, say('!echo first_ms=100\nhi'))
        answered++
        return response.status
      })
      await until(() => answered > 0)
      expect((await stack.post(CHAT, say('hi'), as('sk-other-key'))).status).toBe(200)
      // The call of the other key waits only for calls that are already in the worker queue, and for one round of the fair queue. The test
      // therefore requires that fewer than half of the 40 calls have ended.
      expect(answered).toBeLessThan(20)
      expect(await Promise.all(many)).toEqual(Array(40).fill(200))
    },
  )
})
