import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

/** How often the official SDK sends a failed call: `x-should-retry` overrides the status. */

const CHAT = '/v1/chat/completions'
const ENDLESS = '!echo first_ms=60000 tokens=9'
const messages = (content: string) => [{ role: 'user' as const, content }]

let stack: Stack
let client: OpenAI
const sent: string[] = []
beforeAll(async () => {
  stack = await startStack()
  const count: typeof fetch = (input, init) => {
    sent.push(`${init?.method} ${new URL(String(input)).pathname}`)
    return fetch(input, init)
  }
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 2, fetch: count })
})
afterAll(() => stack[Symbol.asyncDispose]())

/** Fails, and returns the status and the number of requests. */
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
    // The delays between retries of a durable job add up to minutes. The failure after one token prevents a retry, so the job runs only once.
    const id = await submit(`!echo fail=${code} after=1 retry_after_ms=1\none two`)
    const isEnded = async () =>
      ((await client.get(`/jobs/${id}`, { query: { wait: 20 } })) as { failed_at: unknown }).failed_at
    await until(isEnded, { withinMs: 50_000 })
    expect(await attempt(() => client.get(`/jobs/${id}/result`))).toEqual([status, 1])
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
