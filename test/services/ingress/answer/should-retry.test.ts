/*
 * Tests of how often the official OpenAI SDK sends a call that fails. The response header `x-should-retry` overrides the retry policy that
 * the SDK has for each status.
 */

import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const CHAT = '/v1/chat/completions'
const ENDLESS = '!echo first_ms=60000 tokens=9'
const messages = (content: string) => [{ role: 'user' as const, content }]

let stack: Stack
let broken: Awaited<ReturnType<typeof startUpstream>>
let client: OpenAI
const sent: string[] = []
beforeAll(async () => {
  broken = await startUpstream((_call, answer) => answer.json({ error: { message: 'CUDA out of memory' } }, 500))
  const engine = { type: 'openai', base_url: `${broken.url}/v1`, breaker: { failures: 2, reset_ms: 60_000 } }
  stack = await startStack({ models: [ECHO_MODEL, { id: 'broken', engine }], settings: { FIRST_KEY_ADMIN: 'true' } })
  const count: typeof fetch = (input, init) => {
    sent.push(`${init?.method} ${new URL(String(input)).pathname}`)
    return fetch(input, init)
  }
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 2, fetch: count })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await broken[Symbol.asyncDispose]()
})

/** Makes a call that is expected to fail. Returns the status of the error, and the number of requests that the SDK sent. */
async function attempt(call: () => Promise<unknown>): Promise<[status: unknown, times: number]> {
  sent.length = 0
  const error = await call().then(
    () => undefined,
    (thrown: unknown) => thrown,
  )
  return [(error as { status?: number } | undefined)?.status, sent.length]
}

async function submit(content: string): Promise<string> {
  const body = { endpoint: CHAT, body: { model: 'echo-1', messages: messages(content) } }
  const { id } = (await client.post('/jobs', { body })) as { id: string }
  return id
}

describe('the OpenAI SDK', () => {
  it.each([
    ['upstream_error', 502],
    ['upstream_timeout', 504],
    ['upstream_refused', 502],
    ['worker_lost', 500],
  ])(
    'does not retry a call that failed with %s, because the service has retried the call already',
    async (code, status) => {
      const body = { model: 'echo-1', messages: messages(`!echo fail=${code}`) }
      expect(await attempt(() => client.chat.completions.create(body))).toEqual([status, 1])
    },
  )

  it.each([
    ['upstream_error', 502],
    ['worker_lost', 500],
    ['overloaded', 503],
    ['internal_error', 500],
  ])('does not retry a request for the result of a job that failed with %s', async (code, status) => {
    // Sluice does not retry a job that fails after its first token. The test therefore need not wait for the delays between retries, which
    // add up to minutes.
    const id = await submit(`!echo fail=${code} after=1 retry_after_ms=1\none two`)
    const isEnded = async () =>
      ((await client.get(`/jobs/${id}`, { query: { wait: 20 } })) as { failed_at: unknown }).failed_at
    await until(isEnded, { withinMs: 50_000 })
    expect(await attempt(() => client.get(`/jobs/${id}/result`))).toEqual([status, 1])
  })

  it('retries when the circuit breaker permits a call again, both if the upstream failed the call and if the open breaker refused it', async () => {
    const body = { model: 'broken', messages: messages('x') }
    // The two attempts of the first call open the circuit. Sluice refuses the second call without an attempt.
    for (const call of ['first', 'second']) {
      const failed = await stack.post(CHAT, body)
      expect([call, failed.status, failed.headers.get('x-should-retry')]).toEqual([call, 502, null])
      const seconds = Number(failed.headers.get('retry-after'))
      expect(seconds, `Retry-After of the ${call} call`).toBeGreaterThan(5)
      const { error } = (await failed.json()) as { error: { message: string } }
      expect(error.message).toMatch(/calls are paused until \d\d:\d\d:\d\d UTC\./)
    }
    const rows = await until(async () => {
      const found = await stack.get('/v1/admin/requests?model=broken')
      const { data } = (await found.json()) as { data: { id: string; upstream_message: string | null }[] }
      return data.length === 2 ? data : undefined
    })
    expect(rows.map((row) => row.upstream_message)).toEqual(['CUDA out of memory', 'CUDA out of memory'])
    const id = rows.at(-1)?.id ?? ''
    const row = (await (await stack.get(`/v1/admin/requests/${id}`)).json()) as Record<string, object[]>
    expect(row.next_step).toMatch(
      /^The caller: Retry after [\d:]+ UTC, or use another model\. The operator: The upstream server lacks memory\. Restart it with fewer parallel requests/,
    )
    expect(row.failed_attempts).toMatchObject([
      { server: '0', error_message: expect.stringContaining('HTTP 500'), upstream_message: 'CUDA out of memory' },
      { server: '0', upstream_message: 'CUDA out of memory' },
      { error_message: expect.stringContaining('calls are paused'), retry_delay_ms: null },
    ])
  })

  it('does not retry the deletion or the redrive of a job that has not ended', async () => {
    const id = await submit(ENDLESS)
    expect(await attempt(() => client.delete(`/jobs/${id}`))).toEqual([409, 1])
    expect(await attempt(() => client.post(`/jobs/${id}/redrive`))).toEqual([409, 1])
    await client.post(`/jobs/${id}/cancel`)
  })

  it('repeats a request for the result of a job that has not ended', async () => {
    const id = await submit('!echo first_ms=1000\nlate')
    sent.length = 0
    await client.get(`/jobs/${id}/result`)
    expect(sent.length).toBeGreaterThan(1)
  })
})
