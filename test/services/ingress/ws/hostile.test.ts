/*
 * Tests with WebSocket clients that send forbidden data, or read as slowly as they can. The server closes each connection with the close
 * code of the exceeded limit. The process and all other clients continue.
 */

import { request } from 'node:http'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { WebSocket } from 'ws'
import { Outbox, ReadPause, SOCKET_BOUNDS } from '#services/ingress/ws/frames.ts'
import { openRaw, type RawClient } from '../../../support/raw-http.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'
import { isEnd, openWs, type WsClient } from '../../../support/ws.ts'

const CHAT = '/v1/chat/completions'
const MIB = 1024 * 1024

let stack: Stack
beforeAll(async () => {
  stack = await startStack({ settings: { BODY_BYTES_MAX: '1000000' }, sockets: { lingerMs: 500 } })
})
afterAll(async () => {
  // After all hostile clients, the server must still serve other clients.
  using client = await openWs(stack)
  client.chat('last', 'hi')
  expect(await client.end('last')).toMatchObject({ type: 'request.completed' })
  await until(async () => (await gauge(stack, 'sluice_websockets')) === 1)
  await stack[Symbol.asyncDispose]()
})

async function gauge(of: Stack, name: string): Promise<number> {
  const text = await (await of.get('/metrics')).text()
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(name))
      ?.split(' ')
      .at(-1),
  )
}
const running = (of: Stack) => gauge(of, 'sluice_attached_jobs{pool="inference",state="running"}')

