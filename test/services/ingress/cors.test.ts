/* Tests of CORS: calls from web pages of other origins (docs/internals/protocol.md). */

import { type IncomingHttpHeaders, type IncomingMessage, request } from 'node:http'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Cors } from '#services/ingress/http/server.ts'
import { ConfigError, parseConfig } from '#shared/config/config.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../../support/stack.ts'
import { openWs, refusalOf } from '../../support/ws.ts'

const PAGE = 'https://app.example.com'
const OTHER = 'https://evil.example.com'
const KEY = { authorization: `Bearer ${TEST_KEY}` }
const CHAT = { model: ECHO_MODEL.id, messages: [{ role: 'user', content: 'hi' }] }

/**
 * Sends a request with the headers that a browser sets for a web page. Node's fetch does not allow a program to set these headers, so the
 * test uses node:http.
 */
function ask(stack: Stack, method: string, path: string, headers: Record<string, string>) {
  return new Promise<{ status: number; headers: Record<string, unknown>; text: string }>((resolve, reject) => {
    const sent = request(stack.url + path, { method, headers, agent: false }, (response) => {
      let text = ''
      response.on('data', (piece) => {
        text += piece
      })
      response.on('end', () => resolve({ status: response.statusCode ?? 0, headers: response.headers, text }))
    })
    sent.on('error', reject)
    sent.end()
  })
}

/** Sends the preflight request of a browser for a page of the given origin that calls Sluice with an API key. */
const preflight = (stack: Stack, origin: string, path = '/v1/chat/completions') =>
  ask(stack, 'OPTIONS', path, {
    origin,
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization,content-type,x-stainless-lang',
  })

describe('with origins in CORS_ORIGINS', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack({
      settings: { CORS_ORIGINS: `${PAGE}, http://localhost:5173`, RATE_LIMIT_REQUESTS: '2' },
    })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  test('a preflight request needs no key, and allows any request header', async () => {
    for (const path of ['/v1/chat/completions', '/v1/files', '/healthz', '/nothing']) {
      const { status, headers, text } = await preflight(stack, PAGE, path)
      expect([status, text]).toEqual([204, ''])
      expect(headers).toMatchObject({
        ...{ 'access-control-allow-origin': PAGE, vary: 'Origin' },
        'access-control-allow-headers': 'authorization,content-type,x-stainless-lang',
        'access-control-allow-methods': expect.stringContaining('DELETE'),
      })
      expect(headers['access-control-allow-credentials']).toBeUndefined()
    }
    expect((await preflight(stack, 'http://localhost:5173')).status).toBe(204)
  })

  test('responses and errors are readable, and a preflight does not count against the rate limit', async () => {
    const call = () => stack.post('/v1/chat/completions', CHAT, { headers: { origin: PAGE } })
    const answers = [
      await call(),
      await call(),
      await call(),
      await stack.get('/v1/none', { headers: { origin: PAGE } }),
    ]
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 429, 404])
    for (const { headers } of answers) {
      expect(headers.get('access-control-allow-origin')).toBe(PAGE)
      const exposed = headers.get('access-control-expose-headers')?.split(', ') ?? []
      const own = [...headers.keys()].filter((name) => /^(x-|request-id|retry|anthropic|openai)/.test(name))
      // `x-content-type-options` need not be exposed: browsers apply this header themselves, and no script reads it.
      const readable = own.filter((name) => name !== 'x-content-type-options')
      expect(readable.filter((name) => !exposed.includes(name))).toEqual([])
    }
    expect((await ask(stack, 'POST', '/v1/chat/completions', { origin: PAGE })).headers).toMatchObject({
      'access-control-allow-origin': PAGE,
    })
  })

  test('a request from another origin gets no CORS headers, and its preflight request gets 405', async () => {
    const { status, headers } = await preflight(stack, OTHER)
    expect([status, headers['access-control-allow-origin'], headers.vary]).toEqual([405, undefined, 'Origin'])
    const models = await stack.get('/v1/models', { headers: { origin: OTHER } })
    expect([models.status, models.headers.get('access-control-allow-origin')]).toEqual([200, null])
  })

  test('WebSockets are accepted from listed origins, from the origin of the server, and without an Origin', async () => {
    expect(await refusalOf(stack, { headers: { origin: OTHER } })).toMatchObject({
      status: 403,
      body: { error: { code: 'permission_denied' } },
    })
    const origins: Record<string, string>[] = [{ origin: PAGE }, { origin: stack.url }, {}]
    for (const origin of origins) {
      using client = await openWs(stack, { headers: { ...KEY, ...origin } })
      expect(client.frames[0]?.type).toBe('session.created')
    }
  })
})

test('an Origin without a host does not match a request without a Host header', () => {
  const allows = (headers: IncomingHttpHeaders) => new Cors(PAGE).allowsSocket({ headers } as IncomingMessage)
  for (const origin of ['null', 'garbage', '', 'file:///tmp/page.html', 'http://']) {
    expect([origin, allows({ origin }), allows({ origin, host: '' })]).toEqual([origin, false, false])
  }
  expect(allows({ origin: 'http://127.0.0.1:8080', host: '127.0.0.1:8080' })).toBe(true)
})

test('the CORS_ORIGINS value * allows every page to read responses', async () => {
  await using stack = await startStack({ settings: { CORS_ORIGINS: '*' } })
  const { status, headers } = await preflight(stack, OTHER)
  expect([status, headers['access-control-allow-origin'], headers.vary]).toEqual([204, '*', undefined])
  using client = await openWs(stack, { headers: { ...KEY, origin: OTHER } })
  expect(client.frames).toHaveLength(1)
})

test('an empty CORS_ORIGINS allows no page to read a response', async () => {
  await using stack = await startStack()
  const { status, headers } = await preflight(stack, PAGE)
  expect([status, headers['access-control-allow-origin']]).toEqual([405, undefined])
  const models = await stack.get('/v1/models', { headers: { origin: PAGE } })
  expect(models.headers.get('access-control-allow-origin')).toBeNull()
})

test.each(['app.example.com', 'https://app.example.com/', 'https://a.example, *', 'https://*.example.com', 'null'])(
  'an invalid value of CORS_ORIGINS is refused at the start: %s',
  (origins) => {
    expect(() => parseConfig({ CORS_ORIGINS: origins })).toThrow(ConfigError)
  },
)
