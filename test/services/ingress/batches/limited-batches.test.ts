/*
 * Tests of batches whose key has limits or a budget. The requests of a batch count like synchronous calls, but wait instead of being
 * refused.
 */

import { createHash } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import OpenAI from 'openai'
import { describe, expect, it } from 'vitest'
import type { UsageReport } from '#schemas/usage.ts'
import { createBatch, endOf } from '../../../support/batches.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../../support/stack.ts'

const CHAT = '/v1/chat/completions'
const SECRET = 'sk-limited'
const OTHER_SECRET = 'sk-limited-too'
const CALL_USD = 0.02
const MODEL = { ...ECHO_MODEL, price: { per_call: CALL_USD } }
const headers = { authorization: `Bearer ${SECRET}` }

const say = (content: string) => ({ model: 'echo-1', max_tokens: 100, messages: [{ role: 'user', content }] })
const linesOf = (count: number, content: string) =>
  Array.from({ length: count }, (_, i) =>
    JSON.stringify({ custom_id: `r${i}`, method: 'POST', url: CHAT, body: say(content) }),
  )

async function startLimited(limits: object): Promise<{ stack: Stack; client: OpenAI }> {
  const stack = await startStack({ models: [MODEL] })
  const keys = [SECRET, OTHER_SECRET].map((secret) => {
    const hash = createHash('sha256').update(secret).digest('hex')
    return { id: `key_${secret}`, hash, hint: 'sk-...', created_at: 1_790_000_000, limits }
  })
  writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys }))
  await until(async () => (await stack.get('/v1/usage', { headers })).status === 200)
  return { stack, client: new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: SECRET, maxRetries: 0 }) }
}

async function spentBy(stack: Stack, secret = SECRET): Promise<number> {
  const headers = { authorization: `Bearer ${secret}` }
  const { total } = (await (await stack.get('/v1/usage', { headers })).json()) as UsageReport
  return total.cost_usd
}

/** Returns the number of jobs that were created for lines of the batch (at most 100). */
async function jobsOf(stack: Stack, id: string): Promise<number> {
  const page = (await (await stack.get(`/v1/jobs?group=${id}&limit=100`, { headers })).json()) as { data: unknown[] }
  return page.data.length
}

describe('a batch of a key with limits', () => {
  it('submits at most as many lines per minute as the request limit of its key allows', async () => {
    const { stack, client } = await startLimited({ requests_per_minute: 5 })
    await using _ = stack
    // The limit is five requests per minute. The upload of the file and the creation of the batch use two of them, so three lines can
    // start.
    const { id } = await createBatch(client, CHAT, linesOf(30, 'hi'))
    await until(async () => (await jobsOf(stack, id)) >= 3)
    const waiting = await until(async () => {
      const batch = (await client.batches.retrieve(id)) as OpenAI.Batch & { waiting_for?: string | null }
      return batch.waiting_for ? batch : undefined
    })
    expect(waiting.waiting_for).toContain('5 requests per minute')
    expect(waiting.status).toBe('in_progress')
    expect(await jobsOf(stack, id), 'submitted lines').toBe(3)
    await client.batches.cancel(id)
    const { batch } = await endOf(client, { id } as OpenAI.Batch)
    expect(batch).toMatchObject({ status: 'cancelled', request_counts: { total: 30, completed: 3 } })
  })

  it('exceeds the budget of its key by at most one line', async () => {
    const { stack, client } = await startLimited({ budget_usd_per_month: 0.05 })
    await using _ = stack
    const asOther = { headers: { authorization: `Bearer ${OTHER_SECRET}` } }
    const burst = await Promise.all(
      Array.from({ length: 40 }, () => stack.post(CHAT, say('!echo first_ms=500 text=hi'), asOther)),
    )
    const statuses = burst.map(({ status }) => status)
    // The budget covers the estimated cost of two concurrent calls. A third call waits until the real cost of both is recorded, and then
    // runs alone. All other calls are refused.
    expect(statuses.filter((status) => status === 200)).toHaveLength(3)
    expect(new Set(statuses)).toEqual(new Set([200, 429]))
    await until(async () => (await spentBy(stack, OTHER_SECRET)) >= 3 * CALL_USD - 1e-9)
    expect(await spentBy(stack, OTHER_SECRET)).toBeLessThanOrEqual(0.05 + CALL_USD)
    const { id } = await createBatch(client, CHAT, linesOf(300, 'hi'), { completion_window: '20s' })
    const { batch, errors } = await endOf(client, { id } as OpenAI.Batch)
    expect(batch).toMatchObject({ status: 'expired', request_counts: { total: 300, completed: 3 } })
    expect(new Set(errors.map(({ error }) => error?.code))).toEqual(new Set(['batch_expired']))
    await until(async () => (await spentBy(stack)) >= 3 * CALL_USD - 1e-9)
    expect(await spentBy(stack)).toBeLessThanOrEqual(0.05 + CALL_USD)
  }, 60_000)
})
