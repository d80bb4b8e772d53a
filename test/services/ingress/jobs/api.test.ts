/*
 * Tests of the API of durable jobs (docs/guides/jobs.md): acceptance, the job object, its result, and actions on a job. Events and
 * idempotency keys have their own test files.
 */

import OpenAI from 'openai'
import { describe, expect, inject, it, test } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import { jobObject } from '#services/ingress/calls/job-object.ts'
import { newJobId } from '#shared/store/jobs.ts'
import type { HeldAttempt, Store } from '#shared/store/store.ts'
import {
  CHAT,
  CHAT_KEY,
  COUNT,
  chunksOf,
  describeJobs,
  errorOf,
  jobOf,
  MESSAGES,
  readEvents,
  type Service,
  say,
  startService,
  textOf,
  type WireJob,
  withoutIds,
} from '../../../support/jobs/api.ts'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { TEST_KEY, until } from '../../../support/stack.ts'

const ASYNC = { headers: { prefer: 'respond-async' } }
const ENDPOINTS = [CHAT, MESSAGES, COUNT] as const
/** Request of a job that streams for minutes. If the job ends earlier, then it was cancelled. */
const ENDLESS = say('!echo tokens=1000 delay_ms=1000', { stream: true })
const FUTURE = () => Math.floor(Date.now() / 1_000) + 3_600

const ask = (path: string, content = 'one two three', more: object = {}) =>
  say(content, path === MESSAGES ? { max_tokens: 50, ...more } : more)

/** Names of all fields of the job object. */
const JOB_FIELDS = [
  ...['id', 'object', 'endpoint', 'model', 'status', 'created_at', 'run_at', 'started_at', 'completed_at', 'failed_at'],
  ...[
    'cancelled_at',
    'expired_at',
    'expires_at',
    'result_expires_at',
    'attempt',
    'max_attempts',
    'queue',
    'priority',
    'parent_id',
  ],
  ...['progress', 'result', 'error', 'usage', 'metadata', 'stream', 'last_sequence_number', 'request_id', 'webhook'],
  'urls',
]

