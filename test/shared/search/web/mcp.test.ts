import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import {
  createMcpHandler,
  McpServer,
  WebStandardStreamableHTTPServerTransport as StreamableTransport,
} from '@modelcontextprotocol/server'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { z } from 'zod'
import type { Hit, SearchBackend } from '#shared/search/search.ts'
import { openMcpSearch } from '#shared/search/web/mcp/mcp.ts'
import { WebPages } from '#shared/search/web/pages.ts'

const ALL = { allow: [] as string[], deny: [] as string[] }
const { signal } = new AbortController()
const READING = { domains: ALL, project: 'prj_1', signal }
const TIDES = { id: 'tides-1', title: 'Tides', url: 'https://sea.example/tides' }
const TEXT = '# Tides\n\nThe tide turns **twice** a day, every day of the year.'

type Tool = (input: Record<string, string>) => unknown
type Fetch = (request: Request) => Promise<Response>

let server: Server
let base: string
let handle: RequestListener
let backend: SearchBackend
const asked: { method: string; rpc: string; authorization: string | undefined }[] = []

/** Starts an MCP server with the official library. The tools differ in the form of their results. */
const serverOf = (tools: Record<string, Tool>, parameter: Record<string, string> = {}): McpServer => {
  const mcp = new McpServer({ name: 'library', version: '1.0.0' })
  for (const [name, run] of Object.entries(tools)) {
    const wanted = parameter[name] ?? (name === 'fetch' ? 'id' : 'query')
    const inputSchema = z.object({ [wanted]: z.string() })
    mcp.registerTool(name, { inputSchema }, async (input) => {
      const given = await run(input as Record<string, string>)
      return { content: [{ type: 'text', text: typeof given === 'string' ? given : JSON.stringify(given) }] }
    })
  }
  return mcp
}
const bridged = (answerTo: Fetch): RequestListener => {
  return async (request, response) => {
    const body = (await bytesOf(request)).toString()
    const rpc = body === '' ? '' : String(JSON.parse(body).method)
    asked.push({ method: request.method ?? '', rpc, authorization: request.headers.authorization })
    const { method = 'GET', headers } = request
    const init = { method, headers: headers as Record<string, string>, ...(body !== '' && { body }) }
    await send(response, await answerTo(new Request(`${base}/mcp`, init)))
  }
}
const speaking = (tools: Record<string, Tool>, parameter: Record<string, string> = {}): RequestListener => {
  return bridged((request) => createMcpHandler(() => serverOf(tools, parameter)).fetch(request))
}
async function bytesOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk)
  return Buffer.concat(chunks)
}
async function send(response: ServerResponse, answer: Response): Promise<void> {
  response.writeHead(answer.status, Object.fromEntries(answer.headers))
  for await (const chunk of answer.body ?? []) response.write(chunk)
  response.end()
}
const open = (more: { token?: string; searchTool?: string } = {}, pages = new WebPages({ policy: PRIVATE })) => {
  backend = openMcpSearch({ url: `${base}/mcp`, searchTool: 'search', timeoutMs: 2_000, ...more }, pages)
  return backend
}
const PRIVATE = { allowPrivate: true }
const search = (domains = ALL) => backend.search('tide turns', { limit: 5, domains, signal })
const results = (...all: unknown[]) => ({ search: () => ({ results: all }) })

