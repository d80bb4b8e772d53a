import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gzipSync } from 'node:zlib'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { SearchBackend } from '#shared/search/search.ts'
import { brave } from '#shared/search/web/backends/brave.ts'
import { exa } from '#shared/search/web/backends/exa.ts'
import { searxng } from '#shared/search/web/backends/searxng.ts'
import { serper } from '#shared/search/web/backends/serper.ts'
import { tavily } from '#shared/search/web/backends/tavily.ts'
import { WebPages } from '#shared/search/web/pages.ts'
import { openWebSearch, type WebService } from '#shared/search/web/web.ts'

const ALL = { allow: [] as string[], deny: [] as string[] }
const { signal } = new AbortController()
const READING = { domains: ALL, project: 'prj_1', signal }
const PAGE =
  '<html><head><title>Tides</title></head><body><p>The tide turns twice a day, every day of the year.</p></body></html>'

let server: Server
let base: string
let handle: RequestListener
const asked: string[] = []
/** One for all tests: each has its own server, and thus its own site. */
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
/** Pages by path; without a robots.txt unless given. */
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
])('the search backend %s', (name, service, extra, wrap) => {
  const answering = (body: unknown, status = 200, headers = {}) => {
    handle = (request, response) => {
      request.resume()
      send(response, typeof body === 'string' ? body : JSON.stringify(body), headers, status)
    }
  }
  const open = (): SearchBackend => openWebSearch(service(), pages)
  const search = (backend = open(), domains = ALL) => backend.search('tide turns', { limit: 5, domains, signal })

  test('returns hits as plain text, each page once, without tracking parameters', async () => {
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

  test('returns no hits only if the service reports none', async () => {
    answering(wrap([]))
    expect(await search()).toEqual([])
  })

  test.each([
    [500, 'upstream_error'],
    [429, 'rate_limit_exceeded'],
    [401, 'upstream_refused'],
    [403, 'upstream_refused'],
    [404, 'upstream_refused'],
  ])('maps %d to the failure %s', async (status, code) => {
    answering(wrap([]), status)
    await expect(search()).rejects.toMatchObject({ code })
  })

  test.each([
    ['no JSON', '<html>'],
    ['another shape', '{"error":"limit"}'],
    ['results of another type', wrap('none' as never)],
  ])('fails if the response is %s', async (_, body) => {
    // A response of Brave without web results means that none were found.
    if (name === 'brave' && body === '{"error":"limit"}') return
    answering(body)
    await expect(search()).rejects.toMatchObject({ code: 'upstream_error' })
  })

  test('respects the allowed hosts', async () => {
    answering(wrap([{ ...RESULT, ...extra }]))
    expect(await search(open(), { allow: ['b.example'], deny: [] })).toEqual([])
    expect(await search(open(), { allow: [], deny: ['a.example'] })).toEqual([])
    expect(await search(open(), { allow: ['example'], deny: [] })).toHaveLength(1)
    expect(open().hasAllowed?.({ allow: ['local'], deny: [] })).toBe(false)
    expect(open().hasAllowed?.({ allow: ['local', 'a.example'], deny: [] })).toBe(true)
  })

  test('is not called by any run while it is rate limited', async () => {
    answering('{}', 429, { 'retry-after': '30' })
    const backend = open()
    await expect(search(backend)).rejects.toMatchObject({ retryAfterMs: 30_000 })
    const before = asked.length
    await expect(search(backend)).rejects.toMatchObject({ code: 'rate_limit_exceeded' })
    expect(asked.length).toBe(before)
  })

  test('fails without a server, and ends with its signal', async () => {
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

test('services that charge by the number of results are asked for one price unit at most', async () => {
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

test('SearXNG without responding engines is a failure, not an empty result', async () => {
  handle = (_, response) =>
    send(response, JSON.stringify({ results: [], unresponsive_engines: [['google', 'timeout']] }))
  const backend = openWebSearch(searxng(base), pages)
  await expect(backend.search('x', { limit: 5, domains: ALL, signal })).rejects.toMatchObject({
    code: 'upstream_error',
  })
})

describe('a web page', () => {
  const read = (path = '/page', domains = ALL) => pages.read(`${base}${path}`, { ...READING, domains })

  test('is read as text, decompressed and in its charset', async () => {
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

  test('is read after a redirect, under its new URL', async () => {
    site({
      '/old': (response) => send(response, '', { location: '/page#part' }, 301),
      '/page': (response) => send(response, PAGE),
    })
    expect((await read('/old')).url).toBe(`${base}/page`)
  })

  test.each<[string, string, (response: ServerResponse) => void]>([
    ['is not there', 'not_found', (response) => send(response, '', {}, 404)],
    ['is forbidden', 'permission_denied', (response) => send(response, '', {}, 403)],
    ['fails', 'upstream_error', (response) => send(response, '', {}, 500)],
    ['moves in a circle', 'upstream_error', (response) => send(response, '', { location: '/page' }, 302)],
    ['moves to nowhere', 'upstream_error', (response) => send(response, '', { location: 'http://[' }, 302)],
    ['moves to a file', 'invalid_value', (response) => send(response, '', { location: 'file:///etc/passwd' }, 302)],
    [
      'moves to a metadata service',
      'invalid_value',
      (response) => send(response, '', { location: 'http://169.254.169.254/' }, 302),
    ],
    [
      'is a program',
      'unsupported_media_type',
      (response) => send(response, 'MZ', { 'content-type': 'application/octet-stream' }),
    ],
    ['says nothing of its type', 'unsupported_media_type', (response) => send(response, PAGE, { 'content-type': '' })],
    ['is binary', 'unsupported_media_type', (response) => send(response, 'a\0b', { 'content-type': 'text/plain' })],
    ['has no text', 'unsupported_media_type', (response) => send(response, '<html><body><img></body></html>')],
    ['is huge', 'request_too_large', (response) => send(response, 'x'.repeat(100_000))],
    [
      'is huge once unpacked',
      'request_too_large',
      (response) => send(response, gzipSync(Buffer.alloc(10_000_000)), { 'content-encoding': 'gzip' }),
    ],
    ['is not packed as it says', 'upstream_error', (response) => send(response, PAGE, { 'content-encoding': 'br' })],
    ['never comes', 'upstream_timeout', () => {}],
    ['drips', 'upstream_timeout', (response) => void setInterval(() => response.write('x'), 200).unref()],
    ['breaks off', 'upstream_error', breakOff],
  ])('that %s is %s', async (_, code, answer) => {
    site({ '/page': answer })
    await expect(read()).rejects.toMatchObject({ code })
  })

  test('in a private network is not requested, by its address or by a redirect', async () => {
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

  test('of a host that the request does not allow is not requested, also after a redirect', async () => {
    await expect(read('/page', { allow: ['a.example'], deny: [] })).rejects.toMatchObject({ code: 'permission_denied' })
    expect(asked).toEqual([])
    site({ '/page': (response) => send(response, '', { location: 'https://denied.example/' }, 302) })
    await expect(read('/page', { allow: [], deny: ['denied.example'] })).rejects.toMatchObject({
      code: 'permission_denied',
    })
  })

  test.each<[string, boolean, (response: ServerResponse) => void]>([
    ['is not there', true, (response) => send(response, '', {}, 404)],
    ['allows it', true, (response) => send(response, 'User-agent: *\nDisallow: /other\n')],
    ['forbids it to all', false, (response) => send(response, 'User-agent: *\nDisallow: /\n')],
    [
      'forbids it to us',
      false,
      (response) => send(response, 'User-agent: sluiceresearch\nDisallow: /page\n\nUser-agent: *\nAllow: /\n'),
    ],
    ['forbids it to others', true, (response) => send(response, 'User-agent: other\nDisallow: /\n')],
    ['has moved, and forbids it', false, (response) => send(response, '', { location: '/rules' }, 302)],
    ['fails', false, (response) => send(response, '', {}, 503)],
    ['breaks off', false, (response) => void response.destroy()],
    [
      'takes too long to understand',
      false,
      (response) => send(response, `User-agent: *\n${`Disallow: /${'*a'.repeat(1_000)}\n`.repeat(200)}`),
    ],
  ])('of a site whose robots.txt %s is read: %s', async (_, isRead, robots) => {
    const path = `/page${'a'.repeat(1_500)}`
    const ok = (response: ServerResponse) => send(response, PAGE)
    const rules = (response: ServerResponse) => send(response, 'User-agent: *\nDisallow: /page\n')
    site({ '/robots.txt': robots, '/page': ok, [path]: ok, '/rules': rules })
    const reading = Promise.all([read(), read(path)])
    if (isRead) await expect(reading).resolves.toHaveLength(2)
    else await expect(reading).rejects.toMatchObject({ code: 'permission_denied' })
  })

  test('has the robots.txt of its site requested once', async () => {
    site({ '/page': (response) => send(response, PAGE) })
    await read()
    await read()
    expect(asked.filter((path) => path === '/robots.txt')).toHaveLength(1)
  })
})
