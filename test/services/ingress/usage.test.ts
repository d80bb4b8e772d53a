/* Tests of the usage report of the API, and of exhausted budgets (docs/operate/usage.md). */

import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import type { UsageReport } from '#schemas/usage.ts'
import { Budgets } from '#shared/capacity/budgets.ts'
import type { Limits } from '#shared/keys/keys.ts'
import type { UsageEntry, UsageLedger } from '#shared/store/records.ts'
import { dayOf, UsageBatches } from '#shared/usage/usage.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { openSqliteDatabase } from '../../support/jobs/stores.ts'
import { dayAgo, directoryWithDays } from '../../support/ledger.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../support/stack.ts'

const CHAT = '/v1/chat/completions'
const PRICED = { ...ECHO_MODEL, price: { output_per_million: 1_000, per_call: 0.5 } }
const say = (content: string) => ({ model: 'echo-1', max_tokens: 100, messages: [{ role: 'user', content }] })
const as = (secret: string, more: object = {}) => ({ headers: { authorization: `Bearer ${secret}`, ...more } })

interface TestKey {
  readonly secret: string
  readonly [field: string]: unknown
}

async function startPriced(...keys: TestKey[]): Promise<Stack> {
  return await startIn(undefined, ...keys)
}

/** @param dataDir Existing data directory. Default: a new one */
async function startIn(dataDir: string | undefined, ...keys: TestKey[]): Promise<Stack> {
  const settings = { BUDGET_WEBHOOK_URL: 'https://alerts.invalid/hook' }
  const stack = await startStack({ models: [PRICED], settings, ...(dataDir && { dataDir }) })
  const stored = keys.map(({ secret, ...more }) => {
    const hash = createHash('sha256').update(secret).digest('hex')
    return { id: `key_${secret}`, hash, hint: 'sk-...', created_at: 1_790_000_000, ...more }
  })
  writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys: stored }))
  for (const { secret } of keys) await until(async () => (await stack.get('/v1/usage', as(secret))).status === 200)
  return stack
}

async function usageOf(stack: Stack, secret: string, query = ''): Promise<UsageReport> {
  return (await (await stack.get(`/v1/usage${query}`, as(secret))).json()) as UsageReport
}

