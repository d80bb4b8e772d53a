/**
 * The yardstick of submits over HTTP, as a process of its own: it parses a job, answers it as accepted, says of each that it has
 * completed, and keeps nothing. What is slower than this is the queue; what is not is HTTP. Prints its address on standard output.
 */
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'

const ENDED = { status: 'completed', result: { choices: [{ message: { role: 'assistant', content: 'ok' } }] } }

let jobs = 0
// Its callers keep their connections while the other systems have their turn.
const server = createServer({ noDelay: true, keepAliveTimeout: 0 }, async (request, response) => {
  const body = await bodyOf(request)
  const isSubmit = request.url === '/v1/chat/completions'
  response.writeHead(isSubmit ? 202 : 200, { 'content-type': 'application/json' })
  response.end(JSON.stringify(isSubmit ? accepted(body) : { ...ENDED, data: [] }))
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

process.once('SIGTERM', () => process.exit())

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return chunks.length === 0 ? undefined : JSON.parse(Buffer.concat(chunks).toString())
}

function accepted(body: unknown): object {
  const { model } = body as { model?: string }
  const id = `job_${String(jobs++).padStart(24, '0')}`
  return { id, object: 'job', endpoint: '/v1/chat/completions', model, status: 'queued', created_at: Date.now() }
}
