/* Tests of the limits of keys and projects, counted by one ingress, or by several ingresses that share a Postgres. */

import { Client } from 'pg'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { setLimitHeaders } from '#services/ingress/callers/keys.ts'
import { Fleet, RUNNING_MS } from '#shared/capacity/fleet-counts.ts'
import { RateLimits, type RemainingLimit } from '#shared/capacity/rate-limits.ts'
import type { Limits } from '#shared/keys/keys.ts'
import { openPostgresCounts } from '#shared/store/postgres/fleet-counts.ts'
import { openPostgresStore } from '#shared/store/postgres/postgres.ts'
import { silentLog } from '../../../support/jobs/jobs.ts'
import { openPostgresDatabase } from '../../../support/jobs/stores.ts'
import { startLocalPostgres, whyNoLocalPostgres } from '../../../support/processes/postgres.ts'
import { type Stack, startStack, until } from '../../../support/stack.ts'

const postgres = inject('postgres')
const noLocal = postgres ? whyNoLocalPostgres() : 'no Postgres'
if (noLocal && process.env.CI === 'true') throw new Error(`The outage test cannot run: ${noLocal}`)

const NONE = {
  rateLimitRequests: 0,
  rateLimitTokens: 0,
  concurrencyMaxPerKey: 0,
  followsMaxPerKey: 0,
  codeRunsPerUser: 0,
}

class Headers {
  readonly all: Record<string, string> = {}
  setHeader(name: string, value: string) {
    this.all[name] = value
  }
}

const key = (limits: Limits = {}, id = 'key_a', project?: string) => ({ id, limits, ...(project && { project }) })
type Key = ReturnType<typeof key>

/** Starts a call of the key. Returns the function that ends the call, or the error if the call is refused. */
async function call(limits: RateLimits, of: Key, res = new Headers()) {
  const show = (left: readonly RemainingLimit[]) => setLimitHeaders(res, 'openai', left)
  return await limits.enter(of, show).catch((error: unknown) => error as Error & { retryAfterMs?: number })
}

/** Reserves and uses a number of tokens, as a call of the key would. */
async function spend(limits: RateLimits, of: Key, tokens: number): Promise<void> {
  const settle = await limits.reserveTokens(of, tokens)
  settle(tokens)
}

/** Waits for concurrent calls, and returns the number of admitted ones. */
async function admitted(calls: readonly Promise<unknown>[]): Promise<number> {
  return (await Promise.all(calls)).filter((outcome) => typeof outcome === 'function').length
}

