/** Submits a durable job, follows it over lost connections, and prints its result: `node job.ts 'Hello there.'`. Node 22.18 or newer. */
const url = process.env.SLUICE_URL ?? 'http://127.0.0.1:8080'
const headers = { authorization: `Bearer ${process.env.SLUICE_API_KEY}`, 'content-type': 'application/json' }
const body = { model: 'echo-1', stream: true, messages: [{ role: 'user', content: process.argv[2] ?? 'Hello there.' }] }

const call = JSON.stringify({ endpoint: '/v1/chat/completions', body })
const submitted = await fetch(`${url}/v1/jobs`, { method: 'POST', headers, body: call })
if (submitted.status !== 202) throw new Error(await submitted.text())
const { id } = (await submitted.json()) as { id: string }
await follow(id, ({ sequence_number, type }) => console.error(sequence_number, type))
const result = await fetch(`${url}/v1/jobs/${id}/result`, { headers })
console.log(await result.text())
process.exitCode = result.ok ? 0 : 1

/** What every event of a job has; the last one has the job as well. */
interface JobEvent {
  readonly type: string
  readonly sequence_number: number
  readonly job?: object
}

/** Tells of each event of a job once, in order, and ends with the last. A broken connection is made again where it broke. */
async function follow(id: string, onEvent: (event: JobEvent) => void): Promise<void> {
  for (let last = 0; ; ) {
    try {
      const events = await fetch(`${url}/v1/jobs/${id}/events?starting_after=${last}`, { headers })
      if (events.status === 204) return // nothing comes after the last one
      if (events.status >= 400 && events.status < 429) throw new Error(await events.text())
      let rest = ''
      for await (const text of events.body?.pipeThrough(new TextDecoderStream()) ?? []) {
        const lines = (rest + text).split('\n')
        rest = lines.pop() ?? ''
        for (const line of lines.filter((line) => line.startsWith('data: '))) {
          const event: JobEvent = JSON.parse(line.slice(6))
          onEvent(event)
          last = event.sequence_number ?? last
          if (event.job) return
        }
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error // TypeError: the connection broke
    }
    await new Promise((resolve) => setTimeout(resolve, 1_000))
  }
}
