import { TEST_KEY } from '../../support/stack.ts'

/**
 * Timeout of a call in ms. If a broker answers a fetch on a dead connection, then it keeps the records from other workers for 30 s. The timeout is
 * twice this time.
 */
const CALL_MS = 60_000
/** Concurrent submissions. */
const SUBMITTERS = 16

export interface Answer {
  readonly status: number
  readonly retryAfter: string | null
  readonly tookMs: number
  readonly body: Readonly<Record<string, unknown>>
}

/** Calls echo-1 and waits for the response. */
export function chat(url: string, content: string): Promise<Answer> {
  return call(url, '/v1/chat/completions', requestOf(content))
}

/** Submits the same call as a durable job. */
export function submit(url: string, content: string): Promise<Answer> {
  return call(url, '/v1/jobs', { endpoint: '/v1/chat/completions', body: requestOf(content) })
}

/** Submits equal jobs, some concurrently. @returns their ids @throws if one is not accepted */
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

/** The job object (docs/internals/protocol.md, The job object). */
export async function readJob(url: string, id: string): Promise<Answer['body']> {
  return (await call(url, `/v1/jobs/${id}`)).body
}

/** POST with a body, GET without. */
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
