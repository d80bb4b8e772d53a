/*
 * Tests of the findings of the admin API: each current problem is reported in the words of `sluice doctor`, and a healthy state causes no
 * finding.
 */

import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { cachedOr } from '#services/ingress/admin/findings.ts'
import {
  type CallFacts,
  callFindings,
  failureRateOf,
  hasRecovered,
  isFailing,
  NO_CALLS,
  startOfFailures,
  withoutTimeouts,
} from '#shared/doctor/calls.ts'
import { type FleetFacts, fleetFindings } from '#shared/doctor/fleet.ts'
import { writeDeadLetter } from '#shared/jobs/dead-letters.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import { verdictOf } from '#shared/usage/comparison.ts'
import { openAdmin, requestRow, secretOf } from '../../../support/admin.ts'
import { ECHO_MODEL, startStack, until } from '../../../support/stack.ts'

interface Finding {
  readonly check: string
  readonly status: string
  readonly message: string
  readonly remediation: string | null
  readonly details: readonly string[]
}
const dataOf = async (response: Response) => ((await response.json()) as { data: Finding[] }).data

describe('the admin API for findings and metrics', () => {
  it('returns all findings to operators, and to any other key only the findings about calls of that key', async () => {
    await using admin = await openAdmin()
    const found = async (of = '') => await dataOf(await admin.as('op').get(`/v1/admin/findings${of}`))
    expect((await admin.as('alice').get('/v1/admin/findings?of=machine')).status).toBe(403)
    expect(await dataOf(await admin.as('alice').get('/v1/admin/findings'))).toMatchObject([
      { check: 'calls', status: 'ok' },
    ])
    expect((await admin.as('op').get('/v1/admin/findings?of=nothing')).status).toBe(400)
    await writeDeadLetter(admin.stack.broker, 'inference', 'jobs.inference/0@9', Buffer.from('not a job'))
    const machine = await found('?of=machine')
    expect(machine.map(({ check }) => check)).toEqual(expect.arrayContaining(['data', 'models', 'postgres', 'kafka']))
    expect(machine.find(({ check }) => check === 'models')).toMatchObject({
      status: 'ok',
      message: expect.stringContaining('echo-1'),
    })
    const dead = (await found('?of=fleet')).find(({ check }) => check === 'dead')
    expect(dead).toMatchObject({ status: 'warn', message: expect.stringMatching(/^1 dead letter: /) })
    await admin.as('op').post('/v1/admin/models/echo-1/pause')
    await until(async () =>
      (await found()).some(
        ({ check, remediation }) => check === 'pause' && remediation?.includes('resume model echo-1'),
      ),
    )
  })

  it('reports the disk of BLOB_DIR if that directory is outside of DATA_DIR', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'sluice-blobs-'))
    onTestFinished(() => rmSync(directory, { recursive: true }))
    await using admin = await openAdmin({ settings: { BLOB_DIR: directory } })
    const machine = await dataOf(await admin.as('op').get('/v1/admin/findings?of=machine'))
    expect(machine.find(({ check }) => check === 'blobs')?.message).toMatch(/^\/.*(free|full)$/)
  })

  it('returns metrics to operators even if METRICS_PORT removes GET /metrics from the API', async () => {
    await using admin = await openAdmin({ settings: { METRICS_PORT: '0' } })
    expect((await admin.as('op').get('/metrics')).status).toBe(404)
    expect((await admin.as('alice').get('/v1/admin/metrics')).status).toBe(403)
    const answer = await admin.as('op').get('/v1/admin/metrics')
    expect(answer.headers.get('content-type')).toContain('text/plain')
    expect(await answer.text()).toContain('sluice_attached_jobs{pool="inference"')
  })

  it('reports budgets that have no effect, because no model has a price', async () => {
    await using admin = await openAdmin()
    const found = async () => await dataOf(await admin.as('op').get('/v1/admin/findings?of=fleet'))
    expect((await found()).map(({ check }) => check)).toEqual(['fleet'])
    await admin.as('op').post('/v1/admin/projects', { name: 'lab', limits: { budget_usd_per_month: 5 } })
    const message = '1 budget has no effect: no model has a price, so each call costs $0.'
    await until(async () => (await found()).some((finding) => finding.message === message))
  })

  it('names a model whose upstream fails repeatedly, to operators and to all keys that may call the model', async () => {
    // The circuit breaker allows a trial call after only 1 ms. Until a call succeeds, the model must still be reported as failing.
    const upstream = { type: 'openai', base_url: 'http://127.0.0.1:1/v1', breaker: { failures: 2, reset_ms: 1 } }
    await using stack = await startStack({ models: [{ id: 'gone', engine: upstream }, ECHO_MODEL] })
    const keys = [
      keyOf('sk-op-0123456789', { id: 'op', project: 'ops', scopes: ['admin'] }),
      keyOf(secretOf('bob'), { id: 'bob', project: 'bob' }),
      keyOf(secretOf('eve'), { id: 'eve', project: 'eve', models: ['echo-1'] }),
    ]
    writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys }))
    const headers = { authorization: 'Bearer sk-op-0123456789' }
    const body = { model: 'gone', messages: [{ role: 'user', content: 'Are you there?' }] }
    await until(
      async () => {
        await stack.post('/v1/chat/completions', body)
        const response = await stack.get('/v1/admin/findings?of=fleet', { headers })
        if (response.status !== 200) return false
        const failing = (await dataOf(response)).find(({ check }) => check === 'upstream')
        return failing?.status === 'fail' && failing.message.includes("'gone'")
      },
      { withinMs: 60_000 },
    )
    const workers = (await (await stack.get('/v1/admin/workers', { headers })).json()) as { data: object[] }
    expect(workers.data).toContainEqual(expect.objectContaining({ role: 'inference', open_circuits: ['gone'] }))
    const as = (who: string) => ({ headers: { authorization: `Bearer ${secretOf(who)}` } })
    const found = async (who: string) => await dataOf(await stack.get('/v1/admin/findings', as(who)))
    const problem = expect.objectContaining({ check: 'upstream', status: 'fail', model: 'gone' })
    await until(async () => (await found('bob')).some(({ check }) => check === 'upstream'), { withinMs: 10_000 })
    expect(await found('bob')).toEqual([problem])
    expect(await found('eve')).toMatchObject([{ check: 'calls', status: 'ok' }])
    const { data } = (await (await stack.get('/v1/models', as('bob'))).json()) as { data: object[] }
    expect(data).toMatchObject([{ id: 'gone', status: 'failing' }, { id: 'echo-1' }])
    expect(data[1]).not.toHaveProperty('status')
  })
})

