import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { type WebSocket, WebSocketServer } from 'ws'
import { WS_CLOSE, WS_PROTOCOL } from '#schemas/ws.ts'
import { sendError } from '#services/ingress/body/body.ts'
import { authenticate, authorize } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { CallLog } from '#services/ingress/calls/call-log.ts'
import type { Cors } from '#services/ingress/http/server.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ServerResponse } from '#shared/process/node-http.ts'
import { SOCKET_BOUNDS, type SocketBounds } from './frames.ts'
import { Session } from './session.ts'

/**
 * All WebSockets of one ingress (docs/guides/websocket.md): their admission, number and shutdown.
 *
 * An upgrade is refused with an HTTP error, which browsers hide from scripts. For a key with too many connections, the
 * connection is instead opened and then closed with 4429, which scripts can read.
 */
export class Sockets {
  readonly #context: IngressContext
  readonly #cors: Cors
  readonly #bounds: SocketBounds
  readonly #server: WebSocketServer
  readonly #openings = new WeakMap<IncomingMessage, CallLog>()
  readonly #sessions = new Map<Session, WebSocket>()
  readonly #countOfKey = new Map<string, number>()

  constructor(context: IngressContext, cors: Cors, bounds: Partial<SocketBounds> = {}) {
    this.#context = context
    this.#cors = cors
    this.#bounds = { ...SOCKET_BOUNDS, ...bounds }
    this.#server = new WebSocketServer({
      noServer: true,
      clientTracking: false,
      perMessageDeflate: false,
      maxPayload: context.config.bodyBytesMax,
      handleProtocols: () => WS_PROTOCOL,
    })
    this.#server.on('headers', (headers, req) => {
      const { requestId } = this.#openingOf(req)
      headers.push(`x-request-id: ${requestId}`, `request-id: ${requestId}`)
    })
    this.#server.on('wsClientError', (error, socket, req) => {
      this.#refuse(req, socket as Socket, new ServiceError('invalid_request', `${error.message}.`))
    })
    context.metrics.gauge('sluice_websockets', {}, () => this.#sessions.size)
  }

  get isBusy(): boolean {
    return [...this.#sessions.keys()].some((session) => session.isBusy)
  }

  upgrade(req: IncomingMessage, socket: Socket, head: Buffer): void {
    // Until `ws` handles the socket, its errors are ignored, because the client may disconnect during the upgrade.
    const ignore = () => {}
    socket.on('error', ignore)
    const opening = this.#openingOf(req)
    const credentials = credentialsOf(req)
    const findKey = () => {
      const key = authenticate(credentials, this.#context.keys, 'openai')
      authorize(key, WS_PATH)
      return key
    }
    try {
      requireOrigin(this.#cors, req)
      const key = findKey()
      opening.facts.key_id = key.id
      opening.facts.project_id = projectIdOf(key)
      requireProtocol(req)
      this.#requireCapacity()
      this.#server.handleUpgrade(req, socket, head, (ws) => {
        socket.off('error', ignore)
        this.#open(req, socket, ws, key, findKey)
      })
    } catch (error) {
      this.#refuse(req, socket, error)
    }
  }

  announceDrain(): void {
    for (const session of this.#sessions.keys()) session.announceDrain(this.#context.config.drainMs)
  }

  /** Closes all connections with 1012 and waits for them, at most `lingerMs`. */
  async close(): Promise<void> {
    // Jobs that have just failed send their errors in this iteration of the event loop. The connections close in the
    // next iteration, so that clients receive these errors.
    await new Promise((resolve) => setImmediate(resolve))
    const closed = [...this.#sessions].map(([session, ws]) => {
      const { promise, resolve } = Promise.withResolvers<void>()
      if (ws.readyState === ws.CLOSED) resolve()
      ws.once('close', () => resolve())
      session.close(WS_CLOSE.restart, 'The server shuts down. Connect again.')
      return promise
    })
    await Promise.all(closed)
  }

  #requireCapacity(): void {
    const { jobs } = this.#context
    if (jobs.isDraining)
      throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000, reason: 'draining' })
    if (this.#sessions.size < this.#bounds.connectionsMax) return
    throw new ServiceError(
      'overloaded',
      `The server has ${this.#bounds.connectionsMax} open WebSockets, the maximum. Try again shortly.`,
      {
        retryAfterMs: 5_000,
        reason: 'calls_full',
      },
    )
  }

  #open(req: IncomingMessage, socket: Socket, ws: WebSocket, key: Call['key'], findKey: () => Call['key']): void {
    const count = (this.#countOfKey.get(key.id) ?? 0) + 1
    this.#countOfKey.set(key.id, count)
    const { headers } = req
    const [keyId, context, bounds] = [key.id, this.#context, this.#bounds]
    const session = new Session({ context, ws, socket, headers, findKey, keyId, bounds })
    this.#sessions.set(session, ws)
    const unwatch = this.#context.keys.watch(key, ({ message }) => session.close(WS_CLOSE.keyRevoked, message))
    ws.once('close', () => {
      unwatch()
      this.#sessions.delete(session)
      this.#release(key.id)
      const { id: session_id, closeCode: close_code, begun: requests } = session
      this.#log(req, 101, { session_id, close_code, requests })
    })
    const most = this.#bounds.connectionsMaxPerKey
    if (count > most) session.close(WS_CLOSE.tooManyConnections, `This key may have at most ${most} connections.`)
  }

  #release(keyId: string): void {
    const left = (this.#countOfKey.get(keyId) ?? 1) - 1
    if (left > 0) this.#countOfKey.set(keyId, left)
    else this.#countOfKey.delete(keyId)
  }

  #refuse(req: IncomingMessage, socket: Socket, thrown: unknown): void {
    const opening = this.#openingOf(req)
    const error = opening.classify(thrown)
    refuseUpgrade(req, socket, error, opening.requestId, this.#bounds.lingerMs)
    opening.refused(WS_PATH)
    opening.failed(error, error.status)
    this.#log(req, error.status)
  }

  #openingOf(req: IncomingMessage): CallLog {
    const opening = this.#openings.get(req) ?? new CallLog(this.#context)
    this.#openings.set(req, opening)
    return opening
  }

  #log(req: IncomingMessage, status: number, more: object = {}): void {
    this.#openingOf(req).ended({
      method: 'GET',
      path: WS_PATH,
      route: WS_PATH,
      status,
      headers: req.headers,
      more,
      isConnection: true,
    })
  }
}

