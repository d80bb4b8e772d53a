import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { WS_PROTOCOL } from '#schemas/ws.ts'
import { sendError } from '#services/ingress/body/errors.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import type { Cors } from '#services/ingress/http/server.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ServerResponse } from '#shared/process/node-http.ts'

export const WS_PATH = '/v1/ws'

/**
 * Prefix of a key that is sent as a subprotocol. Browsers need this, because they cannot set headers. The key is
 * neither echoed nor logged.
 */
const KEY_PREFIX = 'bearer.'

/**
 * Whether a request is an upgrade to a WebSocket. Other upgrades, such as `Upgrade: h2c` of Java clients, are answered
 * as plain requests.
 */
export function isSocketRequest(req: IncomingMessage): boolean {
  const isWebSocket = req.headers.upgrade?.toLowerCase() === 'websocket'
  return isWebSocket && req.method === 'GET' && req.url?.split('?')[0] === WS_PATH
}

/** Answers GET /v1/ws without an upgrade. */
export function refusePlain(_context: IngressContext, { reply }: Call): never {
  reply.setHeader('upgrade', 'websocket')
  throw new ServiceError(
    'invalid_request',
    `${WS_PATH} is a WebSocket: connect to it with the protocol ${WS_PROTOCOL}.`,
  )
}

export interface Credentials {
  readonly headers: IncomingHttpHeaders
}

/** Key of an upgrade request in the form of headers: from the usual headers, otherwise from the subprotocol. */
export function credentialsOf({ headers }: IncomingMessage): Credentials {
  const { authorization, 'x-api-key': apiKey } = headers
  if (authorization !== undefined || apiKey !== undefined) {
    return { headers: { ...(authorization && { authorization }), ...(apiKey && { 'x-api-key': apiKey }) } }
  }
  const offered = protocolsOf(headers).find((protocol) => protocol.startsWith(KEY_PREFIX))
  return { headers: offered ? { authorization: `Bearer ${offered.slice(KEY_PREFIX.length)}` } : {} }
}

/** @throws ServiceError `invalid_request` if the client does not request the subprotocol */
export function requireProtocol({ headers }: IncomingMessage): void {
  if (protocolsOf(headers).includes(WS_PROTOCOL)) return
  throw new ServiceError('invalid_request', `Offer the protocol ${WS_PROTOCOL} in Sec-WebSocket-Protocol.`)
}

/** @throws ServiceError `permission_denied` for a page whose origin CORS_ORIGINS does not allow */
export function requireOrigin(cors: Cors, req: IncomingMessage): void {
  if (cors.allowsSocket(req)) return
  throw new ServiceError(
    'permission_denied',
    'Pages of this origin cannot connect. CORS_ORIGINS lists the allowed origins.',
  )
}

function protocolsOf(headers: IncomingHttpHeaders): string[] {
  return (headers['sec-websocket-protocol'] ?? '').split(',').map((protocol) => protocol.trim())
}

/** Answers an upgrade with an HTTP error and closes the connection. */
export function refuseUpgrade(
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
  // Required by RFC 6455 §4.4: a client of another version receives the supported one.
  res.setHeader('sec-websocket-version', '13')
  res.once('finish', () => {
    res.detachSocket(socket)
    socket.end()
  })
  sendError(res, error, 'openai', requestId)
  // The client may keep its side of the connection open.
  const cut = setTimeout(() => socket.destroy(), lingerMs)
  socket.once('close', () => clearTimeout(cut))
  socket.resume()
}
