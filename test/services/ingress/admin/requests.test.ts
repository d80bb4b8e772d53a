/* Tests of the request log in the admin API (docs/operate/requests.md). */

import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../../support/admin.ts'
import { until } from '../../../support/stack.ts'

interface Row extends Record<string, unknown> {
  readonly id: string
}

interface RowPage {
  readonly data: readonly Row[]
  readonly has_more: boolean
  readonly last_id: string | null
}

const CHAT = '/v1/chat/completions'
const bodyOf = (content: string, more = {}) => ({ model: 'echo-1', messages: [{ role: 'user', content }], ...more })

describe('the request log', () => {
  let door: Admin
  beforeAll(async () => {
    door = await openAdmin({
      models: 2,
      aliases: ['parrot'],
      settings: { REQUEST_BODIES_MS: '60000', REQUEST_BODY_BYTES_MAX: '1000' },
    })
  })
  afterAll(async () => await door[Symbol.asyncDispose]())

  const list = async (who: string, query = ''): Promise<RowPage> =>
    (await (await door.as(who).get(`/v1/admin/requests${query}`)).json()) as RowPage
  const find = async (who: string, id: string): Promise<Row> =>
    await until(async () => {
      const response = await door.as(who).get(`/v1/admin/requests/${id}`)
      return response.status === 200 ? ((await response.json()) as Row) : undefined
    })
  const chat = async (who: string, content: string, more: { body?: object; headers?: Record<string, string> } = {}) =>
    await send(who, JSON.stringify(bodyOf(content, more.body)), more.headers)
  const send = async (who: string, body: string, headers: Record<string, string> = {}) => {
    const response = await fetch(`${door.stack.url}${CHAT}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${secretOf(who)}`, 'content-type': 'application/json', ...headers },
      body,
    })
    return { id: String(response.headers.get('x-request-id')), text: await response.text(), status: response.status }
  }

  it('finds an attached call by its request id and by the id of its answer', async () => {
    const trace = 'ab'.repeat(16)
    const headers = { traceparent: `00-${trace}-${'cd'.repeat(8)}-01`, 'user-agent': 'test/1' }
    const whole = await chat('alice', 'hello there', { headers })
    const streamed = await chat('alice', 'hello there', { body: { stream: true } })
    const row = await find('alice', whole.id)
    expect(row).toMatchObject({
      ...{ object: 'request', project: 'alice', key_id: 'alice', endpoint: CHAT, kind: 'generate', model: 'echo-1' },
      ...{ status: 200, error_code: null, attempts: 1, trace_id: trace, user_agent: 'test/1', job_id: null },
      ...{ queue_ms: expect.any(Number), first_output_ms: expect.any(Number), worker: expect.any(String) },
    })
    const { usage, id } = JSON.parse(whole.text) as { id: string; usage: Record<string, number> }
    expect([row.input_tokens, row.output_tokens]).toEqual([usage.prompt_tokens, usage.completion_tokens])
    expect(await find('alice', id), 'found by chatcmpl-…').toEqual(row)
    expect(await find('alice', streamed.id)).toMatchObject({ status: 200, output_tokens: row.output_tokens })
  })

  it('returns the beginning of a body that is not JSON, and the position of the syntax error', async () => {
    const body = `{"model": "echo-1",\n "messages": [{"role": "user", "content": "${'x'.repeat(2_000)}"}],}`
    const { id, status } = await send('alice', body)
    expect(status).toBe(400)
    const row = await until(async () => {
      const found = await find('alice', id)
      return found.request_body === undefined ? undefined : found
    })
    expect(row.request_body).toBe(`${body.slice(0, 1_000)}… [truncated]`)
    expect(row).toMatchObject({
      error_message: expect.stringContaining(
        'at line 2 column 2048, after `{"model":"…","messages":[{"role":"…","content":"…"}],`.',
      ),
      next_step: 'Remove the comma before }. The error is at line 2 column 2048 of the body.',
    })
    const hidden = await send('alice', body, { 'x-log-bodies': 'off' })
    expect(await find('alice', hidden.id)).not.toHaveProperty('request_body')
  })

  it('returns the request and answer bodies of a call, unless the call opts out', async () => {
    const ids = [
      (await chat('alice', 'hello there')).id,
      (await chat('alice', 'hello there', { body: { stream: true } })).id,
    ]
    for (const id of ids) {
      const row = await until(async () => {
        const found = await find('alice', id)
        return found.request_body === undefined ? undefined : found
      })
      expect(JSON.parse(String(row.request_body))).toMatchObject(bodyOf('hello there'))
      expect(JSON.parse(String(row.answer_body))).toMatchObject({
        object: 'chat.completion',
        choices: [{ message: { content: 'hello there' } }],
      })
      expect((await find('op', id)).request_body).toBe(row.request_body)
      const foreign = await door.as('bob').get(`/v1/admin/requests/${id}`)
      expect(foreign.status).toBe(404)
      expect(await foreign.text()).toMatch(
        /is in the log\. The request may belong to another project .* only the project 'bob'/,
      )
    }
    const long = await chat('alice', 'é'.repeat(2_000))
    const failed = await chat('alice', '!echo fail=upstream_refused')
    const refused = [
      await chat('alice', 'x', { body: { temperature: 9 } }),
      await chat('alice', 'x', { body: { model: 'none' }, headers: { prefer: 'respond-async' } }),
    ]
    const cut = await until(async () => {
      const [found, end] = [await find('alice', long.id), await find('alice', failed.id)]
      return found.request_body && end.request_body ? { found, end } : undefined
    })
    for (const [nth, wrong] of [{ temperature: 9 }, { model: 'none' }].entries()) {
      const row = await until(async () => {
        const found = await find('alice', refused[nth]?.id ?? '')
        return found.request_body === undefined ? undefined : found
      })
      expect(JSON.parse(String(row.request_body))).toMatchObject({ ...bodyOf('x'), ...wrong })
      expect(row).toMatchObject({ answer_body: null, error_code: expect.any(String) })
    }
    expect(cut.found.request_body).toMatch(/é… \[truncated\]$/)
    expect(Buffer.byteLength(String(cut.found.request_body))).toBeLessThan(1_020)
    expect(cut.end.answer_body).toBeNull()
    const { id } = await chat('alice', 'secret', { headers: { 'x-log-bodies': 'off' } })
    await chat('alice', 'later')
    expect(await find('alice', id)).not.toHaveProperty('request_body')
    const rows = (await list('alice', '?limit=100')).data
    expect(rows.some((row) => 'request_body' in row)).toBe(false)
    const [both, prompt, none] = [ids[0], failed.id, id].map((wanted) => rows.find((row) => row.id === wanted))
    expect(both).toMatchObject({ prompt_preview: 'hello there', answer_preview: 'hello there' })
    expect(prompt).toMatchObject({ prompt_preview: '!echo fail=upstream_refused' })
    expect(prompt).not.toHaveProperty('answer_preview')
    expect(none).not.toHaveProperty('prompt_preview')
    expect(rows.find((row) => row.id === long.id)?.prompt_preview).toBe('é'.repeat(120))
  })

  it('contains calls that are refused after authentication, and calls that fail', async () => {
    const invalid = await chat('alice', 'x', { body: { temperature: 9 } })
    const unknown = await chat('alice', 'x', { body: { model: 'none' } })
    const failed = await chat('alice', '!echo fail=upstream_refused')
    const errorOf = ({ text }: { text: string }) => {
      const { message, param } = (JSON.parse(text) as { error: { message: string; param: string | null } }).error
      return { error_message: message.slice(0, 500), error_param: param }
    }
    const odd = await chat('alice', 'x', { body: { model: `no\0\ud800${'e'.repeat(600)}` } })
    expect(await find('alice', invalid.id)).toMatchObject({
      ...{ status: 400, model: 'echo-1', kind: 'generate', attempts: 0, ...errorOf(invalid) },
    })
    expect(await find('alice', unknown.id)).toMatchObject({
      ...{ status: 404, error_code: 'model_not_found', model: 'none', ...errorOf(unknown) },
    })
    const aliased = await chat('alice', 'x', { body: { model: 'parrot', temperature: 9 } })
    expect(await find('alice', aliased.id), 'a refused call of an alias').toMatchObject({
      status: 400,
      model: 'echo-1',
    })
    expect(await find('alice', failed.id)).toMatchObject({
      ...{ status: failed.status, error_code: 'upstream_refused', ...errorOf(failed) },
    })
    const bounded = await find('alice', odd.id)
    expect(bounded.model).toBe(`no\ufffd\ufffd${'e'.repeat(196)}`)
    expect(String(bounded.error_message).length).toBeLessThanOrEqual(500)
    const { data } = await list('alice', '?status=failed&limit=100')
    expect(data.map(({ id }) => id)).toEqual(expect.arrayContaining([invalid.id, unknown.id, failed.id]))
    expect(data.every(({ status }) => Number(status) >= 400)).toBe(true)
    const forbidden = await fetch(`${door.stack.url}${CHAT}`, {
      ...{ method: 'POST', headers: { authorization: `Bearer ${secretOf('op')}` }, body: '{}' },
    })
    expect(await find('op', String(forbidden.headers.get('x-request-id')))).toMatchObject({
      status: 403,
      project: 'ops',
    })
  })

  it('lists the failed attempts of a call, even if a later attempt succeeded', async () => {
    const attemptsOf = (row: Row) => row.failed_attempts as Record<string, unknown>[]
    const [healed, failed, plain] = await Promise.all([
      chat('alice', '!echo fail=upstream_error failures=1\nfine'),
      chat('alice', '!echo fail=upstream_error'),
      chat('alice', 'fine'),
    ])
    const row = await find('alice', healed.id)
    expect(row).toMatchObject({ status: 200, attempts: 2, error_code: null })
    const common = { error_code: 'upstream_error', error_message: expect.any(String), worker: row.worker }
    expect(attemptsOf(row)).toMatchObject([{ attempt: 1, ...common, retry_delay_ms: expect.any(Number) }])
    expect(Number(attemptsOf(row)[0]?.started_at)).toBeGreaterThanOrEqual(Number(row.started_at))
    const ofFailed = attemptsOf(await find('op', failed.id))
    expect(ofFailed.map(({ attempt }) => attempt)).toEqual([1, 2, 3])
    expect(ofFailed.at(-1)).toMatchObject({ ...common, retry_delay_ms: null })
    expect(
      ofFailed.every((one) => 'upstream_message' in one),
      'visible to operators',
    ).toBe(true)
    expect(
      attemptsOf(row).some((one) => 'upstream_message' in one),
      'visible to a project',
    ).toBe(false)
    expect(attemptsOf(await find('alice', plain.id))).toEqual([])
    expect((await list('alice', `?request_id=${failed.id}`)).data[0]).not.toHaveProperty('failed_attempts')
    const ofJob = async (script: string) => attemptsOf(await find('op', await door.submit('alice', script)))
    const ofRetried = await ofJob('!echo fail=upstream_error failures=1 retry_after_ms=1\nfine')
    expect(ofRetried).toMatchObject([{ attempt: 1, ...common, worker: null, retry_delay_ms: expect.any(Number) }])
    expect(ofRetried[0]?.error_message, 'message of the retried attempt').not.toBe('')
    const ofRefused = await ofJob('!echo fail=upstream_refused')
    expect(ofRefused).toMatchObject([{ attempt: 1, error_code: 'upstream_refused', retry_delay_ms: null }])
  })

  it('links each retry of an SDK to the previous request, and each failed request to its retries', async () => {
    const retry = async (count: string, agent = 'sdk/1') => {
      const headers = { 'x-stainless-retry-count': count, 'user-agent': agent }
      return (await chat('alice', '!echo fail=upstream_refused', { headers })).id
    }
    const earlier = await retry('0')
    await find('alice', earlier)
    const [first, other] = [await retry('0'), await retry('0', 'sdk/2')]
    await find('alice', other)
    const second = await retry('1')
    await find('alice', second)
    const third = (await chat('alice', 'fine', { headers: { 'x-stainless-retry-count': '2', 'user-agent': 'sdk/1' } }))
      .id
    expect(await find('alice', third)).toMatchObject({ sdk_retry: 2, retry_of: second, retried_by: null })
    const retries = [
      { id: second, status: 502 },
      { id: third, status: 200 },
    ]
    expect(await find('alice', first)).toMatchObject({ sdk_retry: null, retry_of: null, retried_by: retries })
    expect(await find('alice', second)).toMatchObject({ sdk_retry: 1, retry_of: first, retried_by: retries.slice(1) })
    expect(await find('alice', other)).toMatchObject({ retried_by: [] })
    expect(await find('alice', earlier), 'a request whose retry belongs to a later one').toMatchObject({
      retried_by: [],
    })
    expect((await list('alice', `?request_id=${first}`)).data[0]).not.toHaveProperty('retried_by')
    expect(await find('alice', await retry('x'))).toMatchObject({ sdk_retry: null })
  })

  it('lists a batch as one row with its counts, and its lines only with a filter for single requests', async () => {
    const lineOf = (custom_id: string, content: string) => ({
      custom_id,
      params: { ...bodyOf(content), max_tokens: 9 },
    })
    const requests = [lineOf('a', 'one'), lineOf('b', '!echo fail=upstream_refused'), lineOf('c', 'three')]
    const made = await door.as('alice').post('/v1/messages/batches', { requests })
    const { id } = (await made.json()) as Row
    const lines = await until(async () => {
      const { data } = await list('alice', `?batch_id=${id}`)
      return data.length === 3 ? data.map((one) => one.id) : undefined
    })
    const found = async (query: string) => (await list('alice', `?limit=100${query}`)).data
    const row = await until(async () => (await found('')).find(({ batch_id }) => batch_id === id))
    expect(row).toMatchObject({ status: 200, kind: 'batch', batch_id: id, request_counts: { total: 3, failed: 1 } })
    const listed = async (query: string) => (await found(query)).filter((one) => lines.includes(one.id)).length
    const since = `&since=${Math.floor(Number(row.started_at))}`
    for (const query of ['', since, '&status=2xx', '&project=alice', '&key=alice', '&status=failed&batch_lines=false'])
      expect(await listed(query), query).toBe(0)
    for (const query of ['&batch_lines=true', '&model=echo-1', '&endpoint=/v1/messages', `&batch_id=${id}`])
      expect(await listed(query), query).toBe(3)
    for (const query of ['&status=failed', '&status=5xx', '&error_code=upstream_refused'])
      expect(await listed(query), query).toBe(1)
    expect(await find('alice', String(lines[0]))).toMatchObject({ batch_id: id, request_counts: null })
    expect(await find('alice', row.id)).toMatchObject({ request_counts: { total: 3, failed: 1 } })
  })

  it('contains calls to unknown paths, methods and endpoints if the key is valid', async () => {
    const ask = async (path: string, method = 'POST') =>
      String(
        (
          await fetch(`${door.stack.url}${path}`, { method, headers: { authorization: `Bearer ${secretOf('alice')}` } })
        ).headers.get('x-request-id'),
      )
    expect(await find('alice', await ask('/v1/chat/completion'))).toMatchObject({
      ...{ status: 404, endpoint: '/v1/chat/completion', project: 'alice', kind: null, error_code: 'not_found' },
      error_message: expect.stringContaining('Did you mean /v1/chat/completions?'),
    })
    expect(await find('alice', await ask('/v1/embeddings', 'PUT'))).toMatchObject({ status: 405 })
    expect(await find('alice', await ask('/v1/images/generations'))).toMatchObject({ status: 404, project: 'alice' })
    const read = await ask('/metricz', 'GET')
    const long = await find('alice', await ask(`/v1/${'x'.repeat(4_000)}`))
    expect(long.endpoint).toBe(`/v1/${'x'.repeat(196)}`)
    expect((await list('alice', `?request_id=${read}`)).data).toEqual([])
  })

  it('records at most 60 calls without a valid key per minute, for operators only', async () => {
    const secret = 'sk-wrong-0123456789'
    const ask = async () => {
      const response = await fetch(`${door.stack.url}/v1/models`, { headers: { authorization: `Bearer ${secret}` } })
      return String(response.headers.get('x-request-id'))
    }
    const id = await ask()
    const row = await find('op', id)
    expect(row).toMatchObject({ status: 401, endpoint: '/v1/models', project: null, key_id: null })
    expect(JSON.stringify(row)).not.toContain(secret)
    const refused = await door.as('alice').get(`/v1/admin/requests/${id}`)
    expect(refused.status).toBe(404)
    expect(await refused.text()).toContain('without a valid key')
    await Promise.all(Array.from({ length: 150 }, ask))
    await find('alice', (await chat('alice', 'after')).id)
    let [found, after, isMore] = [0, '', true]
    while (isMore) {
      const page = await list('op', `?error_code=invalid_api_key&limit=100${after}`)
      found += page.data.length
      ;[after, isMore] = [`&after=${page.last_id}`, page.has_more]
    }
    // The log records at most 60 calls without a valid key per minute. The calls of this test may fall into two minutes, so up to 120 rows
    // are correct.
    expect(found).toBeLessThanOrEqual(120)
    expect((await list('alice', '?error_code=invalid_api_key')).data).toEqual([])
  })

  it('contains a call whose caller disconnected, with the usage until then', async () => {
    const left = new AbortController()
    const response = await fetch(`${door.stack.url}${CHAT}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${secretOf('alice')}`, 'content-type': 'application/json' },
      body: JSON.stringify(bodyOf('!echo delay_ms=20 tokens=5000', { stream: true })),
      signal: left.signal,
    })
    await response.body?.getReader().read()
    left.abort()
    const row = await find('alice', String(response.headers.get('x-request-id')))
    expect(row).toMatchObject({
      ...{ status: 499, error_code: 'job_cancelled' },
      error_message: 'The client disconnected before the end of the answer.',
    })
    const ids = async (query: string) => (await list('alice', query)).data.map((one) => one.id)
    expect(await ids('?status=failed&limit=100')).not.toContain(row.id)
    expect(await ids('?status=499')).toContain(row.id)
    expect(row.output_tokens).toBeGreaterThan(0)
  })

  it('has the message of a failure in the format of the API that the caller used', async () => {
    const send = async (body: object) => {
      const answer = await door.stack.post('/v1/messages', body, { headers: { 'x-api-key': secretOf('alice') } })
      const { error } = (await answer.json()) as { error: { message: string } }
      return [error.message, await find('alice', String(answer.headers.get('x-request-id')))] as const
    }
    const messages = [{ role: 'user', content: 'Hi' }]
    const [missing, noLimit] = await send({ model: 'echo-1', messages })
    expect(missing).toBe('max_tokens: Field required')
    expect(noLimit).toMatchObject({ error_message: missing, next_step: expect.stringContaining('max_tokens') })
    const [unknown, noModel] = await send({ model: 'claude-sonnet-4-5', max_tokens: 9, messages })
    expect(unknown).toMatch(/^model: claude-sonnet-4-5/)
    expect(noModel.error_message).toBe(unknown)
    const [type, badType] = await send({ model: 'echo-1', max_tokens: 'x', messages })
    expect(type).toMatch(/^max_tokens: Input should be /)
    expect(badType).toMatchObject({ error_message: type, next_step: expect.stringContaining('Send max_tokens as') })
  })

  it('has one row per durable job, and one row per call that repeats an idempotency key', async () => {
    const headers = { 'idempotency-key': 'once' }
    const first = await chat('alice', 'durable', { headers })
    const row = await find('alice', first.id)
    expect(row).toMatchObject({ status: 200, kind: 'generate', job_id: expect.stringMatching(/^job_/) })
    const again = await chat('alice', 'durable', { headers })
    expect(await find('alice', again.id)).toMatchObject({
      status: 200,
      job_id: row.job_id,
      output_tokens: 0,
      attempts: 0,
    })
    const job = await door.submit('alice', '!echo fail=upstream_refused')
    expect(await find('alice', job)).toMatchObject({ job_id: job, error_code: 'upstream_refused' })
    expect((await list('alice', `?job_id=${row.job_id}`)).data.map(({ id }) => id).toSorted()).toEqual(
      [first.id, again.id].toSorted(),
    )
  })

  it('returns to each project only the rows of that project, for any query', async () => {
    const [mine, other] = [await chat('alice', 'mine'), await chat('bob', 'other')]
    await find('alice', mine.id)
    await find('op', other.id)
    const read = async (path: string) => (await door.as('alice').get(`/v1/admin/requests${path}`)).status
    expect(await read(`/${other.id}`)).toBe(404)
    expect(await read('?project=bob')).toBe(403)
    expect(await read("/req_'%20OR%201=1")).toBe(404)
    for (const query of [
      '',
      `?request_id=${other.id}`,
      '?key=bob',
      '?status=2xx&model=echo-1',
      "?model=m'%20OR%20'1'='1",
    ])
      expect(
        (await list('alice', query)).data.filter(({ project }) => project !== 'alice'),
        query,
      ).toEqual([])
    // The query filters by model and asks for 100 rows. Otherwise, rows of calls without a valid key could fill the page.
    const all = await list('op', '?limit=100&model=echo-1')
    expect(new Set(all.data.flatMap(({ project }) => project ?? []))).toEqual(new Set(['alice', 'bob']))
    expect((await list('op', '?project=bob')).data.map(({ id }) => id)).toEqual([other.id])
    expect((await list('op', '?key=bob&status=2xx&min_duration_ms=0')).data.map(({ id }) => id)).toEqual([other.id])
  })

  it('counts failed requests by code, model, project and key, in JSON and in CSV', async () => {
    const complete = async (prompt: string, more: object) => {
      const response = await door.as('bob').post('/v1/completions', { prompt, ...more })
      await response.text()
      return response.headers.get('x-request-id')
    }
    await complete('x', { model: 'echo-1', n: 'two' })
    const newest = await complete('x', { model: 'echo-1', n: 'two' })
    await complete('!echo fail=upstream_refused', { model: 'echo-2' })
    const failuresOf = async (who: string, query = '') => {
      const response = await door.as(who).get(`/v1/admin/requests/failures?endpoint=/v1/completions${query}`)
      return ((await response.json()) as RowPage).data
    }
    const found = await until(async () => {
      const data = await failuresOf('op', '&project=bob')
      return data[0]?.count === 2 && data.length === 2 ? data : undefined
    })
    expect(found).toMatchObject([
      { project: 'bob', key_id: 'bob', model: 'echo-1', status: 400, error_code: 'invalid_type', newest_id: newest },
      { project: 'bob', model: 'echo-2', status: 502, error_code: 'upstream_refused', count: 1 },
    ])
    const [first] = found as unknown as { first_ended_at: number; last_ended_at: number }[]
    expect(first?.first_ended_at, 'end of the oldest of two requests').toBeLessThanOrEqual(first?.last_ended_at ?? 0)
    expect(await failuresOf('bob')).toEqual(found)
    expect(await failuresOf('alice')).toEqual([])
    const csv = await door.as('bob').get('/v1/admin/requests/failures?endpoint=/v1/completions&format=csv')
    expect(csv.headers.get('content-disposition')).toBe('attachment; filename="failures.csv"')
    const lines = (await csv.text()).trimEnd().split('\r\n')
    expect(lines[0]).toMatch(/^kind,status,error_code,model,project,project_name,key,key_name,count,first_ended_at,/)
    expect(lines[1]).toMatch(/^refused,400,invalid_type,echo-1,bob,[^,]*,bob,[^,]*,2,\d{4}-/)
    expect(lines[2]).toMatch(/^server error,502,upstream_refused,echo-2,bob,/)
    expect(await failuresOf('op', '&model=echo-2')).toEqual(found.slice(1))
    const countOf = async (query: string) => {
      const page = await list('bob', `?endpoint=/v1/completions&limit=1${query}`)
      return page as RowPage & { total: number | null; total_is_lower_bound: boolean; log_since: number }
    }
    expect(await countOf('&count=true')).toMatchObject({ total: 3, total_is_lower_bound: false })
    expect((await countOf('&count=true&status=failed')).log_since).toBeLessThanOrEqual(first?.first_ended_at ?? 0)
    expect((await countOf('')).total, 'count that was not requested').toBeNull()
    expect((await door.as('alice').get('/v1/admin/requests/failures?project=bob')).status).toBe(403)
    expect((await door.as('bob').get('/v1/admin/requests/failures?status=500')).status).toBe(400)
  })

  it('is read in pages, and the cursor of a page is valid with any filter', async () => {
    const seen: string[] = []
    // The test lists only rows of the project `alice`. The log may add rows of other projects while the test reads the pages, because the
    // log records calls with a delay.
    let page = await list('op', '?limit=2&project=alice')
    for (; page.has_more; page = await list('op', `?limit=2&project=alice&after=${page.last_id}`))
      seen.push(...page.data.map(({ id }) => id))
    seen.push(...page.data.map(({ id }) => id))
    expect(new Set(seen).size).toBe(seen.length)
    expect(seen.length).toBeGreaterThan(2)
    expect(seen).toHaveLength((await list('op', '?limit=100&project=alice')).data.length)
    const { last_id } = await list('op', '?limit=2')
    const { data } = await list('alice', `?limit=100&status=failed&after=${last_id}`)
    expect(data.every(({ project, status }) => project === 'alice' && Number(status) >= 400)).toBe(true)
  })

  it('refuses invalid parameters with the name of the parameter', async () => {
    const paramOf = async (query: string) => {
      const { error } = (await (await door.as('op').get(`/v1/admin/requests?${query}`)).json()) as {
        error: { param: string | null }
      }
      return error.param
    }
    const wrong = [
      'limit=0',
      'status=9xx',
      'after=x',
      'after=1_2_3',
      'since=-1',
      'model=%00',
      'min_duration_ms=a',
      'colour=red',
    ]
    for (const query of wrong) expect(await paramOf(query)).toBe(query.split('=')[0])
    expect(await paramOf(`model=${'x'.repeat(257)}`)).toBe('model')
  })

  it('truncates a long user agent, and shows an unknown model without adding the model to the metrics', async () => {
    const headers = { 'user-agent': `é\u0080${'x'.repeat(10_000)}` }
    const { id } = await chat('alice', 'x', { headers })
    const row = await find('alice', id)
    expect(row.user_agent).toBe(`??${'x'.repeat(198)}`)
    const made = await Promise.all(
      Array.from({ length: 50 }, (_, nth) => chat('alice', 'x', { body: { model: `made-up-${nth}` } })),
    )
    for (const call of made.slice(0, 3))
      expect(await find('alice', call.id)).toMatchObject({ model: expect.stringMatching(/^made-up-\d$/) })
    expect(await (await door.as('op').get('/v1/admin/metrics')).text()).not.toContain('made-up-')
  })
})

