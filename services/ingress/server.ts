import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** Limits of the HTTP server (contract A.5, L): pooled clients reuse sockets, uploads may be slow, heads may not. */
const KEEP_ALIVE_MS = 75_000
const HEADERS_MS = 80_000
const REQUEST_MS = 600_000
const CHECK_MS = 5_000
const CONNECTIONS_MAX = 20_000

/** Starts to listen. @returns The server, and the port it got. */
export async function listen(
  handler: (req: IncomingMessage, res: ServerResponse) => void,
  host: string,
  port: number,
): Promise<{ server: Server; port: number }> {
  const server = createServer(
    {
      keepAliveTimeout: KEEP_ALIVE_MS,
      headersTimeout: HEADERS_MS,
      requestTimeout: REQUEST_MS,
      connectionsCheckingInterval: CHECK_MS,
      noDelay: true,
    },
    handler,
  )
  server.maxConnections = CONNECTIONS_MAX
  server.on('clientError', onClientError)
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
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

/** What is not HTTP, or too slow, or too large in its head, gets one plain answer and its socket is cut. */
function onClientError(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return void socket.destroy()
  const [status, message] = clientErrorOf(error.code)
  const body = JSON.stringify({ error: { message, type: 'invalid_request_error', param: null, code: null } })
  const head = `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}`
  socket.end(`${head}\r\nconnection: close\r\n\r\n${body}`)
}

function clientErrorOf(code: string | undefined): [status: string, message: string] {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return ['431 Request Header Fields Too Large', 'The request head is too large.']
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return ['408 Request Timeout', 'The request did not arrive in time.']
    default:
      return ['400 Bad Request', 'The request is not valid HTTP.']
  }
}
