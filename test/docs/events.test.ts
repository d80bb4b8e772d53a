import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { z } from 'zod'
import { DurableEventType } from '#schemas/durable-job.ts'
import { WebhookEvent } from '#schemas/jobs.ts'
import { ClientFrame, ServerFrame, WS_CLOSE, WS_PROTOCOL } from '#schemas/ws.ts'
import { SOCKET_BOUNDS } from '#services/ingress/ws/frames.ts'
import { RETRIES_MS } from '#services/scheduler/webhooks.ts'
import { SANDBOX_MISSING, testZygote } from '../support/sandbox/sandbox.ts'
import { SPEECH, startTranscriptions, wav } from '../support/speech/service.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../support/stack.ts'

/* Checks docs/reference/events.md against the schemas and the streams of a service. */

const TEXT = readFileSync('docs/reference/events.md', 'utf8')
const CLOSED_BY_RFC = [1002, 1007, 1009]

/** The part of the page below a heading. */
function part(heading: string): string {
  return TEXT.split(`\n## ${heading}\n`)[1]?.split('\n## ')[0] ?? ''
}

/** The cells of the first table in a text, without its head. */
function rows(text: string): string[][] {
  const lines = text.split('\n').filter((line) => line.startsWith('|'))
  return lines.slice(2).map((line) => line.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, '').trim()))
}

const ticked = (text: string) => [...text.matchAll(/`([^`]+)`/g)].map(([, word = '']) => word)
const typesOf = (frames: z.ZodDiscriminatedUnion) =>
  frames.options.map((option) => (option as unknown as z.ZodObject<{ type: z.ZodLiteral<string> }>).shape.type.value)

describe('the tables in docs/reference/events.md', () => {
  it('list every event type of a job', () => {
    const named = rows(part('Events of a job')).flatMap(([cell = '']) => ticked(cell))
    expect(named.toSorted()).toEqual(DurableEventType.options.toSorted())
  })

  it('list every WebSocket frame, each close code and each limit', () => {
    const text = part('WebSocket')
    const [sent = [], got = []] = rows(text).map(([, cell = '']) => ticked(cell))
    expect(sent.toSorted()).toEqual(typesOf(ClientFrame).toSorted())
    expect(got.toSorted()).toEqual(typesOf(ServerFrame).toSorted())
    const codes = [...text.matchAll(/\b(?:1\d{3}|4\d{3})\b/g)].map(([code]) => Number(code))
    expect(codes.toSorted()).toEqual([...CLOSED_BY_RFC, ...Object.values(WS_CLOSE)].toSorted())
    const { heartbeatMs, idleMs } = SOCKET_BOUNDS
    expect(text).toContain(
      `sends a ping every ${heartbeatMs / 1000} seconds. If the client sends nothing for ${idleMs / 1000} seconds, `,
    )
    expect(text).toContain(`\`${WS_PROTOCOL}\``)
  })

  it('list every webhook event, and the delay before each retry', () => {
    const text = part('Webhooks')
    expect(ticked(text.split('\n')[1] ?? '').filter((word) => word.startsWith('job.'))).toEqual(WebhookEvent.options)
    const delays = text.replaceAll('\n', ' ').match(/again after (.*), each/)?.[1] ?? ''
    const units: Record<string, number> = { s: 1_000, min: 60_000, h: 3_600_000 }
    const waits = [...delays.matchAll(/(\d+) (s|min|h)\b/g)].map(([, n, unit = '']) => Number(n) * (units[unit] ?? 0))
    expect(waits).toEqual(RETRIES_MS)
  })
})

interface Frame {
  readonly event: string | undefined
  readonly id: string | undefined
  readonly data: string
}

/** Reads the frames of an event stream. Comments and `retry:` lines are skipped. */
async function framesOf(response: Response): Promise<Frame[]> {
  expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/)
  const field = (frame: string, name: string) => new RegExp(`^${name}: (.*)$`, 'm').exec(frame)?.[1]
  const frames = (await response.text()).split('\n\n').filter((frame) => /^data: /m.test(frame))
  return frames.map((frame) => ({
    event: field(frame, 'event'),
    id: field(frame, 'id'),
    data: field(frame, 'data') ?? '',
  }))
}

