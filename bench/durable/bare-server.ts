/*
 * A bare HTTP server, in its own process. The measured cost of this server is the minimum cost of submitting jobs over HTTP. The server
 * parses a job, answers 202, stores nothing, and reports each job as completed. Prints its address on standard output.
 */
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'

const COMPLETED = {
  status: 'completed',
  result: { choices: [{ message: { role: 'assistant', content: 'ok' } }] },
  data: [],
}

let jobs = 0
const server = createServer({ noDelay: true, keepAliveTimeout: 0 }, async (request, response) => {
  const body = await bodyOf(request)
  const isSubmit = request.url === '/v1/chat/completions'
  response.writeHead(isSubmit ? 202 : 200, { 'content-type': 'application/json' })
  response.end(JSON.stringify(isSubmit ? accepted(body) : COMPLETED))
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
