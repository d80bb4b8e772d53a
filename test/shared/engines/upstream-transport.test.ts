import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { PassThrough } from 'node:stream'
import { brotliCompressSync, createGzip, gzipSync, zstdCompressSync } from 'node:zlib'
import { describe, expect, test } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { ask, collect, engineOn, failure, textOf } from '../../support/engine-calls.ts'
import { longestHold } from '../../support/loop-hold.ts'
import { startUpstream } from '../../support/processes/upstream.ts'
import { HELLO, ROLE, STOP, STREAM, USAGE, WHOLE } from '../../support/wire/frames.ts'

const MEBIBYTE = 1024 * 1024
const HOLD_MS_MAX = 300

/** Starts a server that sends raw bytes, because the scripted upstream can send only text. */
async function startServer(listener: RequestListener): Promise<{ url: string } & AsyncDisposable> {
  const server = createServer((request, response) => request.resume().on('end', () => listener(request, response)))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

describe('a compressed upstream response', () => {
  test('is not requested: each call has the header Accept-Encoding: identity', async () => {
    await using upstream = await startUpstream((_call, answer) => answer.text(STREAM, 'text/event-stream'))
    await using engine = engineOn('openai', upstream.url)
    await collect(engine)
    expect(upstream.calls[0]?.headers['accept-encoding']).toBe('identity')
  })

  test('is decompressed while the stream arrives', async () => {
    const gzip = createGzip()
    await using server = await startServer((_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream', 'content-encoding': 'gzip' })
      gzip.pipe(response)
      gzip.write(ROLE + HELLO)
      gzip.flush()
    })
    await using engine = engineOn('openai', server.url)
    const types: string[] = []
    for await (const event of engine.generate(ask(), {
      signal: AbortSignal.timeout(10_000),
      idempotencyKey: 'job_1:1',
    })) {
      types.push(event.type)
      if (event.type === 'text') gzip.end(STOP + USAGE)
    }
    expect(types).toEqual(['start', 'text', 'finish', 'usage'])
  })

  test('is detected by the first bytes if the header Content-Encoding is missing', async () => {
    const bytes = zstdCompressSync(STREAM)
    await using server = await startServer(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      for (const byte of bytes) await new Promise<void>((resolve) => response.write(Buffer.of(byte), () => resolve()))
      response.end()
    })
    await using engine = engineOn('openai', server.url)
    expect(textOf(await collect(engine))).toBe('Hello')
  })

  test.each([
    ['gzip of a whole answer', 'application/json', gzipSync(`${' '.repeat(400 * MEBIBYTE)}${WHOLE}`)],
    ['gzip of one frame', 'text/event-stream', gzipSync(`data: "${'x'.repeat(100 * MEBIBYTE)}`)],
    ['gzip of comments', 'text/event-stream', gzipSync(':\n'.repeat(200 * MEBIBYTE))],
    ['br of an error', 'application/json', brotliCompressSync(`{"error":"${'x'.repeat(100 * MEBIBYTE)}"}`)],
  ])(
    'is refused at a high compression ratio, with bounded memory and event-loop time: %s',
    async (what, type, bytes) => {
      const status = what.endsWith('error') ? 400 : 200
      const coding = what.startsWith('br') ? 'br' : 'gzip'
      await using server = await startServer((_request, response) => {
        response.writeHead(status, { 'content-type': type, 'content-encoding': coding }).end(bytes)
      })
      await using engine = engineOn('openai', server.url)
      const before = process.memoryUsage().rss
      let error: unknown
      const holdMs = await longestHold(async () => {
        error = await failure(engine)
      })
      expect(error).toMatchObject({ code: status === 400 ? 'invalid_request' : 'upstream_error' })
      expect(holdMs).toBeLessThan(HOLD_MS_MAX)
      expect(process.memoryUsage().rss - before).toBeLessThan(200 * MEBIBYTE)
    },
    60_000,
  )

  test('is decompressed no faster than the caller reads the stream', async () => {
    const source = new PassThrough()
    let sent = 0
    await using server = await startServer((_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream', 'content-encoding': 'gzip' })
      // Compression level 0 stores the data uncompressed, so that the compressed stream is not smaller than the original.
      source.pipe(createGzip({ level: 0 })).pipe(response)
    })
    const piece = 'x'.repeat(64 * 1024)
    const text = HELLO.replace('Hello', piece)
    const write = () => {
      while (sent < 256) {
        sent++
        if (!source.write(text)) return void source.once('drain', write)
      }
      source.end(STOP + USAGE)
    }
    write()
    await using engine = engineOn('openai', server.url)
    let got = 0
    for await (const event of engine.generate(ask(), {
      signal: AbortSignal.timeout(60_000),
      idempotencyKey: 'job_1:1',
    })) {
      if (event.type !== 'text') continue
      if (got === 0) await new Promise((resolve) => setTimeout(resolve, 1_000))
      if (got === 0) expect(sent).toBeLessThan(200)
      got += event.text.length
    }
    expect(got).toBe(256 * piece.length)
  }, 60_000)
})

