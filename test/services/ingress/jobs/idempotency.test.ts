/*
 * Tests of idempotency keys: all requests with one key belong to one job (docs/internals/protocol.md, Idempotency). A client repeats a
 * request if it did not get the response, and then gets the outcome of the first request.
 */

import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import { describe, expect, inject, it, test } from 'vitest'
import { idempotencyOf } from '#services/ingress/calls/job-options.ts'
import { newId } from '#shared/lib/id.ts'
import {
  CHAT,
  COUNT,
  describeJobs,
  errorOf,
  jobOf,
  MESSAGES,
  OTHER_KEY,
  type Service,
  say,
  startService,
} from '../../../support/jobs/api.ts'
import { until } from '../../../support/stack.ts'

const keyed = (key = newId('k')) => ({ headers: { 'idempotency-key': key } })
const FUTURE = () => Math.floor(Date.now() / 1_000) + 3_600

describeJobs(
  'idempotency of submissions',
  { kafka: inject('kafka'), postgres: inject('postgres') },
  (service, start) => {
    const forms = [CHAT, MESSAGES].flatMap((path) => [false, true].map((stream) => ({ path, stream })))
    test.each(forms)(
      'an Idempotency-Key returns the first response of $path for a repeated request, stream $stream',
      async ({ path, stream }) => {
        const init = keyed()
        const body = say('one two three', { stream, max_tokens: 50 })
        const first = await service.post(path, body, init)
        const answer = await first.text()
        const again = await service.post(path, body, init)
        expect(first.headers.get('idempotency-replayed')).toBeNull()
        expect(again.headers.get('idempotency-replayed')).toBe('true')
        expect(again.headers.get('x-job-id')).toBe(first.headers.get('x-job-id'))
        expect([again.status, again.headers.get('content-type')]).toEqual([200, first.headers.get('content-type')])
        expect(sound(await again.text())).toEqual(sound(answer))
      },
    )

    it('an Idempotency-Key returns the first token count for a repeated request', async () => {
      const init = keyed()
      const first = await (await service.post(COUNT, say('one two three'), init)).json()
      const again = await service.post(COUNT, say('one two three'), init)
      expect([await again.json(), again.headers.get('idempotency-replayed')]).toEqual([first, 'true'])
    })

    it('an Idempotency-Key matches a repeated request whose JSON keys are in another order', async () => {
      const key = newId('k')
      const first = await service.post(
        CHAT,
        { model: 'echo-1', messages: [{ role: 'user', content: 'x' }] },
        keyed(key),
      )
      const other = { messages: [{ content: 'x', role: 'user' }], model: 'echo-1' }
      const again = await service.post(CHAT, other, keyed(`"${key}"`))
      expect(await again.json()).toEqual(await first.json())
      expect(again.headers.get('idempotency-replayed')).toBe('true')
    })

    it('an Idempotency-Key matches a repeated request with null instead of an absent field', async () => {
      const webhook = { url: 'https://example.com/hook' }
      const plain = { endpoint: CHAT, body: say('x'), webhook }
      const nulls = { metadata: null, priority: null, run_at: null, parent_id: null, expires_after_seconds: null }
      const body = say('x', { temperature: null, user: null, tools: null })
      const init = keyed()
      const first = await jobOf(await service.post('/v1/jobs', plain, init))
      const asked = { ...plain, ...nulls, body, webhook: { ...webhook, events: null } }
      const again = await service.post('/v1/jobs', asked, init)
      expect([again.status, (await jobOf(again)).id]).toEqual([202, first.id])
      const direct = keyed()
      expect((await service.post(CHAT, say('x'), direct)).status).toBe(200)
      const replayed = await service.post(CHAT, body, direct)
      expect([replayed.status, replayed.headers.get('idempotency-replayed')]).toEqual([200, 'true'])
    })

    it('an Idempotency-Key distinguishes null from an absent field inside a JSON Schema', async () => {
      const init = keyed()
      const tools = (constant: object) => [{ type: 'function', function: { name: 'f', parameters: constant } }]
      expect((await service.post(CHAT, say('x', { tools: tools({ const: null }) }), init)).status).toBe(200)
      expect((await service.post(CHAT, say('x', { tools: tools({}) }), init)).status).toBe(422)
    })

    test.each([
      ['another text', say('y')],
      ['one more field', say('x', { temperature: 1 })],
      ['messages in another order', { ...say('x'), messages: [...say('a').messages, ...say('x').messages].reverse() }],
    ])('an Idempotency-Key refuses a different request with 422: %s', async (_name, body) => {
      const init = keyed()
      const first = await service.post(CHAT, say('x'), init)
      const other = await service.post(CHAT, body, init)
      expect([first.status, other.status]).toEqual([200, 422])
      expect(await errorOf(other)).toMatchObject({
        ...{ type: 'invalid_request_error', code: 'idempotency_key_reused', param: 'Idempotency-Key' },
      })
      expect((await service.post(CHAT, say('x'), init)).headers.get('idempotency-replayed')).toBe('true')
    })

    test.each([false, true])(
      'an Idempotency-Key returns 409 while the first request is in progress, stream %s',
      async (stream) => {
        const init = keyed()
        const body = say('!echo first_ms=500\nslow', { stream, metadata: { is: `slow ${stream}` } })
        const first = service.post(CHAT, body, init)
        await until(async () => (await (await service.get('/v1/jobs')).text()).includes(`slow ${stream}`))
        const second = await service.post(CHAT, body, init)
        expect(second.status).toBe(409)
        expect(second.headers.get('retry-after')).toBe('2')
        expect(second.headers.get('x-should-retry')).toBe('true')
        expect(await errorOf(second)).toMatchObject({ type: 'invalid_request_error', code: 'idempotency_key_in_use' })
        expect(await (await first).text()).toContain('slow')
        expect((await service.post(CHAT, body, init)).headers.get('idempotency-replayed')).toBe('true')
      },
    )

    it('an Idempotency-Key creates one job for 30 concurrent submissions', async () => {
      const init = keyed()
      const submission = { endpoint: CHAT, body: say('x', { metadata: { of: 'many' } }) }
      const responses = await Promise.all(Array.from({ length: 30 }, () => service.post('/v1/jobs', submission, init)))
      const jobs = await Promise.all(responses.map(jobOf))
      expect(new Set(responses.map(({ status }) => status))).toEqual(new Set([202]))
      expect(new Set(jobs.map(({ id }) => id)).size).toBe(1)
      expect(responses.filter(({ headers }) => headers.get('idempotency-replayed') === null)).toHaveLength(1)
      expect(await service.ended(jobs[0]?.id ?? '')).toMatchObject({ status: 'completed', attempt: 1 })
    })

    it('an Idempotency-Key creates one job for 20 concurrent calls', async () => {
      const init = keyed()
      const calls = Array.from({ length: 20 }, () => service.post(CHAT, say('!echo first_ms=50\nonce'), init))
      const responses = await Promise.all(calls)
      const ids = new Set(
        responses.filter(({ status }) => status === 200).map(({ headers }) => headers.get('x-job-id')),
      )
      expect(responses.every(({ status }) => status === 200 || status === 409)).toBe(true)
      expect(ids.size).toBe(1)
    })

    it('an Idempotency-Key can be used again after a retryable error', async () => {
      const init = keyed()
      const failing = say('!echo fail=upstream_refused')
      const first = await service.post(CHAT, failing, init)
      const again = await service.post(CHAT, failing, init)
      expect([first.status, again.status]).toEqual([502, 502])
      expect(again.headers.get('idempotency-replayed')).toBeNull()
      const [before, after] = [first, again].map(({ headers }) => headers.get('x-job-id'))
      expect(after).not.toBe(before)
    })

    it('an Idempotency-Key returns the stored error if the request itself caused the error', async () => {
      const init = keyed()
      const refused = say('!echo fail=context_length_exceeded')
      const first = await service.post(CHAT, refused, init)
      const again = await service.post(CHAT, refused, init)
      expect([first.status, again.status]).toEqual([400, 400])
      expect(again.headers.get('idempotency-replayed')).toBe('true')
      expect(await errorOf(again)).toEqual(await errorOf(first))
    })

    it('an Idempotency-Key returns its job after the job has failed or was cancelled', async () => {
      const failed = await submitTwice(service, { endpoint: CHAT, body: say('!echo fail=upstream_refused') })
      expect(failed.again).toMatchObject({ id: failed.first.id, status: 'failed' })
      const body = say('!echo fail=upstream_refused')
      const init = { headers: { ...keyed().headers, prefer: 'respond-async' } }
      const accepted = await jobOf(await service.post(CHAT, body, init))
      await service.ended(accepted.id)
      expect(await jobOf(await service.post(CHAT, body, init))).toMatchObject({ id: accepted.id, status: 'failed' })
    })

    it('an Idempotency-Key cannot be used again after its job was deleted', async () => {
      const [init, other] = [keyed(), keyed()]
      const first = await service.post(CHAT, say('x'), init)
      const submission = { endpoint: CHAT, body: say('x') }
      const { id } = await jobOf(await service.post('/v1/jobs', submission, other))
      await service.ended(id)
      for (const each of [id, first.headers.get('x-job-id')]) await service.call('DELETE', `/v1/jobs/${each}`)
      for (const again of [
        await service.post(CHAT, say('x'), init),
        await service.post('/v1/jobs', submission, other),
      ]) {
        expect(again.status).toBe(410)
        expect(await errorOf(again)).toMatchObject({ code: 'result_expired', param: 'Idempotency-Key' })
      }
    })

    it('an Idempotency-Key can be used again after a request that created no job', async () => {
      const init = keyed()
      expect((await service.post(CHAT, say('x', { temperature: 9 }), init)).status).toBe(400)
      expect((await service.post(CHAT, say('x'), init)).status).toBe(200)
    })

    it('an Idempotency-Key creates a separate job for each path', async () => {
      const init = keyed()
      const ids = []
      for (const [path, body] of [
        [CHAT, say('x')],
        [MESSAGES, say('x', { max_tokens: 5 })],
        [COUNT, say('x')],
      ] as const) {
        const response = await service.post(path, body, init)
        expect(response.headers.get('idempotency-replayed')).toBeNull()
        ids.push(response.headers.get('x-job-id'))
      }
      ids.push((await service.submit(say('x'), {}, init)).id)
      expect(new Set(ids).size).toBe(4)
    })

    test.each([
      ['empty', ''],
      ['a pair of quotes without content', '""'],
      ['longer than the maximum', 'k'.repeat(256)],
      ['a text with a space', 'a b'],
      ['a text with a tab', 'a\tb'],
      ['a text with a Latin-1 character', 'ké'],
    ])('an Idempotency-Key is refused if it is %s', async (_name, key) => {
      for (const [path, body] of [
        [CHAT, say('x')],
        ['/v1/jobs', { endpoint: CHAT, body: say('x') }],
      ] as const) {
        const response = await service.post(path, body, keyed(key))
        expect([path, response.status]).toEqual([path, 400])
        expect(await errorOf(response)).toMatchObject({ type: 'invalid_request_error', param: 'Idempotency-Key' })
      }
    })

    test.each([
      'k',
      'k'.repeat(255),
      '"',
      '""quoted""',
      "'; DROP TABLE jobs; --".replaceAll(' ', '_'),
      '__proto__',
      '%00',
    ])('an Idempotency-Key may have the value %.40s', async (key) => {
      const body = say(`for ${newId('')}`)
      const first = await service.post(COUNT, body, keyed(key))
      const again = await service.post(COUNT, body, keyed(key))
      expect([first.status, again.headers.get('idempotency-replayed')]).toEqual([200, 'true'])
    })

    it('an Idempotency-Key creates one job for submissions to two ingresses', async () => {
      await using two = await start({ replicas: 2 })
      const init = keyed()
      const calls = Array.from({ length: 20 }, (_, i) => {
        return two.post('/v1/jobs', { endpoint: CHAT, body: say('x') }, { ...init, replica: i % 2 })
      })
      const ids = (await Promise.all((await Promise.all(calls)).map(jobOf))).map(({ id }) => id)
      expect(new Set(ids).size).toBe(1)
      await two.ended(ids[0] ?? '')
    })
  },
)

