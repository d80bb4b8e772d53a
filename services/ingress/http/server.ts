import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { errorBody, formatOf } from '#services/ingress/body/body.ts'
import type { Config } from '#shared/config/config.ts'
import { errorHeaders } from '#shared/kinds/errors.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { openTickThrottle } from '#shared/lib/yielding.ts'
import { createServer, maxHeaderSize, STATUS_CODES } from '#shared/process/node-http.ts'

export interface ServerBounds {
  readonly keepAliveMs: number
  readonly headersMs: number
  readonly requestMs: number
  /**
   * Time in ms without any byte in either direction after which the connection is cut. Must exceed the longest pause
   * within an answer.
   */
  readonly silenceMs: number
  /**
   * Maximum time in ms for which a connection stays open after its response is complete. Applies if the client still
   * sends a refused body, or does not close its side.
   */
  readonly lingerMs: number
  /** Interval in ms at which Node checks `keepAliveMs`, `headersMs` and `requestMs`. */
  readonly checkMs: number
  readonly connectionsMax: number
}

/**
 * Default bounds. Clients with a connection pool reuse connections for up to a minute, so idle connections stay open
 * longer than that. Uploads may be slow, but request heads may not (docs/internals/protocol.md, Headers).
 */
export const SERVER_BOUNDS: ServerBounds = {
  keepAliveMs: 75_000,
  headersMs: 80_000,
  requestMs: 600_000,
  silenceMs: 300_000,
  lingerMs: 2_000,
  checkMs: 5_000,
  connectionsMax: 20_000,
}

interface Upgrades {
  /** Whether an upgrade request is passed to {@link upgrade}. If not, then the request is answered as plain HTTP. */
  accepts(req: IncomingMessage): boolean
  upgrade(req: IncomingMessage, socket: Socket, head: Buffer): void
}

type ListenAddress = Pick<Config, 'host' | 'port' | 'reusePort'>

export async function listen(
  handler: (req: IncomingMessage, res: ServerResponse) => void,
  { host, port, reusePort }: ListenAddress,
  bounds: ServerBounds = SERVER_BOUNDS,
  upgrades?: Upgrades,
): Promise<{ server: Server; port: number }> {
  const server = createServer({
    keepAliveTimeout: bounds.keepAliveMs,
    headersTimeout: bounds.headersMs,
    requestTimeout: bounds.requestMs,
    connectionsCheckingInterval: bounds.checkMs,
    noDelay: true,
    // The application checks the Host header itself, because Node's own error has no body.
    requireHostHeader: false,
    shouldUpgradeCallback: (req) => upgrades?.accepts(req) ?? false,
  })
  server.timeout = bounds.silenceMs
  server.maxConnections = bounds.connectionsMax
  const exchanges = new Exchanges(bounds.lingerMs)
  const throttle = openTickThrottle()
  const onRequest = (req: IncomingMessage, res: ServerResponse) => {
    exchanges.add(req, res)
    const wait = throttle()
    if (!wait) return handler(req, res)
    void wait.then(() => {
      if (!res.destroyed) handler(req, res)
    })
  }
  server.on('request', onRequest)
  // RFC 9110 §10.1.1 allows a server to ignore an unknown Expect header. Node would answer 417 without a body, so the
  // request is handled as usual.
  server.on('checkExpectation', onRequest)
  // The type is Duplex, but a TCP server has only sockets of the type net.Socket.
  server.on('upgrade', (req, socket: Duplex, head) => upgrades?.upgrade(req, socket as Socket, head))
  server.on('clientError', (error: ClientError, socket: Socket) => exchanges.onClientError(error, socket))
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen({ port, host, reusePort }, () => {
      server.off('error', reject)
      resolve()
    })
  })
  const address = server.address()
  return { server, port: typeof address === 'object' && address ? address.port : port }
}

