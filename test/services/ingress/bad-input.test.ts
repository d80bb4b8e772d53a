/*
 * Tests with requests of hostile or broken clients. Each request gets one error response (docs/reference/errors.md) in the format of its
 * path, or its connection is closed at a documented limit.
 *
 * No request may crash the process, so every test ends with a successful call.
 */

import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest'
import { openRaw, type RawAnswer, rawRequest } from '../../support/raw-http.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

const CHAT = '/v1/chat/completions'
const MESSAGES = '/v1/messages'
const PATHS = [CHAT, MESSAGES] as const
const KEY = `authorization: Bearer ${TEST_KEY}`
const JSON_TYPE = 'content-type: application/json'

const valid = (more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 50,
  messages: [{ role: 'user', content: 'hi' }],
  ...more,
})

let stack: Stack
beforeAll(async () => {
  stack = await startStack({ settings: { BODY_STALL_MS: '300' } })
})
afterAll(async () => {
  expect((await stack.post(CHAT, valid())).status).toBe(200)
  await stack[Symbol.asyncDispose]()
})

/** Posts raw bytes as the body of a request with a valid key. */
function postBytes(path: string, body: RequestInit['body'], headers: Record<string, string> = {}): Promise<Response> {
  const all = { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json', ...headers }
  return fetch(stack.url + path, { method: 'POST', body: body ?? null, headers: all, duplex: 'half' } as RequestInit)
}

interface Refusal {
  readonly status: number
  readonly type: string
  readonly code: string | null
  readonly message: string
  readonly param: string | null
  readonly headers: Headers
}

/** Reads an error response, whose format depends on the path. Checks that the error has all fields of the format and no others. */
async function refusalOf(response: Response | RawAnswer, path: string): Promise<Refusal> {
  const headers = new Headers(response.headers as Record<string, string>)
  const text = typeof response.body === 'string' ? response.body : await (response as Response).text()
  const body = JSON.parse(text)
  const requestId = headers.get('x-request-id')
  expect(requestId).toMatch(/^req_\w{24}$/)
  expect(headers.get('request-id')).toBe(requestId)
  expect(headers.get('content-type')).toBe('application/json')
  if (path.startsWith(MESSAGES)) {
    const { type, message } = body.error
    expect(body).toEqual({ type: 'error', error: { type, message }, request_id: requestId })
    return { status: response.status, type, message, code: null, param: null, headers }
  }
  expect(Object.keys(body)).toEqual(['error'])
  expect(Object.keys(body.error)).toEqual(['message', 'type', 'param', 'code'])
  return { status: response.status, headers, ...body.error }
}

describe.each(PATHS)('the body of POST %s', (path) => {
  const invalid = { status: 400, type: 'invalid_request_error', code: null }

  test.each([
    ['nothing', ''],
    ['truncated JSON', '{"model":"echo-1","messages":[{"role":'],
    ['two JSON values', '{}{}'],
    ['JSON with a trailing comma', '{"model":"echo-1",}'],
    ['JSON in single quotes', "{'model':'echo-1'}"],
    ['NaN', '{"model":"echo-1","temperature":NaN}'],
    ['a JSON string with a control character', '{"model":"a\u0000b"}'],
    ['a byte order mark alone', '\ufeff'],
    ['white space only', ' \n\t '],
    ['an array of 10,000 levels', '['.repeat(10_000) + ']'.repeat(10_000)],
    [
      'an object with 10,000 levels inside a field',
      `{"model":"echo-1","x":${'{"a":'.repeat(10_000)}1${'}'.repeat(10_000)}}`,
    ],
    ['a million opening brackets', '['.repeat(1_000_000)],
    ['an object with a million values as messages', `{"model":"echo-1","messages":[${'1,'.repeat(1_000_000)}1]}`],
    ['an object with 70,000 keys', `{${Array.from({ length: 70_000 }, (_, i) => `"k${i}":1`).join()}}`],
    ['an object with a million keys', `{${Array.from({ length: 1_000_000 }, (_, i) => `"k${i}":1`).join()}}`],
  ])('is refused with 400 if it is %s', async (_name, body) => {
    expect(await refusalOf(await postBytes(path, body), path)).toMatchObject(invalid)
  })

  test.each([
    [
      '{"model":"echo-1",}',
      'Unexpected } after a comma at line 1 column 19, after `{"model":"…",`. Remove the comma before }.',
    ],
    [
      '{"model":"echo-1","messages":[{"role":',
      'The JSON ends before it is complete at line 1 column 39, after `{"model":"…","messages":[{"role":`. Send the whole JSON, which must end with }]}.',
    ],
    ['my secret', 'Unexpected text at line 1 column 1. Send a JSON object.'],
  ])(
    'is refused with position, fields before the error and a fix, but without values of the body, if it is %j',
    async (body, place) => {
      const message = `We could not parse the JSON body of your request. ${place}`
      expect(await refusalOf(await postBytes(path, body), path)).toMatchObject({ ...invalid, message })
    },
  )

  test.each([
    ['a lone continuation byte', [0x80]],
    ['an overlong encoding of a slash', [0xc0, 0xaf]],
    ['an encoded surrogate', [0xed, 0xa0, 0x80]],
    ['a truncated character', [0xf0, 0x9f, 0x98]],
    ['UTF-16', [0xff, 0xfe, 0x7b, 0x00]],
  ])('is refused with 400 if it contains %s, which is invalid UTF-8', async (_name, bytes) => {
    const [head = '', tail = ''] = JSON.stringify(valid({ messages: [{ role: 'user', content: '@' }] })).split('@')
    const body = Buffer.concat([Buffer.from(head), Buffer.from(bytes), Buffer.from(tail)])
    const refusal = await refusalOf(await postBytes(path, body), path)
    expect(refusal).toMatchObject({ ...invalid, message: 'The body is not valid UTF-8. Encode the body as UTF-8.' })
  })

  test.each([null, [], 'x', 7, true, [valid()]])(
    'is refused with 400 if it is %j, which is not an object',
    async (body) => {
      const refusal = await refusalOf(await stack.post(path, body), path)
      expect(refusal).toMatchObject({ status: 400, type: 'invalid_request_error' })
    },
  )

  test.each([
    ['a missing model', { model: undefined }, 'model'],
    ['a null model', { model: null }, 'model'],
    ['an empty model', { model: '' }, 'model'],
    ['a model of the wrong type', { model: { id: 'echo-1' } }, 'model'],
    ['missing messages', { messages: undefined }, 'messages'],
    ['an empty list of messages', { messages: [] }, 'messages'],
    ['messages of the wrong type', { messages: 'hi' }, 'messages'],
    ['a message of the wrong type', { messages: ['hi'] }, 'messages[0]'],
    ['a message without a role', { messages: [{ content: 'hi' }] }, 'messages[0].role'],
    ['an unknown role', { messages: [{ role: 'robot', content: 'hi' }] }, 'messages[0].role'],
    ['content of the wrong type', { messages: [{ role: 'user', content: 5 }] }, 'messages[0].content'],
    [
      'a part of an unknown type',
      { messages: [{ role: 'user', content: [{ type: 'smell' }] }] },
      'messages[0].content[0].type',
    ],
    [
      'a part without text',
      { messages: [{ role: 'user', content: [{ type: 'text' }] }] },
      'messages[0].content[0].text',
    ],
    [
      'a text that is a number',
      { messages: [{ role: 'user', content: [{ type: 'text', text: 1 }] }] },
      'content[0].text',
    ],
    ['temperature as a string', { temperature: '1' }, 'temperature'],
    ['temperature out of range', { temperature: 1e308 }, 'temperature'],
    ['max_tokens as a fraction', { max_tokens: 1.5 }, 'max_tokens'],
    ['max_tokens below one', { max_tokens: -1 }, 'max_tokens'],
    ['max_tokens beyond integers', { max_tokens: 1e300 }, 'max_tokens'],
    ['stream as a string', { stream: 'true' }, 'stream'],
    ['tools of the wrong type', { tools: { name: 'f' } }, 'tools'],
    ['a tool of the wrong type', { tools: [null] }, 'tools[0]'],
    ['a 10 MB string in place of a number', { temperature: 'x'.repeat(10_000_000) }, 'temperature'],
    ['a role of 10 MB', { messages: [{ role: 'x'.repeat(10_000_000), content: 'hi' }] }, 'messages[0].role'],
  ])('is refused with the path of the value if it has %s', async (_name, more, param) => {
    const response = await stack.post(path, valid(more))
    const refusal = await refusalOf(response, path)
    expect(refusal).toMatchObject({ status: 400, type: 'invalid_request_error' })
    const written = path === '/v1/messages' ? param.replace(/\[(\d+)\]/g, '.$1') : param
    expect(refusal.param ?? refusal.message).toContain(written)
    expect(refusal.message.length).toBeLessThan(1_000)
  })

  it('is refused with the model name if the model is unknown, even if the name has 10 MB', async () => {
    for (const model of ['no-such-model', 'm'.repeat(10_000_000), '__proto__', 'constructor', '\ud800', '../../etc']) {
      const response = await stack.post(path, valid({ model }))
      const refusal = await refusalOf(response, path)
      const type = path === CHAT ? 'invalid_request_error' : 'not_found_error'
      expect(refusal).toMatchObject({ status: 404, type })
      expect(refusal.message.length).toBeLessThan(400)
    }
  })

  it('is read with the last value of a duplicate key, both in validation and in execution', async () => {
    const [head] = JSON.stringify(valid()).split('}]')
    const bad = await postBytes(path, `{"model":"no-such-model",${JSON.stringify(valid()).slice(1)}`)
    expect(bad.status).toBe(200)
    const good = await postBytes(path, `${head}}],"model":"no-such-model"}`)
    expect((await refusalOf(good, path)).status).toBe(404)
  })

  it('is read without __proto__ keys at every level', async () => {
    const hidden = '"__proto__":{"stream":true,"n":50,"model":"other"},"constructor":{"prototype":{"stream":true}}'
    const response = await postBytes(path, JSON.stringify(valid()).replace('{', `{${hidden},`))
    expect(response.status).toBe(200)
    expect(response.headers.get('content-type')).toBe('application/json')
    expect(await response.json()).toMatchObject({ model: 'echo-1' })
    expect(({} as { stream?: boolean }).stream).toBeUndefined()
    const nameless = JSON.stringify(valid({ model: undefined })).replace('{', `{${hidden},`)
    expect((await refusalOf(await postBytes(path, nameless), path)).status).toBe(400)
  })

  it('is accepted if a message has 10 MB', async () => {
    const content = `!echo text=done\n${'x'.repeat(10_000_000)}`
    const response = await stack.post(path, valid({ messages: [{ role: 'user', content }] }))
    expect(response.status).toBe(200)
    expect(await response.text()).toContain('done')
  })

  test.each([
    ['no content type', undefined],
    ['text/plain', 'text/plain'],
    ['a form', 'application/x-www-form-urlencoded'],
    ['multipart', 'multipart/form-data; boundary=x'],
    ['a type that only begins with application/json', 'application/jsonx'],
    ['JSON in another charset', 'application/json; charset=utf-16'],
    ['nonsense', ';;;'],
  ])('is refused with 415 if its content type is not JSON: %s', async (_name, type) => {
    const headers = type === undefined ? [KEY] : [KEY, `content-type: ${type}`]
    using client = await openRaw(stack.url)
    client.send(rawRequest(`POST ${path}`, headers, JSON.stringify(valid())))
    const refusal = await refusalOf(await client.answer(), path)
    expect(refusal).toMatchObject({ status: 415, type: 'invalid_request_error' })
  })

  test.each([
    'application/json; charset=UTF-8',
    'APPLICATION/JSON',
    'application/json;charset="utf-8"',
    'application/vnd.x+json',
  ])('is accepted as JSON with the content type %s', async (type) => {
    expect((await postBytes(path, JSON.stringify(valid()), { 'content-type': type })).status).toBe(200)
  })

  test.each([
    ['gzip', gzipSync],
    ['deflate', deflateSync],
    ['br', brotliCompressSync],
    ['zstd', zstdCompressSync],
    ['GZIP', gzipSync],
    ['gzip, zstd', (body: string) => zstdCompressSync(gzipSync(body))],
    ['identity,br , gzip', (body: string) => gzipSync(brotliCompressSync(body))],
  ])('is decompressed if its Content-Encoding is %s', async (encoding, compress) => {
    const body = compress(JSON.stringify(valid()))
    expect((await postBytes(path, body, { 'content-encoding': encoding })).status).toBe(200)
  })

  test.each([
    ['gzip', gzipSync],
    ['deflate', deflateSync],
    ['br', brotliCompressSync],
    ['zstd', zstdCompressSync],
    ['gzip, zstd', (body: Buffer) => zstdCompressSync(gzipSync(body))],
    ['gzip, gzip, gzip', () => gzipSync(gzipSync(Buffer.alloc(64 * 1024 * 1024, gzipSync(''))))],
  ])('is refused with 413 at the size limit if it is a decompression bomb in %s', async (encoding, compress) => {
    const bomb = compress(Buffer.alloc(64 * 1024 * 1024, 0x20))
    expect(bomb.length).toBeLessThan(100_000)
    const refusal = await refusalOf(await postBytes(path, bomb, { 'content-encoding': encoding }), path)
    expect(refusal.status).toBe(413)
    expect(refusal.code ?? refusal.type).toBe('request_too_large')
  })

  test.each([
    ['compress', 415],
    ['gzip, compress', 415],
    ['gzip, gzip, gzip, gzip', 415],
    ['gzip, gzip', 400],
    ['gzip', 400],
    ['br', 400],
    ['zstd', 400],
  ])('with the unknown or wrong Content-Encoding %s gets the status %i', async (encoding, status) => {
    const response = await postBytes(path, JSON.stringify(valid()), { 'content-encoding': encoding })
    expect(await refusalOf(response, path)).toMatchObject({ status, type: 'invalid_request_error' })
  })

  test.each([
    ['gzip', gzipSync],
    ['zstd', zstdCompressSync],
    ['gzip, zstd', (body: string) => zstdCompressSync(gzipSync(body).subarray(0, -12))],
  ])('is refused with 400 if it is truncated in %s', async (encoding, compress) => {
    const body = compress(JSON.stringify(valid())).subarray(0, encoding.includes(',') ? undefined : -12)
    expect((await refusalOf(await postBytes(path, body, { 'content-encoding': encoding }), path)).status).toBe(400)
  })

  test.each([
    [23, 200],
    [24, 400],
  ])(
    'in zstd with a window of 2^%i bytes gets the status %i, because RFC 9659 limits the window to 8 MiB',
    async (windowLog, status) => {
      const body = zstdFrame(JSON.stringify(valid()), windowLog)
      expect((await postBytes(path, body, { 'content-encoding': 'zstd' })).status).toBe(status)
    },
  )

  it('in an unsupported encoding is refused with a list of the accepted encodings, including zstd', async () => {
    const response = await postBytes(path, '{}', { 'content-encoding': 'compress' })
    expect((await refusalOf(response, path)).message).toContain('gzip, deflate, br, zstd or identity')
  })

  test.each([
    ['plain', (body: Buffer) => body, {}],
    ['in gzip', gzipSync, { 'content-encoding': 'gzip' }],
  ])('with a byte order mark at its beginning is accepted: %s', async (_, compress, headers) => {
    const body = Buffer.from(`\uFEFF${JSON.stringify(valid())}`)
    expect((await postBytes(path, compress(body), { ...headers })).status).toBe(200)
  })

  test.each([['\uFEFF'], [`${JSON.stringify({})}\uFEFF`], ['\uFEFF\uFEFF{}']])(
    'is refused with 400 for a misplaced byte order mark: %j',
    async (body) => {
      expect((await refusalOf(await postBytes(path, body), path)).status).toBe(400)
    },
  )
})

describe.each(PATHS)('a body over the size limit of POST %s', (path) => {
  let small: Stack
  beforeAll(async () => {
    small = await startStack({ settings: { BODY_BYTES_MAX: '100000', BODY_STALL_MS: '300' } })
  })
  afterAll(() => small[Symbol.asyncDispose]())

  it('is refused with 413, based on its Content-Length, before the client sends the body', async () => {
    using client = await openRaw(small.url)
    client.send(rawRequest(`POST ${path}`, [KEY, JSON_TYPE, 'content-length: 100001']))
    const refusal = await refusalOf(await client.answer(), path)
    expect(refusal.status).toBe(413)
    expect(refusal.code ?? refusal.type).toBe('request_too_large')
  })

  it.concurrent('is refused with 413 while its chunks arrive, and the connection is closed if more chunks follow', async () => {
    using client = await openRaw(small.url)
    client.send(rawRequest(`POST ${path}`, [KEY, JSON_TYPE, 'transfer-encoding: chunked']))
    const drip = setInterval(() => client.send(`4000\r\n${' '.repeat(0x4000)}\r\n`), 20)
    try {
      expect((await refusalOf(await client.answer(), path)).status).toBe(413)
      await until(() => client.isEnded)
    } finally {
      clearInterval(drip)
    }
  })

  it('leaves the connection usable if the rest of the body arrives in time', async () => {
    using client = await openRaw(small.url)
    client.send(rawRequest(`POST ${path}`, [KEY, JSON_TYPE, 'content-length: 150000']))
    expect((await client.answer()).status).toBe(413)
    client.send(' '.repeat(150_000))
    client.send(rawRequest('GET /v1/models', [KEY]))
    expect((await client.answer(1)).status).toBe(200)
  })

  it.concurrent('gets exactly one response if the upload stalls, and other requests are still answered', async () => {
    using client = await openRaw(small.url)
    client.send(rawRequest(`POST ${path}`, [KEY, JSON_TYPE, 'transfer-encoding: chunked']))
    client.send(`30000\r\n${' '.repeat(0x30000)}`)
    expect((await client.answer()).status).toBe(413)
    await until(() => client.isEnded)
    expect(client.received.match(/HTTP\/1\.1/g)).toHaveLength(1)
    expect((await small.post(path, valid())).status).toBe(200)
  })
})

describe.each(PATHS)('an upload to %s', (path) => {
  it.concurrent('that stalls ends with 408, which SDKs retry, and its connection is closed', async () => {
    using client = await openRaw(stack.url)
    client.send(rawRequest(`POST ${path}`, [KEY, JSON_TYPE, 'content-length: 1000']))
    client.send('{"model":')
    const refusal = await refusalOf(await client.answer(), path)
    expect(refusal.status).toBe(408)
    expect(refusal.code ?? refusal.type).toBe(path === CHAT ? 'request_timeout' : 'timeout_error')
    expect(refusal.headers.get('x-should-retry')).toBe('true')
    await until(() => client.isEnded)
  })

  it.concurrent('that is slow but makes progress is accepted', async () => {
    using client = await openRaw(stack.url)
    const body = JSON.stringify(valid())
    client.send(rawRequest(`POST ${path}`, [KEY, JSON_TYPE, `content-length: ${body.length}`]))
    for (const byte of body.match(/.{1,12}/gs) ?? []) {
      client.send(byte)
      await new Promise((resolve) => setTimeout(resolve, 60))
    }
    expect((await client.answer()).status).toBe(200)
  })

  it('leaves no data in the server if the client disconnects in the middle of the body', async () => {
    const client = await openRaw(stack.url)
    client.send(rawRequest(`POST ${path}`, [KEY, JSON_TYPE, 'content-length: 1000', 'content-encoding: gzip']))
    client.send(gzipSync('{"model":'))
    client[Symbol.dispose]()
    expect((await stack.post(path, valid())).status).toBe(200)
  })
})

describe('the request', () => {
  test.each([
    ['GET', '/'],
    ['GET', '/v1'],
    ['GET', '/v1/nothing'],
    ['POST', '/v1/chat/completions/'],
    ['POST', '/V1/chat/completions'],
    ['POST', '//v1/chat/completions'],
    ['POST', '/v1/chat%2Fcompletions'],
    ['POST', '/v1/messages/'],
    ['POST', '/v1/messages/nothing'],
    ['GET', '/v1/models/'],
    ['GET', '/v1/models/%zz'],
    ['GET', '/v1/models/%'],
    ['GET', '/v1/models/%ff'],
    ['GET', '/v1/models/..%2f'],
    ['GET', '/v1/models/../../etc/passwd'],
    ['GET', '/v1/models/a%2Fb'],
    ['GET', '/v1/models/a/b'],
    ['GET', '/v1/models/a%00b'],
    ['GET', 'http://['],
    ['GET', 'http://[::1'],
    ['OPTIONS', '*'],
    ['DELETE', '/v1/nothing'],
  ])('%s %s gets 404 in the error format of its path', async (method, path) => {
    using client = await openRaw(stack.url)
    client.send(rawRequest(`${method} ${path}`, [KEY]))
    const refusal = await refusalOf(await client.answer(), path)
    expect(refusal).toMatchObject({
      status: 404,
      type: path.startsWith(MESSAGES) ? 'not_found_error' : 'invalid_request_error',
    })
  })

  test.each([
    ['PUT', CHAT, 'POST, GET, HEAD'],
    ['GET', '/v1/completions', 'POST'],
    ['DELETE', MESSAGES, 'POST'],
    ['PUT', '/v1/messages/count_tokens', 'POST'],
    ['OPTIONS', '/v1/embeddings', 'POST'],
    ['TRACE', '/v1/embeddings', 'POST'],
    ['PROPFIND', '/v1/embeddings', 'POST'],
    ['POST', '/v1/models', 'GET, HEAD'],
    ['PATCH', '/v1/models/echo-1', 'GET, HEAD'],
  ])('%s %s gets 405 with the allowed methods: %s', async (method, path, allow) => {
    using client = await openRaw(stack.url)
    client.send(rawRequest(`${method} ${path}`, [KEY]))
    const refusal = await refusalOf(await client.answer(), path)
    expect(refusal).toMatchObject({ status: 405, type: 'invalid_request_error' })
    expect(refusal.headers.get('allow')).toBe(allow)
  })

  it('GET with an absolute URL, as sent to a proxy, gets 200', async () => {
    using client = await openRaw(stack.url)
    client.send(rawRequest('GET http://elsewhere/v1/models?x=1', [KEY]))
    expect((await client.answer()).status).toBe(200)
  })

  it('HEAD gets the headers of the response to GET, without a body', async () => {
    const [get, head] = await Promise.all([stack.get('/v1/models'), stack.get('/v1/models', { method: 'HEAD' })])
    expect(get.status).toBe(200)
    expect((await fetch(`${stack.url}/v1/models`, { method: 'HEAD' })).status).toBe(401)
    expect(await head.text()).toBeDefined()
    using client = await openRaw(stack.url)
    client.send(rawRequest('HEAD /v1/models', [KEY, 'connection: close']))
    await until(() => client.received.includes('\r\n\r\n'))
    expect(client.received).toMatch(/^HTTP\/1\.1 200 /)
    expect(client.received.endsWith('\r\n\r\n')).toBe(true)
  })
})

describe('the key of a request', () => {
  test.each([
    ['none', []],
    ['an empty bearer token', ['authorization: Bearer ']],
    ['a key in another authentication scheme', [`authorization: Basic ${btoa(`user:${TEST_KEY}`)}`]],
    ['a key without a scheme', [`authorization: ${TEST_KEY}`]],
    ['a key in two words', ['authorization: Bearer sk test']],
    ['a wrong key', ['authorization: Bearer sk-wrong-0123456789-abcd']],
    ['a wrong x-api-key', ['x-api-key: sk-wrong-0123456789-abcd']],
    ['a truncated key', [`authorization: Bearer ${TEST_KEY.slice(0, -1)}`]],
    ['a key in another case', [`authorization: Bearer ${TEST_KEY.toUpperCase()}`]],
    ['a very long key', [`authorization: Bearer ${'k'.repeat(8_000)}`]],
    ['bytes outside ASCII', ['authorization: Bearer \u00ff\u00fe\u00ff\u00fe\u00ff\u00fe\u00ff\u00fe']],
  ])('is refused with 401 and a challenge if it is %s, and does not appear in the response', async (_name, headers) => {
    for (const path of PATHS) {
      using client = await openRaw(stack.url)
      client.send(Buffer.from(rawRequest(`POST ${path}`, [...headers, JSON_TYPE], JSON.stringify(valid())), 'latin1'))
      const refusal = await refusalOf(await client.answer(), path)
      expect(refusal).toMatchObject({
        status: 401,
        type: path === CHAT ? 'invalid_request_error' : 'authentication_error',
      })
      expect(refusal.headers.get('www-authenticate')).toBe('Bearer')
      expect(refusal.message).not.toContain('wrong-0123456789')
      expect(refusal.message.length).toBeLessThan(200)
    }
  })

  it('is checked before the body arrives', async () => {
    using client = await openRaw(stack.url)
    client.send(rawRequest(`POST ${CHAT}`, ['authorization: Bearer sk-nobody', JSON_TYPE, 'content-length: 1000000']))
    expect((await client.answer()).status).toBe(401)
    await until(() => client.isEnded)
  })
})

describe('the HTTP parser', () => {
  test.each([
    ['TLS', '\x16\x03\x01\x02\x00\x01\x00', CHAT],
    ['HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', CHAT],
    ['an unknown method', 'FROBNICATE / HTTP/1.1\r\nhost: x\r\n\r\n', CHAT],
    ['a space in a header name', rawRequest(`POST ${MESSAGES}`, ['a b: c']), MESSAGES],
    ['an empty header name', rawRequest(`POST ${MESSAGES}`, [': c']), MESSAGES],
    ['a control character in a header', rawRequest(`POST ${MESSAGES}`, ['a: \x01']), MESSAGES],
    ['a folded header', rawRequest(`POST ${MESSAGES}`, ['a: b', ' c']), MESSAGES],
    [
      'Content-Length followed by Transfer-Encoding',
      rawRequest(`POST ${MESSAGES}`, [KEY, 'content-length: 5', 'transfer-encoding: chunked'], '0\r\n\r\nG'),
      MESSAGES,
    ],
    [
      'Transfer-Encoding followed by Content-Length',
      rawRequest(`POST ${CHAT}`, [KEY, 'transfer-encoding: chunked', 'content-length: 5'], '0\r\n\r\nG'),
      CHAT,
    ],
    [
      'two values of Content-Length',
      rawRequest(`POST ${CHAT}`, [KEY, 'content-length: 5', 'content-length: 6'], 'xxxxx'),
      CHAT,
    ],
    ['a negative Content-Length', rawRequest(`POST ${CHAT}`, [KEY, 'content-length: -5']), CHAT],
    ['a Content-Length of 40 digits', rawRequest(`POST ${CHAT}`, [KEY, `content-length: ${'9'.repeat(40)}`]), CHAT],
    ['an unknown transfer encoding', rawRequest(`POST ${CHAT}`, [KEY, 'transfer-encoding: xchunked']), CHAT],
    [
      'a transfer encoding that does not end with chunked',
      rawRequest(`POST ${CHAT}`, [KEY, 'transfer-encoding: chunked, gzip']),
      CHAT,
    ],
    [
      'an invalid chunk size',
      rawRequest(`POST ${MESSAGES}`, [KEY, JSON_TYPE, 'transfer-encoding: chunked'], 'zz\r\n'),
      MESSAGES,
    ],
    [
      'a chunk longer than its size',
      rawRequest(`POST ${MESSAGES}`, [KEY, JSON_TYPE, 'transfer-encoding: chunked'], '2\r\n{}}}\r\n0\r\n\r\n'),
      MESSAGES,
    ],
  ])('returns one 400 and closes the connection for %s', async (_name, bytes, path) => {
    using client = await openRaw(stack.url)
    client.send(Buffer.from(bytes, 'latin1'))
    expect(await refusalOf(await client.answer(), path)).toMatchObject({ status: 400, type: 'invalid_request_error' })
    await until(() => client.isEnded)
    expect(client.received.match(/HTTP\/1\.1 \d/g)).toHaveLength(1)
  })

  test.each([
    ['one header of 20 KB', rawRequest(`POST ${MESSAGES}`, [`x: ${'a'.repeat(20_000)}`]), MESSAGES],
    [
      '3,000 headers',
      rawRequest(
        `POST ${CHAT}`,
        Array.from({ length: 3_000 }, (_, i) => `x-${i}: y`),
      ),
      CHAT,
    ],
    ['a request target of 20 KB', rawRequest(`GET /${'a'.repeat(20_000)}`), CHAT],
  ])('returns 431 and closes the connection for %s', async (_name, bytes, path) => {
    using client = await openRaw(stack.url)
    client.send(bytes)
    expect((await refusalOf(await client.answer(), path)).status).toBe(431)
    await until(() => client.isEnded)
  })

  it('refuses a request without Host in the error format of the requested path', async () => {
    using client = await openRaw(stack.url)
    client.send(`POST ${MESSAGES} HTTP/1.1\r\n${KEY}\r\n\r\n`)
    expect(await refusalOf(await client.answer(), MESSAGES)).toMatchObject({ status: 400 })
  })

  it('responds to Expect: 100-continue with status 100, and ignores other expectations', async () => {
    const body = JSON.stringify(valid())
    for (const expectation of ['100-continue', 'a-miracle']) {
      using client = await openRaw(stack.url)
      client.send(
        rawRequest(`POST ${CHAT}`, [KEY, JSON_TYPE, `expect: ${expectation}`, `content-length: ${body.length}`]),
      )
      if (expectation === '100-continue') await until(() => client.received.startsWith('HTTP/1.1 100 '))
      client.send(body)
      expect((await client.answer()).status).toBe(200)
    }
  })

  it('returns the responses of pipelined requests in order', async () => {
    using client = await openRaw(stack.url)
    const slow = JSON.stringify(valid({ messages: [{ role: 'user', content: '!echo first_ms=150 text=slow' }] }))
    client.send(rawRequest(`POST ${CHAT}`, [KEY, JSON_TYPE], slow))
    client.send(
      rawRequest('GET /v1/nothing', [KEY]) + rawRequest(`POST ${CHAT}`, [KEY, JSON_TYPE], JSON.stringify(valid())),
    )
    const answers = [await client.answer(0), await client.answer(1), await client.answer(2)]
    expect(answers.map((answer) => answer.status)).toEqual([200, 404, 200])
    expect(answers[0]?.body).toContain('slow')
  })

  it('sends no 400 for invalid bytes while the response to an earlier request is incomplete', async () => {
    for (const stream of [false, true]) {
      using client = await openRaw(stack.url)
      const body = JSON.stringify(
        valid({ stream, messages: [{ role: 'user', content: '!echo tokens=50 delay_ms=20' }] }),
      )
      client.send(rawRequest(`POST ${CHAT}`, [KEY, JSON_TYPE], body))
      await until(async () => (await runningAttempts()) > 0)
      if (stream) await until(() => client.received.includes('data: '))
      client.send('GARBAGE\r\n\r\n')
      await until(() => client.isEnded)
      expect(client.received).not.toContain(' 400 ')
      await until(async () => (await runningAttempts()) === 0)
    }
  })

  it('serves a request with an unknown Upgrade as a plain request', async () => {
    using client = await openRaw(stack.url)
    client.send(rawRequest('GET /v1/models', [KEY, 'connection: upgrade', 'upgrade: h2c']))
    expect((await client.answer()).status).toBe(200)
  })

  it('closes the connection of a refused request even if the client leaves its side open', async () => {
    using client = await openRaw(stack.url)
    client.send('GARBAGE\r\n\r\n')
    await until(() => client.isEnded)
    await until(() => {
      client.send('x')
      return client.isCut
    })
  })

  it('closes the connection of a CONNECT request without a response', async () => {
    using client = await openRaw(stack.url)
    client.send(rawRequest('CONNECT example.com:443', [KEY]))
    await until(() => client.isEnded)
    expect(client.received).toBe('')
  })
})

async function runningAttempts(): Promise<number> {
  const text = await (await stack.get('/metrics')).text()
  return Number(/^sluice_pool_running\{.*\} (\d+)/m.exec(text)?.[1] ?? 0)
}

/** Returns a zstd frame that has one uncompressed block and does not declare its content size (RFC 8878 §3.1.1). */
function zstdFrame(text: string, windowLog: number): Buffer {
  const head = Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0, (windowLog - 10) << 3, 0, 0, 0])
  head.writeUIntLE((text.length << 3) | 1, 6, 3)
  return Buffer.concat([head, Buffer.from(text)])
}