describe('an Idempotency-Key of two API keys', () => {
  it('creates a job for each API key', async () => {
    await using service = await startService()
    const init = keyed()
    const mine = await service.submit(say('x'), {}, init)
    const theirs = await service.submit(say('y'), {}, { ...init, key: OTHER_KEY })
    expect(theirs.id).not.toBe(mine.id)
    expect((await service.get(`/v1/jobs/${theirs.id}`)).status).toBe(404)
  })
})

describe('the Idempotency-Key of a cancelled job', () => {
  it('returns the cancelled job instead of a new job', async () => {
    await using service = await startService()
    const init = keyed()
    const submission = { endpoint: CHAT, body: say('x'), run_at: FUTURE() }
    const { id } = await jobOf(await service.post('/v1/jobs', submission, init))
    await service.post(`/v1/jobs/${id}/cancel`, {})
    expect(await jobOf(await service.post('/v1/jobs', submission, init))).toMatchObject({ id, status: 'cancelled' })

    const call = keyed()
    const slow = service.post(CHAT, say('!echo first_ms=60000\nx'), call)
    const running = await until(async () => {
      const list = await (await service.get('/v1/jobs?status=in_progress')).json()
      return (list as { data: { id: string }[] }).data[0]
    })
    await service.post(`/v1/jobs/${running.id}/cancel`, {})
    expect([(await slow).status, (await slow).headers.get('x-should-retry')]).toEqual([409, 'false'])
    const again = await service.post(CHAT, say('!echo first_ms=60000\nx'), call)
    expect([again.status, (await errorOf(again)).code]).toEqual([409, 'job_cancelled'])
  })
})

