import { once } from 'node:events'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI, { toFile } from 'openai'
import { pino } from 'pino'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { tracing } from '#shared/telemetry/tracing.ts'
import { type Embedder, embedderModel, startEmbedder } from './support/embeddings/embeddings.ts'
import { openPostgresDatabase } from './support/jobs/stores.ts'
import { type OtlpReceiver, type ReceivedSpan, startOtlpReceiver, treeText } from './support/otlp.ts'
import { openFleet } from './support/processes/fleet.ts'
import { type ScriptedUpstream, startUpstream } from './support/processes/upstream.ts'
import { scriptedAdapter } from './support/sandbox/code-calls.ts'
import { startSpeechServer } from './support/speech/server.ts'
import { startTranscriptionWorker } from './support/speech/worker.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from './support/stack.ts'

const TRANSCRIBE = '/v1/audio/transcriptions'
const CALLER = '00f067aa0ba902b7'
let traces = 0
/** Creates the id of a new trace, and the `traceparent` header with which a caller sends it. */
function newTrace(flags = '01') {
  const id = (++traces).toString(16).padStart(32, 'a')
  return { id, headers: { traceparent: `00-${id}-${CALLER}-${flags}` } }
}

const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  messages: [{ role: 'user', content }],
  ...more,
})

/** Returns the ids of all traces that the spans belong to or link to. */
const coveredBy = (spans: readonly ReceivedSpan[]) =>
  spans.flatMap(({ links, traceId }) => [traceId, ...links.map((link) => link.traceId)])

