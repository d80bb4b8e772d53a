/*
 * Tests with clients that send or read as slowly as they can. Each client exceeds a limit of the server, gets an error if one can still be
 * sent, and is disconnected.
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { bytePieces, endWithin, framePieces, writePieces } from '#services/ingress/http/reply.ts'
import { closeServer, listen, SERVER_BOUNDS, type ServerBounds } from '#services/ingress/http/server.ts'
import { openRaw, type RawClient, rawRequest } from '../../../support/raw-http.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const MIB = 1024 * 1024
const KEY = `authorization: Bearer ${TEST_KEY}`
const JSON_TYPE = 'content-type: application/json'

type Handler = (req: IncomingMessage, res: ServerResponse) => void

async function startServer(handler: Handler, bounds: Partial<ServerBounds> = {}) {
  const quick = { ...SERVER_BOUNDS, checkMs: 20, lingerMs: 100, ...bounds }
  const { server, port } = await listen(handler, { host: '127.0.0.1', port: 0, reusePort: false }, quick)
  onTestFinished(() => closeServer(server, AbortSignal.abort()))
  const connections = () => new Promise<number>((resolve) => server.getConnections((_error, count) => resolve(count)))
  return { url: `http://127.0.0.1:${port}`, connections }
}

const ok: Handler = (_req, res) => void res.setHeader('content-length', 2).end('ok')

/** Sends one character of the text every `everyMs`, repeatedly until the test ends. */
function drip(client: RawClient, text: string, everyMs: number): void {
  let at = 0
  const timer = setInterval(() => client.send(text[at++ % text.length] ?? ''), everyMs)
  onTestFinished(() => clearInterval(timer))
}

describe('the timeouts of the HTTP server', () => {
  it('are at least 75 s for an idle connection and 10 minutes for an upload', () => {
    expect(SERVER_BOUNDS.keepAliveMs).toBeGreaterThanOrEqual(75_000)
    expect(SERVER_BOUNDS.headersMs).toBeGreaterThan(SERVER_BOUNDS.keepAliveMs)
    expect(SERVER_BOUNDS.requestMs).toBeGreaterThanOrEqual(600_000)
    expect(SERVER_BOUNDS.silenceMs).toBeGreaterThan(240_000)
  })

  it('close a connection whose request head arrives byte by byte', async () => {
    const server = await startServer(ok, { headersMs: 150 })
    using client = await openRaw(server.url)
    client.send('GET / HTTP/1.1\r\nhost: x\r\nx-slow: ')
    drip(client, 'a', 10)
    const answer = await client.answer()
    expect([answer.status, answer.headers['x-should-retry']]).toEqual([408, 'true'])
    expect(JSON.parse(answer.body)).toEqual({
      error: { message: expect.any(String), type: 'server_error', param: null, code: 'request_timeout' },
    })
    await until(async () => (await server.connections()) === 0)
  })

  it('return 408 for a body that arrives byte by byte', async () => {
    const server = await startServer((req) => void req.resume(), { headersMs: 100, requestMs: 200 })
    using client = await openRaw(server.url)
    client.send(rawRequest('POST /v1/messages?beta=true', ['content-length: 100000']))
    drip(client, ' ', 10)
    const answer = await client.answer()
    expect(answer.status).toBe(408)
    expect(JSON.parse(answer.body)).toEqual({
      type: 'error',
      error: { type: 'timeout_error', message: expect.any(String) },
      request_id: answer.headers['request-id'],
    })
    await until(async () => (await server.connections()) === 0)
  })

  it('close an idle connection, and a connection without a request', async () => {
    const server = await startServer(ok, { keepAliveMs: 50, headersMs: 150 })
    using silent = await openRaw(server.url)
    using idle = await openRaw(server.url)
    idle.send(rawRequest('GET /'))
    expect((await idle.answer()).status).toBe(200)
    await until(() => silent.isEnded && idle.isEnded)
    await until(async () => (await server.connections()) === 0)
  })

  it('close the connection of a client that pipelines requests and reads no response', async () => {
    const big = Buffer.alloc(64 * 1024, 'x')
    const server = await startServer((_req, res) => void res.end(big), { silenceMs: 200 })
    using client = await openRaw(server.url)
    client.socket.pause()
    client.send(rawRequest('GET /').repeat(2_000))
    await until(async () => (await server.connections()) === 1)
    await until(async () => (await server.connections()) === 0)
  })

  it('close the connection of a client that continues its body after the response', async () => {
    const server = await startServer((_req, res) => void res.writeHead(413).end())
    using client = await openRaw(server.url)
    client.send(rawRequest('POST /', ['transfer-encoding: chunked']))
    drip(client, '1\r\nx\r\n', 5)
    await until(() => client.received.includes(' 413 '))
    await until(async () => (await server.connections()) === 0)
  })
})

