/*
 * Tests of hostile or broken requests to the jobs API, of the isolation between projects, and of errors while the store is down or absent.
 */

import { createHash } from 'node:crypto'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, inject, it, onTestFinished, test } from 'vitest'
import { newJobId } from '#shared/store/jobs.ts'
import {
  CHAT,
  describeJobs,
  errorOf,
  jobOf,
  MESSAGES,
  OTHER_KEY,
  readEvents,
  type Service,
  say,
  startService,
  switchedStore,
} from '../../../support/jobs/api.ts'
import { openRaw, rawRequest } from '../../../support/raw-http.ts'
import { TEST_KEY, until } from '../../../support/stack.ts'

const ASYNC = { headers: { prefer: 'respond-async' } }
const FUTURE = () => Math.floor(Date.now() / 1_000) + 3_600
const DAY = 24 * 3_600

/** Returns the method and path of every request on one job. */
const actionsOn = (id: string): [method: string, path: string][] => [
  ...['', '/result', '/events', '?wait=1', '/events?starting_after=1'].map((end): [string, string] => [
    'GET',
    `/v1/jobs/${id}${end}`,
  ]),
  ...['cancel', 'redrive'].map((verb): [string, string] => ['POST', `/v1/jobs/${id}/${verb}`]),
  ['DELETE', `/v1/jobs/${id}`],
]

