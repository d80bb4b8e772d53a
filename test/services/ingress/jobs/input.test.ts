/* Tests of the input, cost and child progress that the jobs API returns for a job, and of the callers that may read them. */

import OpenAI, { toFile } from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../../support/admin.ts'
import { ECHO_MODEL, startStack, until } from '../../../support/stack.ts'

type Row = Record<string, unknown>

describe('the endpoints for the input and progress of a job', () => {
  let admin: Admin
  beforeAll(async () => {
    admin = await openAdmin()
  })
  afterAll(async () => await admin[Symbol.asyncDispose]())

  const read = async (who: string, path: string): Promise<Row> => (await (await admin.as(who).get(path)).json()) as Row

  it("return the input to keys of the job's project only", async () => {
    const id = await admin.submit('alice', 'What is a sluice?')
    const input = await read('alice', `/v1/jobs/${id}/input`)
    expect(input).toMatchObject({ id, object: 'job.input', endpoint: '/v1/chat/completions', input_cut: null })
    expect(JSON.stringify(input.input)).toContain('What is a sluice?')
    expect((await admin.as('bob').get(`/v1/jobs/${id}/input`)).status).toBe(404)
    expect((await admin.as('op').get(`/v1/jobs/${id}/input`)).status).toBe(403)
    await until(async () => (await admin.job('alice', id)).status === 'completed')
    await admin.stack.get(`/v1/jobs/${id}`, { headers: { authorization: `Bearer ${secretOf('alice')}` } })
    const erased = await fetch(`${admin.stack.url}/v1/jobs/${id}`, {
      method: 'DELETE',
      headers: { authorization: `Bearer ${secretOf('alice')}` },
    })
    expect(erased.status).toBe(200)
    expect((await admin.as('alice').get(`/v1/jobs/${id}/input`)).status).toBe(404)
  })

  it("have the beginning of the input in lists, for keys of the job's project only", async () => {
    const id = await admin.submit('alice', ` What is\n a ${'long '.repeat(100)}sluice?`)
    const large = await admin.submit('alice', 'x'.repeat(20_000))
    const previewsOf = async (who: string, path: string) => {
      const { data } = await read(who, path)
      return [id, large].map((one) => (data as Row[]).find((job) => job.id === one)?.prompt_preview)
    }
    const expected = [expect.stringMatching(/^What is a (long ){5}/), undefined]
    const [preview] = await previewsOf('alice', '/v1/jobs')
    expect(await previewsOf('alice', '/v1/jobs')).toEqual(expected)
    expect(preview).toHaveLength(120)
    expect(await previewsOf('op', '/v1/admin/jobs')).toEqual([undefined, undefined])
    expect(await read('alice', `/v1/jobs/${id}`)).not.toHaveProperty('prompt_preview')
  })

  it('return all of a small input, and the beginning of a large input', async () => {
    const large = await admin.submit('alice', 'ä'.repeat(300_000))
    const { input, input_cut } = await read('alice', `/v1/jobs/${large}/input`)
    expect(input).toBeNull()
    const { beginning, length } = input_cut as { beginning: string; length: number }
    expect(length).toBeGreaterThan(600_000)
    expect(beginning).toMatch(/ä{100}$/)
    expect(beginning.length).toBeLessThanOrEqual(16 * 1024)
    const blob = await admin.submit('alice', 'b'.repeat(100_000))
    expect(JSON.stringify(await read('alice', `/v1/jobs/${blob}/input`))).toContain('b'.repeat(100_000))
  })

  it('return the progress of child jobs, which operators can list', async () => {
    const client = new OpenAI({ baseURL: `${admin.stack.url}/v1`, apiKey: secretOf('alice'), maxRetries: 0 })
    const lines = Array.from({ length: 120 }, (_, nth) => ({
      ...{ custom_id: `r${nth}`, method: 'POST', url: '/v1/chat/completions' },
      body: {
        model: 'echo-1',
        messages: [{ role: 'user', content: nth === 7 ? '!echo error=400' : `Number ${nth}.` }],
      },
    }))
    const text = lines.map((line) => JSON.stringify(line)).join('\n')
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' })
    const { id } = await client.batches.create({
      ...{ input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' },
    })
    const jobId = id.replace('batch_', 'job_')
    await until(async () => (await admin.job('alice', jobId)).status === 'completed')
    const child_counts = { total: 120, completed: 119, failed: 1 }
    expect(await admin.job('alice', jobId)).toMatchObject({ child_counts })
    expect(await read('op', `/v1/admin/jobs/${jobId}`)).toMatchObject({ child_counts })
    const listed = async (who: string, path: string) => (await read(who, path)).data as Row[]
    expect((await listed('alice', '/v1/jobs?endpoint=/v1/batches'))[0]).toMatchObject({ id: jobId, child_counts })
    const parts = await listed('op', `/v1/admin/jobs?parent_id=${jobId}`)
    expect(parts.map((part) => part.child_counts)).toEqual(
      expect.arrayContaining([
        { total: 100, completed: 99, failed: 1 },
        { total: 20, completed: 20, failed: 0 },
      ]),
    )
    const whole = parts.find((part) => (part.child_counts as { total: number }).total === 100)
    const seen = new Set<unknown>()
    for (let after = '', hasMore = true; hasMore; ) {
      const page = await read('op', `/v1/admin/jobs?parent_id=${whole?.id}&limit=30${after}`)
      for (const job of page.data as Row[]) seen.add(job.id)
      hasMore = page.has_more === true
      after = `&after=${page.last_id}`
    }
    expect(seen.size).toBe(100)
    const failed = await listed('op', `/v1/admin/jobs?parent_id=${whole?.id}&status=failed`)
    expect(failed).toMatchObject([{ status: 'failed', project: 'alice' }])
    expect(JSON.stringify(await read('alice', `/v1/jobs/${jobId}/input`))).not.toContain('rights')
    expect((await admin.as('op').get('/v1/admin/jobs?parent_id=x')).status).toBe(400)
    const listedLines = await listed('op', `/v1/admin/jobs?group=${id}&limit=100`)
    expect([listedLines.length, ...new Set(listedLines.map(({ endpoint }) => endpoint))]).toEqual([
      100,
      '/v1/chat/completions',
    ])
    expect(await listed('op', `/v1/admin/jobs?group=${id}&status=failed`)).toHaveLength(1)
    const all = await listed('op', '/v1/admin/jobs?limit=100')
    expect(all.filter(({ parent_id }) => parent_id !== null)).toEqual([])
    expect((await admin.as('bob').get(`/v1/batches/${id}/results`)).status).toBe(404)
    expect(await (await admin.as('alice').get(`/v1/batches/${id}/results?status=failed`)).text()).toContain('"r7"')
  })
})

describe('the cost of a job', () => {
  it('is computed from the price of its model, and absent if the model has no price', async () => {
    const priced = { ...ECHO_MODEL, id: 'priced', price: { output_per_million: 1_000_000 } }
    await using stack = await startStack({ models: [ECHO_MODEL, priced] })
    const ended = async (model: string) => {
      const body = { model, messages: [{ role: 'user', content: '!echo tokens=5' }] }
      const response = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body })
      const { id } = (await response.json()) as { id: string }
      return await until(async () => {
        const job = (await (await stack.get(`/v1/jobs/${id}?wait=5`)).json()) as Row
        return job.status === 'completed' ? job : undefined
      })
    }
    const job = await ended('priced')
    expect(job.cost_usd).toBe((job.usage as { completion_tokens: number }).completion_tokens)
    expect(await ended('echo-1')).not.toHaveProperty('cost_usd')
  })
})
