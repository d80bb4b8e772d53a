import type { Client, JsonSchemaValidator } from '@modelcontextprotocol/client'
import { ServiceError } from '#shared/lib/error.ts'
import { streamOutbound } from '#shared/outbound/outbound.ts'
import { refusal } from '#shared/search/web/api.ts'
import { failureOf } from './failure.ts'

export interface McpServer {
  readonly url: string
  readonly token?: string | undefined
  readonly searchTool: string
  /** Timeout of each request, in ms. Default: 15 s. */
  readonly timeoutMs?: number
}

export type ToolAnswer = Awaited<ReturnType<Client['callTool']>>

export const NAME = 'mcp'
const TIMEOUT_MS = 15_000
/**
 * Maximum bytes of one answer. The bound limits the time for which parsing blocks the event loop. The text of a page has at most 48 Ki characters in
 * any case.
 */
const BYTES_MAX = 512 * 1024
const TOOL_PAGES_MAX = 5
/** Statuses by which the server refuses a request for a reason outside of the request, such as a wrong token, a rate limit or overload. */
const REFUSALS: ReadonlySet<number> = new Set([401, 403, 429, 503])

/**
 * One initialized connection to an MCP server, with its list of tools.
 *
 * The server may be in a private network, because the operator chose its URL. Addresses of cloud metadata services are always refused. Requests that
 * the server sends are ignored.
 */
export class McpSession {
  readonly #client: Client
  readonly #timeoutMs: number
  readonly #tools: ReadonlyMap<string, readonly string[] | undefined>
  readonly #broken: AbortController
  #underWay = 0
  #isRetired = false

  private constructor(client: Client, timeoutMs: number, tools: Tools, broken: AbortController) {
    this.#client = client
    this.#timeoutMs = timeoutMs
    this.#tools = tools
    this.#broken = broken
  }

  /**
   * Opens a connection to the MCP server.
   *
   * @throws ServiceError `upstream_error`, `upstream_timeout`, `upstream_refused`, `rate_limit_exceeded`, or the abort reason of the signal
   */
  static async open(server: McpServer, signal: AbortSignal): Promise<McpSession> {
    // The SDK is large, so it is loaded only if an MCP server is configured.
    const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client')
    const timeoutMs = server.timeoutMs ?? TIMEOUT_MS
    const broken = new AbortController()
    const client = new Client(
      { name: 'sluice', version: '1' },
      { versionNegotiation: { mode: 'auto' }, listMaxPages: TOOL_PAGES_MAX, jsonSchemaValidator: UNCHECKED },
    )
    const transport = new StreamableHTTPClientTransport(new URL(server.url), {
      fetch: guarded(timeoutMs, broken),
      requestInit: { headers: server.token === undefined ? {} : { authorization: `Bearer ${server.token}` } },
      reconnectionOptions: NO_RECONNECTION,
    })
    const options = { signal: AbortSignal.any([signal, broken.signal]), timeout: timeoutMs }
    try {
      await client.connect(transport, options)
      const { tools } = await client.listTools(undefined, options)
      return new McpSession(client, timeoutMs, toolsOf(tools), broken)
    } catch (error) {
      await client.close().catch(() => {})
      throw failureOf(error, signal, broken.signal)
    }
  }

  parametersOf(tool: string): readonly string[] | undefined {
    return this.#tools.get(tool)
  }

  async call(name: string, input: Record<string, unknown>, signal: AbortSignal): Promise<ToolAnswer> {
    this.#underWay++
    const options = { signal: AbortSignal.any([signal, this.#broken.signal]), timeout: this.#timeoutMs }
    try {
      return await this.#client.callTool({ name, arguments: input }, options)
    } catch (error) {
      throw failureOf(error, signal, this.#broken.signal)
    } finally {
      this.#underWay--
      await this.#closeWhenIdle()
    }
  }

  async retire(): Promise<void> {
    this.#isRetired = true
    await this.#closeWhenIdle()
  }

  async #closeWhenIdle(): Promise<void> {
    if (this.#isRetired && this.#underWay === 0) await this.#client.close().catch(() => {})
  }
}

type Tools = ReadonlyMap<string, readonly string[] | undefined>

function toolsOf(tools: readonly { name: string; inputSchema: { required?: unknown } }[]): Tools {
  return new Map(
    tools.map(({ name, inputSchema: { required } }) => {
      return [name, Array.isArray(required) ? required.filter((each) => typeof each === 'string') : []]
    }),
  )
}

/** Disables the SDK's validation of results against the server's schemas, because `mcp.ts` validates results itself. */
const UNCHECKED = {
  getValidator<T>(): JsonSchemaValidator<T> {
    return (input) => ({ valid: true, data: input as T, errorMessage: undefined })
  },
}

/** Disables reconnection, so that a call fails at once if its stream breaks. */
const NO_RECONNECTION = {
  maxRetries: 0,
  initialReconnectionDelay: 1,
  maxReconnectionDelay: 1,
  reconnectionDelayGrowFactor: 1,
}

type Fetch = (url: string | URL, init?: RequestInit) => Promise<Response>

/**
 * Returns the `fetch` that the SDK uses.
 *
 * @param broken Aborted if a response body breaks off. The SDK alone would leave the waiting call without an answer
 */
function guarded(timeoutMs: number, broken: AbortController): Fetch {
  return async (url, { method = 'GET', headers, body, signal } = {}) => {
    // With GET, the SDK requests a stream of messages that the server sends on its own. The status 405 declines this
    // stream.
    if (method === 'GET') return new Response(null, { status: 405 })
    const answer = await streamOutbound(String(url), {
      method: method === 'DELETE' ? 'DELETE' : 'POST',
      headers: Object.fromEntries(new Headers(headers)),
      body: typeof body === 'string' ? body : undefined,
      policy: { allowPrivate: true },
      timeoutMs,
      bytesMax: BYTES_MAX,
      signal: signal ?? new AbortController().signal,
    })
    if (!REFUSALS.has(answer.status)) return watched(answer, broken)
    await answer.body?.cancel()
    throw refusal(NAME, answer.status, answer.headers.get('retry-after') ?? undefined, 'See MCP_SEARCH_TOKEN.')
  }
}

function watched(answer: Response, broken: AbortController): Response {
  const { status, headers } = answer
  if (!answer.body) return answer
  const { readable, writable } = new TransformStream()
  answer.body.pipeTo(writable).catch((error: unknown) => {
    if (error instanceof ServiceError) broken.abort(error)
  })
  return new Response(readable, { status, headers })
}