beforeAll(async () => {
  server = createServer((request, response) => handle(request, response))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
beforeEach(() => {
  asked.length = 0
  handle = speaking(results(TIDES))
  open()
})
afterEach(async () => {
  await backend.close()
  server.closeAllConnections()
})
afterAll(() => new Promise((resolve) => server.close(resolve)))

describe('the search backend with an MCP server', () => {
  test('calls the search tool of the server, and returns its hits', async () => {
    const queries: string[] = []
    const tool: Tool = ({ query }) => {
      queries.push(query ?? '')
      return {
        results: [
          { ...TIDES, url: `${TIDES.url}?utm_source=x#top`, text: 'Some <b>text</b>', date: '2026-01-02' },
          TIDES,
        ],
      }
    }
    handle = speaking({ search: tool })
    expect(await search()).toEqual([{ ...TIDES, snippet: 'Some text', date: '2026-01-02' }])
    expect(queries).toEqual(['tide turns'])
    expect(backend.name).toBe('mcp')
  })

  test('uses one connection for several calls, and a new one after a failure', async () => {
    let isBroken = false
    const tool: Tool = () => {
      if (isBroken) throw new Error('broken')
      return { results: [TIDES] }
    }
    handle = speaking({ search: tool })
    await search()
    await search()
    expect(asked.filter(({ rpc }) => rpc === 'tools/list')).toHaveLength(1)
    isBroken = true
    await expect(search()).rejects.toMatchObject({ code: 'upstream_error' })
    handle = (_, response) => void response.writeHead(404).end()
    await expect(search()).rejects.toMatchObject({ code: 'upstream_error' })
    handle = speaking(results(TIDES))
    expect(await search()).toHaveLength(1)
  })

  test('uses sessions of the older protocol, and opens a new session after one expired', async () => {
    const sessions = new Map<string, StreamableTransport>()
    const answerTo: Fetch = async (request) => {
      const known = sessions.get(request.headers.get('mcp-session-id') ?? '')
      if (known) return await known.handleRequest(request)
      if (request.headers.has('mcp-session-id')) return new Response(null, { status: 404 })
      const transport = new StreamableTransport({
        sessionIdGenerator: () => crypto.randomUUID(),
        onsessioninitialized: (id) => void sessions.set(id, transport),
      })
      await serverOf(results(TIDES)).connect(transport)
      return await transport.handleRequest(request)
    }
    handle = bridged(answerTo)
    expect(await search()).toHaveLength(1)
    expect(sessions.size).toBe(1)
    sessions.clear()
    await expect(search()).rejects.toMatchObject({ code: 'upstream_error' })
    expect(await search()).toHaveLength(1)
  })

  test('sends its bearer token, and calls a tool with a configured name', async () => {
    handle = speaking({ look_up: () => [TIDES] })
    await backend.close()
    open({ token: 'secret-1', searchTool: 'look_up' })
    expect(await search()).toHaveLength(1)
    expect(new Set(asked.map(({ authorization }) => authorization))).toEqual(new Set(['Bearer secret-1']))
  })

  test('returns an empty list if the server reports no hits', async () => {
    handle = speaking(results())
    expect(await search()).toEqual([])
  })

  test('omits hits on hosts that the request does not allow', async () => {
    expect(await search({ allow: ['b.example'], deny: [] })).toEqual([])
    expect(await search({ allow: [], deny: ['sea.example'] })).toEqual([])
    const [hit] = await search({ allow: ['example'], deny: [] })
    await expect(
      backend.read(hit as Hit, { ...READING, domains: { allow: [], deny: ['sea.example'] } }),
    ).rejects.toMatchObject({
      code: 'permission_denied',
    })
  })

  test.each<[string, string, RequestListener]>([
    ['does not have the search tool', 'upstream_refused', speaking({ other: () => '' })],
    ['requires further arguments of the tool', 'upstream_refused', speaking(results(TIDES), { search: 'question' })],
    [
      'reports that the search failed',
      'upstream_error',
      speaking({ search: () => Promise.reject(new Error('no index')) }),
    ],
    ['returns plain text', 'upstream_error', speaking({ search: () => 'I found nothing, sorry.' })],
    ['returns JSON without results', 'upstream_error', speaking({ search: () => ({ items: [TIDES] }) })],
    ['returns results without URLs', 'upstream_error', speaking(results({ id: '1', title: 'Tides' }))],
    ['returns 3 MB', 'upstream_error', speaking({ search: () => 'x'.repeat(3_000_000) })],
    ['returns HTML', 'upstream_error', (_, response) => void response.writeHead(200).end('<html>')],
    ['returns JSON of another protocol', 'upstream_error', (_, response) => json(response, { tools: [] })],
    ['responds with status 404', 'upstream_error', (_, response) => void response.writeHead(404).end('no')],
    ['responds with status 500', 'upstream_error', (_, response) => void response.writeHead(500).end('no')],
    ['closes the connection', 'upstream_error', (_, response) => void response.destroy()],
    ['responds with status 401', 'upstream_refused', (_, response) => void response.writeHead(401).end()],
    ['responds with status 429', 'rate_limit_exceeded', (_, response) => throttled(response)],
    [
      'redirects to a metadata service',
      'upstream_error',
      (_, response) => void response.writeHead(307, METADATA).end(),
    ],
    ['never responds', 'upstream_timeout', () => {}],
    ['responds byte by byte without an end', 'upstream_timeout', (_, response) => drip(response)],
  ])('fails if the server %s, with the error code %s', async (_, code, listener) => {
    handle = listener
    await expect(search()).rejects.toMatchObject({ code, message: expect.stringContaining('mcp') })
  })

  test('sends no requests during the Retry-After of a 429 response', async () => {
    handle = (_, response) => throttled(response)
    await expect(search()).rejects.toMatchObject({ retryAfterMs: 30_000 })
    handle = speaking(results(TIDES))
    await expect(search()).rejects.toMatchObject({ code: 'rate_limit_exceeded' })
    expect(asked).toEqual([])
  })

  test('ends a hanging call when its signal is aborted, without delaying other calls', async () => {
    handle = speaking({ search: ({ query }) => (query === 'slow' ? new Promise(() => {}) : { results: [TIDES] }) })
    const leaving = new AbortController()
    const slow = backend.search('slow', { limit: 5, domains: ALL, signal: leaving.signal })
    expect(await search()).toHaveLength(1)
    leaving.abort(new Error('disconnected'))
    await expect(slow).rejects.toThrow('disconnected')
    expect(await search()).toHaveLength(1)
  })

  test('refuses a server at the address of a metadata service', async () => {
    await backend.close()
    backend = openMcpSearch(
      { url: 'http://169.254.169.254/mcp', searchTool: 'search' },
      new WebPages({ policy: PRIVATE }),
    )
    await expect(search()).rejects.toMatchObject({ code: 'upstream_refused', message: expect.stringContaining('mcp') })
  })
})

describe('a search hit of an MCP server', () => {
  const found = async () => (await search())[0] as Hit
  const fetching = (fetch: Tool) => speaking({ ...results(TIDES), fetch })

  test('is read by the fetch tool, and returned as text without markup', async () => {
    const ids: string[] = []
    handle = fetching(({ id }) => {
      ids.push(id ?? '')
      return { ...TIDES, text: TEXT, metadata: { source: 'x' } }
    })
    const snapshot = await backend.read(await found(), READING)
    expect(snapshot).toMatchObject({ url: TIDES.url, title: 'Tides' })
    expect(snapshot.text).toBe('Tides\n\nThe tide turns twice a day, every day of the year.')
    expect(ids).toEqual(['tides-1'])
  })

  test('is converted to text if the fetch tool returns HTML', async () => {
    handle = fetching(() => ({ text: '<html><body><p>The tide turns.</p><script>alert(1)</script></body></html>' }))
    expect((await backend.read(await found(), READING)).text).toBe('The tide turns.')
  })

  test.each<[string, Tool]>([
    ['reports an error', () => Promise.reject(new Error('gone'))],
    ['returns plain text', () => 'It is not here.'],
    ['returns no text', () => ({ title: 'Tides' })],
  ])('fails with upstream_error if the fetch tool %s', async (_, fetch) => {
    handle = fetching(fetch)
    await expect(backend.read(await found(), READING)).rejects.toMatchObject({
      code: 'upstream_error',
      message: expect.stringContaining('mcp'),
    })
  })

  test('is read from its web page if the server has no fetch tool', async () => {
    const page = '<html><body><p>The tide turns twice a day.</p></body></html>'
    const url = `${base}/page`
    const listener = speaking(results({ ...TIDES, url }))
    handle = (request, response) => {
      if (request.url === '/robots.txt') response.writeHead(404).end()
      else if (request.url === '/page') response.writeHead(200, { 'content-type': 'text/html' }).end(page)
      else listener(request, response)
    }
    expect((await backend.read(await found(), READING)).text).toBe('The tide turns twice a day.')
    await backend.close()
    open({}, new WebPages({ policy: { allowPrivate: false } }))
    await expect(backend.read(await found(), READING)).rejects.toMatchObject({ code: 'invalid_value' })
  })
})

const METADATA = { location: 'http://169.254.169.254/mcp' }

function json(response: ServerResponse, body: unknown): void {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

function throttled(response: ServerResponse): void {
  response.writeHead(429, { 'retry-after': '30' }).end()
}

function drip(response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  const timer = setInterval(() => response.write(': x\n'), 100)
  response.on('close', () => clearInterval(timer))
}