describe('a response to a client that reads slowly', () => {
  it('is never buffered beyond 256 KiB, and is aborted if the client reads nothing', async () => {
    const outcome = Promise.withResolvers<unknown>()
    let mostBuffered = 0
    const server = await startServer(async (_req, res) => {
      function* pieces(): Generator<Uint8Array> {
        for (const piece of bytePieces(Buffer.alloc(64 * MIB))) {
          mostBuffered = Math.max(mostBuffered, res.writableLength)
          yield piece
        }
      }
      await writePieces(res, pieces(), 200).then(() => outcome.resolve('taken'), outcome.resolve)
      res.destroy()
    })
    using client = await openRaw(server.url)
    client.socket.pause()
    client.send(rawRequest('GET /'))
    expect(await outcome.promise).toMatchObject({ code: 'slow_reader' })
    expect(mostBuffered).toBeLessThan(256 * 1024)
    await until(async () => (await server.connections()) === 0)
  })

  it('is aborted if the client reads one byte at long intervals', async () => {
    const outcome = Promise.withResolvers<unknown>()
    const server = await startServer(async (_req, res) => {
      await writePieces(res, bytePieces(Buffer.alloc(64 * MIB)), 300).then(
        () => outcome.resolve('taken'),
        outcome.resolve,
      )
      res.destroy()
    })
    using client = await openRaw(server.url)
    client.socket.pause()
    client.send(rawRequest('GET /'))
    const timer = setInterval(() => client.socket.read(1), 20)
    onTestFinished(() => clearInterval(timer))
    expect(await outcome.promise).toMatchObject({ code: 'slow_reader' })
  })

  it('is sent completely if the client is slow but makes progress', async () => {
    const server = await startServer(async (_req, res) => {
      res.setHeader('content-length', 8 * MIB)
      await writePieces(res, bytePieces(Buffer.alloc(8 * MIB, 'x')), 2_000)
      endWithin(res, 2_000)
    })
    using client = await openRaw(server.url)
    client.socket.pause()
    client.send(rawRequest('GET /'))
    const timer = setInterval(() => {
      client.socket.resume()
      setImmediate(() => client.socket.pause())
    }, 5)
    onTestFinished(() => clearInterval(timer))
    expect((await client.answer()).body).toHaveLength(8 * MIB)
  })

  it('is aborted if the client stops reading before the end', async () => {
    const server = await startServer((_req, res) => endWithin(res, 200, 'x'.repeat(64 * MIB)))
    using client = await openRaw(server.url)
    client.socket.pause()
    client.send(rawRequest('GET /'))
    await until(async () => (await server.connections()) === 1)
    await until(async () => (await server.connections()) === 0)
  })

  it('is aborted immediately if the client disconnects', async () => {
    const outcome = Promise.withResolvers<unknown>()
    const server = await startServer(async (_req, res) => {
      await writePieces(res, bytePieces(Buffer.alloc(64 * MIB)), 60_000).then(
        () => outcome.resolve('left'),
        outcome.resolve,
      )
    })
    const client = await openRaw(server.url)
    client.socket.pause()
    client.send(rawRequest('GET /'))
    await until(async () => (await server.connections()) === 1)
    client[Symbol.dispose]()
    expect(await outcome.promise).toBe('left')
  })

  it('is written in pieces that each end at the end of a frame', () => {
    const frames = Array.from({ length: 3_000 }, (_, i) => `data: ${'é😀'.repeat(i % 90)}${i}\n\n`)
    for (const text of [frames.join(''), 'no end', '']) {
      const pieces = [...framePieces(text)]
      expect(pieces.join('')).toBe(text)
      for (const piece of pieces.slice(0, -1)) expect(piece.endsWith('\n\n')).toBe(true)
    }
    expect([...framePieces(frames.join(''))].length).toBeGreaterThan(5)
  })
})

