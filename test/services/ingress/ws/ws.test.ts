/* Tests of calls over WebSockets: the same calls as over HTTP, many on one connection. */

import { createHash } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ServerFrame } from '#schemas/ws.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import type { Outbox } from '#services/ingress/ws/frames.ts'
import { SocketReply } from '#services/ingress/ws/perform.ts'
import { ByteBudget } from '#shared/capacity/byte-budgets.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { Metrics } from '#shared/lib/metrics.ts'
import { type WireEvent, withoutPosition } from '../../../support/jobs/api.ts'
import { dataOf } from '../../../support/sse.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'
import { isEnd, openWs, refusalOf, type WsClient } from '../../../support/ws.ts'

const CHAT = '/v1/chat/completions'
const MESSAGES = '/v1/messages'
const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  messages: [{ role: 'user', content }],
  ...more,
})

let stack: Stack
beforeAll(async () => {
  stack = await startStack()
})
afterAll(() => stack[Symbol.asyncDispose]())

const running = (of: Stack) => gauge(of, 'sluice_attached_jobs{pool="inference",state="running"}')
const slots = (of: Stack) => gauge(of, 'sluice_pool_running')

async function gauge(of: Stack, name: string): Promise<number> {
  const text = await (await of.get('/metrics')).text()
  const line = text.split('\n').find((each) => each.startsWith(name))
  return Number(line?.split(' ').at(-1))
}