describe('the usage report', () => {
  it("includes each call and job of the key's project once, and none of other projects", async () => {
    await using stack = await startPriced(
      { secret: 'sk-one', project: 'proj' },
      { secret: 'sk-two', project: 'proj' },
      { secret: 'sk-other' },
      { secret: 'sk-admin', scopes: ['admin'] },
    )
    await (await stack.post(CHAT, say('!echo tokens=10'), as('sk-one'))).text()
    await (await stack.post(CHAT, { ...say('!echo tokens=5'), stream: true }, as('sk-two'))).text()
    await stack.post(CHAT, say('!echo tokens=7'), as('sk-two', { prefer: 'respond-async' }))
    await stack.post(CHAT, say('!echo fail=upstream_refused'), as('sk-one'))
    await stack.post(CHAT, { ...say('hi'), model: 'none' }, as('sk-one'))
    const report = await until(async () => {
      const found = await usageOf(stack, 'sk-one', '?group_by=key')
      return found.total.calls === 5 ? found : undefined
    })
    expect(report).toMatchObject({ object: 'usage', group_by: 'key', project: 'proj', has_more: false })
    const [one, two] = report.data
    expect([one?.group, one?.calls, one?.failed, one?.output_tokens]).toEqual(['key_sk-one', 3, 2, 10])
    expect([two?.group, two?.calls, two?.failed, two?.output_tokens]).toEqual(['key_sk-two', 2, 0, 12])
    expect(report.total.cost_usd).toBeCloseTo(3 * 0.5 + 22 / 1_000, 9)
    expect((await usageOf(stack, 'sk-other')).data).toEqual([])
    const all = await usageOf(stack, 'sk-admin', '?group_by=project')
    expect([all.project, all.data.map(({ group }) => group)]).toEqual([null, ['proj']])
    expect((await usageOf(stack, 'sk-admin', '?project=proj_none')).data).toEqual([])
    const today = dayOf(Date.now())
    expect((await usageOf(stack, 'sk-two', `?from=${today}&to=${today}`)).data.map(({ group }) => group)).toEqual([
      today,
    ])
    const hour = (ageMs: number) => new Date(Date.now() - ageMs).toISOString().slice(0, 13)
    const callsFrom = async (from: string, to: string) =>
      (await usageOf(stack, 'sk-two', `?from=${from}&to=${to}`)).total.calls
    const ofToday = await callsFrom(today, today)
    // The calls of this test may have ended before the current hour began, so the time range also includes the previous hour.
    expect(await callsFrom(hour(3_600_000), hour(0)), 'calls of the last two hours').toBe(ofToday)
    expect(await callsFrom(hour(86_400_000), hour(2 * 3_600_000)), 'calls of the hours before').toBe(0)
  })

  const BAD = [
    ['?from=2026-03-01T24', 400, 'from'],
    ['?from=2026-03-01T02&to=2026-03-01T01', 400, 'from'],
    ['?from=yesterday', 400, 'from'],
    ['?to=2026-02-30', 400, 'to'],
    ['?from=2026-03-02&to=2026-03-01', 400, 'from'],
    ['?from=2024-01-01&to=2026-01-01', 400, 'from'],
    ['?group_by=user', 400, 'group_by'],
    ['?group_by=day,user', 400, 'group_by'],
    ['?group_by=day,key,day', 400, 'group_by'],
    ['?group_by=key,hour&from=2026-03-01&to=2026-03-02', 400, 'from'],
    ['?group_by=key&group_by=day', 400, 'group_by'],
    ['?project=a%00', 400, 'project'],
    ['?tenant=a', 400, 'tenant'],
    ['?group_by=hour&from=2026-03-01&to=2026-03-02', 400, 'from'],
    ['?format=xml', 400, 'format'],
    ['?order_by=model', 400, 'order_by'],
    ['?project=of-somebody-else', 403, 'project'],
  ] as const

  it('names the parameter that makes a query invalid', async () => {
    await using stack = await startPriced({ secret: 'sk-one' })
    for (const [query, status, param] of BAD) {
      const response = await stack.get(`/v1/usage${query}`, as('sk-one'))
      expect([query, response.status, await response.json()]).toMatchObject([query, status, { error: { param } }])
    }
  })

  it('shows an example of a valid day if the day is invalid', async () => {
    await using stack = await startPriced({ secret: 'sk-one' })
    const refused = await stack.get('/v1/usage?from=2026-02-30', as('sk-one'))
    const message = "Invalid 'from': expected a valid date such as 2030-01-31."
    expect(await refused.json()).toMatchObject({ error: { message, param: 'from' } })
  })
})