describe('a WebSocket frame from a client', () => {
  const MALFORMED: [what: string, frame: string | Buffer][] = [
    ['that is not JSON', '{"type":'],
    ['that is empty', ''],
    ['that is binary', Buffer.from('{"type":"ping","id":"p"}')],
    ['that is a number', '1e999'],
    ['that is null', 'null'],
    ['that is an array', '[{"type":"ping","id":"p"}]'],
    ['that is a string', '"ping"'],
    ['without a type', '{"id":"r1"}'],
    ['of an unknown type', '{"type":"session.update","id":"r1"}'],
    ['of a type that is not a string', '{"type":{"$ne":null},"id":"r1"}'],
    ['of a type named like a member of Object.prototype', '{"type":"__proto__","id":"r1"}'],
    ['without an id', '{"type":"request.create","endpoint":"/v1/chat/completions","body":{}}'],
    ['with an empty id', '{"type":"request.create","id":"","endpoint":"/v1/chat/completions","body":{}}'],
    ['with a long id', JSON.stringify({ type: 'ping', id: 'x'.repeat(65) })],
    ['with an id that is a number', '{"type":"request.cancel","id":1}'],
    ['nested too deeply', `{"type":"ping","id":${'['.repeat(100_000)}`],
    ['of too many values', `{"type":"ping","id":"p","x":[${'1,'.repeat(450_000)}1]}`],
  ]

  it.each(MALFORMED)('%s gets an error frame', async (_what, frame) => {
    using client = await openWs(stack)
    client.ws.send(frame)
    expect(await client.frame('error')).toMatchObject({ error: { type: 'invalid_request_error' } })
    client.send({ type: 'ping', id: 'p1' })
    await client.frame('pong')
  })

  it.each(MALFORMED)('%s closes the connection with 4400 at the third occurrence', async (_what, frame) => {
    using client = await openWs(stack)
    client.chat('r1', '!echo first_ms=60000 tokens=9')
    await client.frame('request.accepted', 'r1')
    for (let i = 0; i < 3; i++) client.ws.send(frame)
    expect(await client.closing()).toMatchObject({ code: 4400 })
    expect(client.frames.filter(({ type }) => type === 'error')).toHaveLength(3)
    await until(async () => (await running(stack)) === 0)
  })

  it.each([
    ['an endpoint that is a number', { endpoint: 5, body: {} }, 'endpoint', 'invalid_type'],
    ['no endpoint', { body: {} }, 'endpoint', 'missing_required_parameter'],
    ['no body', { endpoint: CHAT }, 'body', 'missing_required_parameter'],
    ['a body that is an array', { endpoint: CHAT, body: [] }, 'body', 'invalid_type'],
    ['a body that is null', { endpoint: CHAT, body: null }, 'body', 'invalid_type'],
    [
      'an idempotency key that is a number',
      { endpoint: CHAT, body: {}, idempotency_key: 5 },
      'idempotency_key',
      'invalid_type',
    ],
    [
      'an endpoint named like a member of Object.prototype',
      { endpoint: 'constructor', body: {} },
      'endpoint',
      'invalid_value',
    ],
    ['a stream that is a number', { endpoint: CHAT, body: { model: 'echo-1', messages: [], stream: 1 } }, null, null],
    ['an empty body', { endpoint: CHAT, body: {} }, null, null],
  ])('that starts a request with %s fails only that request', async (_what, more, param, code) => {
    using client = await openWs(stack)
    // The server closes a connection after three malformed frames. Four invalid requests on one connection therefore show that an invalid
    // request does not count as a malformed frame.
    for (const id of ['r1', 'r2', 'r3', 'r4']) client.send({ type: 'request.create', id, ...more })
    const error = param === null ? {} : { param, code }
    for (const id of ['r1', 'r2', 'r3', 'r4']) {
      expect(await client.end(id)).toMatchObject({ type: 'request.failed', status: 400, error })
    }
    client.send({ type: 'ping', id: 'p1' })
    await client.frame('pong')
  })

  it('may have any id, including the name of a member of Object.prototype', async () => {
    using client = await openWs(stack)
    const ids = ['__proto__', 'constructor', '"}', '\u2028\u0000', '😀', 'x'.repeat(64)]
    for (const id of ids) client.chat(id, 'hi')
    for (const id of ids) expect(await client.end(id)).toMatchObject({ type: 'request.completed', id })
  })

  it('with an id in use closes the connection with 4409', async () => {
    using client = await openWs(stack)
    client.chat('r1', '!echo first_ms=60000 tokens=9')
    client.send({ type: 'job.subscribe', id: 'r1', job_id: 'job_0123456789abcdef' })
    expect(await client.closing()).toMatchObject({ code: 4409 })
    expect(client.about('r1').filter(isEnd)).toHaveLength(0)
    await until(async () => (await running(stack)) === 0)
  })

  it('over the size limit closes the connection with 1009', async () => {
    using client = await openWs(stack)
    client.ws.send('x'.repeat(1_000_001))
    expect(await client.closing()).toMatchObject({ code: 1009 })
  })

  it('just below the size limit is accepted', async () => {
    using client = await openWs(stack)
    client.chat('r1', `!echo text=ok\n${'x'.repeat(999_000)}`)
    expect(await client.end('r1')).toMatchObject({ type: 'request.completed' })
  })

  it('over the size limit in fragments closes the connection with 1009', async () => {
    using client = await openWs(stack)
    for (let i = 0; i < 20; i++) client.ws.send('x'.repeat(100_000), { fin: false })
    expect(await client.closing()).toMatchObject({ code: 1009 })
  })

  it('that is not UTF-8 closes the connection with 1007', async () => {
    using client = await openWs(stack)
    client.ws.send(Buffer.from([0x22, 0xff, 0xfe, 0x22]), { binary: false })
    expect(await client.closing()).toMatchObject({ code: 1007 })
  })
})

