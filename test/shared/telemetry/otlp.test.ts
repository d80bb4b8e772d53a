import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { pino } from 'pino'
import { expect, it, onTestFinished } from 'vitest'
import { parseConfig } from '#shared/config/config.ts'
import type { TracesConfig } from '#shared/config/traces.ts'
import { contextOf, incomingContext, outgoingHeaders } from '#shared/telemetry/context.ts'
import { OtlpExporter, openTracing } from '#shared/telemetry/otlp.ts'
import { type EndedSpan, messagesJson, spanIdOf, Tracer } from '#shared/telemetry/tracing.ts'
import { startOtlpReceiver } from '../../support/otlp.ts'
import { until } from '../../support/stack.ts'

const ENDPOINT = 'http://127.0.0.1:4318'
const tracesOf = (more: Record<string, string>) =>
  parseConfig({ OTEL_EXPORTER_OTLP_ENDPOINT: ENDPOINT, ...more }).traces as TracesConfig

/** Opens an exporter of traces, and collects its log lines. */
function openExporter(url: string, more: Partial<TracesConfig> = {}) {
  const lines: Record<string, unknown>[] = []
  const log = pino({}, { write: (line) => void lines.push(JSON.parse(line)) })
  const config = { ...tracesOf({}), url: `${url}/v1/traces`, scheduleDelayMs: 20, ...more }
  const exporter = new OtlpExporter({ ...config, version: 'test', log })
  onTestFinished(() => exporter.close())
  return { exporter, lines, tracer: new Tracer(exporter, { ratio: 1, followsParent: true }) }
}

it('the encoding of a span preserves its times, texts, numbers, lists and links', async () => {
  await using otlp = await startOtlpReceiver()
  const { tracer } = openExporter(otlp.url, { resource: { 'service.name': 'sluice' } })
  const link = `00-${'b'.repeat(32)}-${'c'.repeat(16)}-01`
  const attributes = {
    ...{ text: 'naïve 😀', long: 'é'.repeat(40_000), empty: '', whole: 2 ** 40, part: 0.25, negative: -1 },
    ...{ yes: true, list: ['stop', 'löschen'], missing: undefined },
  }
  const startMs = 1_790_000_000_123.456
  tracer
    .start({ name: 'chat ☕', kind: 'client', startMs, attributes, links: [link, 'not a context'] })
    ?.end({ more: 1 }, 'timeout', startMs + 1.5)
  const span = await until(() => otlp.spans[0])
  expect(span).toMatchObject({ name: 'chat ☕', kind: 3, parentId: '', isError: true, service: 'sluice' })
  expect(span.statusMessage).toBe('timeout')
  expect([span.startMs, span.endMs]).toEqual([startMs, startMs + 1.5].map((ms) => expect.closeTo(ms, 2)))
  expect(span.links).toEqual([{ traceId: 'b'.repeat(32), id: 'c'.repeat(16) }])
  expect(span.attributes).toEqual({
    ...{ text: 'naïve 😀', long: 'é'.repeat(32 * 1024), empty: '', whole: 2 ** 40, part: 0.25, negative: -1 },
    ...{ yes: true, list: ['stop', 'löschen'], more: 1, 'error.type': 'timeout' },
  })
})

it('spans arrive after a retry if the collector is unavailable at first', async () => {
  await using otlp = await startOtlpReceiver()
  otlp.status = 503
  const { tracer, exporter } = openExporter(otlp.url)
  tracer.start({ name: 'one', kind: 'internal' })?.end()
  await until(() => otlp.requests.length > 0)
  otlp.status = 200
  await until(() => otlp.spans.length === 1)
  expect(exporter.dropped).toBe(0)
})

it('spans beyond the queue limit are dropped and counted, with one warning', async () => {
  await using otlp = await startOtlpReceiver()
  otlp.status = 503
  const { tracer, exporter, lines } = openExporter(otlp.url, { queueSpansMax: 50, batchSpansMax: 10 })
  for (let at = 0; at < 200; at++) tracer.start({ name: `span ${at}`, kind: 'internal' })?.end()
  expect(exporter.dropped).toBe(150)
  const message = 'traces could not be exported; spans are dropped and calls continue'
  expect(lines).toMatchObject([{ level: 40, msg: message, reason: 'queue full' }])
})

it('spans that the collector refuses permanently are dropped without a retry', async () => {
  await using otlp = await startOtlpReceiver()
  otlp.status = 401
  const { tracer, exporter, lines } = openExporter(otlp.url)
  tracer.start({ name: 'one', kind: 'internal' })?.end()
  await until(() => exporter.dropped === 1)
  expect(otlp.requests).toHaveLength(1)
  expect(lines).toMatchObject([{ reason: 'status 401' }])
})

it('the end of a process waits at most two seconds for a collector that does not respond', async () => {
  const silent = createServer(() => {}).listen(0, '127.0.0.1')
  await new Promise((resolve) => silent.once('listening', resolve))
  onTestFinished(() => {
    silent.closeAllConnections()
    silent.close()
  })
  const { tracer, exporter } = openExporter(`http://127.0.0.1:${(silent.address() as AddressInfo).port}`)
  tracer.start({ name: 'one', kind: 'internal' })?.end()
  await exporter.close()
  expect(exporter.dropped).toBe(1)
})

