import { KEY, type Service } from './service.ts'

const PATH = '/v1/chat/completions'
const HEADERS = { authorization: `Bearer ${KEY}` }

/** A batch, as far as it matters here. */
export interface Batch {
  readonly id: string
  readonly status: string
  readonly output_file_id: string | null
  readonly error_file_id: string | null
  readonly request_counts: { readonly total: number; readonly completed: number; readonly failed: number }
}

/** Uploads so many echo requests and makes a batch of them. */
export async function createBatch(service: Service, requests: number): Promise<Batch> {
  const { id } = (await post(service, '/v1/files', formOf(requests))) as { id: string }
  const asked = { input_file_id: id, endpoint: PATH, completion_window: '24h' }
  return (await post(service, '/v1/batches', asked)) as Batch
}

/** The batch as it is; as it was where the service is busy coming up. */
export async function look(service: Service, known: Batch): Promise<Batch> {
  try {
    const response = await fetch(new URL(`/v1/batches/${known.id}`, service.url), { headers: HEADERS })
    return response.ok ? ((await response.json()) as Batch) : known
  } catch {
    return known
  }
}

/** The names of the requests in a file of results, in its order. */
export async function namesIn(service: Service, file: string | null): Promise<string[]> {
  if (file === null) return []
  const response = await fetch(new URL(`/v1/files/${file}/content`, service.url), { headers: HEADERS })
  const lines = (await response.text()).split('\n').filter((line) => line !== '')
  return lines.map((line) => (JSON.parse(line) as { custom_id: string }).custom_id)
}

/** The jobs of the requests, as the service lists them. */
export async function jobsOf(service: Service, id: string) {
  const count = { all: 0, completed: 0, again: 0 }
  for (let after = ''; ; ) {
    const path = `/v1/jobs?group=${id}&limit=100${after && `&after=${after}`}`
    const response = await fetch(new URL(path, service.url), { headers: HEADERS })
    const page = (await response.json()) as JobPage
    for (const { status, attempt } of page.data) {
      count.all++
      if (status === 'completed') count.completed++
      if (attempt > 1) count.again++
    }
    if (!page.has_more || page.last_id === null) return count
    after = page.last_id
  }
}

interface JobPage {
  readonly data: readonly { readonly status: string; readonly attempt: number }[]
  readonly has_more: boolean
  readonly last_id: string | null
}

function formOf(count: number): FormData {
  const lines = Array.from({ length: count }, (_, i) => {
    const body = { model: 'echo-1', messages: [{ role: 'user', content: `number ${i}` }] }
    return JSON.stringify({ custom_id: `r${i}`, method: 'POST', url: PATH, body })
  })
  const form = new FormData()
  form.append('purpose', 'batch')
  form.append('file', new Blob([lines.join('\n')]), 'requests.jsonl')
  return form
}

async function post(service: Service, path: string, body: FormData | object): Promise<unknown> {
  const isForm = body instanceof FormData
  const response = await fetch(new URL(path, service.url), {
    method: 'POST',
    headers: { ...HEADERS, ...(!isForm && { 'content-type': 'application/json' }) },
    body: isForm ? body : JSON.stringify(body),
  })
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`)
  return await response.json()
}