describeJobs(
  'validation of job requests',
  { kafka: inject('kafka'), postgres: inject('postgres') },
  (service, start) => {
    const submission = (more: object) => ({ endpoint: CHAT, body: say('x'), ...more })

    test.each([
      ['unknown', newJobId()],
      ['unknown, with a time in the future', newJobId(Date.now() + 365 * DAY * 1_000)],
      ['unknown, with the time 0', newJobId(0)],
      ['of an attached job', `job_${'a'.repeat(24)}`],
      ['in lower case', newJobId().toLowerCase()],
      ['without the form of a job id', 'x'],
      ['only the prefix', 'job_'],
      ['very long', `job_${'0'.repeat(8_000)}`],
      ['a relative path', encodeURIComponent('../../etc/passwd')],
      ['SQL', encodeURIComponent("job_' OR '1'='1")],
      ['NUL', 'job_%00%00%00%00%00%00%00%00%00'],
      ['with a line break', 'job_000000000000%0d%0aX-Evil:1'],
      ['with an incomplete percent escape', 'job_%E0%A4%A'],
      ['in full-width digits', encodeURIComponent('job_０００００００００００')],
      ['with a wildcard', encodeURIComponent('job_%')],
      ['__proto__', '__proto__'],
    ])('a job id is refused with 404 if it is %s', async (_name, id) => {
      for (const [method, path] of actionsOn(id)) {
        const response = await service.call(method, path)
        expect([path.slice(0, 100), response.status]).toEqual([path.slice(0, 100), 404])
        const error = await errorOf(response)
        expect(error.type).toBe('invalid_request_error')
        expect(String(error.message).length).toBeLessThan(200)
      }
    })

    test.each([
      ['/v1/jobs', 'run_at', { endpoint: CHAT, body: say('x'), run_at: 0 }],
      ['/v1/jobs', 'expires_after_seconds', { endpoint: CHAT, body: say('x'), expires_after_seconds: 0 }],
      [CHAT, 'temperature', say('x', { temperature: 0 })],
      [CHAT, 'max_tokens', say('x', { max_tokens: 0 })],
      [CHAT, 'seed', say('x', { seed: 0 })],
      [CHAT, 'logit_bias.1', say('x', { logit_bias: { 1: 0 } })],
      [MESSAGES, 'max_tokens', { ...say('x'), max_tokens: 0 }],
      ['/v1/embeddings', 'dimensions', { model: 'echo-1', input: 'x', dimensions: 0 }],
      ['/v1/tools/code', 'timeout', { code: 'x', lang: 'python', timeout: 0 }],
    ])('a request to %s is refused with 400 if the value of %s is 1e400', async (path, field, body) => {
      const name = field.split('.').at(-1)
      for (const number of ['1e400', '-1e400']) {
        const text = JSON.stringify(body).replace(`"${name}":0`, `"${name}":${number}`)
        const response = await fetch(`${service.urls[0]}${path}`, {
          method: 'POST',
          headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' },
          body: text,
        })
        const error = await errorOf(response)
        expect([response.status, error.message]).toEqual([400, expect.stringMatching(/too large.*finite/)])
      }
    })

    it('a job whose deadline exceeds the maximum is refused with the maximum in the error', async () => {
      for (const expires_after_seconds of [DAY + 1, 7 * DAY, 1_000_000_000]) {
        const error = await errorOf(await service.post('/v1/jobs', submission({ expires_after_seconds })))
        const message = expect.stringContaining(`Expected a value <= ${DAY}, but got ${expires_after_seconds}`)
        expect(error).toMatchObject({ code: 'integer_above_max_value', param: 'expires_after_seconds', message })
      }
    })

    it('an error message about a job request never contains half of a surrogate pair', async () => {
      const long = `${'x'.repeat(63)}😀${'y'.repeat(200)}`
      const answers = [
        await service.get(`/v1/jobs/${encodeURIComponent(long)}`),
        await service.get(`/v1/files/${encodeURIComponent(long)}`),
        await service.get(`/v1/conversations/${encodeURIComponent(long)}`),
        await service.post('/v1/jobs', submission({ [long]: 1 })),
        await service.post('/v1/jobs', submission({ priority: long })),
      ]
      for (const response of answers) {
        const text = JSON.stringify(await response.json())
        expect([response.status, /\\ud[89a-f]|\ufffd/i.test(text), text.includes('xxx')]).toEqual([
          response.status,
          false,
          true,
        ])
      }
    })

    it('a percent-encoded job id is accepted, and an id with additional characters is not found', async () => {
      const { id } = await service.submit(say('x'), { run_at: FUTURE() })
      expect((await service.get(`/v1/jobs/${id.replace('_', '%5F')}`)).status).toBe(200)
      for (const other of [`${id}%20`, `%20${id}`, `${id}%00`, `${id}/`, `${id}%2Fresult`, id.toLowerCase()]) {
        expect([other, (await service.get(`/v1/jobs/${other}`)).status]).toEqual([other, 404])
      }
      await service.post(`/v1/jobs/${id}/cancel`, {})
    })

    test.each([
      'wait=-1',
      'wait=61',
      'wait=1.5',
      'wait=x',
      'wait=',
      'wait=1&wait=2',
      'wait[]=1',
      'wait=1e1',
      'wait=0x1',
      'wait=99999999999999999999',
      'wait=%00',
      'wait=%D9%A1',
    ])('a request for a job is refused with 400 for the query %s', async (query) => {
      const { id } = await service.submit(say('x'))
      const response = await service.get(`/v1/jobs/${id}?${query}`)
      // The query parameter `wait[…]` is not the parameter `wait`. The API ignores unknown parameters.
      if (query.startsWith('wait[')) return void expect(response.status).toBe(200)
      expect(response.status).toBe(400)
      expect(await errorOf(response)).toMatchObject({ code: 'invalid_value', param: 'wait' })
    })

    test.each([
      ['limit=0', 'integer_below_min_value', 'limit'],
      ['limit=101', 'integer_above_max_value', 'limit'],
      ['limit=-5', 'integer_below_min_value', 'limit'],
      ['limit=1.5', 'invalid_type', 'limit'],
      ['limit=x', 'invalid_type', 'limit'],
      ['limit=1&limit=2', 'invalid_type', 'limit'],
      ['limit=1e999', 'invalid_type', 'limit'],
      ['order=sideways', 'invalid_value', 'order'],
      ['order=asc&order=desc', 'invalid_value', 'order'],
      ['status=done', 'invalid_value', 'status'],
      ['status=', 'invalid_value', 'status'],
      ['status=queued,,failed', 'invalid_value', 'status'],
      ['status=__proto__', 'invalid_value', 'status'],
      ['status=waiting', 'invalid_value', 'status'],
      [`status=${'queued,'.repeat(1_000)}queued`, 'string_above_max_length', 'status'],
      ['endpoint=%00', 'invalid_value', 'endpoint'],
      [`endpoint=/v1/${'x'.repeat(300)}`, 'string_above_max_length', 'endpoint'],
      ['after=x', 'invalid_value', 'after'],
      ['after=', 'invalid_value', 'after'],
      ['after=%00', 'invalid_value', 'after'],
      ["after=job_00000000'--", 'invalid_value', 'after'],
      ['parent_id=x', 'invalid_value', 'parent_id'],
      [`parent_id=job_${'0'.repeat(100)}`, 'string_above_max_length', 'parent_id'],
    ])('a request for the job list is refused with 400 for the query %.60s', async (query, code, param) => {
      const response = await service.get(`/v1/jobs?${query}`)
      expect(response.status).toBe(400)
      expect(await errorOf(response)).toMatchObject({ code, param })
    })

    it('the job list is empty if its filter names an endpoint without jobs', async () => {
      for (const endpoint of ['/v1/nothing', '', '%ff', "'%20OR%201=1", '%25', '\u{1f600}']) {
        const response = await service.get(`/v1/jobs?endpoint=${endpoint}`)
        expect([endpoint, response.status]).toEqual([endpoint, 200])
        expect(await response.json()).toMatchObject({ data: [], has_more: false })
      }
    })

    it.each(['stat', '__proto__', 'constructor', 'toString'])(
      'a request for the job list is refused with 400 for the unknown query parameter %s',
      async (name) => {
        const response = await service.get(`/v1/jobs?limit=1&${name}=x`)
        expect([response.status, (await errorOf(response)).param]).toEqual([400, name])
      },
    )

    test.each([
      [{ endpoint: undefined }, 'missing_required_parameter', 'endpoint'],
      [{ endpoint: '/v1/models' }, 'invalid_value', 'endpoint'],
      [{ endpoint: '/v1/jobs' }, 'invalid_value', 'endpoint'],
      [{ endpoint: `${CHAT}/` }, 'invalid_value', 'endpoint'],
      [{ endpoint: '__proto__' }, 'invalid_value', 'endpoint'],
      [{ endpoint: 7 }, 'invalid_type', 'endpoint'],
      [{ body: undefined }, 'missing_required_parameter', 'body'],
      [{ body: null }, 'invalid_type', 'body'],
      [{ body: [say('x')] }, 'invalid_type', 'body'],
      [{ body: 'x' }, 'invalid_type', 'body'],
      [{ body: {} }, 'missing_required_parameter', 'body.model'],
      [
        { body: { model: 'echo-1', messages: [{ role: 'user' }] } },
        'missing_required_parameter',
        'body.messages[0].content',
      ],
      [{ body: say('x', { temperature: 5 }) }, 'decimal_above_max_value', 'body.temperature'],
      [{ body: say('x', { model: 'nope' }) }, 'model_not_found', 'body.model'],
      [{ endpoint: MESSAGES, body: say('x') }, 'missing_required_parameter', 'body.max_tokens'],
      [{ priorty: 'low' }, 'unsupported_parameter', 'priorty'],
      [{ webhook: { url: 'https://example.com/', secret: 'x' } }, 'unsupported_parameter', 'webhook.secret'],
      [{ priority: 'high' }, 'invalid_value', 'priority'],
      [{ priority: 1 }, 'invalid_value', 'priority'],
      [{ metadata: { a: 1 } }, 'invalid_type', 'metadata.a'],
      [{ metadata: ['a'] }, 'invalid_type', 'metadata'],
      [{ metadata: { ['k'.repeat(65)]: 'v' } }, 'string_above_max_length', `metadata.${'k'.repeat(65)}`],
      [{ metadata: { k: 'v'.repeat(513) } }, 'string_above_max_length', 'metadata.k'],
      [{ metadata: many(17) }, 'invalid_value', 'metadata'],
      [{ metadata: many(50_000) }, 'invalid_value', 'metadata'],
      [{ body: say('x', { metadata: many(17) }) }, 'invalid_value', 'body.metadata'],
      [{ expires_after_seconds: 0 }, 'integer_below_min_value', 'expires_after_seconds'],
      [{ expires_after_seconds: 1.5 }, 'invalid_type', 'expires_after_seconds'],
      [{ expires_after_seconds: 8 * DAY }, 'integer_above_max_value', 'expires_after_seconds'],
      [{ expires_after_seconds: 2 * DAY }, 'integer_above_max_value', 'expires_after_seconds'],
      [{ expires_after_seconds: 1e300 }, 'integer_above_max_value', 'expires_after_seconds'],
      [{ start_within_seconds: -1 }, 'integer_below_min_value', 'start_within_seconds'],
      [{ start_within_seconds: '5' }, 'invalid_type', 'start_within_seconds'],
      [{ run_at: -1 }, 'integer_below_min_value', 'run_at'],
      [{ run_at: 'tomorrow' }, 'invalid_type', 'run_at'],
      [{ run_at: Date.now() }, 'invalid_value', 'run_at'],
      [{ run_at: Number.MAX_SAFE_INTEGER }, 'invalid_value', 'run_at'],
      [{ run_at: 1e300 }, 'integer_above_max_value', 'run_at'],
      [{ run_at: Math.floor(Date.now() / 1_000) + 8 * DAY }, 'invalid_value', 'run_at'],
      [{ parent_id: newJobId() }, 'invalid_value', 'parent_id'],
      [{ parent_id: 'x' }, 'invalid_value', 'parent_id'],
      [{ parent_id: 'p'.repeat(65) }, 'string_above_max_length', 'parent_id'],
      [{ webhook: 'https://example.com/' }, 'invalid_type', 'webhook'],
      [{ webhook: { url: 'https://example.com/', events: [] } }, 'empty_array', 'webhook.events'],
      [{ webhook: { url: 'https://example.com/', events: ['job.queued'] } }, 'invalid_value', 'webhook.events[0]'],
    ])('a job submission is refused with the name of the field for %.80j', async (more, code, param) => {
      const response = await service.post('/v1/jobs', submission(more))
      expect(response.status).toBe(code === 'model_not_found' ? 404 : 400)
      const error = await errorOf(response)
      expect(error).toMatchObject({ code, param, type: 'invalid_request_error' })
      expect(String(error.message).length).toBeLessThan(500)
    })

    test.each([
      ['with a loopback address', 'https://127.0.0.1/'],
      ['with another loopback address', 'https://127.8.9.10/'],
      ['with a loopback address in decimal', 'https://2130706433/'],
      ['with a loopback address in hexadecimal', 'https://0x7f000001/'],
      ['with a loopback address in octal', 'https://0177.0.0.1/'],
      ['with a loopback address in mixed notation', 'https://0x7f.1/'],
      ['with a loopback address in short form', 'https://127.1/'],
      ['with a loopback address in full-width digits', 'https://１２７.０.０.１/'],
      ['with a loopback address and a trailing dot', 'https://127.0.0.1./'],
      ['zero', 'https://0/'],
      ['with the loopback address of IPv6', 'https://[::1]/'],
      ['with the unspecified address of IPv6', 'https://[::]/'],
      ['mapped', 'https://[::ffff:127.0.0.1]/'],
      ['with a loopback address mapped to IPv6', 'https://[::ffff:7f00:1]/'],
      ['with a loopback address translated by NAT64', 'https://[64:ff9b::7f00:1]/'],
      ['6to4', 'https://[2002:7f00:1::]/'],
      ['with a unique local address', 'https://[fd00::1]/'],
      ['with a link-local address of IPv6', 'https://[fe80::1]/'],
      ['private', 'https://10.0.0.1/'],
      ['with a private address of 172.16.0.0/12', 'https://172.16.0.1/'],
      ['with a private address of 192.168.0.0/16', 'https://192.168.1.1/'],
      ['shared', 'https://100.64.0.1/'],
      ['metadata', 'https://169.254.169.254/latest/meta-data/'],
      ['with the metadata address of IPv6', 'https://[fd00:ec2::254]/'],
      ['broadcast', 'https://255.255.255.255/'],
      ['multicast', 'https://224.0.0.1/'],
      ['with the name localhost', 'https://localhost/'],
      ['with a name below localhost', 'https://a.localhost./'],
      ['with an internal name', 'https://metadata.google.internal/'],
      ['with a name without dots', 'https://postgres/'],
      ['http', 'http://example.com/'],
      ['with the scheme file', 'file:///etc/passwd'],
      ['script', 'javascript:alert(1)'],
      ['with a password', 'https://user:secret@example.com/'],
      ['with the port of another protocol', 'https://example.com:25/'],
      ['without a scheme', 'example.com'],
      ['empty', ''],
    ])('a job submission is refused if its webhook URL is %s', async (_name, url) => {
      const response = await service.post('/v1/jobs', submission({ webhook: { url } }))
      expect(response.status).toBe(400)
      expect(await errorOf(response)).toMatchObject({ code: 'invalid_value', param: 'webhook.url' })
    })

    it('a job submission is refused if its webhook URL has 3,000 characters', async () => {
      const webhook = { url: `https://example.com/${'x'.repeat(3_000)}` }
      const response = await service.post('/v1/jobs', submission({ webhook }))
      expect(await errorOf(response)).toMatchObject({ code: 'string_above_max_length', param: 'webhook.url' })
    })

    it('a job submission may have null in every optional field', async () => {
      const fields = ['metadata', 'webhook', 'priority', 'expires_after_seconds', 'start_within_seconds', 'run_at']
      const nulls = Object.fromEntries([...fields, 'parent_id'].map((field) => [field, null]))
      const { id } = await service.submit(say('x'), nulls)
      expect(await service.ended(id)).toMatchObject({
        status: 'completed',
        metadata: {},
        webhook: null,
        parent_id: null,
      })
    })

    it('a job whose scheduled time is in the past starts immediately', async () => {
      const { id } = await service.submit(say('x'), { run_at: 0 })
      expect(await service.ended(id)).toMatchObject({ status: 'completed' })
    })

    it('a job may contain NUL, lone surrogates and keys such as constructor, as JSON allows', async () => {
      const metadata = JSON.parse('{"nul":"a\\u0000b","lone":"\\ud800","constructor":"c","toString":"t"}') as object
      const { id } = await service.submit(say('say \u0000 this \ud800', { stream: true }), { metadata })
      const job = await service.ended(id)
      expect(job).toMatchObject({ status: 'completed', metadata: { nul: 'a\0b', lone: '\ufffd', constructor: 'c' } })
      expect(JSON.stringify(job.result)).toContain('say \\u0000 this \ufffd')
      expect((await readEvents(await service.get(`/v1/jobs/${id}/events`))).at(-1)?.type).toBe('job.completed')
    })

    test.each(['5', '18446744073709551616', '-1', 'x', '1.5', '0x1', '1 2', `${'9'.repeat(5_000)}`])(
      'an event stream of an unfinished job is refused for the invalid or future position %.30s',
      async (position) => {
        const { id } = await service.submit(say('x'), { run_at: FUTURE() })
        const byHeader = await service.get(`/v1/jobs/${id}/events`, { headers: { 'last-event-id': position } })
        expect(byHeader.status).toBe(400)
        expect(await errorOf(byHeader)).toMatchObject({ code: 'invalid_value', param: 'Last-Event-ID' })
        const byQuery = await service.get(`/v1/jobs/${id}/events?starting_after=${encodeURIComponent(position)}`)
        expect(byQuery.status).toBe(400)
        expect(await errorOf(byQuery)).toMatchObject({ code: 'invalid_value', param: 'starting_after' })
        await service.post(`/v1/jobs/${id}/cancel`, {})
      },
    )

    it('a call ignores invalid values of its Prefer header, as RFC 7240 requires', async () => {
      for (const prefer of ['respond-asynchronously', 'wait=5', '', ',;,', 'return=minimal', 'x'.repeat(4_000)]) {
        expect([prefer, (await service.post(CHAT, say('x'), { headers: { prefer } })).status]).toEqual([prefer, 200])
      }
      for (const prefer of ['RESPOND-ASYNC', 'respond-async, wait=x', 'respond-async;wait=-1', 'a, respond-async']) {
        expect([prefer, (await service.post(CHAT, say('x'), { headers: { prefer } })).status]).toEqual([prefer, 202])
      }
    })

    test.each([
      ['background', 'yes'],
      ['background', 1],
      ['store', 'false'],
      ['store', {}],
    ])('a call is refused if its field %s has the non-boolean value %j', async (field, value) => {
      const response = await service.post(CHAT, say('x', { [field]: value }))
      expect(response.status).toBe(400)
      expect(await errorOf(response)).toMatchObject({ code: 'invalid_type', param: field })
    })

    it('a job submission is refused if its body is not a JSON object', async () => {
      for (const body of [[], 'x', 7, null]) {
        expect((await service.post('/v1/jobs', body)).status).toBe(400)
        expect((await service.post(CHAT, body, ASYNC)).status).toBe(400)
      }
    })

    it('a HEAD request returns immediately, even if GET would wait for the end of a job', async () => {
      const { id } = await service.submit(say('x'), { run_at: FUTURE() })
      for (const path of ['', `/${id}`, `/${id}/events`]) {
        expect((await service.call('HEAD', `/v1/jobs${path}`)).status).toBe(200)
      }
      await service.post(`/v1/jobs/${id}/cancel`, {})
    })

    it('a job request with a wrong method gets 405 with the allowed methods of its path', async () => {
      const allowed = async (method: string, path: string) => {
        const response = await service.call(method, path)
        return [response.status, response.headers.get('allow')]
      }
      expect(await allowed('PUT', '/v1/jobs')).toEqual([405, 'POST, GET, HEAD'])
      expect(await allowed('PATCH', '/v1/jobs/job_000000000000')).toEqual([405, 'GET, HEAD, DELETE'])
      expect(await allowed('GET', '/v1/jobs/job_000000000000/cancel')).toEqual([405, 'POST'])
    })

    it('a client that disconnects from an event stream does not affect the job', async () => {
      await using own = await start({})
      const { id } = await own.submit(say('x'), { run_at: FUTURE() })
      for (let i = 0; i < 20; i++) {
        using client = await openRaw(own.urls[0] ?? '')
        client.send(rawRequest(`GET /v1/jobs/${id}/events`, [`authorization: Bearer ${TEST_KEY}`]))
        await until(() => client.received.includes('job.queued'))
      }
      expect(await own.job(id)).toMatchObject({ status: 'queued', last_sequence_number: 1 })
    })
  },
)

