/*
 * Tests of job options such as metadata, priority and webhook. Every way of submitting a job accepts them with equal effect, or returns a
 * 400 that names the invalid field or header.
 */

import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { errorOf, jobOf, type WireJob } from '../../../support/jobs/api.ts'
import {
  partsOf,
  SPEECH,
  startTranscriptions,
  TRANSCRIPTIONS,
  type Transcriptions,
  wav,
} from '../../../support/speech/service.ts'
import { until } from '../../../support/stack.ts'
import { openWs } from '../../../support/ws.ts'

const CHAT = '/v1/chat/completions'
const MESSAGES = '/v1/messages'
const HOOK = 'https://example.com/hook'
const EVENTS = ['job.failed', 'job.started']
const say = (more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 9,
  messages: [{ role: 'user', content: 'hi' }],
  ...more,
})

let service: Transcriptions
beforeAll(async () => {
  service = await startTranscriptions()
})
afterAll(() => service[Symbol.asyncDispose]())

/** Start time of all jobs: in one hour. The jobs do not run during the test, so the test can read their options. */
const RUN_AT = Math.floor(Date.now() / 1_000) + 3_600

const jobOptions = (parent: string) => ({
  metadata: { report: '2026-11', Größe: '“x”' },
  webhook: { url: HOOK, events: EVENTS },
  priority: 'low',
  expires_after_seconds: 7_200,
  run_at: RUN_AT,
  parent_id: parent,
})

const headersOf = (parent: string) => ({
  prefer: 'respond-async',
  'x-job-metadata': JSON.stringify(jobOptions(parent).metadata).replace(
    /[^ -~]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  ),
  'x-job-webhook-url': HOOK,
  'x-job-webhook-events': EVENTS.join(', '),
  'x-job-priority': 'low',
  'x-job-expires-after-seconds': '7200',
  'x-job-run-at': String(RUN_AT),
  'x-job-parent-id': parent,
})

const upload = (fields: Record<string, string | string[]>, headers: Record<string, string>) =>
  service.uploadParts(partsOf({ model: SPEECH, ...fields }, wav(0.2)), { headers })

async function overWebSocket(parent: string): Promise<WireJob> {
  using client = await openWs(service)
  const frame = {
    type: 'request.create',
    id: 'r1',
    endpoint: CHAT,
    body: say({ background: true }),
    ...jobOptions(parent),
  }
  client.send(frame)
  const end = await client.end('r1')
  if (end.type !== 'request.completed') throw new Error(JSON.stringify(end))
  return end.body as unknown as WireJob
}

const accepted = async (sent: Promise<Response>) => {
  const response = await sent
  expect([response.status, response.status === 202 ? '' : await response.text()]).toEqual([202, ''])
  return await jobOf(response)
}

const ASYNC = { prefer: 'respond-async' }
const WAYS: Record<string, (parent: string) => Promise<WireJob>> = {
  'the body of POST /v1/jobs': (parent) =>
    accepted(service.post('/v1/jobs', { endpoint: CHAT, body: say(), ...jobOptions(parent) })),
  'headers of POST /v1/jobs': (parent) =>
    accepted(service.post('/v1/jobs', { endpoint: CHAT, body: say() }, { headers: headersOf(parent) })),
  'headers of a chat': (parent) => accepted(service.post(CHAT, say(), { headers: headersOf(parent) })),
  'headers of a message': (parent) => accepted(service.post(MESSAGES, say(), { headers: headersOf(parent) })),
  'headers of an upload': (parent) => accepted(upload({}, headersOf(parent))),
  'fields of an upload': (parent) => {
    const { metadata, webhook, run_at, expires_after_seconds, ...texts } = jobOptions(parent)
    const numbers = { run_at: String(run_at), expires_after_seconds: String(expires_after_seconds) }
    const objects = { metadata: JSON.stringify(metadata), webhook: JSON.stringify(webhook) }
    return accepted(upload({ ...texts, ...numbers, ...objects }, ASYNC))
  },
  'JSON members of the fields of an upload': (parent) => {
    const { metadata, webhook, run_at, ...texts } = jobOptions(parent)
    const members = Object.entries(metadata).map(([key, value]) => [`metadata[${key}]`, value])
    const numbers = { run_at: String(run_at), expires_after_seconds: '7200' }
    const hook = { 'webhook[url]': webhook.url, 'webhook[events][]': [...webhook.events] }
    return accepted(upload({ ...texts, ...Object.fromEntries(members), ...numbers, ...hook }, ASYNC))
  },
  'the frame of a WebSocket': overWebSocket,
}