describe('usage limits within a single ingress', () => {
  function open(ofProject: Limits | undefined, settings = {}) {
    const clock = { ms: 1_000_000 }
    const limitsOf = (project: string) => (project === 'proj' ? ofProject : undefined)
    return { clock, limits: new RateLimits({ ...NONE, ...settings }, { limitsOf, clock: () => clock.ms }) }
  }

  it('count the calls of all keys of a project together', async () => {
    const { limits } = open({ requests_per_minute: 3 })
    const a = key({ requests_per_minute: 2 }, 'key_a', 'proj')
    const b = key({}, 'key_b', 'proj')
    expect(await admitted([call(limits, a), call(limits, a)])).toBe(2)
    expect(await call(limits, a)).toMatchObject({ message: expect.stringContaining('2 requests per minute of this') })
    expect(await admitted([call(limits, b)])).toBe(1)
    expect(await call(limits, b)).toMatchObject({
      code: 'rate_limit_exceeded',
      message: expect.stringContaining('3 requests per minute of this project.'),
    })
    expect(await admitted([call(limits, key({}, 'key_c', 'other'))])).toBe(1)
  })

  it('report in the headers the smaller of the amounts that remain for the key and for the project', async () => {
    const { limits } = open({ requests_per_minute: 3, tokens_per_minute: 100 })
    const a = key({ requests_per_minute: 10, tokens_per_minute: 50 }, 'key_a', 'proj')
    await spend(limits, key({}, 'key_b', 'proj'), 70)
    const res = new Headers()
    await call(limits, a, res)
    expect(res.all).toMatchObject({
      'x-ratelimit-limit-requests': '3',
      'x-ratelimit-remaining-requests': '2',
      'x-ratelimit-limit-tokens': '100',
      'x-ratelimit-remaining-tokens': '30',
    })
  })

  it('are taken from the settings only if the key has no limits of its own', async () => {
    const { limits } = open(undefined, { rateLimitRequests: 1, rateLimitTokens: 1, concurrencyMaxPerKey: 1 })
    const free = key({ requests_per_minute: 5, tokens_per_minute: 1_000, running: 5 })
    expect(await admitted(Array.from({ length: 6 }, () => call(limits, free)))).toBe(5)
    expect(await admitted([call(limits, key({}, 'key_b')), call(limits, key({}, 'key_b'))])).toBe(1)
    for (const none of [{ requests_per_minute: 0 }, { tokens_per_minute: 0 }, { running: 0 }]) {
      expect(await admitted([call(limits, key(none, 'key_c'))])).toBe(0)
    }
  })

  it('reserve the maximum output tokens of each running call', async () => {
    const { limits } = open({ tokens_per_minute: 100 })
    const a = key({}, 'key_a', 'proj')
    const b = key({}, 'key_b', 'proj')
    const burst = await Promise.all(
      Array.from({ length: 40 }, (_, i) => limits.reserveTokens(i % 2 ? a : b, 30).catch(() => undefined)),
    )
    expect(burst.filter(Boolean), 'admitted calls').toHaveLength(3)
    for (const settle of burst) settle?.(10)
    const large = await limits.reserveTokens(a, 1_000)
    await expect(limits.reserveTokens(b, 1)).rejects.toMatchObject({ code: 'token_limit_exceeded' })
    large(20)
    const last = await limits.reserveTokens(b, 50)
    last(50)
    await expect(limits.reserveTokens(a, 1)).rejects.toMatchObject({ code: 'token_limit_exceeded' })
  })

  it('hold no concurrency permit for a refused call', async () => {
    const { limits } = open({ running: 2, tokens_per_minute: 10 })
    const a = key({}, 'key_a', 'proj')
    const b = key({ running: 1 }, 'key_b', 'proj')
    const first = await call(limits, b)
    expect(await call(limits, b)).toMatchObject({
      message: 'This key is at its limit of 1 concurrent requests. Try again in 1 s.',
    })
    expect(await admitted([call(limits, a), call(limits, a)])).toBe(1)
    expect(await call(limits, a)).toMatchObject({
      message: 'This project is at its limit of 2 concurrent requests. Try again in 1 s.',
    })
    if (typeof first === 'function') first()
    await spend(limits, a, 10)
    expect(await call(limits, a)).toMatchObject({ code: 'token_limit_exceeded' })
  })

  it('return the time until the end of the minute as Retry-After', async () => {
    const { limits, clock } = open(undefined)
    const a = key({ requests_per_minute: 1 })
    await call(limits, a)
    clock.ms += 40_000
    expect(await call(limits, a)).toMatchObject({ retryAfterMs: 20_000 })
    clock.ms += 20_000
    expect(await admitted([call(limits, a)])).toBe(1)
  })
})