/** Removes the values that differ between calls, such as ids, from the events of a stream. */
function plain(events: readonly unknown[]): unknown {
  const text = JSON.stringify(events)
  return JSON.parse(text.replace(/"(id|created)":("(chatcmpl|msg)[^"]*"|\d+),/g, ''))
}

const eventsOf = (client: WsClient, id: string) =>
  client.about(id).flatMap((frame) => (frame.type === 'request.event' ? [frame.event] : []))

const textOf = (events: readonly unknown[]) =>
  events
    .map((event) => (event as { choices: { delta: { content?: string } }[] }).choices[0]?.delta.content ?? '')
    .join('')

function bodyOf(frame: ServerFrame): unknown {
  if (frame.type !== 'request.completed') throw new Error(JSON.stringify(frame))
  return frame.body
}

describe('a WebSocket session', () => {
  it('begins with a frame that contains the limits of the session', async () => {
    using client = await openWs(stack)
    expect(client.ws.protocol).toBe('inference.v1')
    expect(client.frames).toEqual([
      {
        type: 'session.created',
        session: {
          id: expect.stringMatching(/^ws_/),
          protocol: 'inference.v1',
          max_in_flight: 32,
          max_message_bytes: 33_554_432,
          heartbeat_seconds: 20,
        },
      },
    ])
  })

  it('sends a pong for each ping', async () => {
    using client = await openWs(stack)
    client.send({ type: 'ping', id: 'p1' })
    expect(await client.frame('pong')).toEqual({ type: 'pong', id: 'p1' })
  })

  it.each([
    ['Authorization', { headers: { authorization: `bearer ${TEST_KEY}` } }],
    ['x-api-key', { headers: { 'x-api-key': TEST_KEY } }],
    ['a subprotocol', { headers: {}, protocols: ['inference.v1', `bearer.${TEST_KEY}`] }],
    ['a subprotocol that is listed first', { headers: {}, protocols: [`bearer.${TEST_KEY}`, 'inference.v1'] }],
  ])('accepts the API key from %s, and does not return the key', async (_from, options) => {
    using client = await openWs(stack, options)
    expect(client.frames[0]?.type).toBe('session.created')
    expect(client.ws.protocol).toBe('inference.v1')
  })

  it.each([
    ['no key', { headers: {} }, 401, null],
    ['a wrong key', { headers: { authorization: 'Bearer sk-wrong-wrong-wrong' } }, 401, 'invalid_api_key'],
    [
      'a wrong key as a subprotocol',
      { headers: {}, protocols: ['inference.v1', 'bearer.sk-wrong'] },
      401,
      'invalid_api_key',
    ],
    ['no subprotocol', { protocols: [] }, 400, null],
    ['another subprotocol', { protocols: ['graphql-transport-ws'] }, 400, null],
    ['another path', { path: '/v1/sockets' }, 404, null],
  ])('is refused over HTTP with %s', async (_what, options, status, code) => {
    const refusal = await refusalOf(stack, options)
    expect(refusal.status).toBe(status)
    expect(refusal.headers['x-request-id']).toMatch(/^req_/)
    expect(refusal.headers['content-type']).toBe('application/json')
    expect(refusal.body).toMatchObject({ error: { message: expect.any(String), param: null, code } })
    expect(JSON.stringify(refusal.body)).not.toContain('sk-wrong-wrong-wrong')
    if (status === 401) expect(refusal.headers['www-authenticate']).toBe('Bearer')
  })

  it('is not started by a GET without an upgrade', async () => {
    const response = await stack.get('/v1/ws')
    expect(response.status).toBe(400)
    expect(response.headers.get('upgrade')).toBe('websocket')
  })

  it('is not started by an upgrade to another protocol', async () => {
    const { request } = await import('node:http')
    const body = JSON.stringify(say('hello'))
    const headers = {
      authorization: `Bearer ${TEST_KEY}`,
      'content-type': 'application/json',
      connection: 'Upgrade, HTTP2-Settings',
      upgrade: 'h2c',
      'http2-settings': 'AAMAAABkAAQCAAAAAAIAAAAA',
    }
    const status = await new Promise((resolve, reject) => {
      request(stack.url + CHAT, { method: 'POST', headers }, (res) => resolve(res.resume().statusCode))
        .on('error', reject)
        .end(body)
    })
    expect(status).toBe(200)
  })
})

describe('a WebSocket request', () => {
  it('streams the same events as a chat completion over HTTP', async () => {
    const body = say('one two three', { stream: true, stream_options: { include_usage: true } })
    const http = dataOf(await (await stack.post(CHAT, body)).text()).map((text) => JSON.parse(text))
    using client = await openWs(stack)
    client.send({ type: 'request.create', id: 'r1', endpoint: CHAT, body: { ...body, stream: undefined } })
    expect(await client.end('r1')).toEqual({ type: 'request.completed', id: 'r1', status: 200, body: null })
    const frames = client.about('r1')
    expect(frames[0]).toEqual({ type: 'request.accepted', id: 'r1', job_id: expect.stringMatching(/^job_/) })
    const events = eventsOf(client, 'r1')
    expect(textOf(events)).toBe('one two three')
    expect(textOf(http)).toBe('one two three')
    expect((plain(events) as unknown[]).at(-1)).toEqual((plain(http) as unknown[]).at(-1))
    const numbers = frames.flatMap((frame) => (frame.type === 'request.event' ? [frame.sequence_number] : []))
    expect(numbers).toEqual(numbers.map((_, i) => i + 1))
    expect(frames).toHaveLength(numbers.length + 2)
  })

  it('streams the same events as the Messages API over HTTP', async () => {
    const body = say('hello', { max_tokens: 100 })
    const http = dataOf(await (await stack.post(MESSAGES, { ...body, stream: true })).text())
    using client = await openWs(stack)
    client.send({ type: 'request.create', id: 'r1', endpoint: MESSAGES, body })
    expect(await client.end('r1')).toMatchObject({ type: 'request.completed', body: null })
    expect(plain(eventsOf(client, 'r1'))).toEqual(plain(http.map((text) => JSON.parse(text))))
  })

  it.each([
    [CHAT, say('hello there')],
    [MESSAGES, say('hello there', { max_tokens: 100 })],
  ])('without streaming gets the same body as %s over HTTP', async (endpoint, body) => {
    const http = await (await stack.post(endpoint, body)).json()
    using client = await openWs(stack)
    client.send({ type: 'request.create', id: 'r1', endpoint, body: { ...body, stream: false } })
    const frame = await client.end('r1')
    expect(frame).toMatchObject({ type: 'request.completed', status: 200 })
    expect(plain([bodyOf(frame)])).toEqual(plain([http]))
    expect(client.about('r1').map(({ type }) => type)).toEqual(['request.accepted', 'request.completed'])
  })

  it('can count the tokens of a prompt', async () => {
    using client = await openWs(stack)
    client.send({ type: 'request.create', id: 'r1', endpoint: '/v1/messages/count_tokens', body: say('one two') })
    expect(await client.end('r1')).toMatchObject({ body: { input_tokens: expect.any(Number) } })
  })

  it('runs concurrently with other requests, and each request receives its own events in order', async () => {
    using client = await openWs(stack)
    const ids = Array.from({ length: 12 }, (_, i) => `r${i}`)
    for (const id of ids) client.chat(id, `!echo delay_ms=5 text="${id} a b c d e f g"`)
    for (const id of ids) expect(await client.end(id)).toMatchObject({ type: 'request.completed' })
    for (const id of ids) {
      expect(textOf(eventsOf(client, id))).toBe(`${id} a b c d e f g`)
      expect(client.about(id).filter(isEnd)).toHaveLength(1)
    }
    // The requests ran concurrently: the last request started before the first one ended.
    const at = (type: string, id: string) => client.frames.findIndex((f) => f.type === type && 'id' in f && f.id === id)
    expect(at('request.accepted', 'r11')).toBeLessThan(at('request.completed', 'r0'))
  })

  it.each([
    ['an unknown endpoint', '/v1/nope', say('hi'), 400, 'invalid_value', 'endpoint'],
    ['an unknown model', CHAT, say('hi', { model: 'nope' }), 404, 'model_not_found', 'model'],
    ['a field out of range', CHAT, say('hi', { temperature: 5 }), 400, 'decimal_above_max_value', 'temperature'],
    ['a missing field of the Messages API', MESSAGES, say('hi'), 400, 'missing_required_parameter', 'max_tokens'],
    ['an engine that fails', CHAT, say('!echo fail=upstream_refused'), 502, 'upstream_refused', null],
    [
      'an engine that fails without streaming',
      CHAT,
      say('!echo fail=upstream_refused', { stream: false }),
      502,
      'upstream_refused',
      null,
    ],
  ])('fails for %s with the same error as over HTTP', async (_what, endpoint, body, status, code, param) => {
    using client = await openWs(stack)
    client.send({ type: 'request.create', id: 'r1', endpoint, body })
    const error = { message: expect.any(String), type: expect.any(String), param, code }
    expect(await client.end('r1')).toEqual({ type: 'request.failed', id: 'r1', status, error })
  })

  it('fails exactly once if the engine fails after some events', async () => {
    using client = await openWs(stack)
    client.chat('r1', '!echo fail=upstream_error after=2\none two three four')
    expect(await client.end('r1')).toMatchObject({ type: 'request.failed', status: 502 })
    expect(textOf(eventsOf(client, 'r1'))).toBe('one two')
    client.chat('r1', 'again')
    await until(() => client.about('r1').filter(isEnd).length === 2)
  })

  it('includes a retry delay in its overload error', async () => {
    using client = await openWs(stack)
    client.chat('r1', '!echo fail=overloaded retry_after_ms=9000')
    expect(await client.end('r1')).toMatchObject({ type: 'request.failed', status: 503, retry_after: 9 })
  })

  it('ends if it is cancelled, and stops its engine', async () => {
    using client = await openWs(stack)
    client.chat('r1', '!echo tokens=10000 delay_ms=20')
    await client.frame('request.event', 'r1')
    client.send({ type: 'request.cancel', id: 'r1' })
    expect(await client.end('r1')).toEqual({ type: 'request.cancelled', id: 'r1' })
    await until(async () => (await slots(stack)) === 0)
    const count = client.about('r1').length
    client.send({ type: 'request.cancel', id: 'r1' })
    client.send({ type: 'request.cancel', id: 'never' })
    client.send({ type: 'ping', id: 'p1' })
    await client.frame('pong')
    expect(client.about('r1')).toHaveLength(count)
  })

  it.each(['!echo first_ms=60000 tokens=9', '!echo tokens=10'])(
    'ends exactly once if it is cancelled immediately (%s)',
    async (script) => {
      using client = await openWs(stack)
      client.chat('r1', script, { stream: false })
      client.send({ type: 'request.cancel', id: 'r1' })
      expect(await client.end('r1')).toEqual({ type: 'request.cancelled', id: 'r1' })
      await until(async () => (await slots(stack)) === 0)
      expect(client.about('r1').filter(isEnd)).toHaveLength(1)
    },
  )

  it.each([
    ['closes', (client: WsClient) => client.ws.close()],
    ['is lost', (client: WsClient) => client.ws.terminate()],
  ])('stops its engine if the connection %s', async (_how, leave) => {
    using client = await openWs(stack)
    client.chat('r1', '!echo tokens=10000 delay_ms=20')
    client.chat('r2', '!echo first_ms=60000 tokens=9', { stream: false })
    await until(async () => (await running(stack)) === 2)
    leave(client)
    await until(async () => (await running(stack)) === 0 && (await slots(stack)) === 0)
  })
})

describe('a durable WebSocket request', () => {
  const job = async (id: string) => (await (await stack.get(`/v1/jobs/${id}`)).json()) as { status: string }

  it('continues if the connection is lost, and is then found by its idempotency key', async () => {
    using client = await openWs(stack)
    client.chat('r1', '!echo tokens=30 delay_ms=10', {}, { idempotency_key: 'durable-1' })
    const { job_id } = await client.frame('request.accepted', 'r1')
    await client.frame('request.event', 'r1')
    client.ws.terminate()
    await until(async () => (await job(job_id)).status === 'completed')
    using again = await openWs(stack)
    again.chat('r2', '!echo tokens=30 delay_ms=10', {}, { idempotency_key: 'durable-1' })
    expect(await again.end('r2')).toMatchObject({ type: 'request.completed' })
    expect(await again.frame('request.accepted', 'r2')).toMatchObject({ job_id })
    const body = say('!echo tokens=30 delay_ms=10', { stream: true })
    const http = await stack.post(CHAT, body, { headers: { 'idempotency-key': 'durable-1' } })
    expect(http.headers.get('x-job-id')).toBe(job_id)
    const recorded = dataOf(await http.text()).map((text) => JSON.parse(text))
    expect(eventsOf(again, 'r2')).toEqual(recorded)
  })

  it('returns the complete result without streaming', async () => {
    using client = await openWs(stack)
    client.chat('r1', 'hello', { stream: false }, { idempotency_key: 'durable-2' })
    expect(bodyOf(await client.end('r1'))).toMatchObject({ choices: [{ message: { content: 'hello' } }] })
  })

  it('is refused with the id of the running job if its idempotency key is in use', async () => {
    using client = await openWs(stack)
    const script = '!echo tokens=1000 delay_ms=20'
    client.chat('r1', script, {}, { idempotency_key: 'durable-3' })
    const { job_id } = await client.frame('request.accepted', 'r1')
    client.chat('r2', script, {}, { idempotency_key: 'durable-3' })
    const error = { code: 'idempotency_key_in_use' }
    expect(await client.end('r2')).toMatchObject({ type: 'request.failed', status: 409, error, retry_after: 2 })
    expect(await client.frame('request.accepted', 'r2')).toMatchObject({ job_id })
    client.chat('r3', 'something else', {}, { idempotency_key: 'durable-3' })
    expect(await client.end('r3')).toMatchObject({ status: 422, error: { code: 'idempotency_key_reused' } })
    client.send({ type: 'request.cancel', id: 'r1' })
    expect(await client.end('r1')).toEqual({ type: 'request.cancelled', id: 'r1' })
    expect((await job(job_id)).status).toBe('cancelled')
  })

  it('in the background returns its job immediately', async () => {
    using client = await openWs(stack)
    client.chat('r1', '!echo first_ms=300 tokens=3', { background: true })
    const frame = await client.end('r1')
    expect(frame).toMatchObject({ type: 'request.completed', status: 202, body: { object: 'job', endpoint: CHAT } })
    const { id } = bodyOf(frame) as { id: string }
    await until(async () => (await job(id)).status === 'completed')
  })

  it('fails for a malformed idempotency key', async () => {
    using client = await openWs(stack)
    client.chat('r1', 'hello', {}, { idempotency_key: 'not\u0000visible' })
    expect(await client.end('r1')).toMatchObject({ type: 'request.failed', status: 400 })
  })
})

describe('a WebSocket subscription to a job', () => {
  async function submit(content: string): Promise<string> {
    const body = { endpoint: CHAT, body: say(content, { stream: true }) }
    return ((await (await stack.post('/v1/jobs', body)).json()) as { id: string }).id
  }
  const seqs = (client: WsClient, id: string) =>
    client.about(id).flatMap((frame) => (frame.type === 'job.event' ? [Number(frame.event.sequence_number)] : []))

  it('returns every event once, including when it is resumed on another connection', async () => {
    const job_id = await submit('!echo tokens=40 delay_ms=10')
    using first = await openWs(stack)
    first.send({ type: 'job.subscribe', id: 's1', job_id })
    await until(() => seqs(first, 's1').length >= 5)
    first.ws.terminate()
    const seen = seqs(first, 's1')
    using second = await openWs(stack)
    second.send({ type: 'job.subscribe', id: 's1', job_id, starting_after: seen.at(-1) })
    expect(await second.end('s1')).toEqual({ type: 'request.completed', id: 's1', status: 200, body: null })
    const all = [...seen, ...seqs(second, 's1')]
    expect(all).toEqual(all.map((_, i) => i + 1))
    const http = await (await stack.get(`/v1/jobs/${job_id}/events`)).text()
    const events = dataOf(http).map((text) => JSON.parse(text) as WireEvent)
    const over = [first, second].flatMap((client) =>
      client.about('s1').flatMap((frame) => (frame.type === 'job.event' ? [frame.event] : [])),
    )
    expect(withoutPosition(over)).toEqual(withoutPosition(events))
    expect(over.at(-1)).toMatchObject({ type: 'job.completed', job: { status: 'completed' } })
  })

  it('ends if it is cancelled, while the job continues', async () => {
    const job_id = await submit('!echo tokens=50 delay_ms=20')
    using client = await openWs(stack)
    client.send({ type: 'job.subscribe', id: 's1', job_id })
    await client.frame('job.event', 's1')
    // The id `s1` belongs to a subscription, not to a request, so `request.cancel` has no effect.
    client.send({ type: 'request.cancel', id: 's1' })
    client.send({ type: 'job.unsubscribe', id: 's1' })
    expect(await client.end('s1')).toEqual({ type: 'request.cancelled', id: 's1' })
    const { status } = (await (await stack.get(`/v1/jobs/${job_id}`)).json()) as { status: string }
    expect(['in_progress', 'completed']).toContain(status)
  })

  it('ends immediately if it starts after the last event of an ended job', async () => {
    const job_id = await submit('hi')
    await stack.get(`/v1/jobs/${job_id}?wait=10`)
    using client = await openWs(stack)
    client.send({ type: 'job.subscribe', id: 's1', job_id, starting_after: 1_000 })
    expect(await client.end('s1')).toMatchObject({ type: 'request.completed' })
    expect(client.about('s1')).toHaveLength(1)
  })

  it.each([
    ['an unknown job', { job_id: 'job_0123456789abcdef' }, 404, 'job_not_found'],
    ['an invalid job id', { job_id: '../../etc/passwd' }, 404, 'job_not_found'],
    ['no job id', {}, 400, 'missing_required_parameter'],
    ['a negative position', { job_id: 'job_0123456789abcdef', starting_after: -1 }, 400, 'integer_below_min_value'],
  ])('is refused for %s', async (_what, more, status, code) => {
    using client = await openWs(stack)
    client.send({ type: 'job.subscribe', id: 's1', ...more })
    expect(await client.end('s1')).toMatchObject({ type: 'request.failed', status, error: { code } })
  })

  it('is refused for a position beyond the last event of a running job', async () => {
    const job_id = await submit('!echo first_ms=2000 tokens=9')
    using client = await openWs(stack)
    client.send({ type: 'job.subscribe', id: 's1', job_id, starting_after: 500 })
    const error = { param: 'starting_after' }
    expect(await client.end('s1')).toMatchObject({ type: 'request.failed', status: 400, error })
  })
})

describe('WebSocket limits', () => {
  it('of a key apply to each request, including its tokens', async () => {
    await using own = await startStack({ settings: { RATE_LIMIT_REQUESTS: '3', CONCURRENCY_MAX_PER_KEY: '2' } })
    using client = await openWs(own)
    client.chat('r1', '!echo first_ms=60000 tokens=9')
    client.chat('r2', '!echo first_ms=60000 tokens=9')
    await client.frame('request.accepted', 'r2')
    client.chat('r3', 'hi')
    const error = { type: 'requests', code: 'rate_limit_exceeded' }
    expect(await client.end('r3')).toMatchObject({ status: 429, error, retry_after: 1 })
    client.send({ type: 'request.cancel', id: 'r1' })
    await client.end('r1')
    client.chat('r4', 'hi')
    expect(await client.end('r4')).toMatchObject({ type: 'request.completed' })
    client.chat('r5', 'hi')
    expect(await client.end('r5')).toMatchObject({ status: 429, error, retry_after: expect.any(Number) })
  })

  it('of a connection refuse a request with 429 while too many requests run', async () => {
    await using own = await startStack({ sockets: { inFlightMax: 2 } })
    using client = await openWs(own)
    for (const id of ['r1', 'r2', 'r3']) client.chat(id, '!echo first_ms=60000 tokens=9')
    expect(await client.end('r3')).toMatchObject({ type: 'request.failed', status: 429, retry_after: 1 })
    client.send({ type: 'request.cancel', id: 'r1' })
    await client.end('r1')
    client.chat('r4', 'hi')
    expect(await client.end('r4')).toMatchObject({ type: 'request.completed' })
  })

  it('of a key close further connections with 4429, and admit a new connection after another has ended', async () => {
    await using own = await startStack({ sockets: { connectionsMaxPerKey: 2 } })
    using first = await openWs(own)
    using _second = await openWs(own)
    using third = await openWs(own)
    expect(await third.closing()).toMatchObject({ code: 4429 })
    first.ws.close()
    await first.closing()
    using fourth = await openWs(own)
    fourth.send({ type: 'ping', id: 'p1' })
    await fourth.frame('pong')
  })

  it('of the process refuse upgrades with 503', async () => {
    await using own = await startStack({ sockets: { connectionsMax: 1 } })
    using _first = await openWs(own)
    const refusal = await refusalOf(own)
    expect(refusal).toMatchObject({
      status: 503,
      headers: { 'retry-after': '5' },
      body: { error: { code: 'overloaded' } },
    })
  })
})

describe('the API key of a WebSocket', () => {
  const secret = 'sk-of-the-file-0123'
  const hash = createHash('sha256').update(secret).digest('hex')
  const write = (own: Stack, more: object) => {
    const key = { id: 'key_file', hash, hint: 'sk-...0123', created_at: 1_790_000_000, ...more }
    writeFileSync(join(own.dataDir, 'keys.json'), JSON.stringify({ keys: [key] }))
  }
  const options = { headers: { authorization: `Bearer ${secret}` } }

  async function openWithKey(own: Stack, more: object): Promise<WsClient> {
    write(own, more)
    await until(async () => (await own.get('/v1/models', options)).status === 200)
    return await openWs(own, options)
  }

  it('closes its connections with 4401 and stops its calls after a revocation', async () => {
    await using own = await startStack({ sockets: { heartbeatMs: 50 } })
    using client = await openWithKey(own, {})
    client.chat('r1', '!echo first_ms=60000 tokens=9')
    await client.frame('request.accepted', 'r1')
    write(own, { revoked: true })
    expect(await client.closing()).toMatchObject({ code: 4401 })
    await until(async () => (await slots(own)) === 0)
  })

  it('has the same permissions as over HTTP', async () => {
    await using own = await startStack({ models: [ECHO_MODEL, { ...ECHO_MODEL, id: 'echo-2' }] })
    using client = await openWithKey(own, { endpoints: [CHAT, '/v1/models'], models: ['echo-1'] })
    client.chat('r1', 'hi')
    expect(await client.end('r1')).toMatchObject({ type: 'request.completed' })
    client.send({ type: 'request.create', id: 'r2', endpoint: MESSAGES, body: say('hi', { max_tokens: 9 }) })
    expect(await client.end('r2')).toMatchObject({ status: 403, error: { code: 'permission_denied' } })
    client.chat('r3', 'hi', { model: 'echo-2' })
    expect(await client.end('r3')).toMatchObject({ status: 403, error: { code: 'model_not_allowed' } })
  })

  it('can read its own jobs only', async () => {
    await using own = await startStack()
    const { id } = (await (await own.post('/v1/jobs', { endpoint: CHAT, body: say('hi') })).json()) as { id: string }
    using client = await openWithKey(own, {})
    client.send({ type: 'job.subscribe', id: 's1', job_id: id })
    expect(await client.end('s1')).toMatchObject({ status: 404, error: { code: 'job_not_found' } })
  })
})

describe('an ingress with WebSockets that drains', () => {
  it('announces the drain, completes running requests, refuses new requests, and closes with 1012', async () => {
    const own = await startStack({ settings: { DRAIN_MS: '5000' } })
    using client = await openWs(own)
    client.chat('r1', '!echo tokens=10 delay_ms=30')
    await client.frame('request.event', 'r1')
    const stopped = own[Symbol.asyncDispose]()
    expect(await client.frame('session.draining')).toEqual({ type: 'session.draining', deadline_seconds: 5 })
    client.chat('r2', 'hi')
    client.chat('r3', 'hi', {}, { idempotency_key: 'k' })
    expect(await client.end('r2')).toMatchObject({ type: 'request.failed', status: 503, retry_after: 1 })
    expect(await client.end('r3')).toMatchObject({ type: 'request.failed', status: 503, retry_after: 1 })
    expect(await client.end('r1')).toMatchObject({ type: 'request.completed' })
    expect(await client.closing()).toMatchObject({ code: 1012 })
    await stopped
  })

  it('fails the remaining requests at the drain deadline, and then closes the connections', async () => {
    const own = await startStack()
    using client = await openWs(own)
    client.chat('r1', '!echo first_ms=60000 tokens=9')
    await client.frame('request.accepted', 'r1')
    await own[Symbol.asyncDispose]()
    expect(await client.closing()).toMatchObject({ code: 1012 })
    expect(client.about('r1').filter(isEnd)).toMatchObject([{ type: 'request.failed', status: 503 }])
  })
})

describe('the access log of a WebSocket', () => {
  it('has one entry per request id, in the format of HTTP requests and without content', async () => {
    const lines: object[] = []
    const metrics = new Metrics()
    const context = { metrics, log: { info: (line: object) => lines.push(line) } } as unknown as IngressContext
    const outbox = { reply: () => {}, waitForSpace: async () => {}, isFull: false } as unknown as Outbox
    const key = keyOf('sk-secret', { id: 'key_1', project: 'proj_1' })
    const more = { key, headers: {}, sessionId: 'ws_1', path: CHAT, route: CHAT, kind: 'request' } as const
    const held = new ByteBudget({ bytesMax: 1, keyBytesMax: 1 }).open('key_1')
    const reply = new SocketReply(context, { id: 'r1', outbox, held, ...more })
    reply.accepted('job_1')
    const thrown = new ServiceError('overloaded', 'secret', { retryAfterMs: 1_000 })
    reply.end({ type: 'failed', thrown })
    expect(lines).toEqual([
      {
        request_id: expect.stringMatching(/^req_/),
        method: 'WS',
        path: CHAT,
        status: 503,
        duration_ms: expect.any(Number),
        session_id: 'ws_1',
        key_id: 'key_1',
        project_id: 'proj_1',
        job_id: 'job_1',
        error_code: 'overloaded',
        refusal: 'other',
      },
    ])
    expect(await metrics.registry.metrics()).toContain(`{route="${CHAT}",status="503",model=""} 1`)
  })
})