export async function closeServer(server: Server, signal: AbortSignal): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()))
  server.closeIdleConnections()
  const cut = () => server.closeAllConnections()
  if (signal.aborted) cut()
  else signal.addEventListener('abort', cut, { once: true })
  await closed
  signal.removeEventListener('abort', cut)
}

type ClientError = NodeJS.ErrnoException & { rawPacket?: Buffer }

interface Exchange {
  readonly req: IncomingMessage
  readonly res: ServerResponse
}

/**
 * Tracks the requests of each connection until their responses are complete, and cuts connections whose request never
 * completes. Two cases need this:
 *
 * 1. A request was answered before its body arrived. Node would discard the rest of the body without a time limit.
 *
 * 2. The HTTP parser rejects a request. One error is sent in plain HTTP, unless a client could mistake it for another
 * answer.
 */
class Exchanges {
  readonly #underWay = new WeakMap<Socket, Set<Exchange>>()
  readonly #lingerMs: number

  constructor(lingerMs: number) {
    this.#lingerMs = lingerMs
  }

  add(req: IncomingMessage, res: ServerResponse): void {
    const { socket } = req
    const exchange = { req, res }
    const underWay = this.#underWay.get(socket) ?? new Set()
    this.#underWay.set(socket, underWay.add(exchange))
    res.once('close', () => {
      underWay.delete(exchange)
      if (!req.complete) this.#cutLater(socket, () => !req.complete)
    })
  }

  /**
   * Handles a request that is not HTTP, that arrives too slowly, or whose head is too large. One error is sent, then
   * the connection is cut.
   */
  onClientError(error: ClientError, socket: Socket): void {
    const [exchange, ...more] = this.#underWay.get(socket) ?? []
    // While an earlier request is still being answered, the client could mistake this error for that answer.
    const isMisleading = exchange && (more.length > 0 || exchange.req.complete || exchange.res.headersSent)
    if (error.code === 'ECONNRESET' || !socket.writable || isMisleading) return void socket.destroy()
    socket.end(refusalOf(error, exchange))
    this.#cutLater(socket, () => true)
  }

  #cutLater(socket: Socket, isDue: () => boolean): void {
    const cut = () => {
      if (isDue()) socket.destroy()
    }
    setTimeout(cut, this.#lingerMs).unref()
  }
}