describe('the usage report of operators', () => {
  const USER = { secret: 'sk-user', project: 'proj_lab', name: 'nightly', limits: { budget_usd_per_month: 4 } }
  async function startNamed() {
    const stack = await startPriced(USER, { secret: 'sk-other' }, { secret: 'sk-admin', scopes: ['admin'] })
    const name = '=HYPERLINK("x"), "lab"'
    const project = { id: 'proj_lab', name, created_at: 1_790_000_000, limits: { budget_usd_per_month: 10 } }
    const file = join(stack.dataDir, 'keys.json')
    writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), projects: [project] }))
    await until(async () => (await usageOf(stack, 'sk-admin')).budgets.length === 2)
    await (await stack.post(CHAT, say('!echo tokens=10'), as('sk-user'))).text()
    await stack.post(CHAT, say('!echo tokens=5'), as('sk-user', { prefer: 'respond-async' }))
    const embed = { model: 'echo-1', prompt: '!echo tokens=1', max_tokens: 5 }
    await (await stack.post('/v1/completions', embed, as('sk-other'))).text()
    await until(async () => (await usageOf(stack, 'sk-admin')).total.calls === 3)
    return stack
  }

  it('groups by endpoint and hour, filters by model and endpoint, and names projects, keys and all budgets', async () => {
    await using stack = await startNamed()
    const byEndpoint = await usageOf(stack, 'sk-admin', '?group_by=endpoint')
    expect(byEndpoint.data.map(({ group, calls }) => [group, calls])).toEqual([
      ['/v1/chat/completions', 2],
      ['/v1/completions', 1],
    ])
    const [hour] = (await usageOf(stack, 'sk-admin', '?group_by=hour&model=echo-1')).data
    expect(hour?.group).toMatch(/^\d{4}-\d\d-\d\dT\d\d:00:00Z$/)
    const costly = await usageOf(stack, 'sk-admin', '?group_by=project&order_by=cost')
    expect(costly.data.map(({ group, name }) => [group, name])).toEqual([
      ['proj_lab', '=HYPERLINK("x"), "lab"'],
      ['key_sk-other', null],
    ])
    expect(costly.budgets.map(({ owner, name, budget_usd }) => [owner, name, budget_usd])).toEqual([
      ['key', 'nightly', 4],
      ['project', '=HYPERLINK("x"), "lab"', 10],
    ])
    expect(costly.budgets[0]?.remaining_usd).toBeCloseTo(4 - 1.015, 9)
    expect(costly.budgets[0], 'forecast without spending on two days').toHaveProperty('forecast', null)
    expect((await usageOf(stack, 'sk-admin', '?project=key_sk-other')).budgets).toEqual([])
    expect(costly.alerts_to).toBe('alerts.invalid')
    expect((await usageOf(stack, 'sk-other')).alerts_to).toBeNull()
    expect((await usageOf(stack, 'sk-admin', '?endpoint=/v1/completions')).total.calls).toBe(1)
    // A key of another project sees neither these calls nor these budgets, even if its query names the key that made the calls.
    const other = await usageOf(stack, 'sk-other', '?group_by=key&model=echo-1&key=key_sk-user')
    expect([other.data, other.budgets]).toEqual([[], []])
  })

  it('groups by several dimensions, in JSON and in CSV with a column per dimension', async () => {
    await using stack = await startNamed()
    const query = '?group_by=day,project,key,model'
    const { data, total } = await usageOf(stack, 'sk-admin', query)
    const day = dayOf(Date.now())
    const ofLab = data.find(({ groups }) => groups?.project === 'proj_lab')
    const values = {
      day,
      project: 'proj_lab',
      project_name: '=HYPERLINK("x"), "lab"',
      key: 'key_sk-user',
      key_name: 'nightly',
    }
    expect(ofLab).toMatchObject({ groups: { ...values, model: 'echo-1' }, calls: 2, name: null })
    expect(ofLab?.group).toBe(`${day},proj_lab,key_sk-user,echo-1`)
    expect([data.length, total.calls]).toEqual([2, 3])
    const [head, ...lines] = (await (await stack.get(`/v1/usage${query}&format=csv`, as('sk-admin'))).text()).split(
      '\r\n',
    )
    expect(head).toMatch(/^day,project,project_name,key,key_name,model,calls,failed,/)
    expect(lines[0]).toMatch(new RegExp(`^${day},key_sk-other,,key_sk-other,,echo-1,1,0,`))
    expect(lines[1]).toMatch(/,key_sk-user,nightly,echo-1,2,0,/)
    const byHour = await usageOf(stack, 'sk-admin', '?group_by=model,hour')
    expect(byHour.data[0]?.groups?.hour).toMatch(/T\d\d:00:00Z$/)
  })

  it('counts refused calls, but not cancelled calls, as failed, like the request log', async () => {
    await using stack = await startNamed()
    const failed = [
      await stack.post(CHAT, { ...say('hi'), model: 'invented' }, as('sk-other')),
      await stack.post(CHAT, { model: 'echo-1' }, as('sk-other')),
      await stack.post('/v1/invented', {}, as('sk-other')),
    ]
    expect(failed.map(({ status }) => status)).toEqual([404, 400, 404])
    const stop = new AbortController()
    const leaving = stack.post(CHAT, say('!echo first_ms=60000\nx'), { ...as('sk-other'), signal: stop.signal })
    await until(async () => /sluice_attached_jobs\{[^}]*"running"\} 1/.test(await (await stack.get('/metrics')).text()))
    stop.abort()
    await leaving.catch(() => {})
    const rowsOf = async (query: string) => {
      const page = await (await stack.get(`/v1/admin/requests?limit=100${query}`, as('sk-other'))).json()
      return (page as { data: { status: number }[] }).data.map(({ status }) => status)
    }
    await until(async () => (await rowsOf('&status=499')).length === 1)
    expect(await rowsOf('&status=failed')).toEqual([404, 400, 404])
    await until(async () => (await usageOf(stack, 'sk-other')).total.failed === 3)
    const byModel = (await usageOf(stack, 'sk-admin', '?group_by=model&project=key_sk-other')).data
    expect(byModel.map(({ group, calls, failed: own }) => [group, calls, own])).toEqual([
      ['', 2, 2],
      ['echo-1', 3, 1],
    ])
  })

  it('compares a period with the period before it, and forecasts the month with or without a budget', async () => {
    // One call of $1 on each of the last seven days, and on three of the seven days before them.
    const dataDir = await directoryWithDays([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    await using stack = await startIn(dataDir, { secret: 'sk-admin', scopes: ['admin'] })
    const range = `from=${dayAgo(7)}&to=${dayAgo(0)}&group_by=project`
    const report = await usageOf(stack, 'sk-admin', `?${range}&compare=previous`)
    expect(report.comparison).toMatchObject({
      ...{ unit: 'day', units: 7 },
      current: { from: dayAgo(7), to: dayAgo(1), total: { calls: 7, cost_usd: 7 }, units_with_usage: 7 },
      previous: { from: dayAgo(14), to: dayAgo(8), total: { calls: 3, cost_usd: 3 }, units_with_usage: 3 },
    })
    expect(report.data[0]?.compared).toEqual({ current_cost_usd: 7, previous_cost_usd: 3 })
    const byDay = await usageOf(stack, 'sk-admin', `?${range.replace('project', 'day')}&compare=previous`)
    expect(byDay.data[0], 'a day has no earlier cost').not.toHaveProperty('compared')
    const { spent_usd = 0, forecast } = report.current_month ?? {}
    const ofMonth = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].filter((days) => dayAgo(days) >= `${dayAgo(0).slice(0, 7)}-01`)
    expect(spent_usd, 'days of this month').toBe(ofMonth.length)
    expect(forecast, 'the seven days and the part of today').toMatchObject({ days: 7, used_up_at: null })
    expect(forecast?.usd_per_day).toBeGreaterThan(7 / 8)
    const plain = await usageOf(stack, 'sk-admin', `?${range}`)
    expect(plain.comparison, 'comparison that was not requested').toBeNull()
    const past = await usageOf(stack, 'sk-admin', `?from=${dayAgo(9)}&to=${dayAgo(8)}`)
    expect(past.current_month, 'month of a period in the past').toBeNull()
  })

  it('exports CSV in which no cell is a formula', async () => {
    await using stack = await startNamed()
    const query = '/v1/usage?group_by=project'
    const byHeader = await stack.get(query, as('sk-admin', { accept: 'text/csv' }))
    expect(byHeader.headers.get('content-type')).toBe('text/csv; charset=utf-8')
    expect(byHeader.headers.get('content-disposition')).toMatch(/^attachment; filename="usage-by-project-.*\.csv"$/)
    const [head, other, lab, end] = (await byHeader.text()).split('\r\n')
    expect(head).toBe('project,name,calls,failed,input_tokens,cached_input_tokens,output_tokens,audio_seconds,cost_usd')
    expect(other).toMatch(/^key_sk-other,,1,0,/)
    expect(lab).toMatch(/^proj_lab,"'=HYPERLINK\(""x""\), ""lab""",2,0,/)
    expect(end).toBe('')
    expect(await (await stack.get(`${query}&format=csv`, as('sk-admin'))).text()).toContain("'=HYPERLINK")
    expect(
      (await stack.get(`${query}&format=json`, as('sk-admin', { accept: 'text/csv' }))).headers.get('content-type'),
    ).toBe('application/json')
  })
})

