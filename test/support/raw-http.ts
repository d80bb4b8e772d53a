import { connect, type Socket } from 'node:net'
import { until } from './stack.ts'

/** A response as received on the wire. */
export interface RawAnswer {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

/** A TCP client that sends exactly the given bytes, so that tests can send malformed HTTP. Dispose it. */
export interface RawClient extends Disposable {
  readonly socket: Socket
  /** All bytes received so far. */
  readonly received: string
  /** True after the server closed its side, or reset the connection. */
  readonly isEnded: boolean
  /** True after the server reset the connection, so that sending fails. */
  readonly isCut: boolean
  send(bytes: string | Uint8Array): void
  /** Waits for response number `index` of this connection, which must have a Content-Length. */
  answer(index?: number): Promise<RawAnswer>
}

/** Connects to `http://host:port`. If the server closes its side, then the client leaves its own side open, as a hostile client may do. */
export async function openRaw(url: string): Promise<RawClient> {
  const { hostname, port } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true })
  let received = ''
  let isCut = false
  socket.setEncoding('latin1')
  socket.on('data', (text) => {
    received += text
  })
  socket.on('error', () => {})
  socket.on('close', () => {
    isCut = true
  })
  await new Promise((resolve, reject) => socket.once('connect', resolve).once('error', reject))
  return {
    socket,
    get received() {
      return received
    },
    get isEnded() {
      return isCut || socket.readableEnded
    },
    get isCut() {
      return isCut
    },
    send: (bytes) => void socket.write(bytes),
    answer: (index = 0) => until(() => answersIn(received)[index]),
    [Symbol.dispose]: () => void socket.destroy(),
  }
}

/** A request as bytes; `headers` are lines. Content-Length is added if absent. */
export function rawRequest(line: string, headers: readonly string[] = [], body = ''): string {
  const isFramed = body === '' || headers.some((header) => /^(content-length|transfer-encoding):/i.test(header))
  const length = isFramed ? [] : [`content-length: ${Buffer.byteLength(body)}`]
  return [`${line} HTTP/1.1`, 'host: test', ...headers, ...length, '', body].join('\r\n')
}

function answersIn(received: string): RawAnswer[] {
  const answers: RawAnswer[] = []
  let at = 0
  for (;;) {
    const end = received.indexOf('\r\n\r\n', at)
    if (end === -1) return answers
    const [first = '', ...lines] = received.slice(at, end).split('\r\n')
    const headers = Object.fromEntries(lines.map((line) => splitHeader(line)))
    const status = Number(first.split(' ')[1])
    const length = status === 100 ? 0 : Number(headers['content-length'])
    const body = received.slice(end + 4, end + 4 + length)
    if (Number.isNaN(length) || body.length < length) return answers
    at = end + 4 + length
    if (status !== 100) answers.push({ status, headers, body })
  }
}

function splitHeader(line: string): [name: string, value: string] {
  const colon = line.indexOf(':')
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()]
}
