import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { Config } from '#shared/config/config.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { createServer, STATUS_CODES } from '#shared/process/node-http.ts'
import { errorHeaders } from '#shared/protocols/errors.ts'
import { TickThrottle } from '#shared/tick-throttle.ts'
import { errorBody, formatOf } from './reply/errors.ts'

/** How long the HTTP server waits for its clients, in milliseconds, and how many it serves. */
export interface ServerBounds {
  /** An idle connection is kept this long. */
  readonly keepAliveMs: number
  /** A request's head must be whole after this. */
  readonly headersMs: number
  /** A request must be whole after this. */
  readonly requestMs: number
  /** A connection on which neither side gets a byte across is cut after this. Longer than any answer is silent. */
  readonly silenceMs: number
  /** How long a client may go on sending a body that was refused, or keep open a connection that was given up. */
  readonly lingerMs: number
  /** How often the first three are looked at. */
  readonly checkMs: number
  readonly connectionsMax: number
}

/** Pooled clients reuse sockets for a minute, uploads may be slow, heads may not (docs/protocol.md, Headers). */
export const SERVER_BOUNDS: ServerBounds = {
  keepAliveMs: 75_000,
  headersMs: 80_000,
  requestMs: 600_000,
  silenceMs: 300_000,
  lingerMs: 2_000,
  checkMs: 5_000,
  connectionsMax: 20_000,
}

/** Who takes connections over from HTTP. */
export interface Upgrades {
  /** Whether a request that asks for it is upgraded; any other is answered as if it had not asked. */
  accepts(req: IncomingMessage): boolean
  /** Owns the connection from then on. Must not throw. */
  upgrade(req: IncomingMessage, socket: Socket, head: Buffer): void
}

/** Where a server listens: an address, a port (0: a free one), and whether other processes that want it too share the port. */
export type ListenAddress = Pick<Config, 'host' | 'port' | 'reusePort'>

/** Starts to listen. @returns The server, and the port it got. */
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
    // The application refuses it, with a body in the path's format.
    requireHostHeader: false,
    shouldUpgradeCallback: (req) => upgrades?.accepts(req) ?? false,
  })
  server.timeout = bounds.silenceMs
  server.maxConnections = bounds.connectionsMax
  const exchanges = new Exchanges(bounds.lingerMs)
  const places = new TickThrottle()
  const onRequest = (req: IncomingMessage, res: ServerResponse) => {
    exchanges.add(req, res)
    const place = places.enter()
    if (!place) return handler(req, res)
    void place.then(() => {
      if (!res.destroyed) handler(req, res)
    })
  }
  server.on('request', onRequest)
  // An expectation nobody knows may be ignored (RFC 9110 §10.1.1); Node would answer 417 without a body.
  server.on('checkExpectation', onRequest)
  // Sockets of a TCP server are such, whatever the type says.
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

/** Stops listening and waits for the connections to end; at `signal` cuts those that are left. */
export async function closeServer(server: Server, signal: AbortSignal): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()))
  server.closeIdleConnections()
  const cut = () => server.closeAllConnections()
  if (signal.aborted) cut()
  else signal.addEventListener('abort', cut, { once: true })
  await closed
  signal.removeEventListener('abort', cut)
}

/** What Node's parser says about a connection it gives up; `rawPacket` are the bytes it stumbled over. */
type ClientError = NodeJS.ErrnoException & { rawPacket?: Buffer }

/** A request and its response, not finished yet. */
interface Exchange {
  readonly req: IncomingMessage
  readonly res: ServerResponse
}

/** The exchanges under way on each connection, and what becomes of those whose request never ends well. */
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
      // Answered before its body was there: Node throws the rest away, but would do so for as long as it comes.
      if (!req.complete) this.#cutLater(socket, () => !req.complete)
    })
  }

  /** What is not HTTP, or too slow, or too large in its head, gets one plain answer and its socket is cut. */
  onClientError(error: ClientError, socket: Socket): void {
    const [exchange, ...more] = this.#underWay.get(socket) ?? []
    // An answer now would be taken for that of an earlier request, or for a piece of one.
    const isMisleading = exchange && (more.length > 0 || exchange.req.complete || exchange.res.headersSent)
    if (error.code === 'ECONNRESET' || !socket.writable || isMisleading) return void socket.destroy()
    socket.end(refusalOf(error, exchange))
    this.#cutLater(socket, () => true)
  }

  /** A client may leave its side open for ever, so closing ours is not enough. */
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

/** What lets a page read the refusal of a request whose head was understood. */
function pageHeadersOf(res: ServerResponse | undefined): Record<string, string> {
  const set = Object.entries(res?.getHeaders() ?? {})
  const own = set.filter(([name]) => name === 'vary' || name.startsWith('access-control-'))
  return Object.fromEntries(own.map(([name, value]) => [name, String(value)]))
}

function reasonOf(code: string | undefined): { status: number; error: ServiceError } {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return { status: 431, error: new ServiceError('invalid_request', 'The request head is too large.') }
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return { status: 408, error: new ServiceError('request_timeout', 'The request did not arrive in time.') }
    default:
      return { status: 400, error: new ServiceError('invalid_request', 'The request is not valid HTTP.') }
  }
}
