/**
 * An embeddings server of the OpenAI dialect with given costs, as a process of its own: one call at a time computes, as on
 * one GPU, for so many milliseconds a call and so many a text. `node bench/embeddings/mock.ts <call ms> <text ms>`.
 *
 * The costs are time, not CPU: the clock of the computing device runs on exactly, and an answer leaves when its call is
 * done by that clock. A GET tells how many calls and texts there were. Prints its address on standard output.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

const DIMENSIONS = 384

const [callMs = 0, textMs = 0] = process.argv.slice(2).map(Number)
const vector = Float32Array.from({ length: DIMENSIONS }, (_, i) => Math.sin(i) / 14)
const EMBEDDING = JSON.stringify(Buffer.from(vector.buffer).toString('base64'))

let [calls, texts] = [0, 0]
/** When the device has done all that it was given. */
let freeAtMs = 0

const server = createServer((request, response) => {
  if (request.method === 'GET') response.end(JSON.stringify({ calls, texts }))
  else void serve(request, response)
})
server.keepAliveTimeout = 0
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  const { input } = JSON.parse(Buffer.concat(chunks).toString()) as { input: string | string[] }
  const count = typeof input === 'string' ? 1 : input.length
  calls++
  texts += count
  const now = performance.now()
  freeAtMs = Math.max(freeAtMs, now) + callMs + count * textMs
  const body = answerTo(count)
  const waitMs = freeAtMs - now
  if (waitMs > 0) setTimeout(() => send(response, body), waitMs)
  else send(response, body)
}

function answerTo(count: number): string {
  const data = Array.from(
    { length: count },
    (_, index) => `{"object":"embedding","index":${index},"embedding":${EMBEDDING}}`,
  )
  const usage = `{"prompt_tokens":${count * 10},"total_tokens":${count * 10}}`
  return `{"object":"list","data":[${data.join(',')}],"model":"bench","usage":${usage}}`
}

function send(response: ServerResponse, body: string): void {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length }).end(body)
}
