/** Runs the requests of a file as one batch, and writes their answers to another: `node batch.ts requests.jsonl answers.jsonl`. Node 22.18 or newer. */
import { readFile, writeFile } from 'node:fs/promises'

const url = process.env.SLUICE_URL ?? 'http://127.0.0.1:8080'
const authorization = `Bearer ${process.env.SLUICE_API_KEY}`
const [from = 'requests.jsonl', to = 'answers.jsonl'] = process.argv.slice(2)

const form = new FormData()
form.set('purpose', 'batch')
form.set('file', new Blob([await readFile(from)]), 'requests.jsonl')
const file = JSON.parse(await call('/v1/files', form))
const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
let batch = JSON.parse(await call('/v1/batches', JSON.stringify(order)))
console.error(batch.id)
while (['validating', 'in_progress', 'finalizing', 'cancelling'].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 1_000))
  batch = JSON.parse(await get(`/v1/batches/${batch.id}`))
}
console.error(batch.status, batch.request_counts, batch.errors?.data ?? '')
if (batch.output_file_id) await writeFile(to, await get(`/v1/files/${batch.output_file_id}/content`))
process.exitCode = batch.status === 'completed' && batch.request_counts.failed === 0 ? 0 : 1

/** Returns the text of an answer. @param body Body to post; undefined: a GET. @throws Error with the answer if the service refuses */
async function call(path: string, body?: string | FormData): Promise<string> {
  const headers = { authorization, ...(typeof body === 'string' && { 'content-type': 'application/json' }) }
  const answer = await fetch(url + path, { headers, ...(body !== undefined && { method: 'POST', body }) })
  if (!answer.ok) throw new Error(await answer.text(), { cause: answer.status })
  return await answer.text()
}

/**
 * Sends a GET request. If the service restarts meanwhile, then the request is repeated for up to a minute, because the
 * batch itself continues.
 *
 * @throws Error as {@link call} does
 */
async function get(path: string, tries = 60): Promise<string> {
  try {
    return await call(path)
  } catch (error) {
    const { cause } = error as Error
    if (tries === 1 || (typeof cause === 'number' && cause < 429)) throw error
  }
  await new Promise((resolve) => setTimeout(resolve, 1_000))
  return await get(path, tries - 1)
}