describe('findings about calls', () => {
  const CALL = { model: 'm1', messages: [{ role: 'user', content: 'Are you there?' }] }

  it('report a model while more than half of its calls fail', async () => {
    const answer = JSON.stringify({ choices: [{ index: 0, message: { content: 'yes' }, finish_reason: 'stop' }] })
    const server = createServer((_, res) => res.setHeader('content-type', 'application/json').end(answer))
    await once(server.listen(0, '127.0.0.1'), 'listening')
    const { port } = server.address() as AddressInfo
    server.close()
    const engine = { type: 'openai', base_url: `http://127.0.0.1:${port}/v1`, breaker: { failures: 1_000 } }
    await using stack = await startStack({ models: [{ id: 'm1', engine }] })
    const keys = ['alice', 'bob', 'op'].map((id) =>
      keyOf(secretOf(id), { id, project: id, scopes: id === 'op' ? ['calls', 'admin'] : ['calls'] }),
    )
    writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys }))
    const as = (who: string) => ({ headers: { authorization: `Bearer ${secretOf(who)}` } })
    const found = async (who: string) => await dataOf(await stack.get('/v1/admin/findings', as(who)))
    const problem = expect.objectContaining({ check: 'upstream', status: 'fail', model: 'm1' })
    await until(async () => (await stack.get('/v1/models', as('alice'))).status === 200)
    for (let nth = 0; nth < 3; nth++)
      expect((await stack.post('/v1/chat/completions', CALL, as('alice'))).status).toBe(502)
    for (const who of ['alice', 'op']) {
      await until(async () => (await found(who)).some(({ check }) => check === 'upstream'), { withinMs: 20_000 })
      const [first] = await found(who)
      expect(first).toEqual(problem)
      const { cause, remediation } = first as unknown as { cause: string; remediation: string }
      expect(remediation).toMatch(who === 'op' ? /base_url in models\.yaml/ : /Only an operator can repair/)
      expect(`${cause} ${remediation}`.match(/another model/g), 'the remedy of callers').toHaveLength(1)
      expect(first?.message).toMatch(/is failing: 3 of 3 calls failed in the last hour, all with upstream_error\.$/)
      expect(first?.details.join(' ')).toMatch(/Failed requests by project: alice 3\. .*connection refused/)
      expect(first).toMatchObject({ projects: [{ name: 'alice', requests: 3 }], errors: [{ requests: 3 }] })
      const { trend } = first as unknown as { trend: { hours: { failed: number; calls: number }[] } }
      expect(trend, 'calls since the start').toMatchObject({
        failed: 3,
        calls: 3,
        previous_hour: null,
        last_hour: { failed: 3, calls: 3 },
        verdict: 'new',
        is_lower_bound: false,
      })
      expect(
        trend.hours.reduce((sum, { failed }) => sum + failed, 0),
        'failed calls of all hours',
      ).toBe(3)
      const { error_codes, window_start } = first as unknown as { error_codes: string[]; window_start: number }
      const query = new URLSearchParams({ model: 'm1', error_code: error_codes.join(','), since: String(window_start) })
      const counted = await stack.get(`/v1/admin/requests?${query}`, as(who))
      expect(((await counted.json()) as { data: object[] }).data, 'requests of the finding').toHaveLength(3)
    }
    expect(await found('bob')).not.toContainEqual(problem)
    await once(server.listen(port, '127.0.0.1'), 'listening')
    onTestFinished(() => void server.close())
    for (let nth = 0; nth < 3; nth++)
      expect((await stack.post('/v1/chat/completions', CALL, as('alice'))).status).toBe(200)
    await until(async () => (await found('alice')).every(({ check }) => check !== 'upstream'), { withinMs: 20_000 })
    expect(await found('alice')).toMatchObject([{ check: 'calls', status: 'warn' }])
  })

  it('count the failures of the last 24 hours, marked as a lower bound if the model has failed for longer', async () => {
    const dataDir = mkdtempSync(join(tmpdir(), 'sluice-test-'))
    onTestFinished(() => rmSync(dataDir, { recursive: true }))
    const store = openSqliteStore({ directory: dataDir, boot: 'test' })
    const rows = Array.from({ length: 84 }, (_, nth) => {
      const endedAtMs = Date.now() - 60_000 - Math.floor(nth / 3) * 3_600_000
      return requestRow(`req_${nth}`, { model: 'echo-1', endedAtMs })
    })
    await store.requests.add(rows)
    await store.close()
    await using stack = await startStack({ dataDir, settings: { FIRST_KEY_ADMIN: 'true' } })
    const [first] = await dataOf(await stack.get('/v1/admin/findings?of=fleet'))
    const { trend } = first as unknown as { trend: { failed: number; hours: object[] } }
    expect(trend).toMatchObject({ is_lower_bound: true, calls: trend.failed })
    expect(trend.hours).toHaveLength(24)
    expect(first?.details.join(' ')).toMatch(/ or earlier; since then, at least \d+ of \d+ calls failed, /)
  })

  const recent = (status: number, errorCode: string | null, calls: number) => ({
    ...{ project: 'proj_1', model: 'm1', status, errorCode, isRun: errorCode !== 'overloaded', calls },
    notSent: 0,
    ...{ firstEndedAtMs: 0, lastEndedAtMs: 0, message: null as string | null },
  })
  const budget = (spent_usd: number) => ({
    ...{ owner: 'project' as const, id: 'proj_1', name: 'lab', month: '2030-01', budget_usd: 10, spent_usd },
    ...{ remaining_usd: 10 - spent_usd, resets_at: 1 },
  })

  it.each<[string, Partial<CallFacts>, string[]]>([
    ['no calls', {}, []],
    ['a few failures among many calls', { recent: [recent(200, null, 90), recent(502, 'upstream_error', 3)] }, []],
    [
      'a high failure rate',
      { recent: [recent(200, null, 9), recent(502, 'upstream_error', 3)] },
      ["3 of 12 calls of 'm1' failed in the last 15 minutes: upstream_error 3."],
    ],
    ['invalid and cancelled calls', { recent: [recent(400, 'invalid_value', 99), recent(499, null, 99)] }, []],
    [
      'calls beyond a rate limit',
      { recent: [recent(429, 'rate_limit_exceeded', 14)] },
      ['14 calls were refused in the last 15 minutes (rate_limit_exceeded), by project: lab 14.'],
    ],
    [
      'calls beyond the queue',
      { recent: [recent(503, 'overloaded', 3)] },
      ['3 calls were refused in the last 15 minutes (overloaded), by project: lab 3.'],
    ],
    ['a budget with reserves', { budgets: [budget(7.9)] }, []],
    [
      'a nearly spent budget',
      { budgets: [budget(9.2)] },
      ["The budget of the project 'lab' for 2030-01 is at 92 % ($9.20 of $10.00)."],
    ],
    [
      'a spent budget',
      { budgets: [budget(10)] },
      [
        "The budget of the project 'lab' for 2030-01 is spent ($10.00 of $10.00), so calls of this project are refused.",
      ],
    ],
  ])('contain the expected messages for %s', (_, facts, messages) => {
    const found = callFindings({ ...NO_CALLS, nameOf: () => 'lab', ...facts }, 0)
    expect(found.map(({ message }) => message)).toEqual(messages)
  })

  const rateOf = (...rows: ReturnType<typeof recent>[]) => failureRateOf(withoutTimeouts(rows))
  it.each<[string, ReturnType<typeof recent>[], boolean]>([
    ['no calls', [], false],
    ['two failures', [recent(502, 'upstream_error', 2)], false],
    ['three failures', [recent(502, 'upstream_error', 3)], true],
    ['half of the calls', [recent(200, null, 3), recent(502, 'upstream_error', 3)], false],
    [
      '78 of 92 calls',
      [recent(200, null, 14), recent(502, 'upstream_error', 70), recent(504, 'upstream_timeout', 8)],
      true,
    ],
    ['three failures among rejected calls', [recent(400, 'invalid_value', 19), recent(502, 'upstream_error', 3)], true],
    ['only refused calls', [recent(503, 'overloaded', 9)], false],
    ['calls whose own deadline was too short', [recent(504, 'timeout', 9)], false],
    ['an open circuit breaker', [{ ...recent(503, 'overloaded', 9), isRun: true }], true],
  ])('say whether a model is failing: %s', (_, rows, expected) => {
    expect(isFailing(rateOf(...rows))).toBe(expected)
  })

  const ended = (status: number, endedAtMs: number, errorCode: string | null = null) => ({
    ...{ status, errorCode, worker: 'inf_1', endedAtMs },
  })
  const series = (count: number, status: number, firstMs: number) =>
    Array.from({ length: count }, (_, nth) => ended(status, firstMs + (count - 1 - nth) * 1_000))

  it('end when the newest ten calls of a failing model succeeded', () => {
    const failures = series(90, 502, 0)
    expect(hasRecovered([...series(9, 200, 100_000), ...failures])).toBe(false)
    expect(hasRecovered([...series(10, 200, 100_000), ...failures])).toBe(true)
    expect(hasRecovered([...series(10, 400, 200_000), ...series(9, 200, 100_000), ...failures]), 'rejected calls').toBe(
      false,
    )
  })

  it('state the time of the first failure, even if single calls have succeeded since then', () => {
    const rows = [...series(3, 502, 60_000), ended(200, 50_000), ...series(12, 502, 21_000), ...series(40, 200, 0)]
    expect(startOfFailures(rows)).toBe(21_000)
    expect(startOfFailures(series(5, 200, 0))).toBeUndefined()
  })

  it('state share, window, most frequent code, start and affected projects of a failing model', () => {
    const hour = 3_600_000
    const down = { ...recent(502, 'upstream_error', 70), message: 'CUDA out of memory' }
    const rate = rateOf(recent(200, null, 14), down, { ...recent(504, 'upstream_timeout', 8), project: 'proj_2' })
    const trend = {
      failed: 90,
      calls: 120,
      isLowerBound: false,
      lastFailureAtMs: 2.95 * hour,
      lastHour: { failed: 78, calls: 92 },
      previousHour: { failed: 12, calls: 28 },
      hours: [],
    }
    const window = { windowFromMs: 2 * hour, isCut: false, sinceMs: hour, isSinceCut: false }
    const failing = { ...rate, model: 'm1', ...window, trend }
    const nameOf = (id: string) => (id === 'proj_1' ? 'lab' : null)
    const [finding] = callFindings({ ...NO_CALLS, nameOf, failing: [failing] }, 3 * hour)
    expect(finding).toMatchObject({
      title: 'm1 is failing',
      summary: '78 of 92 calls failed in the last hour, mostly upstream_error',
      cause: 'CUDA out of memory.',
      errorCodes: ['upstream_error', 'upstream_timeout'],
      ...{ sinceMs: hour, windowFromMs: 2 * hour },
      projects: [
        { name: 'lab', requests: 70 },
        { name: 'proj_2', requests: 8 },
      ],
      errors: [
        { name: 'upstream_error', requests: 70 },
        { name: 'upstream_timeout', requests: 8 },
      ],
      message: "The model 'm1' is failing: 78 of 92 calls failed in the last hour, mostly upstream_error.",
      details: [
        'Getting worse: 85 % of the calls failed in the last hour, 43 % in the hour before.',
        'First failure 2 h ago; since then, 90 of 120 calls failed, the last 3 min ago.',
        'Failed requests by project: lab 70, proj_2 8.',
        'Most frequent message: CUDA out of memory.',
      ],
    })
    expect(finding?.remediation).toMatch(/lacks memory/)
  })

  it.each([
    ['worse', 8, 10, 5, 10],
    ['better', 2, 10, 5, 10],
    ['steady', 55, 100, 50, 100],
    ['new', 5, 10, 0, 0],
  ])('state that a failing model is %s than in the hour before', (verdict, failed, calls, before, callsBefore) => {
    const hours = { lastHour: { failed, calls }, previousHour: { failed: before, calls: callsBefore } }
    expect(verdictOf(hours)).toBe(verdict)
  })

  it.each([
    ['upstream_error', 'The upstream of model m1 failed (HTTP 500).', /check its log/],
    ['upstream_timeout', 'A model of the family runtime did not answer', /timeouts of the model/],
    ['upstream_error', 'The model runtime-7b failed', /base_url/],
    ['upstream_refused', 'The host refused', /api_key_env/],
  ])('suggest a remedy for the code %s', (errorCode, message, remedy) => {
    const rate = rateOf({ ...recent(502, errorCode, 3), message })
    const trend = {
      failed: 3,
      calls: 3,
      isLowerBound: false,
      lastFailureAtMs: 0,
      lastHour: { failed: 3, calls: 3 },
      previousHour: null,
      hours: [],
    }
    const failing = { ...rate, model: 'm1', windowFromMs: 0, isCut: false, sinceMs: 0, isSinceCut: false, trend }
    expect(callFindings({ ...NO_CALLS, failing: [failing] }, 0)[0]?.remediation).toMatch(remedy)
  })
})

