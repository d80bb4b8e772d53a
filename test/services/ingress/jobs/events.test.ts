/*
 * Tests of the event stream of a job (docs/guides/jobs.md, Follow it). Events are numbered without gaps, and the last one reports the end
 * of the job. A client can resume the stream after any event, at any replica.
 */

import { afterEach, describe, expect, inject, it, test, vi } from 'vitest'
import {
  CHAT,
  describeJobs,
  jobOf,
  MESSAGES,
  readEvents,
  type Service,
  say,
  startService,
  textOf,
  type WireEvent,
  withoutPosition,
} from '../../../support/jobs/api.ts'
import { openRaw, rawRequest } from '../../../support/raw-http.ts'
import { TEST_KEY, until } from '../../../support/stack.ts'

const FUTURE = () => Math.floor(Date.now() / 1_000) + 3_600
/**
 * Request of a job with a few hundred events over some seconds. The events of tool calls are never merged, so their number does not depend
 * on timing.
 */
const MANY = say('!echo call=look calls=100 delay_ms=40 args="{}"', { max_tokens: 100_000, stream: true })

afterEach(() => {
  vi.useRealTimers()
})

describeJobs('the event API of a job', { kafka: inject('kafka'), postgres: inject('postgres') }, (service, start) => {
  it('an event stream has all events of its job, numbered from 1, and ends with the job object', async () => {
    const { id } = await service.submit(say('one two', { stream: true }))
    const response = await service.get(`/v1/jobs/${id}/events`)
    expect(response.status).toBe(200)
    expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8')
    expect(response.headers.get('cache-control')).toBe('no-cache, no-transform')
    expect(response.headers.get('x-accel-buffering')).toBe('no')
    const events = await readEvents(response)
    expectWhole(events)
    expect(events.every((event) => event.job_id === id && Number.isInteger(event.created_at))).toBe(true)
    expect(events[0]).toMatchObject({ type: 'job.queued', queue: { pool: 'inference' } })
    // The position in the queue is null if the job had already started when this event was sent.
    const { position } = (events[0] as { queue?: { position?: unknown } }).queue ?? {}
    expect(position === null || Number.isInteger(position)).toBe(true)
    expect(events[1]).toMatchObject({ type: 'job.started', attempt: 1 })
    expect(events.slice(2, -1).every(({ type }) => type === 'job.output.delta')).toBe(true)
    expect(textOf(events)).toBe('one two')
    expect(events.at(-1)).toEqual({
      type: 'job.completed',
      sequence_number: events.length,
      job_id: id,
      created_at: expect.any(Number),
      job: await service.job(id),
    })
  })

  it('an event stream begins with the reconnect delay', async () => {
    const { id } = await service.submit(say('x'))
    await service.ended(id)
    expect(await (await service.get(`/v1/jobs/${id}/events`)).text()).toMatch(
      /^retry: 3000\n\nid: 1\nevent: job.queued\n/,
    )
  })

  it.each([CHAT, MESSAGES])('an event stream has exactly the chunks of a synchronous stream of %s', async (path) => {
    const body = say('one two three', { stream: true, max_tokens: 50, stream_options: { include_usage: true } })
    const plain = await (await service.post(path, body)).text()
    const { id } = await service.submit(body, { endpoint: path })
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events`))
    const chunks = events.filter(({ type }) => type === 'job.output.delta').map(({ chunk }) => chunk as object)
    const said = plain.split('\n').filter((line) => line.startsWith('data: {'))
    // Only the order of the kinds of chunks is compared, because the number of words per chunk depends on timing.
    expect(kindsOf(chunks)).toEqual(kindsOf(said.map((line) => JSON.parse(line.slice('data: '.length)) as object)))
  })

  it('an event stream has no output events if the job was submitted without streaming', async () => {
    const { id } = await service.submit(say('one two'))
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events`))
    expect(events.map(({ type }) => type)).toEqual(['job.queued', 'job.started', 'job.completed'])
    expect(events.at(-1)?.job?.result).toMatchObject({ choices: [{ message: { content: 'one two' } }] })
  })

  it('an event stream sends each event as soon as the event is stored', async () => {
    const { id } = await service.submit(say('!echo tokens=1000 delay_ms=1000', { stream: true }))
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events`), (read) => textOf(read) !== '')
    expect(events.slice(0, 2).map(({ type }) => type)).toEqual(['job.queued', 'job.started'])
    await service.post(`/v1/jobs/${id}/cancel`, {})
    const rest = await readEvents(await service.get(`/v1/jobs/${id}/events?starting_after=${events.length}`))
    expectWhole([...events, ...rest])
    expect(rest.slice(-2).map(({ type }) => type)).toEqual(['job.cancelling', 'job.cancelled'])
  })

  it('an event stream resumes after a position, or returns 204 if no event follows', async () => {
    const { id } = await service.submit(say('one two', { stream: true }))
    const all = await readEvents(await service.get(`/v1/jobs/${id}/events`))
    for (let after = 0; after < all.length; after++) {
      const byQuery = await readEvents(await service.get(`/v1/jobs/${id}/events?starting_after=${after}`))
      const byHeader = await readEvents(await service.get(`/v1/jobs/${id}/events`, lastEventId(after)))
      expect([withoutPosition(byQuery), withoutPosition(byHeader)]).toEqual([
        withoutPosition(all.slice(after)),
        withoutPosition(all.slice(after)),
      ])
    }
    for (const after of [all.length, all.length + 1, 1_000_000]) {
      const response = await service.get(`/v1/jobs/${id}/events`, lastEventId(after))
      expect([after, response.status, await response.text()]).toEqual([after, 204, ''])
      expect((await service.get(`/v1/jobs/${id}/events?starting_after=${after}`)).status).toBe(204)
    }
  })

  it('an event stream starts after Last-Event-ID, even if starting_after is also given', async () => {
    const { id } = await service.submit(say('x'))
    await service.ended(id)
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events?starting_after=0`, lastEventId(2)))
    expect(events.map((event) => event.sequence_number)).toEqual([3])
    const empty = { headers: { 'last-event-id': '' } }
    const more = await readEvents(await service.get(`/v1/jobs/${id}/events?starting_after=1`, empty))
    expect(more.map((event) => event.sequence_number)).toEqual([2, 3])
  })

  it('an event stream contains an output reset if a job with streamed output is retried', async () => {
    const script = '!echo fail=upstream_error after=2 failures=1 delay_ms=60\none two three four'
    const { id } = await service.submit(say(script, { stream: true }))
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events`))
    expectWhole(events)
    const retry = events.findIndex(({ type }) => type === 'job.retrying')
    expect(events[retry]).toMatchObject({ attempt: 1, output_reset: true, delay_ms: expect.any(Number) })
    expect(events[retry]?.reason).toBeTruthy()
    expect(textOf(events.slice(0, retry))).toContain('one')
    expect(textOf(events.slice(retry))).toBe('one two three four')
    expect(events.filter(({ type }) => type === 'job.started').map(({ attempt }) => attempt)).toEqual([1, 2])
    expect(events.at(-1)?.job).toMatchObject({ status: 'completed', attempt: 2 })
  })

  it('an event stream contains no output reset if a job without output is retried', async () => {
    const { id } = await service.submit(say('!echo fail=upstream_error failures=1\nx', { stream: true }))
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events`))
    const retry = events.find(({ type }) => type === 'job.retrying')
    expect(retry?.attempt).toBe(1)
    expect(retry?.output_reset).not.toBe(true)
  })

  test.each([
    ['failed', { body: say('!echo fail=upstream_refused') }, ''],
    ['cancelled', { body: say('x'), run_at: FUTURE() }, 'cancel'],
  ])('an event stream ends with job.%s and the job object', async (status, more, verb) => {
    const { id } = await service.submit(more.body, more)
    const reading = service.get(`/v1/jobs/${id}/events`).then((response) => readEvents(response))
    if (verb) await service.post(`/v1/jobs/${id}/${verb}`, {})
    const events = await reading
    expectWhole(events)
    expect(events.at(-1)).toMatchObject({ type: `job.${status}`, job: { id, status, result: null } })
  })

  it('an event stream of a scheduled job sends events as soon as the job runs', async () => {
    const { id } = await service.submit(say('x', { stream: true }), { run_at: Math.floor(Date.now() / 1_000) + 1 })
    const events = await readEvents(await service.get(`/v1/jobs/${id}/events`))
    expectWhole(events)
    expect(events.at(-1)?.type).toBe('job.completed')
  })

  it('a request for the event stream of a deleted job gets 404', async () => {
    const { id } = await service.submit(say('x'), { run_at: FUTURE() })
    await service.post(`/v1/jobs/${id}/cancel`, {})
    await service.call('DELETE', `/v1/jobs/${id}`)
    expect((await service.get(`/v1/jobs/${id}/events`, lastEventId(1))).status).toBe(404)
  })

  it('an event stream has each event once if its client switches to another ingress after any event', {
    timeout: 60_000,
  }, async () => {
    await using two = await start({ replicas: 2 })
    const { id } = await two.submit(MANY)
    // Client n leaves the first replica after n events, while the job runs, and continues on the second replica.
    const clients = Array.from({ length: 202 }, (_, cut) => readWithCut(two, id, cut))
    const whole = await readEvents(await two.get(`/v1/jobs/${id}/events`))
    expectWhole(whole)
    expect(whole.length).toBeGreaterThanOrEqual(202)
    const whileRunning = (await Promise.all(clients)).filter(({ status }) => status === 'in_progress')
    expect(whileRunning.length).toBeGreaterThan(100)
    for (const [cut, client] of clients.entries()) {
      const { before, after } = await client
      expect([cut, before.length]).toEqual([cut, cut])
      expect([cut, withoutPosition([...before, ...after])]).toEqual([cut, withoutPosition(whole)])
    }
  })

  it('an event stream can be read from any of 200 positions on each ingress', { timeout: 60_000 }, async () => {
    await using two = await start({ replicas: 2 })
    const { id } = await two.submit(say('!echo call=look calls=100 args="{}"', { max_tokens: 100_000, stream: true }))
    const whole = await readEvents(await two.get(`/v1/jobs/${id}/events`))
    expect(whole.length).toBeGreaterThanOrEqual(202)
    for (let after = 0; after < whole.length; after++) {
      const response = await two.get(`/v1/jobs/${id}/events`, { ...lastEventId(after), replica: after % 2 })
      expect([after, withoutPosition(await readEvents(response))]).toEqual([after, withoutPosition(whole.slice(after))])
    }
  })
})

