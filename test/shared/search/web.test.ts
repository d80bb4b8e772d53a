import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gzipSync } from 'node:zlib'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type SearchBackend, SNAPSHOT_CHARS_MAX } from '#shared/search/search.ts'
import { brave, exa, searxng, serper, tavily } from '#shared/search/web/backends.ts'
import { WebPages } from '#shared/search/web/pages.ts'
import { openWebSearch, type WebService } from '#shared/search/web/web.ts'
import { until } from '../../support/stack.ts'

const ALL = { allow: [] as string[], deny: [] as string[] }
const { signal } = new AbortController()
const READING = { domains: ALL, project: 'prj_1', signal }
const PAGE =
  '<html><head><title>Tides</title></head><body><p>The tide turns twice a day, every day of the year.</p></body></html>'

let server: Server
let base: string
let handle: RequestListener
const asked: string[] = []
/** Page reader that all tests share. Each test has its own server, which the reader treats as a separate site. */
let pages: WebPages

const listen = async (): Promise<Server> => {
  const made = createServer((request, response) => {
    asked.push(request.url ?? '')
    handle(request, response)
  })
  await new Promise<void>((resolve) => made.listen(0, '127.0.0.1', resolve))
  return made
}
const send = (response: ServerResponse, body: string | Buffer, headers: Record<string, string> = {}, status = 200) => {
  response.writeHead(status, { 'content-type': 'text/html', ...headers }).end(body)
}
const breakOff = (response: ServerResponse) => {
  response.writeHead(200, { 'content-type': 'text/html', 'content-length': '99' })
  response.write('x', () => response.destroy())
}
/** Defines the pages of the test's server, by path. There is no robots.txt unless the test defines one. */
const site = (routes: Record<string, (response: ServerResponse, request: IncomingMessage) => void>): void => {
  handle = (request, response) => {
    const route = routes[request.url ?? '']
    if (route) route(response, request)
    else send(response, 'no', {}, 404)
  }
}

