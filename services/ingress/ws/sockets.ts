import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { type WebSocket, WebSocketServer } from 'ws'
import { WS_CLOSE, WS_PROTOCOL } from '#schemas/ws.ts'
import { authenticate } from '#services/ingress/callers/keys.ts'
import { type Call, CallLog, type IngressContext } from '#services/ingress/calls/call.ts'
import type { Cors } from '#services/ingress/http/server.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { SOCKET_BOUNDS, type SocketBounds } from './bounds.ts'
import { Session } from './session.ts'
import { credentialsOf, refuseUpgrade, requireOrigin, requireProtocol, WS_PATH } from './upgrade.ts'

/**
 * All WebSockets of one ingress (docs/guides/websocket.md): admission, count and shutdown.
 *
 * A refused upgrade receives an HTTP error. Only for a key with too many connections, the connection is opened and then
 * closed with 4429. Browsers hide the reason of a refused upgrade from scripts.
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

  /** Whether any connection has an attached request. */
  get isBusy(): boolean {
    return [...this.#sessions.keys()].some((session) => session.isBusy)
  }

  /** Handles an upgrade to `GET /v1/ws`, for the `upgrade` event of a server. */
  upgrade(req: IncomingMessage, socket: Socket, head: Buffer): void {
    // Errors of a disconnected client are ignored until `ws` handles the socket.
    const ignore = () => {}
    socket.on('error', ignore)
    const opening = this.#openingOf(req)
    const credentials = credentialsOf(req)
    const findKey = () => authenticate(credentials, this.#context.keys, 'openai', WS_PATH)
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

  /** Requests every client to finish and to reconnect to another ingress. */
  announceDrain(): void {
    for (const session of this.#sessions.keys()) session.announceDrain(this.#context.config.drainMs)
  }

  /** Closes all connections with 1012 and waits for them, at most `lingerMs`. */
  async close(): Promise<void> {
    // Wait for one event-loop iteration, so that jobs that just failed can send their errors.
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
    if (jobs.isDraining) throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000 })
    if (this.#sessions.size < this.#bounds.connectionsMax) return
    throw new ServiceError('overloaded', 'Too many WebSockets are open. Try again shortly.', { retryAfterMs: 5_000 })
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
    opening.failed(error, error.status)
    this.#log(req, error.status)
  }

  #openingOf(req: IncomingMessage): CallLog {
    const opening = this.#openings.get(req) ?? new CallLog(this.#context)
    this.#openings.set(req, opening)
    return opening
  }

  /** Writes the access-log line of a connection when it ends. Requests have their own lines. */
  #log(req: IncomingMessage, status: number, more: object = {}): void {
    this.#openingOf(req).ended({ method: 'GET', path: WS_PATH, route: WS_PATH, status, more, isConnection: true })
  }
}