/** Opens a tracer that appends ended spans to a list. */
function listing(sampling: ConstructorParameters<typeof Tracer>[1]) {
  const spans: EndedSpan[] = []
  return { spans, tracer: new Tracer({ add: (span) => void spans.push(span) }, sampling) }
}

it('the flag of the caller, or else the sampling ratio, decides whether a whole trace is recorded', () => {
  const { tracer, spans } = listing({ ratio: 0.5, followsParent: true })
  for (let at = 0; at < 400; at++) {
    const root = tracer.start({ name: 'root', kind: 'server' })
    const child = tracer.start({ name: 'child', kind: 'internal', parent: root?.traceparent })
    child?.end()
    root?.end()
  }
  expect(spans.filter(({ name }) => name === 'root').length).toBe(spans.filter(({ name }) => name === 'child').length)
  expect(spans.length / 2).toBeGreaterThan(120)
  expect(spans.length / 2).toBeLessThan(280)
  const parent = `00-${'a'.repeat(32)}-${'b'.repeat(16)}`
  expect(tracer.start({ name: 'x', kind: 'server', parent: `${parent}-00` })).toBeUndefined()
  expect(tracer.start({ name: 'x', kind: 'server', parent: `${parent}-01` })?.traceparent).toContain('a'.repeat(32))
})

it('a call with an invalid trace context starts a new trace', () => {
  const { tracer } = listing({ ratio: 1, followsParent: true })
  const [trace, id] = ['a'.repeat(32), 'b'.repeat(16)]
  const invalid = ['', 'x', `00-${'0'.repeat(32)}-${id}-01`, `00-${trace}-${'0'.repeat(16)}-01`, `ff-${trace}-${id}-01`]
  for (const parent of [...invalid, `00-${trace.toUpperCase()}-${id}-01`]) {
    expect(contextOf(parent), parent).toBeUndefined()
    expect(tracer.start({ name: 'x', kind: 'server', parent })?.traceparent).toMatch(
      /^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/,
    )
  }
  expect(contextOf(`01-${trace}-${id}-01-later`), 'a later version').toMatchObject({ traceId: trace, isSampled: true })
})