describe('a job option', () => {
  it.each(Object.keys(WAYS))('is applied from %s', async (way) => {
    const parent = await accepted(service.post(CHAT, say(), { headers: ASYNC }))
    const job = await WAYS[way]?.(parent.id)
    expect(job).toMatchObject({
      status: 'queued',
      metadata: jobOptions('').metadata,
      webhook: { url: HOOK, events: EVENTS, deliveries: [] },
      priority: 'low',
      run_at: RUN_AT,
      expires_at: RUN_AT + 7_200,
      parent_id: parent.id,
    })
  })

  it('for a webhook applies even if the caller waits for the response', async () => {
    const told: unknown[] = []
    const server = createServer((req, res) => {
      let text = ''
      req.on('data', (bytes) => {
        text += bytes
      })
      req.on('end', () => {
        told.push(JSON.parse(text))
        res.end()
      })
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    await using own = await startTranscriptions({ settings: { WEBHOOK_ALLOW_PRIVATE: 'true' } })
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`
    const headers = { 'idempotency-key': 'once', 'x-job-webhook-url': url, 'x-job-metadata': '{"n":"1"}' }
    const parts = partsOf({ model: SPEECH }, wav(0.2))
    expect((await own.uploadParts(parts, { headers })).status).toBe(200)
    await until(() => told.length > 0)
    expect(told).toMatchObject([{ type: 'job.completed', data: { endpoint: TRANSCRIPTIONS, metadata: { n: '1' } } }])
    server.close()
  })

  it('start_within_seconds sets the expiry of a job that has not started', async () => {
    const headers = { ...ASYNC, 'x-job-start-within-seconds': '60', 'x-job-run-at': String(RUN_AT) }
    const job = await accepted(service.post(CHAT, say(), { headers }))
    expect(job.expires_at).toBe(RUN_AT + 3_600)
  })

  it('is part of the request that an Idempotency-Key identifies', async () => {
    const call = (more: Record<string, string>) =>
      service.post(CHAT, say(), { headers: { ...ASYNC, 'idempotency-key': 'jobOptions', ...more } })
    const first = await accepted(call({ 'x-job-priority': 'low' }))
    expect((await accepted(call({ 'x-job-priority': 'low' }))).id).toBe(first.id)
    expect((await call({ 'x-job-priority': 'normal' })).status).toBe(422)
    expect((await call({})).status).toBe(422)
  })
})

/** Headers with an invalid value, and the expected error code. */
const BAD: readonly [header: string, value: string, code: string][] = [
  ['x-job-priority', 'urgent', 'invalid_value'],
  ['x-job-priority', '', 'invalid_value'],
  ['x-job-run-at', 'tomorrow', 'invalid_type'],
  ['x-job-run-at', '-1', 'invalid_type'],
  ['x-job-run-at', String(RUN_AT + 30 * 86_400), 'invalid_value'],
  ['x-job-expires-after-seconds', '0', 'integer_below_min_value'],
  ['x-job-expires-after-seconds', '100000', 'integer_above_max_value'],
  ['x-job-start-within-seconds', '1.5', 'invalid_type'],
  ['x-job-metadata', 'report', 'invalid_value'],
  ['x-job-metadata', '["a"]', 'invalid_type'],
  ['x-job-metadata', '{"a":1}', 'invalid_type'],
  [
    'x-job-metadata',
    JSON.stringify(Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, 'v']))),
    'invalid_value',
  ],
  ['x-job-metadata', '['.repeat(5_000), 'invalid_value'],
  ['x-job-webhook-url', 'ftp://example.com', 'invalid_value'],
  ['x-job-webhook-url', 'http://127.0.0.1/hook', 'invalid_value'],
  ['x-job-webhook-url', '', 'invalid_value'],
  ['x-job-parent-id', 'job_nobodys01', 'invalid_value'],
  ['x-job-webhok-url', HOOK, 'unsupported_parameter'],
]

describe('an invalid job option', () => {
  it.each(BAD)(
    'in the header %s: %j is refused with 400, the code %s and the name of the header',
    async (header, value, code) => {
      for (const path of ['/v1/jobs', CHAT]) {
        const body = path === CHAT ? say() : { endpoint: CHAT, body: say() }
        const response = await service.post(path, body, { headers: { ...ASYNC, [header]: value } })
        expect(response.status).toBe(400)
        const error = await errorOf(response)
        expect(error).toMatchObject({ code, param: header })
      }
      const response = await service.post(MESSAGES, say(), { headers: { ...ASYNC, [header]: value } })
      const { error } = (await response.json()) as { error: { message: string } }
      expect([response.status, error.message.startsWith(`${header}: `)]).toEqual([400, true])
    },
  )

  it('for webhook events is refused if the URL is missing or an event is unknown', async () => {
    const headers = { ...ASYNC, 'x-job-webhook-events': 'job.failed' }
    expect(await errorOf(await service.post(CHAT, say(), { headers }))).toMatchObject({ param: 'x-job-webhook-url' })
    const unknown = { ...headers, 'x-job-webhook-url': HOOK, 'x-job-webhook-events': 'job.failed,job.lost' }
    expect(await errorOf(await service.post(CHAT, say(), { headers: unknown }))).toMatchObject({
      param: 'x-job-webhook-events',
    })
  })

  it.each([
    [{ priority: 'urgent' }, 'priority', 'invalid_value'],
    [{ run_at: 'soon' }, 'run_at', 'invalid_type'],
    [{ metadata: '{' }, 'metadata', 'invalid_value'],
    [{ metadata: '7' }, 'metadata', 'invalid_type'],
    [{ 'webhook[uri]': HOOK, 'webhook[url]': HOOK }, 'webhook.uri', 'unsupported_parameter'],
    [{ 'webhook[url]': 'ftp://example.com' }, 'webhook.url', 'invalid_value'],
    [{ priority: ['low', 'low'] }, 'priority', 'invalid_value'],
    [{ 'metadata[a]': ['1', '2'] }, 'metadata[a]', 'invalid_value'],
    [{ 'priority[]': 'low' }, 'priority[]', 'invalid_value'],
  ])('in the form field %j is refused with 400 and the name of the field', async (fields, param, code) => {
    const before = (await service.blobs()).length
    const response = await upload(fields as Record<string, string>, ASYNC)
    expect([response.status, await errorOf(response)]).toMatchObject([400, { param, code }])
    await until(async () => (await service.blobs()).length === before)
  })

  it('over a WebSocket is refused with the error of POST /v1/jobs', async () => {
    using client = await openWs(service)
    const bad = [
      { priority: 'urgent' },
      { expires_after_seconds: 100_000 },
      { webhook: { url: HOOK, uri: HOOK } },
      { webhook: { url: 'ftp://example.com' } },
      { run_at: RUN_AT + 30 * 86_400 },
      { metadata: { a: 1 } },
      { parent_id: 'job_nobodys01' },
    ]
    for (const [i, wish] of bad.entries()) {
      const body = say({ background: true })
      client.send({ type: 'request.create', id: `r${i}`, endpoint: CHAT, body, ...wish })
      const error = await errorOf(await service.post('/v1/jobs', { endpoint: CHAT, body: say(), ...wish }))
      expect(await client.end(`r${i}`)).toMatchObject({ type: 'request.failed', status: 400, error })
    }
  })
})

describe('a job option given twice', () => {
  it('is accepted if both values are equal, and refused with 400 otherwise', async () => {
    const body = { endpoint: CHAT, body: say(), priority: 'low' }
    const twice = (priority: string) => service.post('/v1/jobs', body, { headers: { 'x-job-priority': priority } })
    expect((await accepted(twice('low'))).priority).toBe('low')
    expect(await errorOf(await twice('normal'))).toMatchObject({ code: 'invalid_value', param: 'x-job-priority' })
    const form = (url: string) => upload({ 'webhook[url]': HOOK }, { ...ASYNC, 'x-job-webhook-url': url })
    expect((await form(HOOK)).status).toBe(202)
    expect(await errorOf(await form(`${HOOK}/2`))).toMatchObject({ code: 'invalid_value', param: 'x-job-webhook-url' })
  })
})

describe('a job option that does not apply to the request', () => {
  const MAKE_DURABLE = /Prefer: respond-async/

  it('is refused with an explanation of how to make the call durable', async () => {
    const plain = await service.post(CHAT, say(), { headers: { 'x-job-webhook-url': HOOK } })
    expect([plain.status, await errorOf(plain)]).toMatchObject([
      400,
      { param: 'x-job-webhook-url', message: expect.stringMatching(MAKE_DURABLE) },
    ])
    const form = await upload({ priority: 'low' }, {})
    expect([form.status, await errorOf(form)]).toMatchObject([
      400,
      { param: 'priority', message: expect.stringMatching(MAKE_DURABLE) },
    ])
    using client = await openWs(service)
    client.chat('r1', 'hi', {}, { webhook: { url: HOOK } })
    expect(await client.end('r1')).toMatchObject({
      status: 400,
      error: { param: 'webhook', message: expect.stringContaining('background') },
    })
    client.chat('r2', 'hi', {}, { idempotency_key: 'k', run_at: RUN_AT })
    expect(await client.end('r2')).toMatchObject({ status: 400, error: { param: 'run_at' } })
  })

  it('is refused for a scheduled job whose caller waits, and for a redrive', async () => {
    const headers = { 'idempotency-key': 'waits', 'x-job-run-at': String(RUN_AT) }
    const waits = await service.post(CHAT, say(), { headers })
    expect([waits.status, await errorOf(waits)]).toMatchObject([400, { param: 'x-job-run-at' }])
    const { id } = await accepted(service.post(CHAT, say(), { headers: ASYNC }))
    const again = await service.post(`/v1/jobs/${id}/redrive`, {}, { headers: { 'x-job-priority': 'low' } })
    expect([again.status, await errorOf(again)]).toMatchObject([400, { param: 'x-job-priority' }])
  })

  it('is not read from a third-party header with a similar name', async () => {
    const response = await service.post(CHAT, say(), { headers: { 'x-job-id': 'build-7', 'x-job-name': 'nightly' } })
    expect(response.status).toBe(200)
  })
})