export const WS_PATH = '/v1/ws'

/**
 * Prefix of a key that is sent as a subprotocol. Scripts in browsers send keys in this way, because they cannot set
 * headers. The key is neither returned to the client nor logged.
 */
const KEY_PREFIX = 'bearer.'

/**
 * Whether a request is an upgrade to a WebSocket. Other upgrades, such as `Upgrade: h2c` of Java clients, are answered
 * as plain requests without an upgrade.
 */
export function isSocketRequest(req: IncomingMessage): boolean {
  const isWebSocket = req.headers.upgrade?.toLowerCase() === 'websocket'
  return isWebSocket && req.method === 'GET' && req.url?.split('?')[0] === WS_PATH
}

export function refusePlain(_context: IngressContext, { reply }: Call): never {
  reply.setHeader('upgrade', 'websocket')
  throw new ServiceError(
    'invalid_request',
    `${WS_PATH} accepts only WebSocket connections, with the subprotocol ${WS_PROTOCOL}.`,
  )
}

interface Credentials {
  readonly headers: IncomingHttpHeaders
}

/**
 * Returns the key of an upgrade request as a header. If the request has neither `authorization` nor `x-api-key`, then the key is taken from the
 * subprotocol.
 */
function credentialsOf({ headers }: IncomingMessage): Credentials {
  const { authorization, 'x-api-key': apiKey } = headers
  if (authorization !== undefined || apiKey !== undefined) {
    return { headers: { ...(authorization && { authorization }), ...(apiKey && { 'x-api-key': apiKey }) } }
  }
  const offered = protocolsOf(headers).find((protocol) => protocol.startsWith(KEY_PREFIX))
  return { headers: offered ? { authorization: `Bearer ${offered.slice(KEY_PREFIX.length)}` } : {} }
}

function requireProtocol({ headers }: IncomingMessage): void {
  if (protocolsOf(headers).includes(WS_PROTOCOL)) return
  throw new ServiceError('invalid_request', `The header Sec-WebSocket-Protocol must contain ${WS_PROTOCOL}.`)
}

function requireOrigin(cors: Cors, req: IncomingMessage): void {
  if (cors.allowsSocket(req)) return
  throw new ServiceError(
    'permission_denied',
    'Pages of this origin cannot connect. CORS_ORIGINS lists the allowed origins.',
  )
}

function protocolsOf(headers: IncomingHttpHeaders): string[] {
  return (headers['sec-websocket-protocol'] ?? '').split(',').map((protocol) => protocol.trim())
}

function refuseUpgrade(
  req: IncomingMessage,
  socket: Socket,
  error: ServiceError,
  requestId: string,
  lingerMs: number,
): void {
  if (!socket.writable) return void socket.destroy()
  const res = new ServerResponse(req)
  res.assignSocket(socket)
  res.setHeader('x-request-id', requestId)
  res.setHeader('request-id', requestId)
  res.setHeader('connection', 'close')
  // This header contains the supported version, for clients that request another version of the protocol (RFC 6455
  // §4.4).
  res.setHeader('sec-websocket-version', '13')
  res.once('finish', () => {
    res.detachSocket(socket)
    socket.end()
  })
  sendError(res, error, 'openai', requestId)
  // The client may keep its side of the connection open, so the socket is destroyed after `lingerMs`.
  const cut = setTimeout(() => socket.destroy(), lingerMs)
  socket.once('close', () => clearTimeout(cut))
  socket.resume()
}
