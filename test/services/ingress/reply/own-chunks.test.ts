import type { IncomingMessage, ServerResponse } from 'node:http'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { HttpReply, ownChunks } from '#services/ingress/http/reply.ts'
import { closeServer, listen } from '#services/ingress/http/server.ts'
import { openRaw, rawRequest } from '../../../support/raw-http.ts'
import { until } from '../../../support/stack.ts'

const TEXTS = ['data: {"a":1}\n\n', 'é', '', '\u{1f600}'.repeat(3), 'x'.repeat(70_000)]

async function startServer(answer: (res: ServerResponse) => void): Promise<string> {
  const handler = (_req: IncomingMessage, res: ServerResponse) => {
    res.writeHead(200, { 'content-type': 'text/event-stream' })
    ownChunks(res)
    answer(res)
  }
  const { server, port } = await listen(handler, { host: '127.0.0.1', port: 0, reusePort: false })
  onTestFinished(() => closeServer(server, AbortSignal.abort()))
  return `http://127.0.0.1:${port}`
}

function sayAll(res: ServerResponse): void {
  for (const text of TEXTS) res.write(text)
  res.end('last')
}

describe('HTTP chunks that the server writes as one string each', () => {
  it('arrive unchanged with any characters, and leave the connection usable for the next request', async () => {
    const url = await startServer(sayAll)
    for (let call = 0; call < 2; call++) {
      const response = await fetch(url)
      expect(response.headers.get('transfer-encoding')).toBe('chunked')
      expect(await response.text()).toBe(`${TEXTS.join('')}last`)
    }
    using client = await openRaw(url)
    client.send(rawRequest('GET /') + rawRequest('GET /'))
    await until(() => client.received.split('last\r\n0\r\n\r\n').length === 3)
    expect(client.isEnded).toBe(false)
  })

  it('consist of only the terminating chunk if the response has no body', async () => {
    using client = await openRaw(await startServer((res) => res.end()))
    client.send(rawRequest('GET /'))
    await until(() => client.received.endsWith('\r\n\r\n0\r\n\r\n'))
  })

  it('arrive completely at a client that starts to read late', async () => {
    const piece = 'x'.repeat(60_000)
    const drained = Promise.withResolvers<void>()
    let written = 0
    const url = await startServer((res) => {
      for (; written < 1_000 && !res.writableNeedDrain; written++) res.write(piece)
      res.once('drain', () => {
        drained.resolve()
        res.end('last')
      })
    })
    using client = await openRaw(url)
    client.socket.pause()
    client.send(rawRequest('GET /'))
    await until(() => written > 0)
    client.socket.resume()
    await drained.promise
    await until(() => client.received.endsWith('last\r\n0\r\n\r\n'))
    expect(written).toBeLessThan(1_000)
    expect(client.received.split('ea60\r\n')).toHaveLength(written + 1)
  })

  it('are sent without chunk headers to an HTTP/1.0 client', async () => {
    using client = await openRaw(await startServer(sayAll))
    client.send('GET / HTTP/1.0\r\n\r\n')
    await until(() => client.isEnded)
    const body = Buffer.from(client.received.slice(client.received.indexOf('\r\n\r\n') + 4), 'latin1')
    expect(body.toString()).toBe(`${TEXTS.join('')}last`)
  })
})

it('an HTTP reply sends the head and the first frame of a stream in one write', async () => {
  const written: string[] = []
  const metrics = { requests: { inc: () => {} }, requestSeconds: { observe: () => {} } }
  const context = { config: { slowReaderMs: 1_000 }, log: { info: () => {} }, metrics } as unknown as IngressContext
  const handler = (req: IncomingMessage, res: ServerResponse) => {
    const { socket } = req
    const write = socket.write.bind(socket)
    socket.write = ((text: string, ...more: []) => {
      written.push(text)
      return write(text, ...more)
    }) as typeof socket.write
    const reply = new HttpReply(
      context,
      Object.assign(req, { path: '/v1/chat/completions', params: {}, query: {} }),
      res,
    )
    reply.open('stream')
    void reply.frames([{ data: '1' }])
    void reply.frames([{ data: '2' }])
    reply.end({ type: 'completed' })
  }
  const { server, port } = await listen(handler, { host: '127.0.0.1', port: 0, reusePort: false })
  onTestFinished(() => closeServer(server, AbortSignal.abort()))
  const response = await fetch(`http://127.0.0.1:${port}`)
  expect(await response.text()).toBe('data: 1\n\ndata: 2\n\ndata: [DONE]\n\n')
  expect(written[0]).toMatch(/^HTTP\/1\.1 200 OK\r\n.*\r\n\r\n9\r\ndata: 1\n\n\r\n$/s)
})
