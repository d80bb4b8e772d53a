/**
 * The upstream of every measurement: an OpenAI-dialect server that costs almost nothing, as a process of its own.
 *
 * Whole answers come at once. Streams have 64 tokens, the first after 50 ms, then one each 20 ms (50 a second); each says
 * when it was sent. Streams that ask for it are in step: their tokens come on the ticks of one clock. It speaks HTTP/1.1 on bare sockets: node:http would cost more than the proxy that is measured.
 * Prints its address on standard output.
 */
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { IN_STEP, nowMicros, writeToken } from './tokens.ts'

const TOKENS = 64
const FIRST_TOKEN_MS = 50
const TOKEN_MS = 20

const server = createServer({ noDelay: true }, (socket) => {
  const requests = new RequestReader((body) => answer(socket, body))
  socket.on('data', (bytes) => requests.feed(bytes))
  socket.on('error', () => socket.destroy())
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

/** Cuts the bytes of a connection into request bodies; all else of a request is of no interest here. */
class RequestReader {
  readonly #onBody: (body: Buffer) => void
  #rest: Buffer = Buffer.alloc(0)

  constructor(onBody: (body: Buffer) => void) {
    this.#onBody = onBody
  }

  feed(bytes: Buffer): void {
    this.#rest = this.#rest.length > 0 ? Buffer.concat([this.#rest, bytes]) : bytes
    for (;;) {
      const headEnd = this.#rest.indexOf('\r\n\r\n')
      if (headEnd < 0) return
      const head = this.#rest.toString('latin1', 0, headEnd)
      const bodyAt = headEnd + 4
      const bodyEnd = bodyAt + Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? 0)
      if (this.#rest.length < bodyEnd) return
      this.#onBody(this.#rest.subarray(bodyAt, bodyEnd))
      this.#rest = this.#rest.subarray(bodyEnd)
    }
  }
}

function answer(socket: Socket, body: Buffer): void {
  // No body: it is asked which models it has, by gateways that want to know.
  if (body.length === 0) socket.write(MODELS)
  else if (body.includes(IN_STEP)) inStep(socket)
  else if (body.includes('"stream":true')) stream(socket)
  else socket.write(WHOLE)
}

const NAMES = '"id":"chatcmpl-mock","created":1780000000,"model":"bench"'
const USAGE = '"usage":{"prompt_tokens":60,"completion_tokens":64,"total_tokens":124}'
const WHOLE_BODY = `{${NAMES},"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"${'The capital of France is Paris. '.repeat(8)}"},"logprobs":null,"finish_reason":"stop"}],${USAGE}}`
const WHOLE = json(WHOLE_BODY)
const MODELS = json(
  '{"object":"list","data":[{"id":"bench","object":"model","created":1780000000,"owned_by":"bench"}]}',
)

const STREAM_HEAD = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n'
const FRAME = `data: {${NAMES},"object":"chat.completion.chunk","choices":[{"index":0,"delta":`
const ROLE = chunk(`${FRAME}{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n`)
const LAST = chunk(
  `${FRAME}{},"logprobs":null,"finish_reason":"stop"}]}\n\ndata: {${NAMES},"object":"chat.completion.chunk","choices":[],${USAGE}}\n\ndata: [DONE]\n\n`,
)
const END = '0\r\n\r\n'

function stream(socket: Socket): void {
  socket.write(STREAM_HEAD + ROLE)
  const firstAt = performance.now() + FIRST_TOKEN_MS
  let sent = 0
  const next = () => {
    if (socket.destroyed) return
    sent++
    writeNext(socket, sent)
    // Against the clock of the stream's start, so that late timers do not add up and the pace holds.
    if (sent < TOKENS) setTimeout(next, firstAt + sent * TOKEN_MS - performance.now())
  }
  setTimeout(next, FIRST_TOKEN_MS)
}

/** Streams that are in step, with the tokens each has sent. */
const together = new Map<Socket, number>()
let ticker: NodeJS.Timeout | undefined

/** The first token comes with the first tick that is late enough for all that began in the same moment. */
function inStep(socket: Socket): void {
  socket.write(STREAM_HEAD + ROLE)
  setTimeout(() => {
    together.set(socket, 0)
    ticker ??= setInterval(tick, TOKEN_MS)
  }, FIRST_TOKEN_MS)
}

function tick(): void {
  for (const [socket, sent] of together) {
    if (!socket.destroyed) writeNext(socket, sent + 1)
    if (socket.destroyed || sent + 1 === TOKENS) together.delete(socket)
    else together.set(socket, sent + 1)
  }
  if (together.size > 0) return
  clearInterval(ticker)
  ticker = undefined
}

function writeNext(socket: Socket, count: number): void {
  const text = writeToken(nowMicros())
  const token = chunk(`${FRAME}{"content":"${text}"},"logprobs":null,"finish_reason":null}]}\n\n`)
  socket.write(count < TOKENS ? token : token + LAST + END)
}

function json(body: string): string {
  return `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`
}

function chunk(text: string): string {
  return `${text.length.toString(16)}\r\n${text}\r\n`
}