it('valid tracestate and baggage headers are forwarded unchanged, and invalid ones are dropped', () => {
  const traceparent = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`
  const through = (tracestate?: string, baggage?: string) =>
    outgoingHeaders(incomingContext({ traceparent, tracestate, baggage }), true)
  const tracestate = 'rojo=00f067aa0ba902b7, tenant@sys=a b;c'
  const baggage = 'user=Am%C3%A9lie;public;ttl=3 , empty=,serverNode=DF%2028'
  expect(through(tracestate, baggage)).toEqual({ traceparent, tracestate, baggage })
  const members = (count: number, chars = 1) => Array.from({ length: count }, (_, i) => `k${i}=${'v'.repeat(chars)}`)
  const states = ['novalue', 'Upper=1', 'a=1,a=2', 'a=b=c', `${'k'.repeat(257)}=1`, 'a=é', members(33).join(',')]
  for (const invalid of states) expect(through(invalid, 'a=1'), invalid).toEqual({ traceparent, baggage: 'a=1' })
  expect(through(members(32).join(',')).tracestate).toBe(members(32).join(','))
  expect(through(`long=${'v'.repeat(200)},${members(8, 90).join(',')}`).tracestate, 'above 512 characters').toBe(
    members(5, 90).join(','),
  )
  for (const invalid of ['novalue', 'a b=1', 'a="1"', 'a=1,=2', 'a=\\', 'a=1;;b', 'a=é', `a=${'1'.repeat(8_191)}`])
    expect(through('a=1', invalid), invalid).toEqual({ traceparent, tracestate: 'a=1' })
  expect(through(undefined, `a=${'1'.repeat(8_190)}`).baggage).toHaveLength(8_192)
  const alone = incomingContext({ traceparent: 'x', tracestate: 'a=1', baggage })
  expect(outgoingHeaders(alone, true), 'tracestate without its traceparent').toEqual({ baggage })
  expect(outgoingHeaders(alone, false)).toEqual({})
  const { tracer } = listing({ ratio: 1, followsParent: true })
  expect(tracer.start({ name: 'x', kind: 'server', parent: alone })?.traceparent).toMatch(/^00-.*-01\t\tuser=/)
})

it('each attempt has a unique span id, which is equal in every process', () => {
  const ids = new Set<string>()
  for (let job = 0; job < 2_000; job++)
    for (const attempt of [1, 2, 11]) ids.add(spanIdOf(`job_01K8ABCDEFGHJK${job}`, attempt))
  expect(ids.size).toBe(6_000)
  for (const id of ids) expect(id).toMatch(/^(?!0{16})[0-9a-f]{16}$/)
  expect(spanIdOf('job_01K8ABCDEFGHJK1', 1)).toBe(spanIdOf('job_01K8ABCDEFGHJK1', 1))
})

it('the environment variables of OpenTelemetry configure traces', () => {
  expect(parseConfig({}).traces).toBeUndefined()
  expect(tracesOf({ OTEL_SDK_DISABLED: 'true' })).toBeUndefined()
  expect(tracesOf({})).toMatchObject({
    ...{ url: `${ENDPOINT}/v1/traces`, headers: {}, timeoutMs: 10_000, isCompressed: false, hasContent: false },
    sampling: { ratio: 1, followsParent: true },
    resource: { 'process.pid': process.pid },
  })
  const set = tracesOf({
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://traces.example/custom?x=1',
    OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Basic%20YWI6Yw==, x-team = blue',
    OTEL_RESOURCE_ATTRIBUTES: 'service.name=other,deployment.environment.name=prod%2Ceu',
    OTEL_SERVICE_NAME: 'own',
    OTEL_TRACES_SAMPLER: 'traceidratio',
    OTEL_TRACES_SAMPLER_ARG: '0.25',
  })
  expect(set).toMatchObject({
    url: 'https://traces.example/custom?x=1',
    headers: { authorization: 'Basic YWI6Yw==', 'x-team': 'blue' },
    sampling: { ratio: 0.25, followsParent: false },
    resource: { 'service.name': 'own', 'deployment.environment.name': 'prod,eu' },
  })
})

it.each<[string, string, string, object | undefined]>([
  ['OTEL_EXPORTER_OTLP_PROTOCOL', 'grpc', 'http/protobuf', undefined],
  ['OTEL_EXPORTER_OTLP_ENDPOINT', 'collector:4317', 'URL', undefined],
  ['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', 'collector', 'URL', undefined],
  ['OTEL_EXPORTER_OTLP_HEADERS', 'no pairs', 'key=value', { headers: {} }],
  ['OTEL_EXPORTER_OTLP_HEADERS', 'a=%zz', 'percent', { headers: {} }],
  ['OTEL_RESOURCE_ATTRIBUTES', 'a=b,', 'key=value', { resource: { 'process.pid': process.pid } }],
  ['OTEL_TRACES_SAMPLER_ARG', 'endpoint=http://jaeger', 'number', { sampling: { ratio: 1 } }],
  ['OTEL_TRACES_SAMPLER_ARG', '2', '1', { sampling: { ratio: 1 } }],
  ['OTEL_TRACES_SAMPLER', 'jaeger_remote', 'always_on', { sampling: { followsParent: true } }],
  ['OTEL_SDK_DISABLED', 'maybe', 'OTEL_SDK_DISABLED', {}],
])('%s=%s is ignored with a warning that states what is expected', (name, value, expected, traces) => {
  const config = parseConfig({ OTEL_EXPORTER_OTLP_ENDPOINT: ENDPOINT, [name]: value })
  if (traces) expect(config.traces).toMatchObject(traces)
  else expect(config.traces).toBeUndefined()
  expect(config.tracesProblems).toHaveLength(1)
  expect(config.tracesProblems[0]).toContain(name)
  expect(config.tracesProblems[0]).toContain(expected)
})

it('a login in the endpoint URL is sent as an authorization header, and is not logged', () => {
  const endpoint = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://us%3Aer:pass@127.0.0.1:4318' }
  const set = tracesOf(endpoint)
  expect(set.url).toBe(`${ENDPOINT}/v1/traces`)
  expect(set.headers).toEqual({ authorization: `Basic ${Buffer.from('us:er:pass').toString('base64')}` })
  const own = tracesOf({ ...endpoint, OTEL_EXPORTER_OTLP_HEADERS: 'Authorization=own' })
  expect(own.headers).toEqual({ Authorization: 'own' })
  const lines: string[] = []
  const log = pino({}, { write: (line) => void lines.push(line) })
  onTestFinished(() => exporter.close())
  const exporter = openTracing({
    ...set,
    url: 'http://user:pass@127.0.0.1:4318/v1/traces?token=secret',
    version: '1',
    log,
  })
  expect(lines.join()).toContain('"http://127.0.0.1:4318/v1/traces"')
  expect(lines.join()).not.toMatch(/pass|secret/)
})

it.each([
  ['short messages', [{ role: 'user', parts: [{ type: 'text', content: 'hello' }] }], 1],
  [
    'a long text with escapes',
    [{ role: 'user', parts: [{ type: 'text', content: '"\n\ud83d\ude00'.repeat(50_000) }] }],
    1,
  ],
  [
    'many messages',
    Array.from({ length: 5_000 }, (_, nth) => ({ role: 'user', content: `message ${nth}` })),
    undefined,
  ],
  ['many parts', [{ role: 'user', parts: Array.from({ length: 5_000 }, () => ({ content: 'part' })) }], 1],
])('message content is recorded as valid JSON of bounded length: %s', (_, messages, count) => {
  const json = messagesJson(messages)
  expect(json.length).toBeLessThanOrEqual(32 * 1024)
  const read = JSON.parse(json) as { role: string; content?: string }[]
  expect(read.at(-1)?.role).toBe('user')
  if (count === undefined) expect(read.at(-1)?.content).toBe('message 4999')
  else expect(read).toHaveLength(count)
})