describe('an open event stream', () => {
  it('sends comments as heartbeats while there are no events', async () => {
    await using service = await startService()
    const { id } = await service.submit(say('x'), { run_at: FUTURE() })
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
    using client = await openRaw(service.urls[0] ?? '')
    client.send(rawRequest(`GET /v1/jobs/${id}/events`, [`authorization: Bearer ${TEST_KEY}`]))
    await until(() => client.received.includes('event: job.queued'))
    expect(client.received).not.toContain('\n: keep-alive')
    vi.advanceTimersByTime(15_000)
    await until(() => client.received.endsWith('\n: keep-alive\n\n\r\n'))
    vi.advanceTimersByTime(15_000)
    await until(() => client.received.split('\n: keep-alive\n\n').length === 3)
  })

  it('ends without a final event when its ingress stops', async () => {
    const service = await startService()
    const { id } = await service.submit(say('x'), { run_at: FUTURE() })
    const reading = service.get(`/v1/jobs/${id}/events`).then((response) => readEvents(response))
    await until(async () => (await jobOf(await service.get(`/v1/jobs/${id}`))).status === 'queued')
    await service[Symbol.asyncDispose]()
    expect((await reading).map(({ type }) => type)).toEqual(['job.queued'])
  })
})

const lastEventId = (after: number) => ({ headers: { 'last-event-id': String(after) } })