/** Number of open sockets of this process. The server and its clients run in this process, so each connection has two sockets. */
function openSockets(): number {
  return process.getActiveResourcesInfo().filter((type) => type === 'TCPSocketWrap').length
}

describe('streams to clients that stop reading', () => {
  const CLIENTS = 4
  const model = { ...ECHO_MODEL, limits: { ...ECHO_MODEL.limits, max_output_tokens: 1_000_000 } }
  // A request for log probabilities, which make the stream large: about 40 MB. The socket buffers of both sides hold far less.
  const body = (stream: boolean) =>
    JSON.stringify({
      model: 'echo-1',
      stream,
      logprobs: true,
      top_logprobs: 20,
      messages: [{ role: 'user', content: '!echo tokens=20000' }],
    })

  let stack: Stack
  beforeAll(async () => {
    stack = await startStack({ models: [model], settings: { SLOW_READER_MS: '1000' } })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const gauge = async (name: string) => {
    const text = await (await stack.get('/metrics')).text()
    return Number(new RegExp(`^${name.replaceAll('.', '\\.')}.* (\\d+)$`, 'm').exec(text)?.[1])
  }
  const running = () => gauge('sluice_attached_jobs\\{pool="inference",state="running"\\}')

  async function openUnread(): Promise<RawClient> {
    const client = await openRaw(stack.url)
    client.socket.pause()
    client.send(rawRequest('POST /v1/chat/completions', [KEY, JSON_TYPE], body(true)))
    return client
  }

  it('pause their workers, buffer a limited number of bytes, and are aborted at the time limit', async () => {
    expect(await running()).toBe(0)
    const [before, socketsBefore] = [process.memoryUsage(), openSockets()]
    const clients = await Promise.all(Array.from({ length: CLIENTS }, openUnread))
    await until(async () => (await running()) === CLIENTS)
    expect(openSockets()).toBe(socketsBefore + 2 * CLIENTS)
    let most = 0
    await until(async () => {
      const now = process.memoryUsage()
      most = Math.max(most, now.heapUsed + now.external - before.heapUsed - before.external)
      return (await running()) === 0
    })
    // Each stream has about 40 MB of text. Without backpressure, the server would buffer all four streams, that is 160 MB.
    expect(most / MIB).toBeLessThan(120)
    await until(async () => (await gauge('sluice_pool_running')) === 0)
    // The server must close its sockets, while the sockets of the clients stay open.
    await until(() => openSockets() === socketsBefore + CLIENTS)
    for (const client of clients) {
      client.socket.resume()
      await until(() => client.isEnded)
      expect(client.received).not.toContain('[DONE]')
      client[Symbol.dispose]()
    }
  })

  it('deliver a final error frame if the client reads again before the connection is cut', async () => {
    using client = await openUnread()
    await until(async () => (await running()) === 1)
    await until(async () => (await running()) === 0)
    client.socket.resume()
    await until(() => client.received.endsWith('0\r\n\r\n'))
    const frames = client.received.split('\n\n').filter((frame) => frame.includes('data: '))
    expect(frames.at(-1)).toContain('"code":"slow_reader"')
  })

  it('do not delay other streams', async () => {
    using client = await openUnread()
    await until(async () => (await running()) === 1)
    const say = { model: 'echo-1', messages: [{ role: 'user', content: 'hi' }] }
    expect((await stack.post('/v1/chat/completions', say)).status).toBe(200)
    expect(client.isEnded).toBe(false)
  })
})