function refusalOf(client: ClientError, exchange: Exchange | undefined): string {
  const { status, error } = reasonOf(client.code)
  const [, target] = /^[A-Z]+ (\S+)/.exec(client.rawPacket?.toString('latin1', 0, 256) ?? '') ?? []
  const path = (exchange?.req.url ?? target ?? '').split('?')[0] ?? ''
  const requestId = String(exchange?.res.getHeader('x-request-id') ?? newId('req_'))
  const body = JSON.stringify(errorBody(error, formatOf(path), requestId))
  const headers = {
    'x-request-id': requestId,
    'request-id': requestId,
    ...pageHeadersOf(exchange?.res),
    ...errorHeaders(error),
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
  }
  const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${head.join('')}\r\n${body}`
}

/** Returns the CORS headers that are already set on the response. Without them, a page could not read the error. */
function pageHeadersOf(res: ServerResponse | undefined): Record<string, string> {
  const set = Object.entries(res?.getHeaders() ?? {})
  const own = set.filter(([name]) => name === 'vary' || name.startsWith('access-control-'))
  return Object.fromEntries(own.map(([name, value]) => [name, String(value)]))
}

function reasonOf(code: string | undefined): { status: number; error: ServiceError } {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return {
        status: 431,
        error: new ServiceError('invalid_request', `The request line and headers exceed ${maxHeaderSize} bytes.`),
      }
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return { status: 408, error: new ServiceError('request_timeout', 'The request did not arrive in time.') }
    default:
      return { status: 400, error: new ServiceError('invalid_request', 'The request is not valid HTTP.') }
  }
}

/*
 * Cross-origin requests (https://fetch.spec.whatwg.org/#http-cors-protocol). If CORS_ORIGINS contains the origin of a
 * page, then the browser allows the page to call the API and to read the answers.
 *
 * A page sends its key in a header, and cookies grant no access. The header `access-control-allow-credentials` is
 * therefore never sent.
 */

const EXPOSED = [
  ...['x-request-id', 'request-id', 'x-job-id', 'location', 'preference-applied', 'idempotency-replayed', 'allow'],
  ...['retry-after', 'retry-after-ms', 'x-should-retry', 'openai-processing-ms', 'www-authenticate', 'x-max-tokens'],
  ...['x-unknown-parameters', 'x-format-ignored'],
  ...['requests', 'tokens'].flatMap((kind) => [
    ...[`x-ratelimit-limit-${kind}`, `x-ratelimit-remaining-${kind}`, `x-ratelimit-reset-${kind}`],
    ...['limit', 'remaining', 'reset'].map((what) => `anthropic-ratelimit-${kind}-${what}`),
  ]),
].join(', ')
const METHODS = 'GET, HEAD, POST, DELETE'
/** Time in seconds for which a browser may cache the answer to a preflight request. Chromium permits no more. */
const MAX_AGE_SECONDS = '7200'
/** Maximum characters of the header names that a preflight request lists. SDKs list about 400 characters. */
const ASKED_CHARS_MAX = 4_096

export class Cors {
  readonly #isOpen: boolean
  readonly #origins: ReadonlySet<string> | undefined

  /** @param setting Origins separated by commas, or `*`. Default: no origin */
  constructor(setting: string | undefined) {
    const origins = setting?.split(',').map((origin) => origin.trim().toLowerCase())
    this.#origins = origins && new Set(origins)
    this.#isOpen = this.#origins?.has('*') ?? false
  }

  /**
   * Sets the CORS headers of the answer. A preflight request is answered here, because it contains no key and is not
   * counted against limits.
   *
   * @returns True if the request was a preflight request, which is then answered
   */
  answer({ method, headers }: IncomingMessage, res: ServerResponse): boolean {
    if (!this.#origins) return false
    // The `vary` header is also set for origins that are not allowed. Otherwise a cache could return their answers, without CORS headers,
    // to an allowed page.
    if (!this.#isOpen) res.setHeader('vary', 'Origin')
    const { origin } = headers
    if (origin === undefined || !this.#allows(origin)) return false
    res.setHeader('access-control-allow-origin', this.#isOpen ? '*' : origin)
    res.setHeader('access-control-expose-headers', EXPOSED)
    if (method !== 'OPTIONS' || headers['access-control-request-method'] === undefined) return false
    // The requested headers are listed one by one, because `*` does not include `authorization`.
    const requested = headers['access-control-request-headers']?.slice(0, ASKED_CHARS_MAX)
    res.writeHead(204, {
      'access-control-allow-methods': METHODS,
      ...(requested && { 'access-control-allow-headers': requested }),
      'access-control-max-age': MAX_AGE_SECONDS,
    })
    res.end()
    return true
  }

  /**
   * Whether a page may open a WebSocket. Browsers permit this from every origin, so the server must check the origin.
   *
   * Allowed are pages of this service and of the origins in CORS_ORIGINS. If CORS_ORIGINS is unset, then any page may
   * connect, because a key is required. Requests without an Origin header come from programs, not from pages.
   */
  allowsSocket({ headers: { origin, host } }: IncomingMessage): boolean {
    if (origin === undefined || !this.#origins) return true
    if (this.#allows(origin)) return true
    // The origin `null` and invalid origins have no host, and a request may have no Host header. Two missing hosts must
    // not count as equal.
    const own = URL.parse(origin)?.host
    return own !== undefined && own !== '' && own === host?.toLowerCase()
  }

  #allows(origin: string): boolean {
    return this.#isOpen || this.#origins?.has(origin.toLowerCase()) === true
  }
}