describe('a WebSocket upgrade', () => {
  const upgrade = (lines: readonly string[]) =>
    ['GET /v1/ws HTTP/1.1', 'host: test', 'connection: upgrade', 'upgrade: websocket', ...lines, '', ''].join('\r\n')
  const auth = `authorization: Bearer ${TEST_KEY}`
  const key = 'sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=='
  const protocol = 'sec-websocket-protocol: inference.v1'
  const version = 'sec-websocket-version: 13'

  it.each([
    ['no sec-websocket-key', [auth, protocol, version]],
    ['a malformed sec-websocket-key', [auth, protocol, version, 'sec-websocket-key: short']],
    ['an old version', [auth, protocol, key, 'sec-websocket-version: 7']],
    ['malformed protocols', [auth, key, version, 'sec-websocket-protocol: inference.v1,,x']],
    ['a duplicate protocol', [auth, key, version, 'sec-websocket-protocol: inference.v1, inference.v1']],
    ['a protocol in another case', [auth, key, version, 'sec-websocket-protocol: Inference.V1']],
  ])('with %s is refused with 400, a body and the supported version', async (_what, lines) => {
    using client = await openRaw(stack.url)
    client.send(upgrade(lines))
    const answer = await client.answer()
    expect(answer.status).toBe(400)
    expect(answer.headers).toMatchObject({ 'sec-websocket-version': '13', connection: 'close' })
    expect(JSON.parse(answer.body)).toMatchObject({ error: { type: 'invalid_request_error' } })
    // The client does not close its side of the connection. The server must nevertheless close the connection completely.
    await until(() => {
      client.send('?')
      return client.isCut
    })
  })

  it('that is truncated has no effect', async () => {
    for (const bytes of [60, 120]) {
      const client = await openRaw(stack.url)
      client.send(upgrade([auth, key, protocol, version]).slice(0, bytes))
      client[Symbol.dispose]()
    }
    const client = await openRaw(stack.url)
    client.send(upgrade([auth, key, protocol, version]))
    client.socket.resetAndDestroy()
    expect((await stack.get('/v1/models')).status).toBe(200)
  })

  it('followed by invalid bytes closes the connection with 1002', async () => {
    using client = await openRaw(stack.url)
    client.send(upgrade([auth, key, protocol, version]))
    client.send(Buffer.alloc(200, 0xff))
    await until(() => client.isEnded)
    expect(client.received).toContain('101 Switching Protocols')
    // The byte 0x88 starts a close frame, and 0x03ea is the close code 1002.
    expect(client.received).toContain('\x88')
    expect(client.received).toContain('\x03\xea')
  })

  it('gets a response that does not contain the API key', async () => {
    using client = await openRaw(stack.url)
    client.send(upgrade([key, version, `sec-websocket-protocol: bearer.${TEST_KEY}, inference.v1`]))
    await until(() => client.received.includes('session.created'))
    expect(client.received).not.toContain(TEST_KEY)
    expect(client.received.toLowerCase()).toContain('sec-websocket-protocol: inference.v1\r\n')
  })

  it('does not enable compression, even if the client offers compression', async () => {
    using client = await openRaw(stack.url)
    client.send(upgrade([auth, key, protocol, version, 'sec-websocket-extensions: permessage-deflate']))
    await until(() => client.received.includes('session.created'))
    expect(client.received.toLowerCase()).not.toContain('sec-websocket-extensions')
  })

  it('with another method than GET is refused', async () => {
    const headers = { connection: 'upgrade', upgrade: 'websocket', authorization: `Bearer ${TEST_KEY}` }
    const status = await new Promise((resolve, reject) => {
      const req = request(`${stack.url}/v1/ws`, { method: 'POST', headers }, (res) => resolve(res.resume().statusCode))
      req.on('error', reject).end()
    })
    expect(status).toBe(405)
  })
})

describe('a WebSocket connection', () => {
  it('that sends neither messages nor pongs is closed with 4408', async () => {
    await using own = await startStack({ sockets: { heartbeatMs: 50, idleMs: 150 } })
    using client = await openWs(own, { autoPong: false })
    client.chat('r1', '!echo first_ms=60000 tokens=9')
    expect(await client.closing()).toMatchObject({ code: 4408 })
    await until(async () => (await running(own)) === 0)
  })

  it('that only answers pings stays open', async () => {
    await using own = await startStack({ sockets: { heartbeatMs: 50, idleMs: 150 } })
    using client = await openWs(own)
    let pings = 0
    client.ws.on('ping', () => {
      pings++
    })
    await until(() => pings >= 8)
    expect(client.closed).toBeUndefined()
  })

  it('is closed by the server if the client does not answer the close frame', async () => {
    await using own = await startStack({ sockets: { heartbeatMs: 50, idleMs: 100, lingerMs: 100 } })
    using client = await openWs(own, { autoPong: false })
    client.ws.pause()
    await until(async () => (await gauge(own, 'sluice_websockets')) === 0)
  })
})