describeJobs('the jobs API', { kafka: inject('kafka'), postgres: inject('postgres') }, (service, start) => {
  test.each(ENDPOINTS)('a call of %s with Prefer: respond-async returns 202 with a durable job', async (path) => {
    const response = await service.post(path, ask(path), ASYNC)
    const job = await jobOf(response)
    expect(response.status).toBe(202)
    expect(response.headers.get('location')).toBe(`/v1/jobs/${job.id}`)
    expect(response.headers.get('preference-applied')).toBe('respond-async')
    expect(response.headers.get('retry-after')).toBe('2')
    expect(Object.keys(job)).toEqual(JOB_FIELDS)
    expect(job).toMatchObject({
      ...{ object: 'job', endpoint: path, model: 'echo-1', status: 'queued', attempt: 0, max_attempts: 3 },
      ...{ started_at: null, completed_at: null, failed_at: null, cancelled_at: null, expired_at: null, run_at: null },
      ...{
        queue: { pool: 'inference', position: expect.any(Number) },
        priority: 'normal',
        parent_id: null,
        stream: false,
      },
      ...{ result: null, error: null, usage: null, progress: null, metadata: {}, webhook: null },
      request_id: response.headers.get('x-request-id'),
      last_sequence_number: 1,
      urls: {
        get: `/v1/jobs/${job.id}`,
        result: `/v1/jobs/${job.id}/result`,
        events: `/v1/jobs/${job.id}/events`,
        cancel: `/v1/jobs/${job.id}/cancel`,
      },
    })
    expect(job.id).toMatch(/^job_[0-9A-Za-z]{32}$/)
    expect(Math.abs(Number(job.created_at) - Date.now() / 1_000)).toBeLessThan(60)
    expect(Number(job.expires_at)).toBe(Number(job.created_at) + 3_600)
    expect(Number(job.result_expires_at)).toBe(Number(job.created_at) + 86_400)
    const ended = await service.ended(job.id)
    expect(ended.result_expires_at).toBe(Number(ended.completed_at) + 86_400)
  })

  const calls = ENDPOINTS.flatMap((path) => [false, true].map((stream) => ({ path, stream })))
  test.each(calls)(
    'a durable job for $path ends with the response of the synchronous call, stream $stream',
    async ({ path, stream }) => {
      const body = ask(path, 'one two three', path === COUNT ? {} : { stream })
      const plain = await (await service.post(path, { ...body, stream: false })).json()
      const { id } = await service.submit(body, { endpoint: path })
      const job = await service.ended(id)
      expect(job).toMatchObject({ status: 'completed', attempt: 1, stream: stream && path !== COUNT, error: null })
      expect(job.completed_at).toBeGreaterThanOrEqual(Number(job.started_at))
      expect(withoutIds(job.result)).toEqual(withoutIds(plain))
      expect(job.usage).toEqual(job.result?.usage ?? null)
      const result = await service.get(`/v1/jobs/${id}/result`)
      expect(result.status).toBe(200)
      expect(result.headers.get('content-type')).toBe('application/json')
      expect(await result.json()).toEqual(job.result)
    },
  )

  test.each(ENDPOINTS)(
    'a durable job for %s with an invalid body is refused with the error of the synchronous call',
    async (path) => {
      const bad = [
        ...[{}, say('x', { model: 'nope' }), say('x', { model: 7 }), { model: 'echo-1', messages: [] }],
        ...[{ model: 'echo-1', messages: [{ role: 'robot', content: 'x' }] }, say('x', { tools: [{ type: 5 }] })],
        ...(path === COUNT ? [] : [ask(path, 'x', { temperature: 'hot' }), ask(path, 'x', { max_tokens: 0 })]),
      ]
      for (const body of bad) {
        const plain = await service.post(path, body)
        const job = await service.post('/v1/jobs', { endpoint: path, body })
        const asked = await service.post(path, body, ASYNC)
        const error = await errorOf(plain)
        expect(plain.status).toBeGreaterThanOrEqual(400)
        expect([job.status, asked.status]).toEqual([plain.status, plain.status])
        expect(await errorOf(asked)).toEqual(error)
        const { message, param } = await errorOf(job)
        // The error of a job names the invalid field in `param`. The error format of Anthropic has no `param`, so its message starts with
        // the path of the field.
        if (path === CHAT) expect({ message, param }).toEqual({ message: error.message, param: `body.${error.param}` })
        else expect(`${String(param).replace(/\[(\d+)\]/g, '.$1')}: ${message}`).toBe(`body.${error.message}`)
      }
    },
  )

  it('a durable job that ends within the requested wait returns its result like a synchronous call', async () => {
    const response = await service.post(CHAT, say('soon'), { headers: { prefer: 'respond-async, wait=20' } })
    expect(response.status).toBe(200)
    expect(await response.json()).toMatchObject({
      object: 'chat.completion',
      choices: [{ message: { content: 'soon' } }],
    })
    const failed = await service.post(CHAT, say('!echo fail=upstream_refused'), {
      headers: { prefer: 'respond-async; wait=20' },
    })
    expect([failed.status, (await errorOf(failed)).code]).toEqual([502, 'upstream_refused'])
  })

  it('a durable job that ends within the requested wait streams its result like a synchronous call', async () => {
    const body = say('one two', { stream: true })
    const plain = await (await service.post(CHAT, body)).text()
    const response = await service.post(CHAT, body, { headers: { prefer: 'wait=20, respond-async' } })
    expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8')
    const text = await response.text()
    expect(text.endsWith('data: [DONE]\n\n')).toBe(true)
    expect(withoutIds(chunksOf(text).at(-1))).toEqual(withoutIds(chunksOf(plain).at(-1)))
    expect(textOf(chunksOf(text).map((chunk) => ({ chunk })))).toBe('one two')
  })

  it('a durable job that does not end within the requested wait is returned as running with 202', async () => {
    const response = await service.post(CHAT, ENDLESS, { headers: { prefer: 'respond-async, wait=1' } })
    const job = await jobOf(response)
    expect(response.status).toBe(202)
    expect(response.headers.get('location')).toBe(`/v1/jobs/${job.id}`)
    expect(job).toMatchObject({ status: 'in_progress', attempt: 1 })
    expect((await service.post(`/v1/jobs/${job.id}/cancel`, {})).status).toBe(200)
  })

  it("a read of an unfinished job returns Retry-After, and a read with a wait returns at the job's end", async () => {
    const { id } = await service.submit(say('!echo first_ms=300\nlater'))
    const early = await service.get(`/v1/jobs/${id}`)
    expect(early.headers.get('retry-after')).toBe('2')
    expect((await jobOf(early)).status).toMatch(/queued|in_progress/)
    const late = await service.get(`/v1/jobs/${id}?wait=20`)
    expect(late.headers.get('retry-after')).toBeNull()
    expect(await jobOf(late)).toMatchObject({ status: 'completed' })
  })

  it('a request for the result of an unfinished job is refused with 409', async () => {
    const { id } = await service.submit(ENDLESS)
    const response = await service.get(`/v1/jobs/${id}/result`)
    expect(response.status).toBe(409)
    expect(response.headers.get('retry-after')).toBe('2')
    expect(response.headers.get('x-should-retry')).toBe('true')
    expect(await errorOf(response)).toMatchObject({ code: 'job_not_finished' })
    await service.post(`/v1/jobs/${id}/cancel`, {})
  })

  it('a failed job stores its error in the format of its endpoint', async () => {
    const chat = await service.ended((await service.submit(say('!echo fail=upstream_refused'))).id)
    expect(chat).toMatchObject({ status: 'failed', result: null, attempt: 1, completed_at: null })
    expect(chat.failed_at).toEqual(expect.any(Number))
    expect(chat.error).toMatchObject({ type: 'server_error', code: 'upstream_refused', param: null, status: 502 })
    const plain = await service.post(CHAT, say('!echo fail=upstream_refused'))
    const kept = await service.get(`/v1/jobs/${chat.id}/result`)
    expect(kept.status).toBe(plain.status)
    expect(await errorOf(kept)).toEqual(await errorOf(plain))

    const body = ask(MESSAGES, '!echo fail=overloaded retry_after_ms=3600000')
    const messages = await service.ended((await service.submit(body, { endpoint: MESSAGES })).id)
    const result = await service.get(`/v1/jobs/${messages.id}/result`)
    expect(result.status).toBe(529)
    expect(await result.json()).toEqual({
      type: 'error',
      error: { type: 'overloaded_error', message: expect.any(String) },
      request_id: result.headers.get('request-id'),
    })
  })

  it('a durable job is retried as a new attempt if the engine failed', async () => {
    const { id } = await service.submit(say('!echo fail=upstream_error failures=1\nback again'))
    const waiting = await until(async () => {
      const found = await service.job(id)
      return found.run_at === null ? undefined : found
    })
    expect(waiting).toMatchObject({ status: 'queued', attempt: 1 })
    const job = await service.ended(id)
    expect(job).toMatchObject({ status: 'completed', attempt: 2, run_at: null })
    expect(JSON.stringify(job.result)).toContain('back again')
  })

  it('a call creates a durable job if store or background is true, and otherwise does not', async () => {
    const inBackground = await service.post(CHAT, say('x', { background: true }))
    expect(inBackground.status).toBe(202)
    const plain = await service.post(CHAT, say('kept', { store: true }))
    expect(plain.status).toBe(200)
    const id = plain.headers.get('x-job-id') ?? ''
    const answer = await plain.json()
    expect((await service.job(id)).result).toEqual(answer)
    const streamed = await service.post(MESSAGES, ask(MESSAGES, 'kept', { store: true, stream: true }))
    expect(await streamed.text()).toContain('event: message_stop')
    expect(await service.job(streamed.headers.get('x-job-id') ?? '')).toMatchObject({ status: 'completed' })
    for (const body of [say('x'), say('x', { background: false, store: null })]) {
      expect((await service.post(CHAT, body)).headers.get('x-job-id')).toBeNull()
    }
  })

  test.each([CHAT, MESSAGES])(
    'a call of %s with store: true streams like a synchronous call, including failures',
    async (path) => {
      const streamed = (script: string) => ask(path, script, { stream: true, store: true })
      const early = await service.post(path, streamed('!echo fail=upstream_refused'))
      expect([early.status, early.headers.get('content-type')]).toEqual([502, 'application/json'])
      expect(early.headers.get('x-job-id')).toMatch(/^job_/)
      const late = await (await service.post(path, streamed('!echo fail=upstream_refused after=1\none two'))).text()
      expect(late).toContain('one')
      expect(late).toContain('"error"')
      expect(late).not.toMatch(/\[DONE\]|message_stop/)
      const again = await service.post(path, streamed('!echo fail=upstream_error failures=1\nback again'))
      expect(again.status).toBe(200)
      const text = await again.text()
      expect(text).toContain('back')
      expect(text).toMatch(/\[DONE\]|message_stop/)
    },
  )

  it('a call with store: true continues as a job if its caller disconnects', async () => {
    const leave = new AbortController()
    const key = { 'idempotency-key': `leaves-${service.urls[0]}` }
    const body = say('!echo first_ms=400\nstill here', { metadata: { is: 'left' } })
    const left = service.post(CHAT, body, { headers: key, signal: leave.signal })
    const isIt = ({ metadata }: WireJob) => (metadata as { is?: string }).is === 'left'
    const job = await until(async () => (await listed(service, '')).find(isIt))
    leave.abort()
    await expect(left).rejects.toThrow()
    expect(await service.ended(job.id)).toMatchObject({ status: 'completed', metadata: { is: 'left' } })
  })

  it('a durable job has the metadata of the submission, or the metadata of the chat body if the submission has none', async () => {
    const outer = await service.submit(say('x', { metadata: { in: 'body' } }), { metadata: { run: '7', ünï: 'ç' } })
    const inner = await service.submit(say('x', { metadata: { in: 'body' } }))
    expect(outer.metadata).toEqual({ run: '7', ünï: 'ç' })
    expect(inner.metadata).toEqual({ in: 'body' })
  })

  it('the job list returns the newest jobs first, in pages without gaps or duplicates', async () => {
    await using own = await start({})
    const made: string[] = []
    for (let i = 0; i < 5; i++) made.push((await own.submit(say(`${i}`))).id)
    expect(await pages(own, 'limit=2')).toEqual(made.toReversed())
    expect(await pages(own, 'limit=2&order=asc')).toEqual(made)
    const first = await (await own.get('/v1/jobs?limit=2')).json()
    expect(first).toMatchObject({ object: 'list', first_id: made[4], last_id: made[3], has_more: true })
    const last = await (await own.get(`/v1/jobs?limit=4&after=${made[1]}`)).json()
    expect(last).toMatchObject({ data: [{ id: made[0] }], has_more: false })
    const none = await (await own.get(`/v1/jobs?after=${made[0]}`)).json()
    expect(none).toEqual({ object: 'list', data: [], first_id: null, last_id: null, has_more: false })
  })

  it('the job list can be filtered by status, endpoint and parent', async () => {
    await using own = await start({})
    const done = await own.submit(say('x'))
    await own.ended(done.id)
    const failed = await own.submit(ask(MESSAGES, '!echo fail=upstream_refused'), { endpoint: MESSAGES })
    await own.ended(failed.id)
    const waiting = await own.submit(say('x'), { run_at: FUTURE(), parent_id: done.id })
    const running = await own.submit(ENDLESS, { parent_id: done.id })
    await until(async () => (await own.job(running.id)).status === 'in_progress')
    const retrying = await own.submit(say('!echo fail=overloaded retry_after_ms=600000'))
    await until(async () => (await own.job(retrying.id)).run_at !== null)
    const idsOf = async (query: string) => (await listed(own, query)).map(({ id }) => id)
    expect(await idsOf('status=completed')).toEqual([done.id])
    expect(await idsOf('status=queued')).toEqual([retrying.id, waiting.id])
    expect(await idsOf('status=retrying')).toEqual([retrying.id])
    expect(await idsOf('status=scheduled')).toEqual([waiting.id])
    expect(await idsOf('status=in_progress')).toEqual([running.id])
    expect(await idsOf('status=queued,%20failed')).toEqual([retrying.id, waiting.id, failed.id])
    expect(await idsOf('status=cancelled,expired')).toEqual([])
    expect(await idsOf(`endpoint=${MESSAGES}`)).toEqual([failed.id])
    expect(await idsOf(`parent_id=${done.id}`)).toEqual([running.id, waiting.id])
    expect(await idsOf(`parent_id=${done.id}&status=in_progress&endpoint=${encodeURIComponent(CHAT)}`)).toEqual([
      running.id,
    ])
    await own.post(`/v1/jobs/${running.id}/cancel`, {})
  })

  it('the job list refuses unknown query parameters, except those that SDKs always send', async () => {
    for (const query of ['stat=failed', 'limit=1&wait=3', 'Status=failed']) {
      const response = await service.get(`/v1/jobs?${query}`)
      const param = query.split(/[&=]/).at(-2)
      expect(response.status).toBe(400)
      expect(await errorOf(response)).toMatchObject({ code: 'unsupported_parameter', param })
    }
    expect((await service.get('/v1/jobs?beta=true')).status).toBe(200)
  })

  it('a durable job reports its progress, which is 100 % at the end of the job', async () => {
    const script = say('!echo tokens=40 delay_ms=50', { stream: true, max_tokens: 1_000 })
    const { id } = await service.submit(script)
    const running = await until(async () => (await service.job(id)).progress)
    const percent = expect.any(Number)
    expect(running).toEqual({ phase: 'generating', percent, message: expect.any(String), updated_at: percent })
    expect((running as { percent: number }).percent).toBeLessThan(100)
    expect((await service.ended(id)).progress).toMatchObject({ phase: 'generating', percent: 100 })
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events`))
    const told = events.find(({ type }) => type === 'job.progress')
    expect(told?.progress).toMatchObject({ phase: 'generating', message: expect.any(String) })
  })

  it('a job with an http or localhost webhook is refused with the name of the setting that allows it', async () => {
    for (const url of ['http://example.com/hook', 'https://localhost:8443/hook']) {
      const response = await service.post('/v1/jobs', { endpoint: CHAT, body: say('x'), webhook: { url } })
      const { message, param } = await errorOf(response)
      expect([response.status, param]).toEqual([400, 'webhook.url'])
      expect(message).toContain('WEBHOOK_ALLOW_PRIVATE=true')
    }
    const forbidden = { endpoint: CHAT, body: say('x'), webhook: { url: 'https://169.254.169.254/' } }
    expect((await errorOf(await service.post('/v1/jobs', forbidden))).message).not.toContain('WEBHOOK_ALLOW_PRIVATE')
  })

  it.each(['failed', 'cancelled', 'expired'] as const)(
    'the usage of a %s job has the format of its endpoint',
    (state) => {
      const usage = { input_tokens: 7, output_tokens: 2, cached_tokens: 3 }
      const ended = { state, error: null, webhook_url: null, finished_at_ms: 1, usage }
      const usageOf = (endpoint: string, more: object = {}) =>
        jobObject({ ...ended, endpoint, ...more } as unknown as DurableJob).usage
      const chat = {
        prompt_tokens: 7,
        completion_tokens: 2,
        total_tokens: 9,
        prompt_tokens_details: { cached_tokens: 3 },
      }
      expect(usageOf(CHAT)).toEqual({ ...chat, completion_tokens_details: null })
      expect(usageOf('/v1/completions')).toEqual(usageOf(CHAT))
      expect(usageOf('/v1/embeddings')).toMatchObject({ prompt_tokens: 7, total_tokens: 7 })
      expect(usageOf('/v1/messages')).toMatchObject({ input_tokens: 4, cache_read_input_tokens: 3, output_tokens: 2 })
      expect(usageOf('/v1/responses')).toMatchObject({ input_tokens: 7, output_tokens: 2, total_tokens: 9 })
      expect(usageOf('/v1/batches')).toEqual(usage)
      expect(usageOf(CHAT, { usage: null })).toBeNull()
    },
  )

  it('a waiting job is cancelled immediately and permanently', async () => {
    const { id } = await service.submit(say('x'), { run_at: FUTURE() })
    const cancelled = await service.post(`/v1/jobs/${id}/cancel`, {})
    expect(cancelled.status).toBe(200)
    expect(await jobOf(cancelled)).toMatchObject({ id, status: 'cancelled', attempt: 0, started_at: null })
    const again = await service.post(`/v1/jobs/${id}/cancel`, {})
    expect(again.status).toBe(200)
    expect(await jobOf(again)).toMatchObject({ id, status: 'cancelled', cancelled_at: expect.any(Number) })
    const result = await service.get(`/v1/jobs/${id}/result`)
    expect([result.status, result.headers.get('x-should-retry')]).toEqual([409, 'false'])
    expect(await errorOf(result)).toMatchObject({ code: 'job_cancelled' })
  })

  it('a durable job is cancelled by a request without a body', async () => {
    const { id } = await service.submit(say('x'), { run_at: FUTURE() })
    expect(await jobOf(await service.call('POST', `/v1/jobs/${id}/cancel`))).toMatchObject({ status: 'cancelled' })
  })

  it('a cancel of an ended job is refused', async () => {
    const { id } = await service.submit(say('x'))
    await service.ended(id)
    const response = await service.post(`/v1/jobs/${id}/cancel`, {})
    expect([response.status, response.headers.get('x-should-retry')]).toEqual([409, 'false'])
    expect(await errorOf(response)).toMatchObject({ code: 'job_already_finished' })
    expect(await service.job(id)).toMatchObject({ status: 'completed' })
  })

  test.each([false, true])('a cancelled job closes its upstream request within a second, stream %s', async (stream) => {
    await using upstream = await startUpstream((_call, answer) => {
      if (!stream) return
      answer.open()
      answer.frame({ choices: [{ index: 0, delta: { role: 'assistant', content: 'first' }, finish_reason: null }] })
    })
    await using own = await start({ models: upstreamModels(upstream) })
    const { id } = await own.submit({ ...say('x', { stream }), model: 'up' })
    const seen = await until(() => upstream.calls[0])
    const askedAt = Date.now()
    const response = await own.post(`/v1/jobs/${id}/cancel`, {})
    expect(response.status).toBe(200)
    expect((await jobOf(response)).status).toMatch(/^cancell(ing|ed)$/)
    expect((await own.post(`/v1/jobs/${id}/cancel`, {})).status).toBe(200)
    expect((await seen.closed) - askedAt).toBeLessThan(1_000)
    expect(await own.ended(id)).toMatchObject({ status: 'cancelled', result: null, attempt: 1 })
    expect(upstream.calls).toHaveLength(1)
  })

  it('a job can be deleted only after its end', async () => {
    const { id } = await service.submit(say('x'), { run_at: FUTURE() })
    const early = await service.call('DELETE', `/v1/jobs/${id}`)
    expect(early.status).toBe(409)
    expect(await errorOf(early)).toMatchObject({ code: 'job_not_finished' })
    await service.post(`/v1/jobs/${id}/cancel`, {})
    const deleted = await service.call('DELETE', `/v1/jobs/${id}`)
    expect(deleted.status).toBe(200)
    expect(await deleted.json()).toEqual({ id, object: 'job.deleted', deleted: true })
    for (const [method, path] of actionsOn(id)) {
      const response = await service.call(method, path)
      expect([path, response.status]).toEqual([path, 404])
      expect(await errorOf(response)).toMatchObject({ code: 'job_not_found' })
    }
    expect((await listed(service, 'limit=100')).map((job) => job.id)).not.toContain(id)
  })

  it('only a failed, cancelled or expired job can be redriven as a new job', async () => {
    const { id } = await service.submit(say('x'), { run_at: FUTURE(), metadata: { run: '1' } })
    const early = await service.post(`/v1/jobs/${id}/redrive`, {})
    expect([early.status, (await errorOf(early)).code]).toEqual([409, 'job_not_finished'])
    await service.post(`/v1/jobs/${id}/cancel`, {})
    const response = await service.post(`/v1/jobs/${id}/redrive`, {})
    const again = await jobOf(response)
    expect(response.status).toBe(202)
    expect(response.headers.get('location')).toBe(`/v1/jobs/${again.id}`)
    expect(again).toMatchObject({ parent_id: id, endpoint: CHAT, metadata: { run: '1' } })
    expect(await service.ended(again.id)).toMatchObject({ status: 'completed' })
    expect(await service.job(id)).toMatchObject({ status: 'cancelled' })
    const completed = await service.post(`/v1/jobs/${again.id}/redrive`, {})
    expect([completed.status, (await errorOf(completed)).code]).toEqual([409, 'job_already_finished'])
  })

  it('a scheduled job starts no earlier than its scheduled time', async () => {
    const runAt = Math.floor(Date.now() / 1_000) + 2
    const job = await service.submit(say('x'), { run_at: runAt, expires_after_seconds: 60 })
    expect(job).toMatchObject({ status: 'queued', run_at: runAt, expires_at: runAt + 60 })
    const ended = await service.ended(job.id)
    expect(ended).toMatchObject({ status: 'completed', attempt: 1 })
    expect(ended.started_at).toBeGreaterThanOrEqual(runAt)
  })

  it('a durable job expires if it does not start within start_within_seconds', async () => {
    await using own = await start({ settings: { INFERENCE_SLOTS: '1' } })
    const running = await own.submit(ENDLESS)
    await until(async () => (await own.job(running.id)).status === 'in_progress')
    const { id } = await own.submit(say('x'), { start_within_seconds: 1 })
    const job = await own.ended(id)
    expect(job).toMatchObject({ status: 'expired', attempt: 0, started_at: null })
    expect(job.expired_at).toEqual(expect.any(Number))
    const result = await own.get(`/v1/jobs/${id}/result`)
    expect([result.status, (await errorOf(result)).code]).toEqual([504, 'job_expired'])
    await own.post(`/v1/jobs/${running.id}/cancel`, {})
  })

  it('a durable job fails at its deadline, and its engine stops', async () => {
    await using upstream = await startUpstream(() => {})
    await using own = await start({ models: upstreamModels(upstream) })
    const { id } = await own.submit({ ...say('x'), model: 'up' }, { expires_after_seconds: 1 })
    const job = await own.ended(id)
    expect(job).toMatchObject({ status: 'failed', attempt: 1, error: { code: 'timeout', status: 504 } })
    await until(() => upstream.connections === 0)
    const result = await own.get(`/v1/jobs/${id}/result`)
    expect([result.status, result.headers.get('x-should-retry')]).toEqual([504, 'false'])
  })

  it('a durable job of low priority completes', async () => {
    const { id } = await service.submit(say('x'), { priority: 'low' })
    expect(await service.ended(id)).toMatchObject({ status: 'completed', priority: 'low' })
  })

  it('a durable job stores a body and a result far larger than a Kafka record', async () => {
    const words = 'word '.repeat(300_000)
    const { id } = await service.submit(say(words, { max_tokens: 200_000 }))
    const job = await service.ended(id)
    expect(job.status).toBe('completed')
    expect(JSON.stringify(job.result).length).toBeGreaterThan(400_000)
  })

  it('the OpenAI SDK creates durable jobs by a default header, and reads their results by polling', async () => {
    const options = { apiKey: TEST_KEY, baseURL: `${service.urls[0]}/v1` }
    const client = new OpenAI({ ...options, defaultHeaders: { Prefer: 'respond-async' } })
    const body = { model: 'echo-1', messages: [{ role: 'user' as const, content: 'by the SDK' }] }
    const accepted = (await client.chat.completions.create(body)) as unknown as WireJob
    expect(accepted).toMatchObject({ object: 'job' })
    const job = await client.get<WireJob>(`/jobs/${accepted.id}`, { query: { wait: 20 } })
    expect(job).toMatchObject({ status: 'completed', result: { choices: [{ message: { content: 'by the SDK' } }] } })
    const posted = await client.post<WireJob>('/jobs', { body: { endpoint: CHAT, body, metadata: { by: 'sdk' } } })
    const result = await until(() => client.get<object>(`/jobs/${posted.id}/result`))
    expect(result).toMatchObject({ object: 'chat.completion' })
    const missing = client.get('/jobs/job_0000000000000000000000000000')
    await expect(missing).rejects.toMatchObject({ status: 404, code: 'job_not_found' })
  })
})

describe('a key with restricted endpoints', () => {
  it('submits and reads jobs of its allowed endpoints only', async () => {
    await using service = await startService()
    const init = { key: CHAT_KEY }
    const job = await service.submit(say('x'), {}, init)
    expect((await service.get(`/v1/jobs/${job.id}?wait=20`, init)).status).toBe(200)
    const refused = await service.post('/v1/jobs', { endpoint: MESSAGES, body: ask(MESSAGES) }, init)
    expect([refused.status, (await errorOf(refused)).code]).toEqual([403, 'permission_denied'])
  })
})

describe('a cancelled job that its worker has not stopped yet', () => {
  it('has the status cancelling, and is listed by that status', async () => {
    const { promise: heard, resolve: hear } = Promise.withResolvers<void>()
    await using service = await startService({ wrapStore: (store) => slowToCancel(store, heard) })
    const [kept, cancelled] = [await service.submit(ENDLESS), await service.submit(ENDLESS)]
    await until(async () => (await listed(service, 'status=in_progress')).length === 2)
    const response = await service.post(`/v1/jobs/${cancelled.id}/cancel`, {})
    expect(await jobOf(response)).toMatchObject({ id: cancelled.id, status: 'cancelling' })
    const idsOf = async (query: string) => (await listed(service, query)).map(({ id }) => id)
    expect(await idsOf('status=cancelling')).toEqual([cancelled.id])
    expect(await idsOf('status=in_progress')).toEqual([kept.id])
    expect(await idsOf('status=cancelling,in_progress')).toEqual([cancelled.id, kept.id])
    expect(await pages(service, 'status=in_progress&limit=1')).toEqual([kept.id])
    hear()
    expect(await service.ended(cancelled.id)).toMatchObject({ status: 'cancelled' })
    await service.post(`/v1/jobs/${kept.id}/cancel`, {})
  })
})

describe('a completed job', () => {
  it('is listed without its result, and returned with its result for a repeated submission', async () => {
    await using service = await startService()
    const init = { headers: { 'idempotency-key': 'once' } }
    const { id } = await service.submit(say('x'), {}, init)
    const { result } = await service.ended(id)
    expect(result).not.toBeNull()
    const [item] = await listed(service, '')
    expect(item).toMatchObject({ id, status: 'completed', urls: { result: `/v1/jobs/${id}/result` } })
    expect(item).not.toHaveProperty('result')
    const again = await service.submit(say('x'), {}, init)
    expect(again).toMatchObject({ id, status: 'completed', result })
  })
})

describe('an expired result', () => {
  it('returns 410 to the project of the job, and 404 to other projects', async () => {
    await using service = await startService({
      settings: { JOB_RETENTION_MS: '1000' },
      wrapStore: withoutPurge,
    })
    const { id } = await service.submit(say('x'))
    await service.ended(id)
    await until(async () => (await service.get(`/v1/jobs/${id}`)).status === 404)
    const result = await service.get(`/v1/jobs/${id}/result`)
    expect([result.status, await errorOf(result)]).toMatchObject([410, { code: 'result_expired' }])
    expect((await service.get(`/v1/jobs/${id}/result`, { key: CHAT_KEY })).status).toBe(404)
    expect((await service.get(`/v1/jobs/${newJobId()}/result`)).status).toBe(404)
    expect((await readEvents(await service.get(`/v1/jobs/${id}/events`))).length).toBe(0)
  })
})

function upstreamModels(upstream: ScriptedUpstream) {
  return [{ id: 'up', engine: { type: 'openai', base_url: `${upstream.url}/v1` } }]
}

/**
 * Wraps a store. The store records a job as cancelled only after the given promise has resolved, which simulates a slow confirmation by the
 * worker.
 */
function slowToCancel(store: Store, heard: Promise<void>): Store {
  return new Proxy(store, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown
      if (name === 'honourCancel') return (run: HeldAttempt) => heard.then(() => target.honourCancel(run))
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

/**
 * Wraps a store and disables its purge, so that expired jobs remain readable. In the service, the purge is periodic, so expired jobs also
 * exist for a while.
 */
function withoutPurge(store: Store): Store {
  return new Proxy(store, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown
      if (name === 'purge') return async () => {}
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

/** Returns the method and path of every request on one job. */
function actionsOn(id: string): [method: string, path: string][] {
  const posts = ['cancel', 'redrive'].map((verb): [string, string] => ['POST', `/v1/jobs/${id}/${verb}`])
  const gets = ['', '/result', '/events'].map((end): [string, string] => ['GET', `/v1/jobs/${id}${end}`])
  return [...gets, ...posts, ['DELETE', `/v1/jobs/${id}`]]
}

async function listed(service: Service, query: string): Promise<WireJob[]> {
  return ((await (await service.get(`/v1/jobs?${query}`)).json()) as { data: WireJob[] }).data
}

/** Reads all pages of the list of jobs, and returns the ids of the jobs. */
async function pages(service: Service, query: string): Promise<string[]> {
  const ids: string[] = []
  for (let after = ''; ; ) {
    const page = await (await service.get(`/v1/jobs?${query}${after}`)).json()
    const { data, last_id, has_more } = page as { data: WireJob[]; last_id: string; has_more: boolean }
    ids.push(...data.map(({ id }) => id))
    if (!has_more) return ids
    after = `&after=${last_id}`
  }
}