describe('cached findings', () => {
  it('are returned for at most 30 s after they expired', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const cache = new Map()
    let value = 'old'
    let slow: Promise<void> | undefined
    const read = async () => {
      await slow
      return value
    }
    const get = () => cachedOr(cache, 'k', read, 2_000)
    expect(await get()).toBe('old')
    value = 'new'
    vi.advanceTimersByTime(2_500)
    const gate = Promise.withResolvers<void>()
    slow = gate.promise
    expect(await get(), 'while the new read runs').toBe('old')
    vi.advanceTimersByTime(2_500)
    expect(await get(), 'while the new read still runs').toBe('old')
    vi.advanceTimersByTime(30_000)
    const late = get()
    gate.resolve()
    expect(await late, 'after the maximum age').toBe('new')
    vi.advanceTimersByTime(3_600_000)
    value = 'newest'
    expect(await get(), 'after an hour without calls').toBe('newest')
  })
})

describe('the fleet findings', () => {
  const pool = {
    id: 'inference',
    workers: 2,
    slots: 8,
    free: 4,
    waiting: 0,
    oldestSeconds: undefined,
    fullModels: [],
    isNeeded: true,
  }
  const facts: FleetFacts = {
    broker: { name: 'memory', isReachable: true },
    store: { name: 'sqlite', isReachable: true, isFull: false },
    pools: [pool],
    durable: { count: 49, max: 100 },
    paused: [],
    calls: NO_CALLS,
    uselessBudgets: 0,
    deadLetters: { count: 0, hasMore: false },
  }
  const checksOf = (more: Partial<FleetFacts>) =>
    fleetFindings({ ...facts, ...more }).map(({ check, status }) => `${check} ${status}`)

  it.each<[string, Partial<FleetFacts>, string[]]>([
    ['no problem', {}, ['fleet ok']],
    ['the broker is down', { broker: { name: 'kafka', isReachable: false } }, ['broker fail']],
    ['the store is down', { store: { name: 'postgres', isReachable: false, isFull: false } }, ['store fail']],
    ['the disk of the store is full', { store: { name: 'postgres', isReachable: true, isFull: true } }, ['store fail']],
    ['jobs wait without a worker', { pools: [{ ...pool, workers: 0, slots: 0, waiting: 3 }] }, ['pool fail']],
    ['a pool has no workers', { pools: [{ ...pool, workers: 0, slots: 0 }] }, ['pool warn']],
    ['an unneeded pool has no workers', { pools: [{ ...pool, workers: 0, isNeeded: false }] }, ['fleet ok']],
    ['all workers are drained', { pools: [{ ...pool, slots: 0 }] }, ['pool warn']],
    ['jobs wait for long', { pools: [{ ...pool, free: 0, waiting: 9, oldestSeconds: 90 }] }, ['pool warn']],
    [
      'jobs wait for long for a model at its limit',
      { pools: [{ ...pool, oldestSeconds: 90, fullModels: [{ model: 'm', slots: 2 }] }] },
      ['pool warn'],
    ],
    ['half of the job quota is used', { durable: { count: 50, max: 100 } }, ['room warn']],
    ['the job quota is used up', { durable: { count: 100, max: 100 } }, ['room fail']],
    ['a budget exists, but no model has a price', { uselessBudgets: 1 }, ['budgets warn']],
    ['jobs wait for long, but slots are free', { pools: [{ ...pool, waiting: 9, oldestSeconds: 90 }] }, ['fleet ok']],
    [
      'several problems, the worst first',
      { paused: [{ target: 'pool', id: 'code' }], calls: { ...NO_CALLS, openCircuits: [{ model: 'm', workers: 1 }] } },
      ['upstream fail', 'pause warn'],
    ],
  ])('report this state: %s', (_, more, checks) => {
    expect(checksOf(more)).toEqual(checks)
    for (const { status, remediation } of fleetFindings({ ...facts, ...more }))
      expect(status === 'ok' || Boolean(remediation)).toBe(true)
  })
})