describe('an exhausted budget', () => {
  it('refuses calls of each kind in the error format of the path, and lets queued jobs run', async () => {
    await using stack = await startPriced({ secret: 'sk-one', limits: { budget_usd_per_month: 1.3 } })
    await (await stack.post(CHAT, say('!echo tokens=10'), as('sk-one'))).text()
    const soon = Math.ceil(Date.now() / 1_000) + 3
    const waiting = { endpoint: CHAT, body: say('!echo tokens=90'), run_at: soon }
    const { id } = (await (await stack.post('/v1/jobs', waiting, as('sk-one'))).json()) as { id: string }
    const held = await stack.post(CHAT, say('!echo tokens=90'), as('sk-one'))
    expect([held.status, held.headers.get('retry-after'), await held.json()]).toMatchObject([
      429,
      '2',
      { error: { code: 'rate_limit_exceeded', message: expect.stringContaining('have reserved the rest') } },
    ])
    const state = async () =>
      ((await (await stack.get(`/v1/jobs/${id}`, as('sk-one'))).json()) as { status: string }).status
    await until(async () => (await state()) === 'completed')
    await until(async () => (await stack.post(CHAT, say('!echo tokens=90'), as('sk-one'))).status === 200)
    const refused = await until(async () => {
      const response = await stack.post(CHAT, say('hi'), as('sk-one'))
      return response.status === 429 ? response : undefined
    })
    const message = expect.stringMatching(
      /^The budget of this key, \$1\.30 for \d{4}-\d\d, is spent\. The budget resets on \d{4}-\d\d-01/,
    )
    const body = { error: { type: 'insufficient_quota', code: 'insufficient_quota', param: null, message } }
    expect(await refused.json()).toEqual(body)
    expect([refused.headers.get('retry-after'), refused.headers.get('x-should-retry')]).toEqual([null, 'false'])
    const messages = await stack.post('/v1/messages', say('hi'), as('sk-one'))
    expect([messages.status, await messages.json()]).toMatchObject([
      429,
      { type: 'error', error: { type: 'rate_limit_error', message } },
    ])
    expect((await stack.post('/v1/jobs', { endpoint: CHAT, body: say('hi') }, as('sk-one'))).status).toBe(429)
    expect((await stack.get('/v1/jobs', as('sk-one'))).status).toBe(200)
    const spent = await until(async () => {
      const { budgets } = await usageOf(stack, 'sk-one')
      return budgets?.[0]?.remaining_usd === 0 ? budgets : undefined
    })
    expect(spent).toMatchObject([{ owner: 'key', id: 'key_sk-one', budget_usd: 1.3 }])
  })
})

