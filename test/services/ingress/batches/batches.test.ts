import OpenAI, { toFile } from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { childJobId } from '#shared/store/jobs.ts'
import { RETRY_OF_KEY } from '#shared/tables/answers.ts'
import { createBatch, endOf } from '../../../support/batches.ts'
import { type Embedder, embedderModel, startEmbedder, vectorOf } from '../../../support/embeddings/embeddings.ts'
import { startUpstream } from '../../../support/processes/upstream.ts'
import { openRaw, rawRequest } from '../../../support/raw-http.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const CHAT = '/v1/chat/completions'
type Line = Record<string, unknown>
type Row = Readonly<Record<string, unknown>>

const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  messages: [{ role: 'user', content }],
  ...more,
})
const line = (custom_id: string, body: object, url = CHAT) => ({ custom_id, method: 'POST', url, body })

describe('batches', () => {
  let stack: Stack
  let client: OpenAI
  let embedder: Embedder
  beforeAll(async () => {
    embedder = await startEmbedder()
    const price = { output_per_million: 2, per_call: 0.001 }
    stack = await startStack({ models: [{ ...ECHO_MODEL, price }, embedderModel(embedder, { id: 'embed-1' })] })
    client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await embedder[Symbol.asyncDispose]()
  })

  const upload = async (lines: readonly object[]) => {
    const text = lines.map((each) => `${JSON.stringify(each)}\n`).join('')
    return await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' })
  }
  const create = async (input_file_id: string, more: object = {}) =>
    await client.batches.create({ input_file_id, endpoint: CHAT, completion_window: '24h', ...more })
  const ended = async (id: string) =>
    await until(async () => {
      const batch = await client.batches.retrieve(id)
      return ['completed', 'failed', 'expired', 'cancelled'].includes(batch.status) ? batch : undefined
    })
  const linesOf = async (file: string | null | undefined): Promise<Line[]> => {
    const text = file ? await (await client.files.content(file)).text() : ''
    return text.split('\n').flatMap((each) => (each === '' ? [] : [JSON.parse(each)]))
  }

  it('run every request of a file, even if the file is deleted during the run', async () => {
    const lines = Array.from({ length: 250 }, (_, i) => line(`r${i}`, say(`number ${i}`)))
    const file = await upload(lines)
    const made = await create(file.id, { metadata: { report: '2026-11' } })
    expect(made).toMatchObject({
      object: 'batch',
      endpoint: CHAT,
      input_file_id: file.id,
      metadata: { report: '2026-11' },
    })
    expect(['validating', 'in_progress']).toContain(made.status)
    await client.files.delete(file.id)
    const batch = await ended(made.id)
    expect(batch).toMatchObject({
      status: 'completed',
      model: 'echo-1',
      request_counts: { total: 250, completed: 250, failed: 0 },
      error_file_id: null,
      errors: null,
    })
    expect(batch.usage?.total_tokens).toBeGreaterThan(250)
    expect(batch).toHaveProperty('cost_usd', expect.closeTo(0.25 + 2e-6 * (batch.usage?.output_tokens ?? 0), 9))
    const answers = await linesOf(batch.output_file_id)
    expect(answers.map(({ custom_id }) => custom_id)).toEqual(lines.map(({ custom_id }) => custom_id))
    for (const [i, answer] of answers.entries()) {
      const { status_code, body } = answer.response as { status_code: number; body: OpenAI.ChatCompletion }
      expect(status_code).toBe(200)
      expect(body.choices[0]?.message.content).toBe(`number ${i}`)
    }
    expect((await client.batches.list({ limit: 1 })).data[0]?.id).toBe(batch.id)
  })

  it('report the reason for each failed request', async () => {
    const file = await upload([
      line('good', say('hello')),
      line('bad', { model: 'echo-1', messages: 'none' }),
      line('streamed', say('hello', { stream: true })),
      line('failing', say('!echo error=400')),
    ])
    const batch = await ended((await create(file.id)).id)
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 4, completed: 1, failed: 3 } })
    const output = String(batch.output_file_id)
    expect((await linesOf(output)).map(({ custom_id }) => custom_id)).toEqual(['good'])
    const errors = await linesOf(batch.error_file_id)
    expect(errors.map(({ custom_id }) => custom_id)).toEqual(['bad', 'streamed', 'failing'])
    expect(errors[0]).toMatchObject({
      response: { status_code: 400, body: { error: { param: 'messages' } } },
      error: null,
    })
    expect(errors[1]).toMatchObject({ response: { status_code: 400, body: { error: { param: 'stream' } } } })
    await client.files.delete(output)
    const resultsOf = (query: string) => stack.get(`/v1/batches/${batch.id}/results?${query}`)
    for (const query of ['', 'status=completed', 'format=csv']) {
      const response = await resultsOf(query)
      expect([response.status, await response.text()]).toEqual([404, expect.stringContaining(output)])
    }
    expect((await resultsOf('status=failed')).status).toBe(200)
  })

  it('of embeddings return the vectors of each request', async () => {
    const url = '/v1/embeddings'
    const file = await upload(['one', 'two'].map((input) => line(input, { model: 'embed-1', input }, url)))
    const batch = await ended((await create(file.id, { endpoint: url })).id)
    expect(batch.status).toBe('completed')
    for (const { custom_id, response } of await linesOf(batch.output_file_id)) {
      const { body } = response as { body: OpenAI.CreateEmbeddingResponse }
      expect(Float32Array.from(body.data[0]?.embedding ?? [])).toEqual(vectorOf(String(custom_id)))
    }
  })

  it.each([
    ['another endpoint', line('a', say('hi')), '/v1/embeddings', { code: 'mismatched_url', line: 1, param: 'url' }],
    ['an unknown model', line('a', say('hi', { model: 'none' })), CHAT, { code: 'model_not_found', line: 1 }],
    [
      'a model that cannot serve the endpoint',
      line('a', say('hi', { model: 'embed-1' })),
      CHAT,
      { code: 'model_not_supported', line: 1 },
    ],
  ])('fail before the first request if a line names %s', async (_, first, endpoint, problem) => {
    const file = await upload([first])
    const batch = await ended((await create(file.id, { endpoint })).id)
    expect(batch).toMatchObject({
      status: 'failed',
      in_progress_at: null,
      output_file_id: null,
      request_counts: { completed: 0 },
    })
    expect(batch.errors?.data).toMatchObject([problem])
    expect(batch.failed_at).toBeGreaterThanOrEqual(batch.created_at)
  })

  it('are refused for an invalid file or an invalid completion window', async () => {
    const other = await client.files.create({ file: await toFile(Buffer.from('x'), 'x'), purpose: 'user_data' })
    const { id } = await upload([line('a', say('hi'))])
    await expect(create(other.id)).rejects.toMatchObject({ status: 400, param: 'input_file_id' })
    await expect(create('file-00000000')).rejects.toMatchObject({ status: 404, param: 'input_file_id' })
    await expect(create(id, { completion_window: '25h' })).rejects.toMatchObject({
      status: 400,
      param: 'completion_window',
    })
    await expect(create(id, { endpoint: '/v1/none' })).rejects.toMatchObject({ status: 400, param: 'endpoint' })
    await expect(create(id, { typo: 1 })).rejects.toMatchObject({ status: 400, param: 'typo' })
    await expect(client.batches.retrieve('batch_none')).rejects.toMatchObject({ status: 404 })
  })

  it('are created once for a repeated Idempotency-Key', async () => {
    const { id } = await upload([line('a', say('hi'))])
    const body = { input_file_id: id, endpoint: CHAT, completion_window: '24h' } as const
    const options = { headers: { 'idempotency-key': 'twice' } }
    const [first, second] = [await client.batches.create(body, options), await client.batches.create(body, options)]
    expect(second.id).toBe(first.id)
    const { output_file_id } = await ended(first.id)
    // The idempotency key must still return the same batch after the batch has ended and its input file was deleted.
    await client.files.delete(id)
    const { data: third, response } = await client.batches.create(body, options).withResponse()
    expect(third).toMatchObject({ id: first.id, status: 'completed', output_file_id })
    expect(response.headers.get('idempotency-replayed')).toBe('true')
    const other = { ...body, metadata: { report: 'another' } }
    await expect(client.batches.create(other, options)).rejects.toMatchObject({ code: 'idempotency_key_reused' })
  })

  const ENDLESS = '!echo tokens=1000 delay_ms=1000'
  /** Lines of a batch file. The first five requests end at once, and all others run until they are cancelled. */
  const MIXED = Array.from({ length: 120 }, (_, i) => line(`r${i}`, say(i < 5 ? 'quick' : ENDLESS)))
  const quickAreDone = (id: string) =>
    until(async () => {
      const query = `group=${id}&status=completed&limit=100`
      const { data } = (await (await stack.get(`/v1/jobs?${query}`)).json()) as { data: object[] }
      return data.length === 5
    })
  const expectAll = async (batch: OpenAI.Batch, code: string) => {
    const answers = await linesOf(batch.output_file_id)
    const errors = await linesOf(batch.error_file_id)
    expect(answers.map(({ custom_id }) => custom_id)).toEqual(['r0', 'r1', 'r2', 'r3', 'r4'])
    expect(errors.map(({ custom_id }) => custom_id)).toEqual(MIXED.slice(5).map(({ custom_id }) => custom_id))
    for (const { error } of errors) expect(error).toMatchObject({ code })
    expect(batch.request_counts).toEqual({ total: 120, completed: 5, failed: 115 })
  }

  it('have the same request counts in every view while they run', async () => {
    const { id } = await create((await upload(MIXED)).id)
    const jobId = id.replace('batch_', 'job_')
    await quickAreDone(id)
    const read = async (path: string) => (await (await stack.get(path)).json()) as Row
    const counts = { total: 120, completed: 5, failed: 0 }
    const progress = { percent: 4, counts, message: '5 of 120 requests have ended.' }
    expect(await read(`/v1/jobs/${jobId}`)).toMatchObject({ child_counts: counts, progress })
    const jobs = (await read('/v1/jobs?limit=100')).data as Row[]
    expect(jobs.find((job) => job.id === jobId)).toMatchObject({ child_counts: counts, progress })
    expect(jobs.filter(({ endpoint }) => endpoint !== '/v1/batches')).toEqual([])
    const lines = (await read('/v1/jobs?limit=100&include_children=true')).data as Row[]
    expect(lines.filter(({ endpoint }) => endpoint === CHAT)).not.toEqual([])
    const batches = (await read('/v1/batches')).data as Row[]
    for (const batch of [batches.find((one) => one.id === id), await read(`/v1/batches/${id}`)]) {
      // While fewer requests have ended than slots are in use, the service estimates only a range for the end.
      const range = { earliest: expect.any(Number), latest: expect.any(Number) }
      const estimate = { requests_per_second: null, estimated_end_at: null, estimated_end_range: range }
      expect(batch).toMatchObject({ request_counts: counts, progress: estimate })
    }
    const results = async (query: string) => await (await stack.get(`/v1/batches/${id}/results${query}`)).text()
    const idsIn = (text: string) =>
      text.split('\n').flatMap((one) => (one ? [JSON.parse(one).custom_id as string] : []))
    const rows = (text: string) => text.trimEnd().split('\r\n')
    expect(idsIn(await results('')).toSorted()).toEqual(['r0', 'r1', 'r2', 'r3', 'r4'])
    expect(await results('?status=failed')).toBe('')
    expect(rows(await results('?format=csv')).toSorted()).toEqual([
      'custom_id,answer,error,finish_reason,input_tokens,output_tokens',
      ...[0, 1, 2, 3, 4].map((nth) => expect.stringMatching(new RegExp(`^r${nth},quick.*,,stop,\\d+,\\d+$`))),
    ])
    await client.batches.cancel(id)
    expect(await ended(id)).toMatchObject({ request_counts: { total: 120, completed: 5, failed: 115 }, progress: null })
    expect(idsIn(await results('?status=completed'))).toEqual(['r0', 'r1', 'r2', 'r3', 'r4'])
    expect(idsIn(await results(''))).toHaveLength(120)
    expect(rows(await results('?format=csv&status=failed'))[1]).toMatch(/^r5,,batch_cancelled: .*,,$/)
    expect((await stack.get(`/v1/batches/${id}/results?format=xlsx`)).status).toBe(400)
    expect((await stack.get(`/v1/batches/${jobId}/results`)).status).toBe(404)
  })

  it('write the finished results if they are cancelled', async () => {
    const { id } = await create((await upload(MIXED)).id)
    await quickAreDone(id)
    // The counts of a batch must change when one request ends, although the child job that runs this request and others has not ended.
    expect((await client.batches.retrieve(id)).request_counts).toEqual({ total: 120, completed: 5, failed: 0 })
    // Five concurrent requests to cancel must count as one, because a second cancel would abort the writing of the results.
    using raw = await openRaw(stack.url)
    const cancel = rawRequest(`POST /v1/batches/${id}/cancel`, [`Authorization: Bearer ${TEST_KEY}`])
    raw.send(cancel.repeat(5))
    for (let nth = 0; nth < 5; nth++) {
      const answer = await raw.answer(nth)
      expect(JSON.parse(answer.body)).toMatchObject({ status: 'cancelling' })
    }
    const batch = await ended(id)
    expect(batch.status).toBe('cancelled')
    await expectAll(batch, 'batch_cancelled')
    await expect(client.batches.cancel(id)).rejects.toMatchObject({ status: 409 })
  })

  it('write the finished results if their completion window ends', async () => {
    const { id } = await create((await upload(MIXED)).id, { completion_window: '4s' })
    const batch = await ended(id)
    expect(batch.status).toBe('expired')
    await expectAll(batch, 'batch_expired')
  })

  it('that repeat requests of an earlier batch never return the earlier result of a repeated request', async () => {
    const first = await create((await upload([line('r1', say('one')), line('r2', say('two'))])).id)
    await ended(first.id)
    const lines = [line('r2', say(ENDLESS)), line('r3', say('three'))]
    const second = await create((await upload(lines)).id, { metadata: { [RETRY_OF_KEY]: first.id } })
    await until(async () => (await client.batches.retrieve(second.id)).request_counts?.completed === 1)
    const answers = async () => {
      const text = await (await stack.get(`/v1/batches/${second.id}/results?format=csv&include=earlier`)).text()
      return text.split('\r\n').flatMap((row) => /^r\d+,[^,]*,[^,:]*/.exec(row) ?? [])
    }
    expect(await answers()).toEqual(['r1,one,', 'r3,three,'])
    await client.batches.cancel(second.id)
    await ended(second.id)
    expect(await answers()).toEqual(['r1,one,', 'r2,,batch_cancelled', 'r3,three,'])
    const nameOf = async (id: string, query: string) =>
      (await stack.get(`/v1/batches/${id}/results?${query}`)).headers.get('content-disposition')
    expect(await nameOf(second.id, 'format=csv')).toBe('attachment; filename="in-results.csv"')
    const named = await create((await upload([line('a', say('hi'))])).id, { metadata: { name: 'Übersicht 1.2.tsv' } })
    expect(await nameOf(named.id, 'status=failed')).toBe(
      `attachment; filename="_bersicht 1.2-results-failed.jsonl"; filename*=UTF-8''%C3%9Cbersicht%201.2-results-failed.jsonl`,
    )
  })

  it.each([
    { when: 'continue a download in the result file', first: ['big'], isCut: false },
    {
      when: 'cut a download that lacks the requests of a child job that was still running',
      first: ['held', 'failing'],
      isCut: true,
    },
  ])('$when at the end of the batch', async ({ first, isCut }) => {
    const { promise: isReleased, resolve: release } = Promise.withResolvers<void>()
    await using upstream = await startUpstream(async ({ body }, answer) => {
      const [{ content: text = '' } = {}] = body.messages as { content?: string }[]
      if (text === 'held') await isReleased
      if (text === 'failing') return answer.json({ error: { message: 'Invalid.', type: 'invalid_request_error' } }, 400)
      // The answers of the second hundred requests are larger than all buffers between the service and this test, so the download waits for
      // its reader.
      const content = text === 'big' ? 'x'.repeat(300_000) : text
      const choices = [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }]
      answer.json({ id: 'a', object: 'chat.completion', created: 1, model: 'up', choices })
    })
    const model = { id: 'up', engine: { type: 'openai', base_url: `${upstream.url}/v1` } }
    await using own = await startStack({ models: [model] })
    const api = new OpenAI({ baseURL: `${own.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
    const texts = [
      ...Array.from({ length: 100 }, (_, i) => first[Math.min(i, first.length - 1)]),
      ...Array(100).fill('big'),
    ]
    const lines = [...texts, 'held'].map((text, i) => JSON.stringify(line(`r${i}`, { ...say(text), model: 'up' })))
    const made = await createBatch(api, CHAT, lines)
    const parts = (isCut ? ['1'] : ['0', '1']).map((nth) => childJobId(made.id.replace('batch_', 'job_'), nth))
    for (const part of parts) {
      await until(async () => ((await (await own.get(`/v1/jobs/${part}`)).json()) as Row).status === 'completed')
    }
    await until(() => upstream.calls.length === 201)
    const response = await own.get(`/v1/batches/${made.id}/results`)
    const reader = (response.body as ReadableStream<Uint8Array>).getReader()
    const pieces = [(await reader.read()).value ?? new Uint8Array()]
    release()
    const { output } = await endOf(api, made)
    const read = async () => {
      for (let next = await reader.read(); next.value; next = await reader.read()) pieces.push(next.value)
      return Buffer.concat(pieces).toString()
    }
    if (isCut) return await expect(read()).rejects.toThrow()
    const ids = (await read())
      .trimEnd()
      .split('\n')
      .map((text) => (JSON.parse(text) as Line).custom_id)
    expect(ids).toEqual(output.map(({ custom_id }) => custom_id))
  })
})