describe('a WebSocket client that does not read', () => {
  // Request options that make responses large: log probabilities take about 2 KB per token.
  const loud = { logprobs: true, top_logprobs: 20 }
  const open = async (own: Stack): Promise<WsClient> => {
    const client = await openWs(own)
    client.ws.pause()
    return client
  }

  it('pauses the workers of its requests, and is then closed with 1013', async () => {
    await using own = await startStack({ sockets: { drainMs: 4_000, lingerMs: 10_000 } })
    using client = await open(own)
    let bytes = 0
    client.ws.on('message', (data: Buffer) => {
      bytes += data.length
    })
    const before = process.memoryUsage()
    for (let i = 0; i < 8; i++) client.chat(`r${i}`, '!echo tokens=20000', loud)
    await until(async () => (await running(own)) === 8)
    let most = 0
    await until(
      async () => {
        const now = process.memoryUsage()
        most = Math.max(most, now.heapUsed + now.external - before.heapUsed - before.external)
        return (await running(own)) === 0
      },
      { withinMs: 25_000 },
    )
    // Each of the eight streams has about 40 MB. Without backpressure, the server would buffer all of them, that is 320 MB.
    expect(most / MIB).toBeLessThan(160)
    await until(async () => (await gauge(own, 'sluice_pool_running')) === 0)
    client.ws.resume()
    expect(await client.closing()).toMatchObject({ code: 1013 })
    // The client receives only bytes that were buffered: at most the limit of unread output, and the socket buffers of both sides.
    expect(bytes / MIB).toBeLessThan(16)
  })

  it('gets each event once if it continues to read in time', async () => {
    await using own = await startStack()
    using client = await open(own)
    client.chat('r1', '!echo tokens=3000', loud)
    client.chat('r2', '!echo tokens=100', { ...loud, stream: false })
    // The client reads nothing, so the first response and its worker pause. The second response is complete and waits to be sent.
    await until(async () => (await running(own)) === 1)
    client.ws.resume()
    expect(await client.end('r1')).toMatchObject({ type: 'request.completed' })
    expect(await client.end('r2')).toMatchObject({ type: 'request.completed' })
    const numbers = client
      .about('r1')
      .flatMap((frame) => (frame.type === 'request.event' ? [frame.sequence_number] : []))
    expect(numbers).toEqual(numbers.map((_, i) => i + 1))
  })

  it('does not delay other clients', async () => {
    await using own = await startStack()
    using quiet = await open(own)
    quiet.chat('r1', '!echo tokens=20000', loud)
    await until(async () => (await running(own)) === 1)
    using client = await openWs(own)
    client.chat('r1', 'hi')
    expect(await client.end('r1')).toMatchObject({ type: 'request.completed' })
  })

  it('can cancel a request whose events it does not read', async () => {
    await using own = await startStack()
    using client = await open(own)
    client.chat('r1', '!echo tokens=20000', loud)
    await until(async () => (await running(own)) === 1)
    client.send({ type: 'request.cancel', id: 'r1' })
    await until(async () => (await running(own)) === 0)
    client.ws.resume()
    expect(await client.end('r1')).toMatchObject({ type: 'request.cancelled' })
  })

  it('cannot send more frames while too many of its responses are unread', async () => {
    await using own = await startStack({ sockets: { repliesMax: 100 } })
    using client = await open(own)
    const FRAMES = 30_000
    let unsent = 0
    for (let i = 0; i < FRAMES; i++) {
      unsent++
      // Each response repeats the id of its request. The character U+0001 takes six bytes in JSON, so the responses are long.
      const id = `${i}`.padEnd(64, '\u0001')
      const frame = { type: 'request.create', id, endpoint: 'x'.repeat(300), body: {} }
      client.ws.send(JSON.stringify(frame), () => unsent--)
    }
    // The test waits until the server stops reading: the number of handled requests stays the same. The other requests stay in the buffers
    // of the client.
    const read = () => gauge(own, 'sluice_http_requests_total{route="none",status="400",model=""}')
    let last = -1
    await until(async () => {
      const seen = await read()
      const isStill = seen > 0 && seen === last
      last = seen
      return isStill
    })
    expect(unsent).toBeGreaterThan(0)
    expect(last).toBeLessThan(FRAMES)
    client.ws.resume()
    await until(() => client.frames.filter(isEnd).length === FRAMES, { withinMs: 20_000 })
  })
})

