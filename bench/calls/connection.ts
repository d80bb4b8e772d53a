import { connect, type Socket } from 'node:net'
import { ResponseReader } from './response-reader.ts'

const CONNECT_MS = 5_000
/** Silence inside a call after which it counts as failed. */
const SILENCE_MS = 30_000

/** A keep-alive connection that carries one request at a time. The caller closes it. */
export class Connection {
  readonly #socket: Socket
  readonly #reader: ResponseReader
  #onBody: ((bytes: Buffer) => void) | undefined
  #call: PromiseWithResolvers<number> | undefined

  private constructor(socket: Socket) {
    this.#socket = socket
    this.#reader = new ResponseReader({
      onBody: (bytes) => this.#onBody?.(bytes),
      onEnd: (status) => this.#settle((call) => call.resolve(status)),
    })
    socket.on('data', (bytes) => this.#feed(bytes))
    socket.on('error', (error) => this.#settle((call) => call.reject(error)))
    socket.on('close', () => this.#settle((call) => call.reject(new Error('the connection was closed'))))
    socket.setTimeout(SILENCE_MS, () => {
      if (this.#call) socket.destroy(new Error(`no byte came for ${SILENCE_MS} ms`))
    })
  }

  /** @throws Error when nobody listens */
  static async open(url: URL): Promise<Connection> {
    const socket = connect({ host: url.hostname, port: Number(url.port), noDelay: true })
    const signal = AbortSignal.timeout(CONNECT_MS)
    await new Promise<void>((resolve, reject) => {
      signal.onabort = () => socket.destroy(new Error(`no connection within ${CONNECT_MS} ms`))
      socket.once('connect', resolve).once('error', reject)
    })
    signal.onabort = null
    return new Connection(socket)
  }

  /** Sends the bytes of a request and waits for its whole answer. @returns Its status. @throws Error when it is cut */
  send(request: Buffer, onBody?: (bytes: Buffer) => void): Promise<number> {
    this.#onBody = onBody
    this.#call = Promise.withResolvers<number>()
    if (this.#socket.destroyed) this.#settle((call) => call.reject(new Error('the connection was closed')))
    else this.#socket.write(request)
    return this.#call?.promise ?? Promise.reject(new Error('the connection was closed'))
  }

  /** False once either side has closed it, such as a server that keeps an idle one for a minute. */
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
