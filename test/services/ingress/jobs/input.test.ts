/* Tests of the input, cost and child progress that the jobs API returns for a job, and of the callers that may read them. */

import { createHash } from 'node:crypto'
import OpenAI, { toFile } from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../../support/admin.ts'
import { wav } from '../../../support/speech/service.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

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
    expect(input.input).toMatchObject({ messages: [{ role: 'user', content: 'What is a sluice?' }] })
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
    expect(length).toBeGreaterThan(300_000)
    expect(beginning).toMatch(/ä{100}$/)
    expect(beginning.length).toBeLessThanOrEqual(16 * 1024)
    const small = await admin.submit('alice', 'b'.repeat(60_000))
    expect(JSON.stringify(await read('alice', `/v1/jobs/${small}/input`))).toContain('b'.repeat(60_000))
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
    const failedInput = await read('alice', `/v1/jobs/${failed[0]?.id}/input`)
    expect(failedInput.input, 'the body of the line').toEqual(lines[7]?.body)
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

/** Bodies with fields that the internal form drops, renames or completes with defaults. */
const messages = [
  { role: 'system', content: 'Be brief.' },
  { role: 'user', content: [{ type: 'text', text: 'Hello' }], name: 'ann' },
]
const tool = { name: 'find', description: 'Finds', parameters: { type: 'object', properties: {} } }
const SENT: Readonly<Record<string, object>> = {
  '/v1/chat/completions': {
    ...{ model: 'short-name', messages, tools: [{ type: 'function', function: tool }], tool_choice: 'auto' },
    ...{
      max_completion_tokens: 9,
      n: null,
      user: 'u',
      seed: 3,
      stop: ['x'],
      stream_options: { include_usage: true },
      stream: true,
    },
  },
  '/v1/completions': { model: 'echo-1', prompt: ['hello'], max_tokens: 9, echo: false },
  '/v1/messages': {
    ...{ model: 'echo-1', max_tokens: 9, system: 'Be brief.', metadata: { user_id: 'u' } },
    ...{ tools: [{ name: 'find', input_schema: { type: 'object' } }], stop_sequences: ['x'], top_k: 4 },
    messages: [{ role: 'user', content: 'hello' }],
  },
  '/v1/responses': {
    ...{ model: 'echo-1', instructions: 'Be brief.', store: true, background: true, metadata: { a: 'b' } },
    ...{ input: [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: 'hello' }] }] },
    ...{ tools: [{ type: 'function', ...tool, strict: false }], text: { format: { type: 'text' } } },
  },
  '/v1/embeddings': { model: 'embed-1', input: ['a', 'b'], encoding_format: 'base64', user: 'u' },
  '/v1/audio/transcriptions': {
    ...{ model: 'speech-1', file: `data:audio/wav;base64,${wav(1).toString('base64')}`, language: 'en' },
    ...{ response_format: 'text', temperature: 0.5 },
  },
  '/v1/tools/code': { lang: 'python', code: 'print(1)', libraries: ['numpy'], timeout: 5 },
  '/v1/deep-research': {
    ...{ model: 'deep-research', messages: [{ role: 'user', content: 'Why?' }] },
    ...{ domains: { allow: ['example.com'] }, stream: false },
  },
}

describe('the input of a durable job', () => {
  let stack: Stack
  beforeAll(async () => {
    const engine = { type: 'openai', base_url: 'http://127.0.0.1:9/v1' }
    const models = [
      { ...ECHO_MODEL, aliases: ['short-name'] },
      { id: 'embed-1', pool: 'embeddings', engine },
      { id: 'speech-1', pool: 'transcription', engine },
      { id: 'deep-research', pool: 'research', engine: { type: 'research' } },
    ]
    stack = await startStack({ models })
  })
  afterAll(async () => await stack[Symbol.asyncDispose]())

  const inputOf = async (response: Response) => {
    const text = await response.text()
    expect(response.status, text).toBe(202)
    const id = response.headers.get('x-job-id') ?? (JSON.parse(text) as Row).id
    return (await (await stack.get(`/v1/jobs/${id}/input`)).json()) as Row
  }

  it.each(Object.entries(SENT))('of %s equals the body that the caller sent', async (endpoint, body) => {
    const job = { endpoint, body, run_at: Math.floor(Date.now() / 1_000) + 3_600 }
    const input = await inputOf(await stack.post('/v1/jobs', job))
    expect(input, 'POST /v1/jobs').toMatchObject({ endpoint, input_cut: null, attachments: 0 })
    expect(input.input, 'POST /v1/jobs').toEqual(body)
    // A call of this endpoint is a form, which the next test sends.
    if (endpoint === '/v1/audio/transcriptions') return
    const headers = { prefer: 'respond-async', 'x-job-run-at': String(job.run_at) }
    const called = await stack.post(endpoint, body, { headers })
    expect((await inputOf(called)).input, endpoint).toEqual(body)
  })

  it('names an uploaded file by its hash', async () => {
    const form = new FormData()
    form.append('file', new Blob([wav(1)]), 'a.wav')
    form.append('model', 'speech-1')
    const headers = { authorization: `Bearer ${TEST_KEY}`, prefer: 'respond-async' }
    const url = `${stack.url}/v1/audio/transcriptions`
    const input = await inputOf(await fetch(url, { method: 'POST', body: form, headers }))
    const sha256 = createHash('sha256').update(wav(1)).digest('hex')
    expect(input).toMatchObject({ input: { model: 'speech-1', file: { sha256 } }, attachments: 1 })
  })

  it('stays the same in a job that repeats the job', async () => {
    const body = { model: 'echo-1', messages: [{ role: 'user', content: '!echo error=400' }], user: 'u' }
    const { id } = (await (await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body })).json()) as Row
    await until(async () => ((await (await stack.get(`/v1/jobs/${id}`)).json()) as Row).status === 'failed')
    const input = await inputOf(await stack.post(`/v1/jobs/${id}/redrive`, {}))
    expect(input.id).not.toBe(id)
    expect(input.input).toEqual(body)
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