describe('the memory budget of WebSocket messages', () => {
  const held = (of: Stack) => gauge(of, 'sluice_request_body_bytes ')
  const head = [
    'GET /v1/ws HTTP/1.1',
    'host: test',
    'connection: upgrade',
    'upgrade: websocket',
    `authorization: Bearer ${TEST_KEY}`,
    'sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==',
    'sec-websocket-protocol: inference.v1',
    'sec-websocket-version: 13',
  ]
  /** Opens a WebSocket over a raw connection. The client never closes its side. */
  const openHalf = async (of: Stack): Promise<RawClient> => {
    const client = await openRaw(of.url)
    client.send(`${head.join('\r\n')}\r\n\r\n`)
    await until(() => client.received.includes('session.created'))
    return client
  }
  /** Returns a WebSocket frame whose mask is zero, so its payload is not changed by masking. */
  const frame = (first: number, payload: string) =>
    Buffer.concat([Buffer.from([first, 0x80 | payload.length, 0, 0, 0, 0]), Buffer.from(payload)])
  const PONGS = Buffer.concat(Array(8_000).fill(frame(0x8a, 'x'.repeat(125))))
  const FRAGMENT = frame(0x01, '{')

  it('is not used by control frames between messages', async () => {
    using client = await openHalf(stack)
    for (let i = 0; i < 5; i++) client.send(PONGS)
    client.send(frame(0x89, 'all read?'))
    await until(() => client.received.includes('all read?'))
    expect(await held(stack)).toBe(0)
    // Control frames may arrive between the fragments of a message. The message must still be complete.
    client.send(Buffer.concat([FRAGMENT, frame(0x8a, ''), frame(0x80, '"type":"ping","id":"p1"}')]))
    await until(() => client.received.includes('"pong"'))
    expect(await held(stack)).toBe(0)
  })

  it('is released after a client exceeded the budget', async () => {
    await using own = await startStack({ settings: { BODY_BYTES_MAX: '1000000' }, sockets: { lingerMs: 60_000 } })
    using client = await openHalf(own)
    client.send(FRAGMENT)
    for (let i = 0; i < 20; i++) client.send(PONGS)
    // 0x03f5 is the close code 1013. The connection still exists, because its client has not closed its side.
    await until(() => client.received.includes('\x03\xf5'), { withinMs: 20_000 })
    expect(await held(own)).toBe(0)
    expect(await gauge(own, 'sluice_websockets')).toBe(1)
    expect(client.isCut).toBe(false)
  })

  it('includes the received part of an unfinished message until the client disconnects', async () => {
    await using own = await startStack({ settings: { BODY_BYTES_MAX: '1000000' } })
    {
      using client = await openWs(own)
      for (let i = 0; i < 9; i++) client.ws.send('x'.repeat(100_000), { fin: false })
      await until(async () => (await held(own)) >= 2_700_000)
      expect(await held(own)).toBeLessThan(4_000_000)
    }
    await until(async () => (await held(own)) === 0)
  })
})

describe('reading from a WebSocket client', () => {
  it('stays paused until a message has been processed, even after a reply was sent', () => {
    const flushes: (() => void)[] = []
    const ws = {
      isPaused: false,
      bufferedAmount: 0,
      readyState: 1,
      OPEN: 1,
      pause: () => {
        ws.isPaused = true
      },
      resume: () => {
        ws.isPaused = false
      },
      send: (_text: string, onFlushed: () => void) => flushes.push(onFlushed),
    }
    const socket = ws as unknown as WebSocket
    const pause = new ReadPause(socket)
    const outbox = new Outbox(socket, { ...SOCKET_BOUNDS, repliesMax: 2 }, pause, () => {})
    for (let i = 0; i < 3; i++) outbox.reply('{}')
    pause.begin('reading')
    for (const flush of flushes.splice(0)) flush()
    expect(ws.isPaused).toBe(true)
    for (let i = 0; i < 3; i++) outbox.reply('{}')
    pause.end('reading')
    expect(ws.isPaused).toBe(true)
    for (const flush of flushes.splice(0)) flush()
    expect(ws.isPaused).toBe(false)
  })
})