beforeEach(async () => {
  asked.length = 0
  server = await listen()
  base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
beforeAll(() => {
  pages = new WebPages({ policy: { allowPrivate: true }, timeoutMs: 1_500, bytesMax: 64 * 1024 })
})
afterAll(() => pages.close())
afterEach(async () => {
  server.closeAllConnections()
  await new Promise((resolve) => server.close(resolve))
})

const RESULT = { url: 'https://a.example/x?utm_source=y&id=1#top', title: 'A &amp; <b>B</b>' }

describe.each<[string, () => WebService<never>, object, (hits: object[]) => object]>([
  [
    'searxng',
    () => searxng(base) as never,
    { content: 'some <b>text</b>', publishedDate: '2026-01-02T03:04:05' },
    (results) => ({ results }),
  ],
  [
    'brave',
    () => brave('key-1', base) as never,
    { description: 'some <strong>text</strong>', page_age: '2026-01-02T03:04:05' },
    (results) => ({ web: { results } }),
  ],
  [
    'tavily',
    () => tavily('key-1', base) as never,
    { content: 'some text', published_date: '2026-01-02' },
    (results) => ({ results }),
  ],
  [
    'exa',
    () => exa('key-1', base) as never,
    { highlights: ['some text'], publishedDate: '2026-01-02T00:00:00.000Z' },
    (results) => ({ results }),
  ],
  [
    'serper',
    () => serper('key-1', base) as never,
    { snippet: 'some text', date: 'Jan 2, 2026 UTC', link: RESULT.url },
    (organic) => ({ organic }),
  ],
])('the web search backend %s', (name, service, extra, wrap) => {
  const answering = (body: unknown, status = 200, headers = {}) => {
    handle = (request, response) => {
      request.resume()
      send(response, typeof body === 'string' ? body : JSON.stringify(body), headers, status)
    }
  }
  const open = (): SearchBackend => openWebSearch(service(), pages)
  const search = (backend = open(), domains = ALL) => backend.search('tide turns', { limit: 5, domains, signal })

  test('returns hits as plain text, without duplicates, tracking parameters and non-HTTP links', async () => {
    answering(
      wrap([
        { ...RESULT, ...extra },
        { ...RESULT, ...extra },
        { ...RESULT, ...extra, url: 'javascript:alert(1)', link: 'file:///etc/passwd' },
      ]),
    )
    expect(await search()).toEqual([
      { url: 'https://a.example/x?id=1', title: 'A & B', snippet: 'some text', date: '2026-01-02' },
    ])
    expect(open().name).toBe(name)
  })

  test('returns an empty list if the search service reports no hits', async () => {
    answering(wrap([]))
    expect(await search()).toEqual([])
  })

  test.each([
    [500, 'upstream_error'],
    [429, 'rate_limit_exceeded'],
    [401, 'upstream_refused'],
    [403, 'upstream_refused'],
    [404, 'upstream_refused'],
  ])('maps status %d to the error code %s', async (status, code) => {
    answering(wrap([]), status)
    await expect(search()).rejects.toMatchObject({ code })
  })

  test.each([
    ['invalid JSON', '<html>'],
    ['JSON without results', '{"error":"limit"}'],
    ['JSON with a string as results', wrap('none' as never)],
  ])('fails with upstream_error if the response is %s', async (_, body) => {
    // If a response of Brave has no web results, then the search has found nothing. Such a response is no error.
    if (name === 'brave' && body === '{"error":"limit"}') return
    answering(body)
    await expect(search()).rejects.toMatchObject({ code: 'upstream_error' })
  })

  test('omits hits on hosts that the request does not allow', async () => {
    answering(wrap([{ ...RESULT, ...extra }]))
    expect(await search(open(), { allow: ['b.example'], deny: [] })).toEqual([])
    expect(await search(open(), { allow: [], deny: ['a.example'] })).toEqual([])
    expect(await search(open(), { allow: ['example'], deny: [] })).toHaveLength(1)
    expect(open().hasAllowed?.({ allow: ['local'], deny: [] })).toBe(false)
    expect(open().hasAllowed?.({ allow: ['local', 'a.example'], deny: [] })).toBe(true)
  })

  test('sends no requests during the Retry-After of a 429 response', async () => {
    answering('{}', 429, { 'retry-after': '30' })
    const backend = open()
    await expect(search(backend)).rejects.toMatchObject({ retryAfterMs: 30_000 })
    const before = asked.length
    await expect(search(backend)).rejects.toMatchObject({ code: 'rate_limit_exceeded' })
    expect(asked.length).toBe(before)
  })

  test('ends a search when its signal is aborted, and fails with upstream_error if the connection closes', async () => {
    const gone = openWebSearch(service(), pages)
    handle = () => {}
    const leaving = new AbortController()
    const waiting = gone.search('x', { limit: 5, domains: ALL, signal: leaving.signal })
    leaving.abort(new Error('disconnected'))
    await expect(waiting).rejects.toThrow('disconnected')
    handle = (_, response) => void response.destroy()
    await expect(search()).rejects.toMatchObject({ code: 'upstream_error' })
  })
})

test('the backends Exa and Serper request at most ten results, the smallest price unit', async () => {
  const bodies: Record<string, unknown>[] = []
  handle = (request, response) => {
    request.on('data', (body: Buffer) => bodies.push(JSON.parse(String(body))))
    request.on('end', () => send(response, JSON.stringify({ results: [], organic: [] })))
  }
  const options = { limit: 20, domains: ALL, signal }
  await openWebSearch(exa('key-1', base), pages).search('x', options)
  await openWebSearch(serper('key-1', base), pages).search('x', options)
  expect(bodies).toMatchObject([{ numResults: 10 }, { num: 10 }])
})

test('the backend SearXNG fails with upstream_error if no search engine responded', async () => {
  handle = (_, response) =>
    send(response, JSON.stringify({ results: [], unresponsive_engines: [['google', 'timeout']] }))
  const backend = openWebSearch(searxng(base), pages)
  await expect(backend.search('x', { limit: 5, domains: ALL, signal })).rejects.toMatchObject({
    code: 'upstream_error',
  })
})

describe('the reader of web pages', () => {
  const read = (path = '/page', domains = ALL) => pages.read(`${base}${path}`, { ...READING, domains })

  test('returns the text of a page, decompressed and decoded by its charset', async () => {
    site({
      '/page': (response) => send(response, gzipSync(PAGE), { 'content-encoding': 'gzip' }),
      '/cyrillic': (response) =>
        send(response, Buffer.from([0xcf, 0xf0, 0xe8]), { 'content-type': 'text/plain; charset=windows-1251' }),
    })
    const snapshot = await read()
    expect(snapshot).toMatchObject({ url: `${base}/page`, title: 'Tides' })
    expect(snapshot.text).toContain('The tide turns twice a day')
    expect((await read('/cyrillic')).text).toBe('При')
  })

  test('follows a redirect, and returns the new URL', async () => {
    site({
      '/old': (response) => send(response, '', { location: '/page#part' }, 301),
      '/page': (response) => send(response, PAGE),
    })
    expect((await read('/old')).url).toBe(`${base}/page`)
  })

  test.each<[string, string, (response: ServerResponse) => void]>([
    ['has status 404', 'not_found', (response) => send(response, '', {}, 404)],
    ['has status 403', 'permission_denied', (response) => send(response, '', {}, 403)],
    ['has status 500', 'upstream_error', (response) => send(response, '', {}, 500)],
    ['redirects to itself', 'upstream_error', (response) => send(response, '', { location: '/page' }, 302)],
    ['redirects to an invalid URL', 'upstream_error', (response) => send(response, '', { location: 'http://[' }, 302)],
    [
      'redirects to a file URL',
      'invalid_value',
      (response) => send(response, '', { location: 'file:///etc/passwd' }, 302),
    ],
    [
      'redirects to a metadata service',
      'invalid_value',
      (response) => send(response, '', { location: 'http://169.254.169.254/' }, 302),
    ],
    [
      'has the type application/octet-stream',
      'unsupported_media_type',
      (response) => send(response, 'MZ', { 'content-type': 'application/octet-stream' }),
    ],
    ['has no content type', 'unsupported_media_type', (response) => send(response, PAGE, { 'content-type': '' })],
    ['is binary', 'unsupported_media_type', (response) => send(response, 'a\0b', { 'content-type': 'text/plain' })],
    ['has no text', 'unsupported_media_type', (response) => send(response, '<html><body><img></body></html>')],
    ['is above the maximum size', 'request_too_large', (response) => send(response, 'x'.repeat(100_000))],
    [
      'is above the maximum size after decompression',
      'request_too_large',
      (response) => send(response, gzipSync(Buffer.alloc(10_000_000)), { 'content-encoding': 'gzip' }),
    ],
    [
      'is not compressed as its header declares',
      'upstream_error',
      (response) => send(response, PAGE, { 'content-encoding': 'br' }),
    ],
    ['never arrives', 'upstream_timeout', () => {}],
    [
      'arrives byte by byte without an end',
      'upstream_timeout',
      (response) => {
        response.setHeader('content-type', 'text/html')
        setInterval(() => response.write('x'), 200).unref()
      },
    ],
    ['ends with a closed connection', 'upstream_error', breakOff],
  ])('fails if the page %s, with the error code %s', async (_, code, answer) => {
    site({ '/page': answer })
    await expect(read()).rejects.toMatchObject({ code })
  })

  test('sends no request to a private address, whether by URL or by redirect', async () => {
    const strict = new WebPages({ policy: { allowPrivate: false } })
    for (const url of [
      `${base}/page`,
      'https://127.0.0.1/page',
      'https://localhost/page',
      'https://[::1]/',
      'https://2130706433/',
    ])
      await expect(strict.read(url, READING)).rejects.toMatchObject({ code: 'invalid_value' })
    expect(asked).toEqual([])
    await strict.close()
  })

  test('sends no request to a host that the caller does not allow, whether by URL or by redirect', async () => {
    await expect(read('/page', { allow: ['a.example'], deny: [] })).rejects.toMatchObject({ code: 'permission_denied' })
    expect(asked).toEqual([])
    site({ '/page': (response) => send(response, '', { location: 'https://denied.example/' }, 302) })
    await expect(read('/page', { allow: [], deny: ['denied.example'] })).rejects.toMatchObject({
      code: 'permission_denied',
    })
  })

  test.each<[string, boolean, (response: ServerResponse) => void]>([
    ['does not exist', true, (response) => send(response, '', {}, 404)],
    ['allows the page', true, (response) => send(response, 'User-agent: *\nDisallow: /other\n')],
    ['forbids the page to all', false, (response) => send(response, 'User-agent: *\nDisallow: /\n')],
    [
      'forbids the page to Sluice',
      false,
      (response) => send(response, 'User-agent: sluiceresearch\nDisallow: /page\n\nUser-agent: *\nAllow: /\n'),
    ],
    ['forbids the page to others', true, (response) => send(response, 'User-agent: other\nDisallow: /\n')],
    ['was moved and forbids the page', false, (response) => send(response, '', { location: '/rules' }, 302)],
    ['has status 503', false, (response) => send(response, '', {}, 503)],
    ['ends with a closed connection', false, (response) => void response.destroy()],
    [
      'takes too long to evaluate',
      false,
      (response) => send(response, `User-agent: *\n${`Disallow: /${'*a'.repeat(1_000)}\n`.repeat(200)}`),
    ],
  ])('may read the page if the robots.txt %s: %s', async (_, isRead, robots) => {
    const path = `/page${'a'.repeat(1_500)}`
    const ok = (response: ServerResponse) => send(response, PAGE)
    const rules = (response: ServerResponse) => send(response, 'User-agent: *\nDisallow: /page\n')
    site({ '/robots.txt': robots, '/page': ok, [path]: ok, '/rules': rules })
    const reading = Promise.all([read(), read(path)])
    if (isRead) await expect(reading).resolves.toHaveLength(2)
    else await expect(reading).rejects.toMatchObject({ code: 'permission_denied' })
  })

  test('requests the robots.txt of a site once for two pages', async () => {
    site({ '/page': (response) => send(response, PAGE) })
    await read()
    await read()
    expect(asked.filter((path) => path === '/robots.txt')).toHaveLength(1)
  })

  /** Sends data until the client closes the connection. */
  const sendWithoutEnd = (response: ServerResponse, headers: Record<string, string>, status = 200) => {
    const write = () => {
      while (response.write('A text about tides. '.repeat(5_000)));
    }
    response.writeHead(status, headers).on('drain', write)
    write()
  }

  test.each(['text/plain', 'text/markdown', 'text/html'])(
    'reads only the start of an endless page of %s',
    async (type) => {
      const large = new WebPages({ policy: { allowPrivate: true } })
      site({ '/page': (response) => sendWithoutEnd(response, { 'content-type': type }) })
      const { text } = await large.read(`${base}/page`, READING)
      expect(text).toHaveLength(SNAPSHOT_CHARS_MAX)
      await large.close()
    },
  )

  test.each([
    ['of another type', 'unsupported_media_type', 200, 'application/octet-stream'],
    ['with an error status', 'not_found', 404, 'text/html'],
  ])('fails without reading the body of an endless page %s', async (_, code, status, type) => {
    site({ '/page': (response) => sendWithoutEnd(response, { 'content-type': type }, status) })
    await expect(read()).rejects.toMatchObject({ code })
  })

  test('downloads at most 8 pages of one project at once', async () => {
    const open = new Set<ServerResponse>()
    let most = 0
    handle = ({ url }, response) => {
      if (url !== '/held') return url === '/page' ? send(response, PAGE) : send(response, '', {}, 404)
      open.add(response)
      most = Math.max(most, open.size)
    }
    await read()
    const reading = Array.from({ length: 20 }, () => read('/held'))
    await until(() => open.size === 8)
    expect((await pages.read(`${base}/page`, { ...READING, project: 'prj_2' })).title).toBe('Tides')
    while (open.size > 0) {
      for (const response of open) send(response, PAGE)
      open.clear()
      await until(() => open.size > 0 || asked.filter((path) => path === '/held').length === 20)
    }
    expect(await Promise.all(reading)).toHaveLength(20)
    expect(most).toBe(8)
  })
})