const ENTRY: UsageEntry = {
  ...{
    project: 'proj',
    keyId: 'key_a',
    model: 'm',
    endpoint: '/v1/chat/completions',
    hour: '2030-01-31T08',
    calls: 1,
    failed: 0,
  },
  ...{ inputTokens: 0, cachedInputTokens: 0, outputTokens: 0, audioMs: 0, costNanos: 1_000_000_000 },
}

async function openLedger() {
  const database = await openSqliteDatabase()
  onTestFinished(() => database[Symbol.asyncDispose]())
  const { usage } = await database.open()
  const link = { isAway: false }
  const refuse = () => Promise.reject(new Error('away'))
  const ledger: UsageLedger = {
    add: (...batch) => (link.isAway ? refuse() : usage.add(...batch)),
    spent: (...query) => (link.isAway ? refuse() : usage.spent(...query)),
    sum: (query) => usage.sum(query),
    activity: (...query) => usage.activity(...query),
    enter: (jobs) => usage.enter(jobs),
    listEnded: (limit) => usage.listEnded(limit),
    mergeHours: (...query) => usage.mergeHours(...query),
    addAlert: (alert) => usage.addAlert(alert),
  }
  return { ledger, link }
}

describe('monthly budgets', () => {
  const BUDGET: Limits = { budget_usd_per_month: 2 }
  async function open(at: string, limitsOf: (project: string) => Limits = () => ({})) {
    const { ledger, link } = await openLedger()
    const clock = { ms: Date.parse(at), monotonicMs: 0 }
    const clocks = { now: () => clock.ms, clock: () => clock.monotonicMs }
    return { ledger, link, clock, budgets: new Budgets({ ledger, log: silentLog, limitsOf, ...clocks }) }
  }
  const refusal = { code: 'insufficient_quota' }

  it('include the spending of all keys of a project, and restart each month in UTC', async () => {
    const { ledger, clock, budgets } = await open('2030-01-31T23:59:00Z', (project) =>
      project === 'proj' ? BUDGET : {},
    )
    const key = { id: 'key_b', project: 'proj' }
    await ledger.add('ing', 1, [
      ENTRY,
      { ...ENTRY, keyId: 'key_c', endpoint: '/v1/chat/completions', hour: '2030-01-01T08' },
    ])
    await expect(budgets.require(key)).rejects.toMatchObject(refusal)
    expect(budgets.require({ id: 'key_c' })).toBeUndefined()
    clock.ms = Date.parse('2030-02-01T00:00:00Z')
    await budgets.require(key)
    expect(await budgets.stateOf(key)).toMatchObject([{ month: '2030-02', spent_usd: 0, remaining_usd: 2 }])
    // The clock is set back to January, whose budget is exhausted, so the key is refused again.
    clock.ms = Date.parse('2030-01-15T00:00:00Z')
    await expect(budgets.require(key)).rejects.toMatchObject(refusal)
  })

  it('refuse the first call after an idle minute if other processes have spent the budget meanwhile', async () => {
    const { ledger, clock, budgets } = await open('2030-01-31T00:00:00Z')
    const key = { id: 'key_a', limits: BUDGET }
    await budgets.require(key)
    await ledger.add('ing', 1, [{ ...ENTRY, calls: 2, costNanos: 2_000_000_000 }])
    clock.monotonicMs += 60_000
    const burst = await Promise.allSettled([budgets.require(key), budgets.require(key)])
    expect(burst).toMatchObject([{ reason: refusal }, { reason: refusal }])
  })

  it('refuse every call if they are zero', async () => {
    const { budgets } = await open('2030-01-31T00:00:00Z')
    await expect(budgets.require({ id: 'key_a', limits: { budget_usd_per_month: 0 } })).rejects.toMatchObject(refusal)
  })

  it('admit calls while the ledger is down', async () => {
    const { link, budgets } = await open('2030-01-31T00:00:00Z')
    link.isAway = true
    await budgets.require({ id: 'key_a', limits: BUDGET })
  })
})