describe('the jobs of another key', () => {
  it('are not found by any request', async () => {
    await using service = await startService()
    const mine = await service.submit(say('mine'), { run_at: FUTURE() })
    const done = await service.submit(say('done'))
    await service.ended(done.id)
    for (const { id } of [mine, done]) {
      for (const [method, path] of actionsOn(id)) {
        const theirs = await service.call(method, path, undefined, { key: OTHER_KEY })
        const nobodys = await service.call(method, path.replace(id, newJobId()), undefined, { key: OTHER_KEY })
        expect([path, theirs.status, nobodys.status]).toEqual([path, 404, 404])
        const [told, usual] = [await errorOf(theirs), await errorOf(nobodys)]
        expect({ ...told, message: '' }).toEqual({ ...usual, message: '' })
        expect(told.message).toBe(`No job with the id '${id}'.`)
      }
      const child = { endpoint: CHAT, body: say('x'), parent_id: id }
      const refused = await service.post('/v1/jobs', child, { key: OTHER_KEY })
      expect([refused.status, (await errorOf(refused)).param]).toEqual([400, 'parent_id'])
    }
    for (const query of ['', `parent_id=${done.id}`, `after=${newJobId(Date.now() + 60_000)}`, 'status=completed']) {
      const list = await service.get(`/v1/jobs?${query}`, { key: OTHER_KEY })
      expect(await list.json()).toMatchObject({ data: [], first_id: null, has_more: false })
    }
    expect(await service.job(mine.id)).toMatchObject({ status: 'queued' })
    expect(await service.job(done.id)).toMatchObject({ status: 'completed' })
  })

  it('are refused with 401 if the key of a request is invalid', async () => {
    await using service = await startService()
    const { id } = await service.submit(say('x'))
    for (const [method, path] of [...actionsOn(id), ['GET', '/v1/jobs'], ['POST', '/v1/jobs']] as const) {
      expect((await service.call(method, path, undefined, { key: 'sk-wrong-0123456789' })).status).toBe(401)
    }
  })
})

