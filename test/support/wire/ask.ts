import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Stack } from '../stack.ts'
import type { Way, WireCase } from './case.ts'
import { type Got, readAnswer } from './read.ts'

export const WAYS: readonly Way[] = [
  'chat',
  'chat stream',
  'messages',
  'messages stream',
  'responses',
  'responses stream',
]

/** Starts an upstream server for all cases. The first part of the request path is the name of the case that is served. */
export async function serveCases(cases: readonly WireCase[]): Promise<{ url: string } & AsyncDisposable> {
  const byName = new Map(cases.map((one) => [one.name, one]))
  const server = createServer((request, response) => void serve(byName, request, response))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function serve(
  cases: ReadonlyMap<string, WireCase>,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  const asked = JSON.parse(Buffer.concat(chunks).toString())
  const name = request.url?.split('/')[1] ?? ''
  const found = cases.get(name)
  // The case `us_reject` simulates a server that refuses the parameter `stream_options`, but accepts the same request without it.
  const isAccepted = name === 'us_reject' && asked.stream_options === undefined
  const served = isAccepted ? cases.get('wh_ct_plain') : found
  if (!served) return void response.writeHead(500).end()
  const { status = 200, head = {}, body = '', base64, bytes, after = 'end' } = served
  response.writeHead(status, head)
  response.flushHeaders()
  const sent = bytes ?? (base64 === undefined ? Buffer.from(body) : Buffer.from(base64, 'base64'))
  if (after === 'end') return void response.end(sent)
  response.write(sent)
  if (after === 'reset') setTimeout(() => response.socket?.resetAndDestroy(), 50)
}

/** Returns the configuration of one model per case. The name of the model is that of the case. */
export function modelsOf(cases: readonly WireCase[], url: string): object[] {
  return cases.map(({ name, upstream }) => ({
    id: name,
    engine: {
      type: upstream === 'anthropic' ? 'anthropic' : 'openai',
      base_url: upstream === 'anthropic' ? `${url}/${name}` : `${url}/${name}/v1`,
      ...(upstream === 'responses' && { api: 'responses' }),
      breaker: { failures: 1_000 },
    },
    capabilities: { reasoning: true },
  }))
}

const PARAMETERS = { type: 'object', properties: { a: { type: 'integer' } } }
const NAMES = ['f', 'g']
const HI = [{ role: 'user', content: 'hi' }]

const PATHS: Readonly<Record<string, string>> = {
  chat: '/v1/chat/completions',
  messages: '/v1/messages',
  responses: '/v1/responses',
}
const BODIES: Readonly<Record<string, object>> = {
  chat: {
    messages: HI,
    tools: NAMES.map((name) => ({ type: 'function', function: { name, parameters: PARAMETERS } })),
  },
  messages: {
    max_tokens: 100,
    messages: HI,
    tools: NAMES.map((name) => ({ name, input_schema: PARAMETERS })),
  },
  responses: {
    input: HI,
    // `store` is false, because stored responses behave differently on errors. The service retries a stored response, and reports an error of its
    // own instead of the upstream's message.
    store: false,
    tools: NAMES.map((name) => ({ type: 'function', name, parameters: PARAMETERS, strict: false })),
  },
}

/** Sends a request for the model of a case through one API of the service. */
export async function askFor(stack: Stack, name: string, way: Way, more: object = {}): Promise<Got> {
  const [api = '', isStream] = way.split(' ')
  const usage = api === 'chat' && isStream ? { stream_options: { include_usage: true } } : {}
  const body = { model: name, ...BODIES[api], ...more, ...(isStream && { stream: true, ...usage }) }
  const headers: Record<string, string> = api === 'messages' ? { 'anthropic-version': '2026-10-21' } : {}
  return await readAnswer(way, await stack.post(PATHS[api] ?? '', body, { headers }))
}