describe('usage entries that are not yet written', () => {
  it('wait while the ledger is down, and are written in one batch afterwards', async () => {
    const { ledger, link } = await openLedger()
    const batches = new UsageBatches(ledger, 'ing', silentLog)
    link.isAway = true
    for (let i = 0; i < 10; i++) void batches.add(ENTRY)
    await until(() => batches.isFailing)
    void batches.add({ ...ENTRY, model: 'other' })
    link.isAway = false
    await batches.close()
    const sums = await ledger.sum({ from: '2030-01-01', to: '2030-01-31', groupBy: 'model', limit: 10 })
    expect(sums.map(({ group, calls }) => [group, calls])).toEqual([
      ['m', 10],
      ['other', 1],
    ])
  })
  it('are written after a write that takes longer than the write interval', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const written: string[][] = []
    const slow = Promise.withResolvers<void>()
    const add: UsageLedger['add'] = (_boot, _number, entries) => {
      written.push(entries.map(({ model }) => model))
      return slow.promise
    }
    const batches = new UsageBatches({ add } as UsageLedger, 'ing', silentLog)
    void batches.add({ ...ENTRY, model: 'first' })
    await vi.advanceTimersByTimeAsync(1_100)
    void batches.add({ ...ENTRY, model: 'second' })
    await vi.advanceTimersByTimeAsync(3_000)
    expect(written, 'entries while the first write runs').toEqual([['first']])
    slow.resolve()
    await vi.advanceTimersByTimeAsync(1_100)
    expect(written).toEqual([['first'], ['second']])
  })
})
