import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { WS_PROTOCOL } from '#schemas/ws.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { Cors } from '#services/ingress/cors.ts'
import { sendError } from '#services/ingress/reply/errors.ts'
import { ServiceError } from '#shared/error.ts'
import { ServerResponse } from '#shared/process/node-http.ts'

export const WS_PATH = '/v1/ws'

/**
 * Prefix of a key offered as a subprotocol, for browsers, which cannot set headers. The value is neither echoed nor
 * logged.
 */
const KEY_PREFIX = 'bearer.'

/** Whether a request is upgraded here. Any other, such as Java's `Upgrade: h2c`, is answered as a plain request. */
export function isSocketRequest(req: IncomingMessage): boolean {
  const isWebSocket = req.headers.upgrade?.toLowerCase() === 'websocket'
  return isWebSocket && req.method === 'GET' && req.url?.split('?')[0] === WS_PATH
}

/** GET /v1/ws without an upgrade. */
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

/** Key of an upgrade request as headers: the usual ones, otherwise the offered subprotocol. */
export function credentialsOf({ headers }: IncomingMessage): Credentials {
  const { authorization, 'x-api-key': apiKey } = headers
  if (authorization !== undefined || apiKey !== undefined) {
    return { headers: { ...(authorization && { authorization }), ...(apiKey && { 'x-api-key': apiKey }) } }
  }
  const offered = protocolsOf(headers).find((protocol) => protocol.startsWith(KEY_PREFIX))
  return { headers: offered ? { authorization: `Bearer ${offered.slice(KEY_PREFIX.length)}` } : {} }
}

/** @throws ServiceError `invalid_request` if the client does not offer the protocol */
export function requireProtocol({ headers }: IncomingMessage): void {
  if (protocolsOf(headers).includes(WS_PROTOCOL)) return
  throw new ServiceError('invalid_request', `Offer the protocol ${WS_PROTOCOL} in Sec-WebSocket-Protocol.`)
}

/** @throws ServiceError `permission_denied` for a page of an origin that CORS_ORIGINS does not allow */
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
  // RFC 6455 §4.4: informs a client of another version about the supported one.
  res.setHeader('sec-websocket-version', '13')
  res.once('finish', () => {
    res.detachSocket(socket)
    socket.end()
  })
  sendError(res, error, 'openai', requestId)
  // A client may keep its side open.
  const cut = setTimeout(() => socket.destroy(), lingerMs)
  socket.once('close', () => clearTimeout(cut))
  socket.resume()
}
