/* Tests of the revocation of a key: its open connections end within seconds, each with an error in the format of its protocol. */

import { createHash } from 'node:crypto'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, inject, it } from 'vitest'
import { keyOf } from '#shared/keys/keys.ts'
import { openPostgresKeys } from '#shared/keys/postgres.ts'
import { openPostgresDatabase } from '../../../support/jobs/stores.ts'
import { openRaw, rawRequest } from '../../../support/raw-http.ts'
import { type Stack, startStack, until } from '../../../support/stack.ts'
import { openWs } from '../../../support/ws.ts'

const CHAT = '/v1/chat/completions'
const MESSAGES = '/v1/messages'
const SECRET = 'sk-to-be-revoked-0123'
const AS = { headers: { authorization: `Bearer ${SECRET}` } }
/** Prompt of a response that streams for an hour. */
const ENDLESS = '!echo tokens=100000 delay_ms=40'
/**
 * Maximum time until a revocation has effect, in ms. The service polls the key store once per second; a busy machine needs additional time.
 */
const WITHIN_MS = 8_000

const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 100_000,
  messages: [{ role: 'user', content }],
  ...more,
})

interface Revocable extends AsyncDisposable {
  readonly stack: Stack
  revoke(): Promise<unknown>
}

async function startWithFile(): Promise<Revocable> {
  const stack = await startStack()
  const hash = createHash('sha256').update(SECRET).digest('hex')
  const key = { id: 'key_doomed', hash, hint: 'sk-...0123', created_at: 1_790_000_000 }
  const write = (revoked: boolean) =>
    writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys: [{ ...key, revoked }] }))
  write(false)
  await isValid(stack)
  return { stack, revoke: async () => write(true), [Symbol.asyncDispose]: () => stack[Symbol.asyncDispose]() }
}

async function startWithPostgres(): Promise<Revocable> {
  const database = await openPostgresDatabase(inject('postgres') ?? '')
  const stack = await startStack({ settings: { DATABASE_URL: database.url } })
  const store = await openPostgresKeys(database.url)
  const key = keyOf(SECRET, { id: 'key_doomed' })
  await store.create(key)
  await isValid(stack)
  return {
    stack,
    revoke: () => store.revoke(key.id),
    async [Symbol.asyncDispose]() {
      await store.close()
      await stack[Symbol.asyncDispose]()
      await database[Symbol.asyncDispose]()
    },
  }
}

async function isValid(stack: Stack): Promise<void> {
  await until(async () => (await stack.get('/v1/models', AS)).status === 200)
}

/** Reads a response in the background. `text` is the text received so far; `isCut` is true if the connection broke. */
function reading(response: Response): { text: string; isEnded: boolean; isCut: boolean } {
  const state = { text: '', isEnded: false, isCut: false }
  const read = async () => {
    const decoder = new TextDecoder()
    for await (const bytes of response.body ?? []) state.text += decoder.decode(bytes, { stream: true })
  }
  void read().then(
    () => {
      state.isEnded = true
    },
    () => {
      state.isEnded = state.isCut = true
    },
  )
  return state
}

async function follow(stack: Stack, path: string, body?: object) {
  const state = reading(body ? await stack.post(path, body, AS) : await stack.get(path, AS))
  await until(() => state.text.length > 100)
  return state
}

/** Parses the last event of an event stream. */
function lastFrame(text: string): { event: string | undefined; data: unknown } {
  const frame = text.trimEnd().split('\n\n').at(-1) ?? ''
  const [, data = 'null'] = /^data: (.*)$/m.exec(frame) ?? []
  return { event: /^event: (.*)$/m.exec(frame)?.[1], data: JSON.parse(data) }
}

const ERROR = {
  message: 'This API key was revoked.',
  type: 'invalid_request_error',
  param: null,
  code: 'invalid_api_key',
}
const running = async (stack: Stack) =>
  Number(/^sluice_pool_running.*pool="inference".* (\d+)$/m.exec(await (await stack.get('/metrics')).text())?.[1])

const postgres = inject('postgres')
const stores = [
  { name: 'the key file', start: startWithFile, isThere: true },
  { name: 'Postgres', start: startWithPostgres, isThere: postgres !== null && postgres !== undefined },
]

