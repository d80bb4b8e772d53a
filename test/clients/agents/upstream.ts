/** An upstream of all three APIs whose model follows the script of {@link nextMove}. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { CHAT } from './chat.ts'
import { type Conversation, type Frame, type Json, Refusal } from './conversation.ts'
import { MESSAGES } from './messages.ts'
import { RESPONSES } from './responses.ts'
import { nextMove } from './script.ts'

/** A request that the upstream answered. */
export interface Served {
  readonly path: string
  readonly conversation: Conversation
}

export interface AgentUpstream extends AsyncDisposable {
  readonly url: string
  /** Bodies of all requests, including refused ones. */
  readonly bodies: readonly Json[]
  readonly served: readonly Served[]
  /** Refused requests, and missing tools or results of the script. */
  readonly problems: readonly string[]
}

const WIRES = [CHAT, MESSAGES, RESPONSES]

/** @param directory Project of the agent */
export async function startAgentUpstream(directory: string): Promise<AgentUpstream> {
  const bodies: Json[] = []
  const served: Served[] = []
  const problems: string[] = []
  const server = createServer((request, response) => {
    answer(request, response).catch((error: Error) => {
      problems.push(`${request.method} ${request.url}: ${error.message}`)
      const status = error instanceof Refusal ? 400 : 422
      const body = { type: 'error', error: { type: 'invalid_request_error', message: error.message } }
      if (response.headersSent) response.destroy()
      else response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
    })
  })

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = String(request.url).split('?')[0] ?? ''
    const body = await readJson(request)
    bodies.push(body)
    if (path === '/v1/messages/count_tokens') {
      MESSAGES.read({ max_tokens: 1, ...body }, request.headers)
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"input_tokens":900}')
      return
    }
    const wire = WIRES.find((wire) => wire.path === path)
    if (!wire || request.method !== 'POST') {
      response.writeHead(404).end()
      return
    }
    const conversation = wire.read(body, request.headers)
    if (body.stream !== true) throw new Refusal('The scripted upstream only streams.')
    const frames = [...wire.frames(conversation, nextMove(conversation, directory))]
    served.push({ path, conversation })
    writeFrames(response, frames)
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    bodies,
    served,
    problems,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function readJson(request: IncomingMessage): Promise<Json> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  const text = Buffer.concat(chunks).toString()
  return text === '' ? {} : (JSON.parse(text) as Json)
}

function writeFrames(response: ServerResponse, frames: readonly Frame[]): void {
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
  for (const { event, data } of frames) {
    const text = data === '[DONE]' ? data : JSON.stringify(data)
    response.write(`${event === undefined ? '' : `event: ${event}\n`}data: ${text}\n\n`)
  }
  response.end()
}
