/**
 * The yardstick: the least that a gateway in Node can do, as a process of its own. It checks the key and the body as every
 * gateway must, then passes the body on through undici and pipes the answer back. No queue, no formats, no limits, no log.
 *
 * Arguments: the upstream's URL and the API key. Prints its address on standard output.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Dispatcher, Pool } from 'undici'
import { checked, refuse } from './checks.ts'

const CONNECTIONS_MAX = 512

const [upstream = '', key = ''] = process.argv.slice(2)
const pool = new Pool(upstream, { connections: CONNECTIONS_MAX, pipelining: 1 })

const take = checked(key, (body, req, res) => {
  const headers = { 'content-type': 'application/json', accept: req.headers.accept ?? '*/*' }
  pool.dispatch({ method: 'POST', path: req.url ?? '', headers, body }, new Pipe(res))
})
const server = createServer({ noDelay: true, keepAliveTimeout: 75_000 }, take)
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

/** Pipes an answer from undici to the caller, at the caller's pace, and ends the call when the caller leaves. */
class Pipe implements Dispatcher.DispatchHandler {
  readonly #res: ServerResponse

  constructor(res: ServerResponse) {
    this.#res = res
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#res.once('close', () => {
      if (!this.#res.writableFinished) controller.abort(new Error('the caller left'))
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

// A profile is written at a process's own end (`--cpu-prof`).
process.once('SIGTERM', () => process.exit())