describe.each(stores)('the revocation of a key in $name', ({ start, isThere }) => {
  it.skipIf(!isThere)(
    "ends the key's streams with the error frame of their protocol, and cancels the calls",
    async () => {
      await using own = await start()
      const { stack, revoke } = own
      const chat = await follow(stack, CHAT, say(ENDLESS, { stream: true }))
      const messages = await follow(stack, MESSAGES, say(ENDLESS, { stream: true }))
      await revoke()
      await until(() => chat.isEnded && messages.isEnded, { withinMs: WITHIN_MS })
      expect([chat.isCut, messages.isCut]).toEqual([false, false])
      expect(lastFrame(chat.text)).toEqual({ event: undefined, data: { error: ERROR } })
      expect(lastFrame(messages.text)).toMatchObject({
        event: 'error',
        data: { type: 'error', error: { type: 'authentication_error', message: ERROR.message } },
      })
      await until(async () => (await running(stack)) === 0)
    },
  )

  it.skipIf(!isThere)(
    'ends waiting requests with 401 and event streams with an error event, while durable jobs continue',
    async () => {
      await using own = await start()
      const { stack, revoke } = own
      const accepted = await stack.post('/v1/jobs', { endpoint: CHAT, body: say(ENDLESS, { stream: true }) }, AS)
      const { id } = (await accepted.json()) as { id: string }
      const with_ = (more: Record<string, string>) => ({ headers: { ...AS.headers, ...more } })
      const waiting = [
        stack.get(`/v1/jobs/${id}?wait=60`, AS),
        stack.post(CHAT, say(ENDLESS), AS),
        stack.post(CHAT, say(ENDLESS), with_({ prefer: 'respond-async, wait=60' })),
        stack.post(CHAT, say(ENDLESS), with_({ 'idempotency-key': 'k1' })),
      ]
      const events = await follow(stack, `/v1/jobs/${id}/events`)
      const recorded = await follow(stack, CHAT, say(ENDLESS, { stream: true, store: true }))
      await until(async () => (await running(stack)) === 5)
      await revoke()
      for (const response of await Promise.all(waiting)) {
        expect([response.status, await response.json()]).toEqual([401, { error: ERROR }])
        expect(response.headers.get('www-authenticate')).toBe('Bearer')
      }
      await until(() => events.isEnded && recorded.isEnded, { withinMs: WITHIN_MS })
      expect([events.isCut, recorded.isCut]).toEqual([false, false])
      expect(lastFrame(events.text)).toEqual({ event: 'error', data: { type: 'error', error: ERROR } })
      expect(lastFrame(recorded.text)).toEqual({ event: undefined, data: { error: ERROR } })
      // Four of the five jobs still run, because durable jobs survive the revocation: those of /v1/jobs, `Prefer`, `Idempotency-Key` and
      // `store`. The plain call was stopped.
      await until(async () => (await running(stack)) === 4)
    },
  )

  it.skipIf(!isThere)("closes the key's WebSockets with 4401, and cancels their calls", async () => {
    await using own = await start()
    using idle = await openWs(own.stack, AS)
    using busy = await openWs(own.stack, AS)
    busy.chat('r1', ENDLESS)
    await busy.frame('request.event', 'r1')
    await own.revoke()
    await until(() => idle.closed && busy.closed, { withinMs: WITHIN_MS })
    expect([idle.closed, busy.closed]).toMatchObject([{ code: 4401 }, { code: 4401 }])
    await until(async () => (await running(own.stack)) === 0)
  })
})

describe('the deletion of a key', () => {
  it('answers a call with 401 while its body still arrives, and closes the connection', async () => {
    await using own = await startWithFile()
    using client = await openRaw(own.stack.url)
    const headers = [`authorization: Bearer ${SECRET}`, 'content-type: application/json', 'content-length: 1000']
    client.send(rawRequest(`POST ${CHAT}`, headers, '{"model":'))
    await until(() => client.socket.bytesWritten > 0)
    await own.revoke()
    const answer = await client.answer()
    expect([answer.status, JSON.parse(answer.body)]).toEqual([401, { error: ERROR }])
    await until(() => client.isEnded, { withinMs: WITHIN_MS })
  })

  it('releases the memory of a body that is still arriving when the connection closes', async () => {
    await using own = await startWithFile()
    const held = async () =>
      Number(/^sluice_request_body_bytes (\d+)$/m.exec(await (await own.stack.get('/metrics')).text())?.[1])
    using client = await openRaw(own.stack.url)
    const headers = [`authorization: Bearer ${SECRET}`, 'content-type: application/json', 'content-length: 9000000']
    client.send(rawRequest(`POST ${CHAT}`, headers, `{"model":"${'x'.repeat(1_000_000)}`))
    await until(async () => (await held()) > 0)
    const drip = setInterval(() => client.send('x'), 100)
    try {
      await own.revoke()
      expect((await client.answer()).status).toBe(401)
      await until(() => client.isCut, { withinMs: WITHIN_MS })
      await until(async () => (await held()) === 0, { withinMs: 4_000 })
    } finally {
      clearInterval(drip)
    }
  })

  it("ends the key's streams, even if no client reads them", async () => {
    await using own = await startWithFile()
    using deaf = await openRaw(own.stack.url)
    const more = { stream: true, logprobs: true, top_logprobs: 20 }
    const body = JSON.stringify(say('!echo tokens=20000', more))
    const headers = [`authorization: Bearer ${SECRET}`, 'content-type: application/json']
    deaf.socket.pause()
    deaf.send(rawRequest(`POST ${CHAT}`, headers, body))
    const chat = await follow(own.stack, CHAT, say(ENDLESS, { stream: true }))
    await until(async () => (await running(own.stack)) === 2)
    rmSync(join(own.stack.dataDir, 'keys.json'))
    await until(() => chat.isEnded, { withinMs: WITHIN_MS })
    expect(lastFrame(chat.text).data).toEqual({ error: ERROR })
    await until(async () => (await running(own.stack)) === 0, { withinMs: WITHIN_MS })
  })

  it('does not affect the connections of other keys', async () => {
    await using own = await startWithFile()
    const mine = reading(await own.stack.post(CHAT, say(ENDLESS, { stream: true })))
    const chat = await follow(own.stack, CHAT, say(ENDLESS, { stream: true }))
    await own.revoke()
    await until(() => chat.isEnded, { withinMs: WITHIN_MS })
    const heard = mine.text.length
    await until(() => mine.text.length > heard)
    expect(mine.isEnded).toBe(false)
  })
})
