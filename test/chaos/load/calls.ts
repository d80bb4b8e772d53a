import { TEST_KEY } from '../../support/stack.ts'

/**
 * Timeout of a call, which allows two waits of 30 s. If the connection of a worker breaks during a fetch, then other workers get the fetched
 * records only after 30 s.
 */
const CALL_MS = 60_000
/** Maximum concurrent submissions. */
const SUBMITTERS = 16

export interface Answer {
  readonly status: number
  readonly retryAfter: string | null
  readonly tookMs: number
  readonly body: Readonly<Record<string, unknown>>
}

/** Sends a chat completion to the model `echo-1`, which repeats the prompt, and waits for the response. */
export function chat(url: string, content: string): Promise<Answer> {
  return call(url, '/v1/chat/completions', requestOf(content))
}

/** Submits the call of {@link chat} as a durable job. */
export function submit(url: string, content: string): Promise<Answer> {
  return call(url, '/v1/jobs', { endpoint: '/v1/chat/completions', body: requestOf(content) })
}

/**
 * Submits equal jobs, some concurrently.
 *
 * @returns Ids of the jobs
 * @throws Error if a job is not accepted
 */
export async function submitMany(url: string, count: number, content: string): Promise<string[]> {
  const ids: string[] = []
  const submitter = async () => {
    while (ids.length < count) {
      const index = ids.push('') - 1
      const { status, body } = await submit(url, content)
      if (status !== 202) throw new Error(`${status}: ${JSON.stringify(body)}`)
      ids[index] = String(body.id)
    }
  }
  await Promise.all(Array.from({ length: SUBMITTERS }, submitter))
  return ids
}

/** Reads a job with `GET /v1/jobs/:id` (docs/internals/protocol.md, The job object). */
export async function readJob(url: string, id: string): Promise<Answer['body']> {
  return (await call(url, `/v1/jobs/${id}`)).body
}

/** Sends a POST request if there is a body, otherwise a GET request. */
async function call(url: string, path: string, body?: object): Promise<Answer> {
  const startedAt = performance.now()
  const response = await fetch(url + path, {
    method: body ? 'POST' : 'GET',
    headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' },
    ...(body && { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(CALL_MS),
  })
  const answer = (await response.json()) as Answer['body']
  const retryAfter = response.headers.get('retry-after')
  return { status: response.status, retryAfter, tookMs: performance.now() - startedAt, body: answer }
}

function requestOf(content: string): object {
  return { model: 'echo-1', messages: [{ role: 'user', content }] }
}