describe('the fingerprint of a request', () => {
  const path = { method: 'POST', path: CHAT }
  const fingerprint = async (body: unknown) => (await idempotencyOf('k', path, body))?.fingerprint

  it('is equal for equal JSON, whatever the order of keys', async () => {
    await fc.assert(
      fc.asyncProperty(fc.jsonValue(), async (body) => {
        const own = await fingerprint(body)
        expect(await fingerprint(reversed(body))).toBe(own)
        expect(await fingerprint(JSON.parse(JSON.stringify(body, undefined, 3)))).toBe(own)
      }),
    )
  })

  it('differs for different JSON', async () => {
    await fc.assert(
      fc.asyncProperty(fc.jsonValue(), fc.jsonValue(), async (one, other) => {
        const isSame = isDeepStrictEqual(JSON.parse(JSON.stringify(one)), JSON.parse(JSON.stringify(other)))
        expect((await fingerprint(one)) === (await fingerprint(other))).toBe(isSame)
      }),
    )
    expect(await fingerprint({ a: [1, 2] })).not.toBe(await fingerprint({ a: [2, 1] }))
    expect(await fingerprint({ a: { b: 1 } })).not.toBe(await fingerprint({ a: {}, b: 1 }))
  })
})

/** Returns an equal JSON value in which the keys of every object are in reverse order. */
function reversed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reversed)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([key, inner]) => [key, reversed(inner)]),
  )
}

/** Submits a job with an idempotency key, waits for its end, and repeats the submission with the same key. */
async function submitTwice(service: Service, submission: object) {
  const init = keyed()
  const first = await jobOf(await service.post('/v1/jobs', submission, init))
  await service.ended(first.id)
  const response = await service.post('/v1/jobs', submission, init)
  expect([response.status, response.headers.get('idempotency-replayed')]).toEqual([202, 'true'])
  return { first, again: await jobOf(response) }
}

/**
 * Returns the part of a response that a replay must repeat exactly. For a stream, this is the joined text and the last frame, because a
 * replay may divide the text into other frames.
 */
function sound(text: string): unknown {
  const frames = text.split('\n').filter((line) => line.startsWith('data: '))
  if (frames.length === 0) return text
  const pattern = /"(?:content|text)":"([^"]*)"/g
  return { said: [...text.matchAll(pattern)].map(([, said]) => said).join(''), last: frames.at(-1) }
}