describe('durable jobs while the store is down', () => {
  it('are refused with 503 and Retry-After, while synchronous calls still succeed', async () => {
    const outage = switchedStore()
    await using service = await startService({ wrapStore: outage.wrap })
    const { id } = await service.submit(say('x'), { run_at: FUTURE() })
    const running = service.post(CHAT, say('!echo first_ms=300\ngoes on', { stream: true }))
    outage.isDown = true
    const asked = [
      ...actionsOn(id).map(([method, path]) => service.call(method, path)),
      service.get('/v1/jobs'),
      service.post('/v1/jobs', { endpoint: CHAT, body: say('x') }),
      service.post(CHAT, say('x'), ASYNC),
      service.post(CHAT, say('x'), { headers: { 'idempotency-key': 'k' } }),
      service.post(CHAT, say('x', { store: true })),
    ]
    for (const response of await Promise.all(asked)) {
      expect([response.url, response.status]).toEqual([response.url, 503])
      expect(Number(response.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
      expect(await errorOf(response)).toMatchObject({ type: 'server_error', code: 'overloaded' })
    }
    expect((await service.post(MESSAGES, say('x', { max_tokens: 5, store: true }))).status).toBe(529)
    expect((await service.post(CHAT, say('plain'))).status).toBe(200)
    expect(await (await running).text()).toContain('[DONE]')
    outage.isDown = false
    expect(await service.job(id)).toMatchObject({ status: 'queued' })
  })

  it('leave no blob behind when they are refused', async () => {
    const outage = switchedStore()
    const dataDir = await mkdtemp(join(tmpdir(), 'sluice-refused-'))
    await using service = await startService({ wrapStore: outage.wrap, dataDir })
    // The first submission fills the cache of the job count. The later submissions therefore do not fail when the count is read, but only
    // when the job is stored.
    await service.submit(say('x'), { run_at: FUTURE() })
    outage.isDown = true
    const large = say('x'.repeat(100_000))
    const asked = Array.from({ length: 30 }, () => service.post('/v1/jobs', { endpoint: CHAT, body: large }))
    expect(new Set((await Promise.all(asked)).map(({ status }) => status))).toEqual(new Set([503]))
    expect(await readdir(join(dataDir, 'blobs'))).toEqual([])
    await rm(dataDir, { recursive: true })
  })

  it('have event streams that pause until the store is back', async () => {
    const outage = switchedStore()
    await using service = await startService({ wrapStore: outage.wrap })
    const { id } = await service.submit(say('!echo first_ms=1000\nafter the outage', { stream: true }))
    await until(async () => (await service.job(id)).status === 'in_progress')
    const events = readEvents(await service.get(`/v1/jobs/${id}/events`))
    outage.isDown = true
    await until(async () => outage.refused > 3)
    outage.isDown = false
    const numbers = (await events).map((event) => event.sequence_number)
    expect(numbers).toEqual(numbers.map((_, i) => i + 1))
    expect((await events).at(-1)).toMatchObject({ type: 'job.completed', job: { status: 'completed' } })
  })
})

describe('a deployment without a store', () => {
  it('refuses durable jobs with an error that disables retries', async () => {
    await using service = await startService({ isWhole: false })
    const asked: Promise<Response>[] = [
      ...actionsOn(newJobId()).map(([method, path]) => service.call(method, path)),
      service.get('/v1/jobs'),
      service.post('/v1/jobs', { endpoint: CHAT, body: say('x') }),
      service.post(CHAT, say('x'), ASYNC),
      service.post(CHAT, say('x', { background: true })),
      service.post(CHAT, say('x'), { headers: { 'idempotency-key': 'k' } }),
    ]
    for (const response of await Promise.all(asked)) {
      expect([response.url, response.status, response.headers.get('x-should-retry')]).toEqual([
        response.url,
        503,
        'false',
      ])
      expect(await errorOf(response)).toMatchObject({
        code: 'jobs_unavailable',
        message: expect.stringContaining('DATABASE_URL'),
      })
    }
    expect((await service.post(CHAT, say('plain'))).status).toBe(200)
    const refused = await service.post('/v1/jobs', {})
    // The service has no store, so a retry cannot succeed. To prevent retries by SDKs, the response has `x-should-retry: false` and no
    // Retry-After.
    expect([refused.headers.get('x-should-retry'), refused.headers.get('retry-after')]).toEqual(['false', null])
  })
})

describe('the job quota', () => {
  it('refuses submissions of every project with 503 once the total is reached', async () => {
    await using service = await startService({
      settings: { SCHEDULED_JOBS_MAX: '2', SCHEDULED_JOBS_MAX_PER_PROJECT: '3' },
    })
    const jobs = [
      await service.submit(say('x'), { run_at: FUTURE() }),
      await service.submit(say('x'), { run_at: FUTURE() }),
    ]
    const later = { endpoint: CHAT, body: say('x'), run_at: FUTURE() }
    const refused = await service.post('/v1/jobs', later)
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '10'])
    expect((await service.post(CHAT, say('plain'))).status).toBe(200)
    await cancelAll(service, jobs)
    await until(async () => (await service.post('/v1/jobs', later)).status === 202)
  })

  it('refuses scheduled jobs of a project over its quota with 429, but accepts immediate jobs', async () => {
    await using service = await startService({ settings: { SCHEDULED_JOBS_MAX: '5', DURABLE_JOBS_MAX: '5' } })
    const park = async (key: string) => {
      return await service.post('/v1/jobs', { endpoint: CHAT, body: say('x'), run_at: FUTURE() }, { key })
    }
    const statuses: number[] = []
    for (let i = 0; i < 5; i++) statuses.push((await park(TEST_KEY)).status)
    expect(statuses).toEqual([202, 202, 202, 429, 429])
    const refused = await park(TEST_KEY)
    expect(refused.headers.get('retry-after')).toBe('10')
    expect(await errorOf(refused)).toMatchObject({
      code: 'rate_limit_exceeded',
      message:
        'This project has 3 scheduled jobs; the remaining capacity is reserved for other projects. Try again later.',
    })
    expect((await park(OTHER_KEY)).status).toBe(202)
    for (const key of [TEST_KEY, OTHER_KEY]) {
      expect((await service.post('/v1/jobs', { endpoint: CHAT, body: say('x') }, { key })).status).toBe(202)
    }
  })
})

