// job.ts: submits a durable job, follows its events across disconnects, and prints its result.
// OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=sk-local-development node job.ts 'Hello there.'
import OpenAI from 'openai'

const client = new OpenAI()
const body = { model: 'echo-1', stream: true, messages: [{ role: 'user', content: process.argv[2] ?? 'Hello there.' }] }
const headers = { 'Idempotency-Key': crypto.randomUUID() } // a retry of the SDK returns the same job
const job = await client.post<{ id: string }>('/jobs', { headers, body: { endpoint: '/v1/chat/completions', body } })
let last: { sequence_number: number; type?: string; job?: object } = { sequence_number: 0 }
while (!last.job) {
  const options = { stream: true, maxRetries: 10, query: { starting_after: last.sequence_number } }
  const events = await client.get<AsyncIterable<typeof last>>(`/jobs/${job.id}/events`, options)
  try {
    for await (const event of events) {
      if (event.sequence_number) last = event // the last event of a job has the whole job
      console.error(event.type, event.sequence_number)
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error // TypeError: the connection broke; resume after the last event
  }
}
console.log(JSON.stringify(await client.get(`/jobs/${job.id}/result`)))
