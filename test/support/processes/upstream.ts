import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A call as the scripted upstream saw it. */
export interface SeenCall {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: Record<string, unknown>
  readonly receivedAtMs: number
  /** Settles when the socket of the call closed before the answer was done; gives the time. */
  readonly closed: Promise<number>
}

/** What a script can do with its answer. Each step runs at once; a script that awaits nothing never yields in between. */
export interface Answer {
  json(body: unknown, status?: number, headers?: Record<string, string>): void
  /** Sends any text with any status and content type. */
  text(body: string, contentType: string, status?: number): void
  /** Sends the head: of an event stream, unless told otherwise. */
  open(contentType?: string, headers?: Record<string, string>): void
  /** One frame, as a JSON object or as the text after `data: `. */
  frame(data: unknown, event?: string): void
  /** Bytes of the stream as they are. Settles when they have left for the network. */
  bytes(bytes: string | Uint8Array): Promise<void>
  end(): void
  /** Destroys the socket in the middle of the answer. */
  cut(): void
}

/** Answers one call. A script that returns without ending its answer leaves it open: a stall. */
export type Script = (call: SeenCall, answer: Answer) => void | Promise<void>

/** A real HTTP server that answers as told, faults included, and remembers what it saw. */
export interface ScriptedUpstream extends AsyncDisposable {
  /** http://127.0.0.1:port */
  readonly url: string
  readonly calls: readonly SeenCall[]
  /** Connections that are open now. */
  readonly connections: number
  /** Adds scripts; each call takes the next one, and the last one serves all further calls. */
  script(...scripts: Script[]): void
}

/** Starts a scripted upstream on a free port. Disposing it destroys its sockets. */
export async function startUpstream(...scripts: Script[]): Promise<ScriptedUpstream> {
  const queue = [...scripts]
  const calls: SeenCall[] = []
  let connections = 0
  const server = createServer((request, response) => void serve(request, response))
  server.on('connection', (socket) => {
    connections += 1
    socket.on('close', () => {
      connections -= 1
    })
  })

  async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const call = await seeCall(request, response)
    calls.push(call)
    const script = queue.length > 1 ? queue.shift() : queue[0]
    await script?.(call, answerOn(response))
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    get connections() {
      return connections
    },
    script: (...more) => void queue.splice(0, queue.length, ...more),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function seeCall(request: IncomingMessage, response: ServerResponse): Promise<SeenCall> {
  const receivedAtMs = Date.now()
  const closed = new Promise<number>((resolve) => {
    response.on('close', () => response.writableFinished || resolve(Date.now()))
  })
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  // A form is not read: those who send one look at what is answered.
  const isForm = request.headers['content-type']?.startsWith('multipart/') ?? false
  const body = isForm ? {} : JSON.parse(Buffer.concat(chunks).toString('utf8') || '{}')
  return { path: request.url ?? '', headers: request.headers, body, receivedAtMs, closed }
}

/** The steps of an answer on a response of a real server. */
export function answerOn(response: ServerResponse): Answer {
  return {
    json(body, status = 200, headers = {}) {
      response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))
    },
    text(body, contentType, status = 200) {
      response.writeHead(status, { 'content-type': contentType }).end(body)
    },
    open(contentType = 'text/event-stream; charset=utf-8', headers = {}) {
      response.writeHead(200, { 'content-type': contentType, ...headers }).flushHeaders()
      response.socket?.setNoDelay(true)
    },
    frame(data, event) {
      const text = typeof data === 'string' ? data : JSON.stringify(data)
      response.write(`${event === undefined ? '' : `event: ${event}\n`}data: ${text}\n\n`)
    },
    bytes: (bytes) => new Promise((resolve) => response.write(bytes, () => resolve())),
    end: () => void response.end(),
    cut: () => void response.destroy(),
  }
}
