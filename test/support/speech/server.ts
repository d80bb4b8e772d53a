import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Pool } from 'undici'
import type { UpstreamTarget } from '#shared/engines/upstream/upstream.ts'
import { type Answer, answerOn } from '../processes/upstream.ts'

/** A call as the speech server received it. */
export interface SpeechCall {
  readonly path: string
  /** The query string, without the question mark. */
  readonly query: string
  readonly headers: IncomingHttpHeaders
  /** Values of each text field, in order. */
  readonly fields: Readonly<Record<string, string[]>>
  /** The uploaded file, or the whole body if it is not a form. */
  readonly file: Buffer
  readonly filename: string | undefined
  /** Settles if the client closes the connection before the end of the response. */
  readonly closed: Promise<void>
}

/** Answers one call. If a script returns without `end` or `cut`, then the response stays open, which simulates a stalled server. */
export type SpeechScript = (call: SpeechCall, answer: Answer) => void | Promise<void>

/** An HTTP server in place of a speech server. Scripts write its responses, and each call is recorded. */
export interface SpeechServer extends AsyncDisposable {
  readonly url: string
  readonly calls: readonly SpeechCall[]
  /** Maximum number of concurrent calls so far. */
  readonly mostAtOnce: number
  /** Connects to this server, as a worker connects to its local model server. */
  connect(): Promise<UpstreamTarget>
}

/** Scripts by request path. Other paths are answered with 404. */
export type SpeechScripts = Readonly<Record<string, SpeechScript>>

/** Starts a speech server on a free port. */
export async function startSpeechServer(scripts: SpeechScripts): Promise<SpeechServer> {
  const calls: SpeechCall[] = []
  let open = 0
  let mostAtOnce = 0
  const serve = async (request: IncomingMessage, response: ServerResponse) => {
    mostAtOnce = Math.max(mostAtOnce, ++open)
    response.on('close', () => {
      open -= 1
    })
    const call = await seeCall(request, response)
    calls.push(call)
    const script = scripts[call.path] ?? ((_, answer) => answer.json({ error: { message: 'no such path' } }, 404))
    await script(call, answerOn(response))
  }
  const server = createServer((request, response) => void serve(request, response).catch(() => response.destroy()))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const pool = new Pool(url, { connections: 16 })
  return {
    url,
    calls,
    get mostAtOnce() {
      return mostAtOnce
    },
    connect: () => Promise.resolve({ origin: url, dispatcher: pool }),
    async [Symbol.asyncDispose]() {
      await pool.destroy()
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function seeCall(request: IncomingMessage, response: ServerResponse): Promise<SpeechCall> {
  const closed = new Promise<void>((resolve) => {
    response.on('close', () => response.writableFinished || resolve())
  })
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  const body = Buffer.concat(chunks)
  const type = request.headers['content-type'] ?? ''
  const [path = '', query = ''] = (request.url ?? '').split('?')
  const seen = { path, query, headers: request.headers, closed }
  if (!type.startsWith('multipart/')) return { ...seen, fields: {}, file: body, filename: undefined }
  const form = await new Response(body, { headers: { 'content-type': type } }).formData()
  const fields: Record<string, string[]> = {}
  for (const [name, value] of form) {
    if (typeof value === 'string') fields[name] = [...(fields[name] ?? []), value]
  }
  const file = form.get('file') as File
  return { ...seen, fields, file: Buffer.from(await file.arrayBuffer()), filename: file.name }
}
