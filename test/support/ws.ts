import { WebSocket } from 'ws'
import { ServerFrame, WS_PROTOCOL } from '#schemas/ws.ts'
import { type Stack, TEST_KEY, until } from './stack.ts'

type Frame<T extends ServerFrame['type']> = Extract<ServerFrame, { type: T }>

/** A WebSocket client of `GET /v1/ws`. Every received frame is validated against the schema. Dispose it. */
export interface WsClient extends Disposable {
  readonly ws: WebSocket
  /** Frames received so far. */
  readonly frames: readonly ServerFrame[]
  /** Set once the connection is closed. */
  readonly closed: { readonly code: number; readonly reason: string } | undefined
  send(frame: object): void
  /** Sends `request.create` of a chat completion with the prompt or script `content`. */
  chat(id: string, content: string, more?: object, frame?: object): void
  /** Returns the frames of the call `id` so far, in order. */
  about(id: string): ServerFrame[]
  /** Waits for the last frame of the call `id`. */
  end(id: string): Promise<ServerFrame>
  /** Waits for the first frame of a type; if `id` is given, only frames of that call count. */
  frame<T extends ServerFrame['type']>(type: T, id?: string): Promise<Frame<T>>
  /** Waits until the connection is closed. */
  closing(): Promise<{ readonly code: number; readonly reason: string }>
}

export interface WsOptions {
  readonly protocols?: readonly string[]
  readonly headers?: Record<string, string>
  readonly path?: string
  /** Whether the client answers pings of the server. Default: true. */
  readonly autoPong?: boolean
}

const ENDS: ReadonlySet<string> = new Set(['request.completed', 'request.failed', 'request.cancelled'])

/** Whether a frame is the last one of its call. */
export function isEnd(frame: ServerFrame): boolean {
  return ENDS.has(frame.type)
}

/** Connects and waits for `session.created`. */
export async function openWs(stack: Stack, options: WsOptions = {}): Promise<WsClient> {
  const client = dial(stack, options)
  await until(() => client.frames.length > 0 || client.closed)
  return client
}

/** HTTP response to a WebSocket upgrade that the server refused. */
export interface Refusal {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly body: unknown
}

/** Connects and returns the HTTP response that refused the upgrade. */
export async function refusalOf(stack: Stack, options: WsOptions = {}): Promise<Refusal> {
  const { promise, resolve, reject } = Promise.withResolvers<Refusal>()
  using client = dial(stack, options)
  client.ws.once('open', () => reject(new Error('the upgrade was not refused')))
  client.ws.once('unexpected-response', (_request, response) => {
    let text = ''
    response.on('data', (chunk) => {
      text += chunk
    })
    response.on('end', () =>
      resolve({ status: response.statusCode ?? 0, headers: response.headers, body: JSON.parse(text) }),
    )
  })
  return await promise
}

function dial(stack: Stack, { protocols, headers, path = '/v1/ws', autoPong = true }: WsOptions): WsClient {
  const url = stack.url.replace('http:', 'ws:') + path
  const ws = new WebSocket(url, [...(protocols ?? [WS_PROTOCOL])], {
    headers: headers ?? { authorization: `Bearer ${TEST_KEY}` },
    autoPong,
  })
  const frames: ServerFrame[] = []
  let closed: { code: number; reason: string } | undefined
  ws.on('error', () => {})
  ws.on('message', (data) => frames.push(ServerFrame.parse(JSON.parse(String(data)))))
  ws.on('close', (code, reason) => {
    closed = { code, reason: String(reason) }
  })
  const send = (frame: object) => ws.send(JSON.stringify(frame))
  const about = (id: string) => frames.filter((frame) => 'id' in frame && frame.id === id)
  return {
    ws,
    frames,
    get closed() {
      return closed
    },
    send,
    chat(id, content, more = {}, frame = {}) {
      const body = { model: 'echo-1', messages: [{ role: 'user', content }], ...more }
      send({ type: 'request.create', id, endpoint: '/v1/chat/completions', body, ...frame })
    },
    about,
    end: (id) => until(() => about(id).find(isEnd)),
    async frame<T extends ServerFrame['type']>(type: T, id?: string) {
      const isIt = (frame: ServerFrame) =>
        frame.type === type && (id === undefined || ('id' in frame && frame.id === id))
      return (await until(() => frames.find(isIt))) as Frame<T>
    },
    closing: () => until(() => closed),
    [Symbol.dispose]: () => ws.terminate(),
  }
}