describe.skipIf(SANDBOX_MISSING !== undefined)('the documented event streams', () => {
  const STREAMS = rows(part('Streams over HTTP'))
  const messages = [{ role: 'user', content: 'How are webhooks signed?' }]
  const BODIES: Readonly<Record<string, object>> = {
    '/v1/chat/completions': { model: 'echo-1', messages },
    '/v1/completions': { model: 'echo-1', prompt: 'Hello there' },
    '/v1/messages': { model: 'echo-1', max_tokens: 50, messages },
    '/v1/responses': { model: 'echo-1', input: 'Hello there' },
    '/v1/tools/code': { lang: 'python', code: 'print(1)' },
    '/v1/deep-research': { model: 'deep-research', messages },
  }

  let stack: Stack
  let jobId: string
  beforeAll(async () => {
    stack = await startStack({
      models: [ECHO_MODEL, { id: 'deep-research', pool: 'research', engine: { type: 'research' } }],
      sandboxes: [{ name: 'zygote', load: () => testZygote() }],
    })
    const body = { model: 'echo-1', stream: true, messages }
    const job = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body })
    jobId = ((await job.json()) as { id: string }).id
    await stack.get(`/v1/jobs/${jobId}?wait=60`)
    // The sandbox becomes ready after the service, so the test waits until a code run succeeds.
    await until(async () => (await stack.post('/v1/tools/code', BODIES['/v1/tools/code'])).status !== 503)
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  async function open(path: string): Promise<Response> {
    const body = BODIES[path]
    if (body) return await stack.post(path, { ...body, stream: true })
    if (path !== '/v1/audio/transcriptions') return await stack.get(path.replace('{id}', jobId))
    await using speech = await startTranscriptions()
    const form = new FormData()
    form.set('file', new Blob([new Uint8Array(wav(1))]), 'speech.wav')
    for (const [name, value] of Object.entries({ model: SPEECH, stream: 'true' })) form.set(name, value)
    const response = await speech.upload(form)
    return new Response(await response.text(), response)
  }

  it.each(STREAMS)(
    'send the events that the row %s documents (with the field event: %s, with the field id: %s)',
    async (stream = '', event, id, order = '', last = '') => {
      const path = ticked(stream)[0] ?? ''
      const frames = await framesOf(await open(path))
      expect(
        frames.every((frame) => (frame.event !== undefined) === (event === 'yes' && frame.data !== '[DONE]')),
      ).toBe(true)
      expect(frames.every((frame) => (frame.id !== undefined) === (id === 'yes'))).toBe(true)

      const objects = frames.flatMap(({ data }) => (data === '[DONE]' ? [] : [JSON.parse(data)]))
      for (const [at, { type }] of objects.entries()) if (event === 'yes') expect(frames[at]?.event).toBe(type)
      const names: string[] = objects.map(({ type, object }) => type ?? object)
      expect(frames.at(-1)?.data === '[DONE]').toBe(last === '`[DONE]`')
      if (path === '/v1/jobs/{id}/events') {
        expect(frames.map((frame) => Number(frame.id))).toEqual(frames.map((_, i) => i + 1))
        return expect(names.at(-1)).toBe('job.completed')
      }
      if (last !== '`[DONE]`') expect(names.at(-1)).toBe(ticked(last)[0])

      const expected = ticked(order).filter((word) => names.includes(word))
      expect(expected.length).toBeGreaterThan(0)
      expect([...new Set(names)].filter((name) => expected.includes(name))).toEqual(expected)
    },
  )

  it('resume after the given event position as documented', async () => {
    const events = `/v1/jobs/${jobId}/events`
    const all = await framesOf(await stack.get(events))
    const rest = all.slice(2)
    expect(await framesOf(await stack.get(`${events}?starting_after=2`))).toEqual(rest)
    const headers = { 'last-event-id': '2' }
    expect(await framesOf(await stack.get(`${events}?starting_after=1`, { headers }))).toEqual(rest)
    expect((await stack.get(`${events}?starting_after=${all.length}`)).status).toBe(204)
    expect(await (await stack.get(events)).text()).toMatch(/^retry: 3000\n\n/)

    const body = { model: 'echo-1', messages, run_at: undefined }
    const run_at = Math.floor(Date.now() / 1000) + 3_600
    const later = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body, run_at })
    const { id } = (await later.json()) as { id: string }
    expect((await stack.get(`/v1/jobs/${id}/events?starting_after=99`)).status).toBe(400)

    const background = { model: 'echo-1', input: 'Hello there', background: true, stream: true }
    const streamed = await framesOf(await stack.post('/v1/responses', background))
    const created = JSON.parse(streamed[0]?.data ?? '{}')
    const again = await stack.get(
      `/v1/responses/${created.response.id}?stream=true&starting_after=${created.sequence_number}`,
    )
    expect((await framesOf(again)).map(({ data }) => data)).toEqual(streamed.slice(1).map(({ data }) => data))
  })
})
