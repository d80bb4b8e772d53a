/*
 * A load generator for HTTP/1.1 on bare sockets, with one request at a time per connection. The callers share the machine with the measured
 * processes, so the generator must be cheap. The library undici takes more CPU than the upstream, and autocannon does not measure single tokens.
 */
import { connect, type Socket } from 'node:net'

const CONNECT_TIMEOUT_MS = 5_000
/** Maximum time without bytes inside a call, in milliseconds. */
const SILENCE_MS = 120_000
const HEAD_BYTES_MAX = 64 * 1024

export interface Address {
  readonly url: URL
  readonly key: string
}

export function encodeRequest(
  { url, key }: Address,
  path: string,
  body: unknown,
  options: { readonly method?: string; readonly headers?: Readonly<Record<string, string>> } = {},
): Buffer {
  const text = body === undefined ? '' : JSON.stringify(body)
  const { method = 'POST', headers = {} } = options
  const head = [
    `${method} ${path} HTTP/1.1`,
    `host: ${url.host}`,
    `authorization: Bearer ${key}`,
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    ...(body === undefined ? [] : ['content-type: application/json', `content-length: ${Buffer.byteLength(text)}`]),
  ]
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${text}`)
}

export class Connection {
  readonly #socket: Socket
  readonly #reader: ResponseReader
  #onBody: ((bytes: Buffer) => void) | undefined
  #call: PromiseWithResolvers<number> | undefined

  private constructor(socket: Socket) {
    this.#socket = socket
    this.#reader = new ResponseReader(
      (bytes) => this.#onBody?.(bytes),
      (status) => this.#settle((call) => call.resolve(status)),
    )
    socket.on('data', (bytes) => this.#feed(bytes))
    socket.on('error', (error) => this.#settle((call) => call.reject(error)))
    socket.on('close', () => this.#settle((call) => call.reject(new Error('the connection was closed'))))
    socket.setTimeout(SILENCE_MS, () => {
      if (this.#call) socket.destroy(new Error(`no byte arrived for ${SILENCE_MS} ms`))
    })
  }

  static async open(url: URL): Promise<Connection> {
    const socket = connect({ host: url.hostname, port: Number(url.port), noDelay: true })
    const signal = AbortSignal.timeout(CONNECT_TIMEOUT_MS)
    await new Promise<void>((resolve, reject) => {
      signal.onabort = () => socket.destroy(new Error(`no connection within ${CONNECT_TIMEOUT_MS} ms`))
      socket.once('connect', resolve).once('error', reject)
    })
    signal.onabort = null
    return new Connection(socket)
  }

  send(request: Buffer, onBody?: (bytes: Buffer) => void): Promise<number> {
    const call = Promise.withResolvers<number>()
    this.#onBody = onBody
    this.#call = call
    if (this.#socket.destroyed) this.#settle(({ reject }) => reject(new Error('the connection was closed')))
    else this.#socket.write(request)
    return call.promise
  }

  /** False after either side has closed the connection. */
  get isOpen(): boolean {
    return this.#socket.writable
  }

  close(): void {
    this.#socket.destroy()
  }

  #feed(bytes: Buffer): void {
    try {
      this.#reader.feed(bytes)
    } catch (error) {
      this.#socket.destroy(error as Error)
    }
  }

  #settle(how: (call: PromiseWithResolvers<number>) => void): void {
    const call = this.#call
    this.#call = undefined
    if (call) how(call)
  }
}

class ResponseReader {
  readonly #onBody: (bytes: Buffer) => void
  readonly #onEnd: (status: number) => void
  #state: 'head' | 'body' | 'size' | 'line' | 'trailer' = 'head'
  #rest: Buffer = Buffer.alloc(0)
  #status = 0
  #isChunked = false
  /** Bytes of the current body or chunk that have not arrived yet. */
  #missing = 0

  constructor(onBody: (bytes: Buffer) => void, onEnd: (status: number) => void) {
    this.#onBody = onBody
    this.#onEnd = onEnd
  }

  feed(bytes: Buffer): void {
    const all = this.#rest.length > 0 ? Buffer.concat([this.#rest, bytes]) : bytes
    let at = 0
    for (let next = this.#step(all, at); next > at; next = this.#step(all, at)) at = next
    this.#rest = all.subarray(at)
    if (this.#rest.length > HEAD_BYTES_MAX) throw new Error('the response is not HTTP/1.1')
  }

  #step(all: Buffer, at: number): number {
    if (at === all.length) return at
    if (this.#state === 'body') return this.#readBody(all, at)
    const end = this.#state === 'head' ? '\r\n\r\n' : '\r\n'
    const found = all.indexOf(end, at)
    if (found < 0) return at
    const text = all.toString('latin1', at, found)
    if (this.#state === 'head') this.#readHead(text.toLowerCase())
    else if (this.#state === 'size') this.#readSize(text)
    else if (this.#state === 'line') this.#state = 'size'
    else this.#end()
    return found + end.length
  }

  #readHead(head: string): void {
    this.#status = Number(head.slice('http/1.1 '.length, 'http/1.1 200'.length))
    this.#isChunked = head.includes('\r\ntransfer-encoding: chunked')
    this.#missing = Number(/\r\ncontent-length: *(\d+)/.exec(head)?.[1] ?? 0)
    if (this.#isChunked) this.#state = 'size'
    else if (this.#missing > 0) this.#state = 'body'
    else this.#end()
  }

  #readSize(text: string): void {
    this.#missing = Number.parseInt(text, 16)
    if (Number.isNaN(this.#missing)) throw new Error('the response has a chunk without a size')
    this.#state = this.#missing === 0 ? 'trailer' : 'body'
  }

  #readBody(all: Buffer, at: number): number {
    const next = Math.min(all.length, at + this.#missing)
    this.#missing -= next - at
    this.#onBody(all.subarray(at, next))
    if (this.#missing === 0 && this.#isChunked) this.#state = 'line'
    else if (this.#missing === 0) this.#end()
    return next
  }

  #end(): void {
    this.#state = 'head'
    this.#onEnd(this.#status)
  }
}