test.each([
  ['8 MiB of lines in one event', 'data: x\n'.repeat(1024)],
  ['1 million comments', ': x\n\n'.repeat(1024)],
  ['lines of brackets', '{\n}}\n'.repeat(1024)],
])('a stream with %s fails with upstream_error without blocking the event loop', async (_what, text) => {
  await using upstream = await startUpstream((_call, answer) => {
    answer.open()
    for (let at = 0; at < 1024; at++) void answer.bytes(text)
    answer.end()
  })
  await using engine = engineOn('openai', upstream.url)
  const holdMs = await longestHold(async () => {
    expect(await failure(engine)).toMatchObject({ code: 'upstream_error' })
  })
  expect(holdMs).toBeLessThan(HOLD_MS_MAX)
})

test('the query of a base URL is part of each call to this URL', async () => {
  await using one = await startUpstream((_call, answer) => answer.text(STREAM, 'text/event-stream'))
  await using two = await startUpstream((_call, answer) => answer.text(STREAM, 'text/event-stream'))
  await using engine = engineOn('openai', one.url, {
    base_url: undefined,
    base_urls: [`${one.url}/openai/?api-version=2024-10-21`, `${two.url}/v1?a=b&c=d%20e`],
  })
  for (let call = 0; call < 4; call++) await collect(engine)
  expect(new Set(one.calls.map(({ path }) => path))).toEqual(
    new Set(['/openai/chat/completions?api-version=2024-10-21']),
  )
  expect(new Set(two.calls.map(({ path }) => path))).toEqual(new Set(['/v1/chat/completions?a=b&c=d%20e']))
})

test.each(['ftp://host/v1', 'http://user:secret@host/v1', 'https://secret@host', 'http://host/v1#part'])(
  'the invalid base URL %s is refused in the model catalogue',
  (url) => {
    const parse = (engine: object) => ModelConfig.safeParse({ id: 'm1', engine: { type: 'openai', ...engine } })
    for (const engine of [{ base_url: url }, { base_urls: [url] }, { base_urls: [{ url, weight: 2 }] }]) {
      expect(parse(engine).error?.message).toMatch(/without user, password and fragment|Invalid input/)
    }
    expect(parse({ base_url: 'https://host/openai?api-version=1' }).success).toBe(true)
  },
)

test('a key in the query of a base URL is replaced by [hidden] in error messages', async () => {
  await using upstream = await startUpstream((call, answer) => answer.json({ error: `no such ${call.path}` }, 400))
  await using engine = engineOn('openai', upstream.url, { base_url: `${upstream.url}/v1?key=AIza0123456789` })
  expect((await failure(engine)).message).toBe('no such /v1/chat/completions?key=[hidden]')
})

test('an upstream error insufficient_quota becomes upstream_refused, and does not lower the concurrency limit', async () => {
  const error = { message: 'You exceeded your current quota', code: 'insufficient_quota' }
  await using upstream = await startUpstream((_call, answer) => answer.json({ error }, 429))
  await using engine = engineOn('openai', upstream.url, { concurrency: 8 })
  const places = engine.places
  for (let call = 0; call < 3; call++) expect(await failure(engine)).toMatchObject({ code: 'upstream_refused' })
  expect(engine.places).toBe(places)
  upstream.script((_call, answer) => answer.json({ error: { message: 'slow down' } }, 429))
  expect(await failure(engine)).toMatchObject({ code: 'overloaded' })
  expect(engine.places).toBeLessThan(8)
})

test('the socket of a complete response is closed within 8 s if the upstream leaves it open', async () => {
  await using upstream = await startUpstream(async (_call, answer) => {
    answer.open()
    await answer.bytes(ROLE + HELLO + STOP + USAGE)
    // Comments in a stream must not extend the timeout.
    const beat = setInterval(() => void answer.bytes(': ping\n\n'), 100)
    setTimeout(() => clearInterval(beat), 10_000).unref()
  })
  await using engine = engineOn('openai', upstream.url)
  const startedAtMs = Date.now()
  expect(textOf(await collect(engine))).toBe('Hello')
  expect(Date.now() - startedAtMs).toBeLessThan(8_000)
  await upstream.calls[0]?.closed
})

test('a call ends with the abort reason if the caller disconnects after the last token of the upstream', async () => {
  await using upstream = await startUpstream(async (_call, answer) => {
    answer.open()
    await answer.bytes(ROLE + HELLO + STOP)
  })
  await using engine = engineOn('openai', upstream.url)
  const reason = new Error('disconnected')
  expect(await failure(engine, ask(), AbortSignal.any([abortIn(300, reason)]))).toBe(reason)
})

function abortIn(ms: number, reason: Error): AbortSignal {
  const controller = new AbortController()
  setTimeout(() => controller.abort(reason), ms)
  return controller.signal
}