/** Checks that events are numbered from 1 without gaps and end with one terminal event. */
function expectWhole(events: readonly WireEvent[]): void {
  expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, i) => i + 1))
  const ends = events.map(({ type }) => /^job\.(completed|failed|cancelled|expired)$/.test(type))
  expect(ends.indexOf(true)).toBe(events.length - 1)
}

/** Reads the first `cut` events from one replica, and the rest from another. `status` is the status of the job between the two reads. */
async function readWithCut(service: Service, id: string, cut: number) {
  const leave = new AbortController()
  const first = await service.get(`/v1/jobs/${id}/events`, { signal: leave.signal })
  const before = cut === 0 ? [] : await readEvents(first, (events) => events.length === cut)
  leave.abort()
  const { status } = await service.job(id)
  const after = await readEvents(await service.get(`/v1/jobs/${id}/events`, { ...lastEventId(cut), replica: 1 }))
  return { before, status, after }
}

/** Returns the kind of each chunk in order, without adjacent duplicates. The kind consists of the fields of the chunk, without its text. */
function kindsOf(chunks: readonly object[]): string[] {
  const kinds = chunks.map((chunk) => {
    const { type, choices, usage } = chunk as {
      type?: string
      choices?: { delta: object; finish_reason: unknown }[]
      usage?: object
    }
    const choice = choices?.[0]
    return type ?? JSON.stringify([Object.keys(choice?.delta ?? {}), choice?.finish_reason, usage != null])
  })
  return kinds.filter((kind, i) => kind !== kinds[i - 1])
}
