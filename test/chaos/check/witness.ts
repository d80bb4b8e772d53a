import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { History } from './history.ts'

/** Matches one word with the blanks before it. Each word of the answer is sent as one delta. */
const WORD = /\s*\S+|\s+$/g

/** An upstream server that records every execution. */
export interface Witness extends AsyncDisposable {
  /** Base URL without `/v1`. */
  readonly url: string
}

/**
 * Starts a server with the OpenAI API that obeys the same directives in prompts as the model echo-1. The server runs in the test process, which no
 * fault hits. The history contains the start and the end of each execution, identified by `job_id:attempt`.
 */
export async function startWitness(history: History): Promise<Witness> {
  const server = createServer((request, response) => {
    serve(request, response, history).catch(() => response.destroy())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function serve(request: IncomingMessage, response: ServerResponse, history: History): Promise<void> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  const { messages, stream } = JSON.parse(Buffer.concat(chunks).toString('utf8'))
  const [job_id = '', number] = String(request.headers['idempotency-key'] ?? '').split(':')
  const attempt = Number(number)
  const say = (phase: 'start' | 'done' | 'failed' | 'aborted') =>
    history.add('witness', { type: 'run', phase, job_id, attempt })
  say('start')
  const script = readScript(messages.at(-1).content)
  if (attempt <= script.failures) {
    say('failed')
    return sendJson(response, 503, { error: { message: 'scripted failure', type: 'server_error', code: 'overloaded' } })
  }
  const isWhole = await answer(response, script, stream === true)
  say(isWhole ? 'done' : 'aborted')
}

interface Script {
  readonly firstMs: number
  readonly delayMs: number
  readonly failures: number
  readonly text: string
}

function readScript(content: string): Script {
  const [line = '', ...rest] = content.split('\n')
  const number = (key: string) => Number(new RegExp(`${key}=(\\d+)`).exec(line)?.[1] ?? 0)
  return {
    firstMs: number('first_ms'),
    delayMs: number('delay_ms'),
    failures: number('failures'),
    text: rest.join('\n'),
  }
}

/** Streams the answer at its pace. Returns false if the caller disconnected before the end. */
async function answer(response: ServerResponse, script: Script, isStream: boolean): Promise<boolean> {
  const words = script.text.match(WORD) ?? []
  if (isStream) response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders()
  for (const [i, word] of words.entries()) {
    await sleep(i === 0 ? script.firstMs : script.delayMs)
    if (response.destroyed) return false
    if (isStream) sendFrame(response, { choices: [{ index: 0, delta: { content: word }, finish_reason: null }] })
  }
  const usage = { prompt_tokens: 1, completion_tokens: words.length, total_tokens: words.length + 1 }
  if (isStream) {
    sendFrame(response, { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], usage })
    response.end('data: [DONE]\n\n')
  } else {
    const message = { role: 'assistant', content: script.text }
    sendJson(response, 200, {
      ...HEAD,
      object: 'chat.completion',
      choices: [{ index: 0, message, finish_reason: 'stop' }],
      usage,
    })
  }
  return true
}

const HEAD = { id: 'chatcmpl-witness', created: 1_780_000_000, model: 'witness-1' }

function sendFrame(response: ServerResponse, chunk: object): void {
  response.write(`data: ${JSON.stringify({ ...HEAD, object: 'chat.completion.chunk', ...chunk })}\n\n`)
}

function sendJson(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

/** Waits for `ms` milliseconds. Sets no timer for 0 ms, because most scripts have no delay. */
function sleep(ms: number): Promise<void> {
  return ms === 0 ? Promise.resolve() : new Promise((resolve) => setTimeout(resolve, ms))
}