describe('a disabled request log', () => {
  it('returns 404 with the name of the setting that disables the log', async () => {
    await using door = await openAdmin({ settings: { REQUEST_LOG_MS: '0' } })
    expect((await door.as('alice').post(CHAT, bodyOf('hello'))).status).toBe(200)
    const response = await door.as('op').get('/v1/admin/requests')
    expect(response.status).toBe(404)
    expect(await response.text()).toContain('REQUEST_LOG_MS')
  })
})

it.each([
  { setting: '0', seconds: 3_600, withBodies: 'alice', withoutBodies: 'bob' },
  { setting: '60000', seconds: 0, withBodies: 'bob', withoutBodies: 'alice' },
])(
  'the request log stores bodies of $withBodies if REQUEST_BODIES_MS is $setting and the limit of the key alice is $seconds s',
  async (given) => {
    await using door = await openAdmin({ settings: { REQUEST_BODIES_MS: given.setting } })
    const limits = { request_bodies_seconds: given.seconds }
    const change = (body: object) => door.as('op').post('/v1/admin/keys/alice', { limits: body })
    expect((await change(limits)).status).toBe(200)
    expect(await (await door.as('alice').get('/v1/key')).json()).toMatchObject({ limits })
    const call = async (who: string) => {
      const response = await door.as(who).post(CHAT, bodyOf('hello'))
      return String(response.headers.get('x-request-id'))
    }
    const [without, recorded] = [await call(given.withoutBodies), await call(given.withBodies)]
    const find = async (id: string) => (await (await door.as('op').get(`/v1/admin/requests/${id}`)).json()) as Row
    const row = await until(async () => {
      const found = await find(recorded)
      return found.request_body === undefined ? undefined : found
    })
    expect(JSON.parse(String(row.request_body))).toMatchObject(bodyOf('hello'))
    expect(await find(without)).toMatchObject({ id: without })
    expect(await find(without)).not.toHaveProperty('request_body')
    const refused = await change({ request_bodies_seconds: 7_776_001 })
    expect([refused.status, await refused.json()]).toMatchObject([
      400,
      { error: { param: 'limits.request_bodies_seconds' } },
    ])
  },
)