it('a scheduled job over the limit of its key on scheduled jobs is refused with 429', async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-limits-'))
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }))
  await using service = await startService({ dataDir })
  const park = () => service.post('/v1/jobs', { endpoint: CHAT, body: say('x'), run_at: FUTURE() }, { key: OTHER_KEY })
  expect((await park()).status).toBe(202)
  const hash = createHash('sha256').update(OTHER_KEY).digest('hex')
  const key = { id: 'key_other', hash, hint: 'sk-...6789', created_at: 1, limits: { scheduled: 1 } }
  await writeFile(join(dataDir, 'keys.json'), JSON.stringify({ keys: [key] }))
  await until(async () => (await park()).status === 429)
  expect((await errorOf(await park())).message).toMatch(/^This project has \d+ scheduled jobs; its limit is 1\./)
  expect((await service.post('/v1/jobs', { endpoint: CHAT, body: say('x') }, { key: OTHER_KEY })).status).toBe(202)
})

async function cancelAll(service: Service, jobs: readonly { id: string }[]): Promise<void> {
  for (const { id } of jobs) expect(await jobOf(await service.post(`/v1/jobs/${id}/cancel`, {}))).toMatchObject({ id })
}

/** Returns metadata with `count` keys. */
function many(count: number): Record<string, string> {
  return Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, 'v']))
}
