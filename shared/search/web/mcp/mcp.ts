import { z } from 'zod'
import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import {
  type DomainRules,
  type Hit,
  isHostAllowed,
  isWebAllowed,
  type ReadOptions,
  type SearchBackend,
  type SearchOptions,
  type Snapshot,
} from '#shared/search/search.ts'
import type { WebPages } from '#shared/search/web/pages.ts'
import { Throttle } from '#shared/search/web/throttle.ts'
import { hitsOf, type RawHit } from '#shared/search/web/web.ts'
import { failed } from './failure.ts'
import { type McpServer, McpSession, NAME, type ToolAnswer } from './session.ts'

const RESULTS_MAX = 100
const ID_CHARS_MAX = 2_048
const Id = z.union([z.string().min(1).max(ID_CHARS_MAX), z.number()]).transform(String)

/** A search result in the format that OpenAI's deep research expects from MCP servers, with the additional fields that servers often send. */
const Result = z.looseObject({
  id: Id.optional().catch(undefined),
  url: z.string(),
  title: z.string().nullish().catch(null),
  text: z.string().nullish().catch(null),
  snippet: z.string().nullish().catch(null),
  date: z.string().nullish().catch(null),
})
const Results = z.union([z.looseObject({ results: z.array(z.unknown()) }), z.array(z.unknown())])

const Document = z.looseObject({
  title: z.string().nullish().catch(null),
  text: z.string(),
})

const FETCH_TOOL = 'fetch'
/** Lifetime of a connection in ms. A connection is replaced regularly, because the tools of the server may change. */
const SESSION_TTL_MS = 10 * 60_000

/**
 * Search backend for an MCP server (https://modelcontextprotocol.io, streamable HTTP).
 *
 * The server has the tools that OpenAI's deep research expects: `search` with a `query`, and optionally `fetch` with an `id`. If the server has no
 * `fetch`, then the pages of the results are read through their URLs.
 */
export function openMcpSearch(server: McpServer, pages: WebPages): SearchBackend {
  return new McpSearch(server, pages)
}

interface Connection {
  readonly opening: Promise<McpSession>
  readonly untilMs: number
}

class McpSearch implements SearchBackend {
  readonly name = NAME
  /** Price of a search. The price that an MCP server charges is unknown here, so its searches count as free. */
  readonly searchUsd = 0
  readonly #server: McpServer
  readonly #pages: WebPages
  readonly #throttle = new Throttle(NAME)
  readonly #closing = new AbortController()
  #session: Connection | undefined

  constructor(server: McpServer, pages: WebPages) {
    this.#server = server
    this.#pages = pages
  }

  hasAllowed(domains: DomainRules): boolean {
    return isWebAllowed(domains)
  }

  async search(text: string, options: SearchOptions): Promise<Hit[]> {
    const answer = await this.#throttle.run(() => this.#call(this.#server.searchTool, 'query', text, options.signal))
    return hitsOf(resultsOf(answer), options)
  }

  async read(hit: Hit, options: ReadOptions): Promise<Snapshot> {
    const { domains, signal } = options
    if (!isHostAllowed(new URL(hit.url).hostname, domains))
      throw new ServiceError('permission_denied', 'The host is outside the allowed domains.')
    const { id } = hit
    const hasFetch = id !== undefined && (await this.#opened(signal)).parametersOf(FETCH_TOOL) !== undefined
    if (!hasFetch) return withHit(await this.#pages.read(hit.url, options), hit)
    const answer = await this.#throttle.run(() => this.#call(FETCH_TOOL, 'id', id, signal))
    const { title, text } = documentOf(answer)
    const type = /^\s*<(?:!doctype|html)\b/i.test(text) ? 'html' : 'markdown'
    const document = { type, bytes: Buffer.from(text), charset: 'utf-8' } as const
    return withHit(await this.#pages.parse(hit.url, document, options, title ?? ''), hit)
  }

  async close(): Promise<void> {
    this.#closing.abort(new ServiceError('overloaded', 'The search backend is closed.'))
    this.#forget(this.#session)
    await this.#pages.close()
  }

  /**
   * Calls a tool.
   *
   * @throws ServiceError `upstream_refused` if the server lacks the tool, or if the tool requires other parameters
   */
  async #call(tool: string, parameter: string, value: string, signal: AbortSignal): Promise<ToolAnswer> {
    const session = await this.#opened(signal)
    const current = this.#session
    const required = session.parametersOf(tool)
    if (!required) throw new ServiceError('upstream_refused', `The search backend ${NAME} has no tool ${tool}.`)
    if (required.some((each) => each !== parameter)) {
      const message = `The tool ${tool} of the search backend ${NAME} requires more parameters than ${parameter}.`
      throw new ServiceError('upstream_refused', message)
    }
    try {
      return await session.call(tool, { [parameter]: value }, signal)
    } catch (error) {
      // A restarted server no longer accepts this connection. The connection is discarded, so that the next call opens a new one.
      if (!signal.aborted) this.#forget(current)
      throw error
    }
  }

  /** Returns the connection that all calls share. If one caller aborts, then the connection stays open for the others. */
  async #opened(signal: AbortSignal): Promise<McpSession> {
    if (this.#session && this.#session.untilMs < Date.now()) this.#forget(this.#session)
    this.#session ??= {
      opening: McpSession.open(this.#server, this.#closing.signal),
      untilMs: Date.now() + SESSION_TTL_MS,
    }
    const current = this.#session
    current.opening.catch(() => this.#forget(current))
    return await abortable(current.opening, signal)
  }

  #forget(session: Connection | undefined): void {
    if (this.#session === session) this.#session = undefined
    session?.opening.then((opened) => opened.retire()).catch(() => {})
  }
}

function withHit(snapshot: Snapshot, { title, date }: Hit): Snapshot {
  return { ...snapshot, title: snapshot.title || title, ...(date && { date }) }
}

type McpDocument = z.infer<typeof Document>

/**
 * Reads the results of the search tool: `{results: [{id, title, url}]}`, as JSON in the text or as structured content.
 *
 * @throws ServiceError `upstream_error` for any other answer, or for results without URLs
 */
function resultsOf(answer: ToolAnswer): RawHit[] {
  const all = Results.safeParse(dataOf(answer))
  if (!all.success) throw failed('sent a response without valid results', all.error)
  const given = Array.isArray(all.data) ? all.data : all.data.results
  const results = given.slice(0, RESULTS_MAX).flatMap((each) => Result.safeParse(each).data ?? [])
  if (given.length > 0 && results.length === 0) throw failed('returns results without URLs')
  return results.map(({ id, url, title, text, snippet, date }) => {
    return { url, title, snippet: snippet ?? text, date, ...(id !== undefined && { id }) }
  })
}

function documentOf(answer: ToolAnswer): McpDocument {
  const document = Document.safeParse(dataOf(answer))
  if (!document.success) throw failed('returned a result that is not a document', document.error)
  return document.data
}

/** Returns the result of a tool, parsed as JSON. Other text is returned as a string, which the schemas of results reject. */
function dataOf({ isError, structuredContent, content }: ToolAnswer): unknown {
  const text = content.find((part) => part.type === 'text')?.text ?? ''
  if (isError) throw failed('reports that the call failed', new Error(text.slice(0, 300)))
  if (structuredContent !== undefined) return unwrapped(structuredContent)
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** Some MCP frameworks wrap the return value of a tool in an object with the only field `result`. */
function unwrapped(content: unknown): unknown {
  const { result, ...rest } = content as { result?: unknown }
  return result !== undefined && Object.keys(rest).length === 0 ? result : content
}