describe('in the traces of one process', () => {
  let otlp: OtlpReceiver
  let upstream: ScriptedUpstream
  let embedder: Embedder
  let stack: Stack
  let folder: string
  const lines: Record<string, unknown>[] = []
  beforeAll(async () => {
    otlp = await startOtlpReceiver()
    embedder = await startEmbedder()
    upstream = await startUpstream((_, answer) => {
      answer.open()
      answer.frame({ model: 'served-1', choices: [{ index: 0, delta: { content: 'Hello' } }] })
      answer.frame({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })
      answer.frame({ choices: [], usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 } })
      answer.frame('[DONE]')
      answer.end()
    })
    folder = await mkdtemp(join(tmpdir(), 'sluice-traces-'))
    await mkdir(join(folder, 'birds'))
    await writeFile(
      join(folder, 'birds', 'herons.md'),
      '# Herons\n\nHerons build their nests in tall trees near water.\n',
    )
    const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
    const research = { id: 'deep-research', pool: 'research', engine: { type: 'research', writer: 'echo-1' } }
    stack = await startStack({
      models: [
        ...[ECHO_MODEL, { id: 'remote-1', engine, forward_headers: ['baggage'] }, research],
        embedderModel(embedder, { id: 'embed-1' }),
      ],
      sandboxes: [scriptedAdapter(() => ({ type: 'exit', exitCode: 0 }))],
      log: pino({ level: 'debug' }, { write: (line) => void lines.push(JSON.parse(line)) }),
      settings: {
        OTEL_EXPORTER_OTLP_ENDPOINT: `${otlp.url}/`,
        OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20abc',
        OTEL_EXPORTER_OTLP_COMPRESSION: 'gzip',
        OTEL_BSP_SCHEDULE_DELAY: '50',
        OTEL_SERVICE_NAME: 'sluice-under-test',
        RESEARCH_CORPUS: folder,
        WEBHOOK_ALLOW_PRIVATE: 'true',
        FIRST_KEY_ADMIN: 'true',
      },
    })
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    expect(tracing.tracer, 'tracer after the end of the service').toBeUndefined()
    for (const one of [otlp, upstream, embedder]) await one[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  })

  /**
   * Waits for the spans of a call whose caller sent a `traceparent` header. The caller exports no spans in this test, so its own span is added as
   * the root.
   */
  const treeOf = async (id: string, names: readonly string[]) => {
    const caller = { traceId: id, id: CALLER, parentId: '', name: 'caller', attributes: {}, links: [] }
    const whole = caller as Partial<ReceivedSpan> as ReceivedSpan
    if (!otlp.spans.includes(whole)) (otlp.spans as ReceivedSpan[]).push(whole)
    return await otlp.tree(id, names)
  }
  const named = (spans: readonly ReceivedSpan[], name: string) => spans.filter((span) => span.name === name)

  it('a streamed chat call has spans of the request, its time in the queue, its attempt and the upstream call', async () => {
    const { id, headers } = newTrace()
    const response = await stack.post(
      '/v1/chat/completions',
      { ...say('hi', { stream: true }), model: 'remote-1' },
      { headers },
    )
    expect(await response.text()).toContain('[DONE]')
    const spans = await treeOf(id, [
      'POST /v1/chat/completions',
      'queue inference',
      'attempt generate',
      'chat remote-1',
    ])
    const [request, queue, attempt, call] = [
      'POST /v1/chat/completions',
      'queue inference',
      'attempt generate',
      'chat remote-1',
    ].map((name) => named(spans, name)[0] as ReceivedSpan) as [ReceivedSpan, ReceivedSpan, ReceivedSpan, ReceivedSpan]
    expect(spans.length, treeText(spans)).toBe(5)
    expect([request.parentId, queue.parentId, attempt.parentId, call.parentId]).toEqual([
      ...[CALLER, request.id, request.id, attempt.id],
    ])
    expect(request).toMatchObject({ kind: 2, isError: false, service: 'sluice-under-test' })
    expect(request.attributes).toMatchObject({
      'http.request.method': 'POST',
      'http.route': '/v1/chat/completions',
      'http.response.status_code': 200,
      'sluice.request.id': response.headers.get('x-request-id'),
      'gen_ai.usage.output_tokens': 2,
    })
    expect(queue.attributes).toMatchObject({ 'sluice.queue.ahead': 0, 'sluice.queue.reason': expect.any(String) })
    expect(attempt.attributes).toMatchObject({ 'sluice.attempt': 1, 'sluice.outcome': 'completed' })
    expect(call.attributes).toMatchObject({
      'gen_ai.operation.name': 'chat',
      'gen_ai.provider.name': 'openai',
      'gen_ai.request.model': 'remote-1',
      'gen_ai.response.model': 'served-1',
      'gen_ai.response.finish_reasons': ['stop'],
      'gen_ai.response.time_to_first_chunk': expect.any(Number),
      'gen_ai.usage.input_tokens': 3,
      'gen_ai.usage.output_tokens': 2,
      'server.address': '127.0.0.1',
      'server.port': Number(new URL(upstream.url).port),
    })
    for (const span of spans) for (const key in span.attributes) expect(key).not.toContain('messages')
    expect(upstream.calls.at(-1)?.headers.traceparent, 'context sent to the upstream').toBe(`00-${id}-${call.id}-01`)
    expect(otlp.requests[0]).toMatchObject({ path: '/v1/traces', headers: { authorization: 'Bearer abc' } })
  })

  it('the headers tracestate and baggage reach upstream servers and webhooks unchanged', async () => {
    const entries = { tracestate: 'rojo=00f067aa0ba902b7,congo=t61', baggage: 'user=Am%C3%A9lie;public, region=eu' }
    const atUpstream = () => upstream.calls.map((call) => call.headers)
    const sent = async (
      run: (headers: Record<string, string>) => Promise<unknown>,
      from: () => IncomingHttpHeaders[] = atUpstream,
    ) => {
      const { id, headers } = newTrace()
      await run({ ...headers, ...entries })
      const isOfTrace = ({ traceparent }: IncomingHttpHeaders) => traceparent?.toString().slice(3, 35) === id
      expect(await until(() => from().find(isOfTrace))).toMatchObject(entries)
    }
    const chat = { ...say('hi'), model: 'remote-1' }
    await sent((headers) => stack.post('/v1/chat/completions', chat, { headers }))
    const received: IncomingHttpHeaders[] = []
    const server = createServer((req, res) => {
      received.push(req.headers)
      res.end()
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`
    const job = { endpoint: '/v1/chat/completions', body: chat, webhook: { url } }
    await sent((headers) => stack.post('/v1/jobs', job, { headers }))
    await sent(
      (headers) => stack.post('/v1/jobs', job, { headers }),
      () => received,
    )
    server.closeAllConnections()
    server.close()
    const client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
    const line = { custom_id: 'r1', method: 'POST', url: '/v1/chat/completions', body: chat }
    const content = await toFile(Buffer.from(JSON.stringify(line)), 'in.jsonl')
    const file = await client.files.create({ file: content, purpose: 'batch' })
    const asked = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const
    await sent((headers) => client.batches.create(asked, { headers }))
  })

  it('the log lines of a call have its trace id, and the request log finds the call by the trace id', async () => {
    const { id, headers } = newTrace()
    const response = await stack.post('/v1/chat/completions', say('hi'), { headers })
    const job_id = response.headers.get('x-request-id')?.replace('req_', 'job_')
    const found = await until(async () => {
      const { data } = (await (await stack.get(`/v1/admin/requests?trace_id=${id}`)).json()) as { data: object[] }
      return data.length > 0 ? data : undefined
    })
    expect(found).toMatchObject([{ id: response.headers.get('x-request-id'), trace_id: id }])
    const own = lines.filter(({ trace_id }) => trace_id === id)
    expect(own).toMatchObject([
      { msg: 'attempt ended', job_id, outcome: 'completed' },
      { msg: 'request', job_id },
    ])
    expect(own[0]).toMatchObject({
      attempt: 1,
      worker: expect.stringMatching(/^wrk_/),
      model: 'echo-1',
      duration_ms: expect.any(Number),
    })
  })

  it('a call is not recorded if its caller does not record the trace', async () => {
    const { id, headers } = newTrace('00')
    await (
      await stack.post('/v1/chat/completions', { ...say('hi', { stream: true }), model: 'remote-1' }, { headers })
    ).text()
    expect(upstream.calls.at(-1)?.headers.traceparent).toBe(headers.traceparent)
    const next = newTrace()
    await stack.post('/v1/chat/completions', say('hi'), { headers: next.headers })
    await treeOf(next.id, ['attempt generate'])
    expect(otlp.spans.filter(({ traceId }) => traceId === id)).toEqual([])
  })

  it('a failed attempt and its retry are spans of one request', async () => {
    const { id, headers } = newTrace()
    const script = '!echo fail=upstream_error failures=1\nback again'
    expect((await stack.post('/v1/chat/completions', say(script), { headers })).status).toBe(200)
    const spans = await treeOf(id, ['attempt generate', 'POST /v1/chat/completions'])
    const attempts = named(spans, 'attempt generate')
    expect(attempts.map(({ attributes, isError }) => [attributes['sluice.outcome'], isError])).toEqual([
      ['failed', true],
      ['completed', false],
    ])
    expect(attempts[0]?.attributes['error.type']).toBe('upstream_error')
    const reasons = named(spans, 'queue inference').map(({ attributes }) => attributes['sluice.queue.reason'])
    expect(reasons).toContain('retry_delay')
  })

  it('the span of an embedding batch links to the other calls of the batch', async () => {
    const own = Array.from({ length: 6 }, () => newTrace())
    await Promise.all(
      own.map(async ({ headers }, at) => {
        const response = await stack.post('/v1/embeddings', { model: 'embed-1', input: `text ${at}` }, { headers })
        expect(response.status).toBe(200)
      }),
    )
    for (const { id } of own) await treeOf(id, ['POST /v1/embeddings', 'attempt embed'])
    const ids = own.map(({ id }) => id)
    const calls = await until(() => {
      const found = otlp.spans.filter(({ name, traceId }) => name === 'embeddings embed-1' && ids.includes(traceId))
      return coveredBy(found).length >= 6 ? found : undefined
    })
    const covered = coveredBy(calls)
    expect(covered.toSorted(), 'traces of the batches').toEqual(ids.toSorted())
  })

  it("a response with a hosted tool has spans of the model's steps and of the child job of the tool", async () => {
    const { id, headers } = newTrace()
    const args = JSON.stringify(JSON.stringify({ code: 'print(1)' }))
    const input = `!echo call=code_interpreter args=${args} rounds=1`
    const tools = [{ type: 'code_interpreter', container: { type: 'auto' } }]
    const response = await stack.post('/v1/responses', { model: 'echo-1', input, tools }, { headers })
    expect(response.status).toBe(200)
    const names = [
      'POST /v1/responses',
      'attempt generate',
      'step generate',
      'attempt execute',
      'run python',
      'queue code',
    ]
    const spans = await treeOf(id, names)
    const [code] = named(spans, 'attempt execute')
    const parents = named(spans, 'attempt generate').map((span) => span.id)
    expect(parents, treeText(spans)).toContain(code?.parentId)
    const idsOf = (name: string) => named(spans, name).map((span) => span.id)
    const calls = named(spans, 'chat echo-1').map(({ parentId }) => parentId)
    expect(calls.toSorted(), treeText(spans)).toEqual(idsOf('step generate').toSorted())
    expect(named(spans, 'run python')[0]?.attributes).toMatchObject({
      'sluice.sandbox': 'wasm',
      'sluice.outcome': 'ok',
    })
  })

  it('a research job is the root of one tree with its steps and child jobs', async () => {
    const { id, headers } = newTrace()
    const response = await stack.post(
      '/v1/deep-research',
      { model: 'deep-research', messages: [{ role: 'user', content: 'Where do herons nest?' }] },
      { headers },
    )
    expect(response.status).toBe(200)
    await response.text()
    const spans = await treeOf(id, ['POST /v1/deep-research', 'attempt research', 'attempt generate'])
    const steps = spans.filter(({ name }) => name.startsWith('step ')).map(({ name }) => name)
    expect(steps, treeText(spans)).toContain('step search')
    expect(steps, 'steps that only record a decision').not.toContain('step clock')
    // Between its two attempts, the job waits for its child jobs. The queue span of the second attempt must not include this wait.
    const [first, second] = named(spans, 'attempt research').toSorted((a, b) => a.startMs - b.startMs)
    const again = named(spans, 'queue research').toSorted((a, b) => a.endMs - b.endMs)[1]
    expect(again?.startMs, treeText(spans)).toBeGreaterThanOrEqual(first?.endMs ?? Number.POSITIVE_INFINITY)
    expect(again?.endMs).toBeLessThanOrEqual(second?.startMs ?? 0)
  })

  it('the lines of a batch are in the trace of the batch', async () => {
    const { id, headers } = newTrace()
    const client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
    const line = { custom_id: 'r1', method: 'POST', url: '/v1/chat/completions', body: say('one') }
    const file = await client.files.create({
      file: await toFile(Buffer.from(JSON.stringify(line)), 'in.jsonl'),
      purpose: 'batch',
    })
    const asked = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const
    const batch = await client.batches.create(asked, { headers })
    await until(async () => (await client.batches.retrieve(batch.id)).status === 'completed')
    const spans = await treeOf(id, [
      'POST /v1/batches',
      'attempt batch',
      'attempt batch_part',
      'attempt generate',
      'chat echo-1',
    ])
    const [part, answer] = [named(spans, 'attempt batch_part')[0], named(spans, 'attempt generate')[0]]
    expect(answer?.parentId, treeText(spans)).toBe(part?.id)
    expect(spans.filter(({ isError }) => isError).map(({ name }) => name)).toEqual([])
  })

  it('a webhook is in the trace of its job, and a redriven job links to the original job', async () => {
    const received: IncomingHttpHeaders[] = []
    const server = createServer((req, res) => {
      received.push(req.headers)
      res.end()
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const { id, headers } = newTrace()
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`
    const body = { endpoint: '/v1/chat/completions', body: say('!echo fail=invalid_request'), webhook: { url } }
    const made = (await (await stack.post('/v1/jobs', body, { headers })).json()) as { id: string }
    await until(() => received.length > 0)
    const spans = await treeOf(id, ['POST /v1/jobs', 'queue inference', 'attempt generate', 'webhook'])
    const [hook] = named(spans, 'webhook')
    expect(received[0]?.traceparent).toBe(`00-${id}-${hook?.id}-01`)
    server.closeAllConnections()
    server.close()
    const own = () => lines.filter(({ job_id, msg }) => job_id === made.id && /^(job|attempt)/.test(String(msg)))
    await until(() => own().some(({ msg }) => msg === 'job ended'))
    expect(own().map(({ msg, trace_id }) => [msg, trace_id])).toEqual([
      ['job started', id],
      ['job ended', id],
      ['attempt of a job failed; the job is retried or fails', id],
    ])

    const again = newTrace()
    const repeated = await stack.post(`/v1/jobs/${made.id}/redrive`, {}, { headers: again.headers })
    expect(repeated.status).toBe(202)
    const span = await until(() => otlp.spans.find(({ name }) => name === 'repeat job'))
    expect(span.links).toEqual([{ traceId: id, id: named(spans, 'POST /v1/jobs')[0]?.id }])
  })
})

it('a transcription has a span of the model call', async () => {
  await using otlp = await startOtlpReceiver()
  await using speech = await startSpeechServer({
    [TRANSCRIBE]: (_, answer) => answer.json({ text: 'Fine.', duration: 4 }),
  })
  await using local = await startSpeechServer({ '/audio/probe': (_, answer) => answer.json({ duration: 4 }) })
  const engine = { type: 'openai', base_url: `${speech.url}/v1` }
  await using service = await startTranscriptionWorker({
    models: [{ id: 's1', pool: 'transcription', engine }],
    connect: local.connect,
    settings: { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `${otlp.url}/v1/traces`, OTEL_BSP_SCHEDULE_DELAY: '50' },
  })
  expect((await service.upload({ model: 's1' })).status).toBe(200)
  await until(() => otlp.spans.some(({ name }) => name === 'POST /v1/audio/transcriptions'))
  const trace = otlp.spans[0]?.traceId ?? ''
  const names = ['POST /v1/audio/transcriptions', 'queue transcription', 'attempt transcribe', 'transcription s1']
  const spans = await otlp.tree(trace, names)
  const call = spans.find(({ name }) => name === 'transcription s1')
  expect(call?.parentId).toBe(spans.find(({ name }) => name === 'attempt transcribe')?.id)
  expect(call?.attributes).toMatchObject({ 'gen_ai.operation.name': 'transcription', 'server.address': '127.0.0.1' })
})

const kafka = inject('kafka')
const postgres = inject('postgres')

describe.skipIf(!kafka || !postgres)('in the traces of a fleet', { timeout: 240_000 }, () => {
  it('a durable job has both attempts in one trace after its first worker was killed', async () => {
    await using otlp = await startOtlpReceiver()
    await using database = await openPostgresDatabase(postgres ?? '')
    await using fleet = await openFleet(kafka ?? '')
    const settings = {
      DATABASE_URL: database.url,
      OTEL_EXPORTER_OTLP_ENDPOINT: otlp.url,
      OTEL_BSP_SCHEDULE_DELAY: '50',
      JOB_LEASE_MS: '3000',
    }
    const ingress = await fleet.start('ingress', settings)
    const scheduler = await fleet.start('scheduler', settings)
    const doomed = await fleet.start('inference', settings)
    const body = say('!echo first_ms=4000\nanswer')
    const response = await fleet.post(ingress, '/v1/chat/completions', body, { headers: { prefer: 'respond-async' } })
    const { id } = (await response.json()) as { id: string }
    await until(() => doomed.log.some(({ msg, job_id }) => msg === 'job started' && job_id === id), {
      withinMs: 60_000,
    })
    doomed.kill('SIGKILL')
    const other = await fleet.start('inference', settings)
    await until(() => other.log.some(({ msg, job_id }) => msg === 'job ended' && job_id === id), { withinMs: 120_000 })
    const trace = String(other.log.find(({ job_id }) => job_id === id)?.trace_id)
    const spans = await otlp.tree(trace, [
      'POST /v1/chat/completions',
      'queue inference',
      'attempt generate',
      'chat echo-1',
    ])
    const whole = await until(() => {
      const attempts = otlp.spans.filter(({ traceId, name }) => traceId === trace && name === 'attempt generate')
      return attempts.length >= 2 ? attempts : undefined
    })
    const [root] = spans.filter(({ parentId }) => parentId === '')
    expect(root?.service).toBe('sluice-ingress')
    expect(new Set(whole.map(({ service }) => service))).toContain('sluice-inference')
    expect(whole.map(({ attributes }) => attributes['sluice.outcome']).toSorted()).toEqual(['completed', 'lost'])
    for (const { parentId } of whole) expect(parentId).toBe(root?.id)
    for (const { log } of [ingress, scheduler, doomed, other])
      expect(
        log.some((line) => line.trace_id === trace),
        'each role logs the trace id',
      ).toBe(true)
  })
})
