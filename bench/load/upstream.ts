/*
 * The mock upstream of all measurements: an OpenAI-compatible server in its own process. The server uses bare sockets, because node:http
 * would cost more than the proxy under measurement. Prints its address on standard output.
 *
 * - Chat: whole answers are sent at once. Streams have 64 tokens, the first after 50 ms, then one every 20 ms. All streams in lockstep
 *   receive their tokens at the ticks of one clock.
 * - Embeddings: calls are computed one after the other, as on one GPU. The mock waits instead of computing, so that the cores stay free. The name
 *   of the model contains the cost: `embed-5-0.05` takes 5 ms per call and 0.05 ms per text. `GET /counts/MODEL` returns the number of calls and of
 *   texts so far.
 * - The model `stalled` never answers.
 */
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { LOCKSTEP, nowMicros, writeToken } from './tokens.ts'

const TOKENS = 64
const FIRST_TOKEN_MS = 50
const TOKEN_INTERVAL_MS = 20
const DIMENSIONS = 384

const server = createServer({ noDelay: true }, (socket) => {
  const requests = new RequestReader((path, body) => answer(socket, path, body))
  socket.on('data', (bytes) => requests.feed(bytes))
  socket.on('error', () => socket.destroy())
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

class RequestReader {
  readonly #onRequest: (path: string, body: Buffer) => void
  #rest: Buffer = Buffer.alloc(0)

  constructor(onRequest: (path: string, body: Buffer) => void) {
    this.#onRequest = onRequest
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
      this.#onRequest(head.slice(head.indexOf(' ') + 1, head.indexOf(' HTTP')), this.#rest.subarray(bodyAt, bodyEnd))
      this.#rest = this.#rest.subarray(bodyEnd)
    }
  }
}

function answer(socket: Socket, path: string, body: Buffer): void {
  if (path.startsWith('/counts/')) socket.write(json(JSON.stringify(deviceOf(path.slice('/counts/'.length)))))
  else if (body.length === 0) socket.write(MODELS)
  else if (path.endsWith('/embeddings')) embed(socket, JSON.parse(body.toString()))
  else if (body.includes('"model":"stalled"')) return
  else if (body.includes(LOCKSTEP)) streamInLockstep(socket)
  else if (body.includes('"stream":true')) stream(socket)
  else socket.write(WHOLE)
}

const NAMES = '"id":"chatcmpl-mock","created":1780000000,"model":"bench"'
const USAGE = '"usage":{"prompt_tokens":60,"completion_tokens":64,"total_tokens":124}'
const WHOLE = json(
  `{${NAMES},"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"${'The capital of France is Paris. '.repeat(8)}"},"logprobs":null,"finish_reason":"stop"}],${USAGE}}`,
)
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
    // The time is computed from the start of the stream, so that delays of timers do not add up.
    if (sent < TOKENS) setTimeout(next, firstAt + sent * TOKEN_INTERVAL_MS - performance.now())
  }
  setTimeout(next, FIRST_TOKEN_MS)
}

/** Streams in lockstep: the connection of each stream, with the number of tokens that were sent on it. */
const lockstep = new Map<Socket, number>()
let ticker: NodeJS.Timeout | undefined

function streamInLockstep(socket: Socket): void {
  socket.write(STREAM_HEAD + ROLE)
  setTimeout(() => {
    lockstep.set(socket, 0)
    ticker ??= setInterval(tick, TOKEN_INTERVAL_MS)
  }, FIRST_TOKEN_MS)
}

function tick(): void {
  for (const [socket, sent] of lockstep) {
    if (!socket.destroyed) writeNext(socket, sent + 1)
    if (socket.destroyed || sent + 1 === TOKENS) lockstep.delete(socket)
    else lockstep.set(socket, sent + 1)
  }
  if (lockstep.size > 0) return
  clearInterval(ticker)
  ticker = undefined
}

function writeNext(socket: Socket, count: number): void {
  const text = writeToken(nowMicros())
  const token = chunk(`${FRAME}{"content":"${text}"},"logprobs":null,"finish_reason":null}]}\n\n`)
  socket.write(count < TOKENS ? token : token + LAST + END)
}

interface Device {
  calls: number
  texts: number
  freeAtMs: number
}
const devices = new Map<string, Device>()
const VECTOR = Float32Array.from({ length: DIMENSIONS }, (_, i) => Math.sin(i) / 14)
const EMBEDDING = JSON.stringify(Buffer.from(VECTOR.buffer).toString('base64'))

function deviceOf(model: string): Device {
  const device = devices.get(model) ?? { calls: 0, texts: 0, freeAtMs: 0 }
  devices.set(model, device)
  return device
}

function embed(socket: Socket, { model, input }: { model: string; input: string | string[] }): void {
  const device = deviceOf(model)
  const [, callMs, textMs] = model.split('-').map(Number)
  const count = typeof input === 'string' ? 1 : input.length
  device.calls++
  device.texts += count
  const now = performance.now()
  device.freeAtMs = Math.max(device.freeAtMs, now) + (callMs ?? 0) + count * (textMs ?? 0)
  const data = Array.from({ length: count }, (_, at) => `{"object":"embedding","index":${at},"embedding":${EMBEDDING}}`)
  const usage = `{"prompt_tokens":${count * 10},"total_tokens":${count * 10}}`
  const body = json(`{"object":"list","data":[${data.join(',')}],"model":"bench","usage":${usage}}`)
  const waitMs = device.freeAtMs - now
  if (waitMs > 0) setTimeout(() => socket.write(body), waitMs)
  else socket.write(body)
}

function json(body: string): string {
  return `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`
}

function chunk(text: string): string {
  return `${text.length.toString(16)}\r\n${text}\r\n`
}
