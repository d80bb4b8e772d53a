import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A call as the scripted upstream received it. */
export interface SeenCall {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: Record<string, unknown>
  readonly receivedAtMs: number
  /** Settles if the client disconnects before the end of the response, with the time of the disconnect. */
  readonly closed: Promise<number>
}

/**
 * Functions by which a script writes its response. None of them yields to the event loop, so a script without `await` writes everything in
 * one event-loop iteration.
 */
export interface Answer {
  json(body: unknown, status?: number, headers?: Record<string, string>): void
  /** Sends text with a status and a content type. */
  text(body: string, contentType: string, status?: number): void
  /** Sends the headers, by default of an event stream. */
  open(contentType?: string, headers?: Record<string, string>): void
  /** Sends one frame of an event stream: an object as JSON, or a text unchanged. */
  frame(data: unknown, event?: string): void
  /** Sends raw bytes. Settles when the socket has written them. */
  bytes(bytes: string | Uint8Array): Promise<void>
  end(): void
  /** Destroys the socket in the middle of the response. */
  cut(): void
}

/** Answers one call. If a script returns without `end` or `cut`, then the response stays open, which simulates a stalled upstream. */
export type Script = (call: SeenCall, answer: Answer) => void | Promise<void>

/** An HTTP server in place of an upstream. Scripts write its responses, including faults, and each call is recorded. */
export interface ScriptedUpstream extends AsyncDisposable {
  readonly url: string
  readonly calls: readonly SeenCall[]
  /** Number of open connections. */
  readonly connections: number
  /** Adds scripts to the queue. Each call takes the next script; the last script answers all further calls. */
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
  // Multipart forms are not parsed, because their tests check only the response.
  const isForm = request.headers['content-type']?.startsWith('multipart/') ?? false
  const body = isForm ? {} : JSON.parse(Buffer.concat(chunks).toString('utf8') || '{}')
  return { path: request.url ?? '', headers: request.headers, body, receivedAtMs, closed }
}

/** Returns the functions of {@link Answer} for the response of an HTTP server. */
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