describe.skipIf(!postgres)('usage limits across several ingresses', () => {
  async function openFleet(ingresses: number, url?: string) {
    const database = url === undefined ? await openPostgresDatabase(postgres ?? '') : undefined
    if (database) {
      onTestFinished(() => database[Symbol.asyncDispose]())
      await database.open()
    }
    const clock = { aheadMs: 0 }
    const read = () => performance.now() + clock.aheadMs
    const all = Array.from({ length: ingresses }, (_, i) => {
      const counts = openPostgresCounts(url ?? database?.url ?? '', () => undefined)
      const fleet = new Fleet({ counts: counts, boot: `ing_${i}`, log: silentLog, clock: read })
      onTestFinished(() => fleet.close())
      return new RateLimits(NONE, { fleet, ingresses: () => ingresses, clock: read })
    })
    return { all, clock, database }
  }
  const spread = (all: readonly RateLimits[], calls: number, of: Key) =>
    Array.from({ length: calls }, (_, i) => call(all[i % all.length] as RateLimits, of))

  it('admit exactly the limit in a first burst through all ingresses', async () => {
    const { all } = await openFleet(3)
    expect(await admitted(spread(all, 60, key({ requests_per_minute: 20 })))).toBe(20)
    expect(await admitted(spread(all, 60, key({ running: 10 }, 'key_b')))).toBe(10)
  })

  it('are exceeded by at most a quarter if each ingress receives the counts of the others late', async () => {
    const { all } = await openFleet(3)
    const of = key({ requests_per_minute: 120 })
    let count = 0
    for (let round = 0; round < 30; round++) count += await admitted(spread(all, 9, of))
    expect(count).toBeGreaterThanOrEqual(120)
    expect(count).toBeLessThanOrEqual(150)
    await until(async () => (await admitted(spread(all, 3, of))) === 0)
  })

  it('include tokens and concurrent calls of other ingresses', async () => {
    const { all } = await openFleet(2)
    const [one, two] = all as [RateLimits, RateLimits]
    const of = key({ tokens_per_minute: 100, running: 1 })
    const end = await call(one, of)
    expect(await call(two, of)).toMatchObject({ message: expect.stringContaining('1 concurrent requests') })
    await spend(one, of, 100)
    if (typeof end === 'function') end()
    await until(async () => {
      const outcome = await call(two, of)
      if (typeof outcome === 'function') outcome()
      return (outcome as { code?: string }).code === 'token_limit_exceeded'
    })
  })

  it('use local counts while Postgres is down, and merged counts after Postgres is back', async ({ skip }) => {
    if (noLocal) skip(noLocal)
    await using server = await startLocalPostgres()
    const store = await openPostgresStore({ url: server.url, onProblem: () => undefined })
    await store.close()
    const { all, clock } = await openFleet(2, server.url)
    const [one, two] = all as [RateLimits, RateLimits]
    const of = key({ requests_per_minute: 10, running: 100 })
    expect(await admitted(spread(all, 4, of))).toBe(4)
    const alone = key({ running: 1 }, 'key_b')
    await call(one, alone)
    expect(await admitted([call(two, alone)])).toBe(0)
    await server.down('SIGINT')
    expect(await admitted(Array.from({ length: 12 }, () => call(one, of)))).toBeGreaterThanOrEqual(6)
    expect(await call(one, of)).toMatchObject({ code: 'rate_limit_exceeded' })
    // Advances the clock beyond the lifetime of the count that the first ingress published before the outage. The second ingress then ignores the
    // call that runs at the first ingress.
    clock.aheadMs += RUNNING_MS
    expect(await admitted([call(two, alone)])).toBe(1)
    await server.resume()
    await until(async () => (await admitted([call(two, of)])) === 0)
  })

  it('do not wait for Postgres if a query hangs', async () => {
    const { all, database } = await openFleet(1)
    const admin = new Client({ connectionString: database?.url })
    await admin.connect()
    onTestFinished(() => admin.end())
    await admin.query('BEGIN; LOCK TABLE rate_windows, running_calls')
    const calls = Array.from({ length: 30 }, () =>
      call(all[0] as RateLimits, key({ requests_per_minute: 5, running: 50 })),
    )
    expect(await admitted(calls)).toBe(5)
    await admin.query('ROLLBACK')
  })
})

describe.skipIf(!postgres)('services that share a database', () => {
  it('share the limits and the recorded usage of a key', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const settings = { DATABASE_URL: database.url, RATE_LIMIT_REQUESTS: '6' }
    await using one = await startStack({ settings })
    const call = async (stack: Stack) => {
      const body = { model: 'echo-1', messages: [{ role: 'user', content: 'hi' }] }
      const response = await stack.post('/v1/chat/completions', body)
      await response.text()
      return response.status
    }
    const statuses: number[] = []
    {
      await using two = await startStack({ settings })
      for (let i = 0; i < 6; i++) statuses.push(await call(one), await call(two))
    }
    const answered = statuses.filter((status) => status === 200).length
    expect(statuses).toContain(429)
    expect(answered).toBeGreaterThanOrEqual(6)
    // The limit is six calls. Between two exchanges of counts, one ingress may use at most a quarter of the remaining calls, so at most one
    // call exceeds the limit.
    expect(answered).toBeLessThanOrEqual(7)
    const calls = async () => {
      const report = (await (await one.get('/v1/usage')).json()) as { total: { calls: number } }
      return report.total.calls
    }
    await until(async () => (await calls()) === answered)
  })
})
