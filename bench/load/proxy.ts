/*
 * The bare proxy, which shows the minimum cost of a gateway in Node, in its own process. The proxy checks the key and the body, as each gateway must.
 * The proxy forwards the body through undici and pipes the answer back. The proxy has no queues, limits or logs, and converts no API formats.
 *
 * Arguments: the URL of the upstream and the API key. Prints its address on standard output.
 */
import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Dispatcher, Pool } from 'undici'

const CONNECTIONS_MAX = 512
const BODY_BYTES_MAX = 32 * 1024 * 1024
const MODELS = new Set(['bench'])

const [upstream = '', key = ''] = process.argv.slice(2)
const pool = new Pool(upstream, { connections: CONNECTIONS_MAX, pipelining: 1 })
const keyHashes = new Set([sha256(key)])

const server = createServer({ noDelay: true, keepAliveTimeout: 75_000 }, (req, res) => {
  const secret = /^bearer +(\S+) *$/i.exec(req.headers.authorization ?? '')?.[1]
  if (!secret || !keyHashes.has(sha256(secret))) return refuse(res, 401, 'Incorrect API key provided.')
  if (req.method !== 'POST' || req.url !== '/v1/chat/completions') return refuse(res, 404, 'Invalid URL')
  readBody(req, res, (body) => {
    const problem = problemOf(body)
    if (problem) return refuse(res, 400, problem)
    const headers = { 'content-type': 'application/json', accept: req.headers.accept ?? '*/*' }
    pool.dispatch({ method: 'POST', path: req.url ?? '', headers, body }, new Pipe(res))
  })
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})
// The option `--cpu-prof` writes a profile only if the process exits normally, so SIGTERM calls `exit`.
process.once('SIGTERM', () => process.exit())

function readBody(req: IncomingMessage, res: ServerResponse, then: (body: Buffer) => void): void {
  const chunks: Buffer[] = []
  let bytes = 0
  req.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > BODY_BYTES_MAX) return refuse(res, 413, 'The body is too large.')
    chunks.push(chunk)
  })
  req.on('end', () => then(chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks)))
}

function problemOf(body: Buffer): string | undefined {
  try {
    const { model, messages } = JSON.parse(body.toString()) as { model?: unknown; messages?: unknown }
    if (typeof model !== 'string' || !MODELS.has(model)) return 'The model does not exist.'
    if (!Array.isArray(messages) || messages.length === 0) return "Missing required parameter: 'messages'."
    return undefined
  } catch {
    return 'The body is not a JSON object.'
  }
}

function refuse(res: ServerResponse, status: number, message: string): void {
  if (!res.headersSent) res.writeHead(status, { 'content-type': 'application/json' })
  res.end(JSON.stringify({ error: { message } }))
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}

/** Pipes an answer to the caller with backpressure. If the caller disconnects, then the upstream call is cancelled. */
class Pipe implements Dispatcher.DispatchHandler {
  readonly #res: ServerResponse

  constructor(res: ServerResponse) {
    this.#res = res
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#res.once('close', () => {
      if (!this.#res.writableFinished) controller.abort(new Error('the caller disconnected'))
    })
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number, headers: IncomingMessage['headers']): void {
    const { 'content-type': type = '', 'content-length': length } = headers
    this.#res.writeHead(status, { 'content-type': type, ...(length !== undefined && { 'content-length': length }) })
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#res.write(chunk)) return
    controller.pause()
    this.#res.once('drain', () => controller.resume())
  }

  onResponseEnd(): void {
    this.#res.end()
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    if (!this.#res.destroyed) refuse(this.#res, 502, error.message)
  }
}
