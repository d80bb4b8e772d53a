/* Tests of the console screen Usage, and of the usage history on the home screen. */

import { readFile } from 'node:fs/promises'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { UsageReport } from '#schemas/usage.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, openScreen, PAGE_MS, signIn } from '../../support/browser.ts'
import { until } from '../../support/stack.ts'

const NARROW = { width: 360, height: 740 }

describe.skipIf(!CHROMIUM)('the usage screen of the console', { timeout: 6 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    admin = await openAdmin({ models: 2, price: { output_per_million: 50_000, per_call: 0.25 } })
    browser = await openChromium()
    const project = { name: 'search', limits: { budget_usd_per_month: 10 } }
    const made = (await (await admin.as('op').post('/v1/admin/projects', project)).json()) as { id: string }
    const secret = 'sk-nightly-0123456789'
    const store = openFileKeys(admin.stack.dataDir)
    await store.create(keyOf(secret, { id: 'key_nightly', name: '=cmd', project: made.id }))
    await store.close()
    const headers = { authorization: `Bearer ${secret}` }
    await until(async () => (await admin.stack.get('/v1/key', { headers })).status === 200)
    const say = (model: string, content = '!echo tokens=20') => ({ model, messages: [{ role: 'user', content }] })
    for (const model of ['echo-1', 'echo-2']) {
      await (await admin.stack.post('/v1/chat/completions', say(model), { headers })).text()
    }
    for (const body of [say('echo-1'), say('echo-1', '!echo fail=upstream_refused'), say('unknown')])
      await (await admin.as('alice').post('/v1/chat/completions', body)).text()
    const used = async () => (await (await admin.as('op').get('/v1/usage')).json()) as UsageReport
    await until(async () => (await used()).total.calls === 5)
  }, 2 * PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  const look = async (page: Page, name: string) => expect(await faultsOf(page, name)).toEqual([])
  async function openUsage(who: string, options: object = {}): Promise<Page> {
    const page = await signIn(browser, admin.stack.url, secretOf(who), faults, options)
    await openScreen(page, 'Usage')
    await page.getByRole('heading', { name: 'Usage', exact: true }).waitFor()
    return page
  }

  it('reports that no alerts are sent if the service returns no receiver of alerts', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.route('**/v1/usage?*', async (route) => {
      const response = await route.fetch()
      await route.fulfill({ response, json: { ...(await response.json()), alerts_to: undefined } })
    })
    await page.getByRole('link', { name: 'Usage', exact: true }).click()
    await page.getByText('No alerts are sent.').waitFor()
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.context().close()
  })

  it('compares totals with the previous period of equal length', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    const today = new Date().toISOString().slice(0, 10)
    const dayAgo = (days: number) => new Date(Date.parse(today) - days * 86_400_000).toISOString().slice(0, 10)
    const ranges: string[] = []
    await page.route('**/v1/usage?*', async (route) => {
      const query = new URL(route.request().url()).searchParams
      const response = await route.fetch()
      const report = (await response.json()) as UsageReport
      const [from, to] = [query.get('from'), query.get('to')]
      const counts = { [dayAgo(1)]: { calls: 5, failed: 2 }, [dayAgo(8)]: { calls: 4, failed: 8 } }[to ?? '']
      if (counts) ranges.push(`${from} ${to}`)
      await route.fulfill({ response, json: { ...report, total: { ...report.total, ...counts } } })
    })
    await page.getByRole('link', { name: 'Usage', exact: true }).click()
    const totals = page.getByLabel('Totals')
    await totals.getByText(/^\+25 %(: 5 after| from) 4$/).waitFor()
    await totals.getByText(/^−75 %(: 2 after| from) 8$/).waitFor()
    expect(ranges.slice(0, 2).toSorted(), 'the seven days before today, and the seven days before them').toEqual([
      `${dayAgo(14)} ${dayAgo(8)}`,
      `${dayAgo(7)} ${dayAgo(1)}`,
    ])
    await page.getByText(/^Changes compare .* to .* with .* to .*\.$/).waitFor()
    const byHour: string[] = []
    page.on('request', (request) => request.url().includes('T') && byHour.push(request.url()))
    const isOfHours = (url: string) => /group_by=hour/.test(url)
    await Promise.all([
      page.waitForRequest((request) => isOfHours(request.url())),
      page.getByRole('button', { name: 'Last 24 hours' }).click(),
    ])
    await page.getByText('to now: 24 full hours and the running hour.').waitFor()
    const windowsOf = (of: (url: string) => boolean) =>
      byHour.filter(of).map((url) => {
        const hours = new URL(url).searchParams
        const [from = 0, to = 0] = ['from', 'to'].map((name) => Date.parse(`${hours.get(name)}:00:00Z`) / 3_600_000)
        return { from, to, length: to - from + 1 }
      })
    const [whole] = windowsOf(isOfHours)
    expect(whole, 'hours from the same hour of yesterday to the running hour').toMatchObject({ length: 25 })
    expect(Date.now() / 3_600_000 - (whole?.to ?? 0), 'hours since the start of the last hour').toBeLessThan(1.1)
    const compared = windowsOf((url) => url.includes('group_by=project&')).filter(({ length }) => length === 24)
    expect(compared.map(({ from }) => from - (whole?.from ?? 0)).toSorted(), 'starts of the compared windows').toEqual([
      -24, 0,
    ])
    const month = `${today.slice(0, 8)}01`
    const lastDay = new Date(Date.parse(month) - 86_400_000).toISOString().slice(0, 10)
    for (const [name, range] of [
      ['This month', `from=${month}&to=${today}`],
      ['Last month', `from=${lastDay.slice(0, 8)}01&to=${lastDay}`],
    ] as const) {
      await Promise.all([
        page.waitForRequest((request) => request.url().includes(range)),
        page.getByRole('button', { name }).click(),
      ])
    }
    await page.unrouteAll({ behavior: 'wait' })
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.context().close()
  })

  it('forecasts the total of this month as the budgets do, and names the key with the highest cost', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    const report = (await (await admin.as('op').get('/v1/usage')).json()) as UsageReport
    const sums = (cost_usd: number) => ({ ...report.total, calls: 1, failed: 0, cost_usd })
    const rowOf = (group: string, cost_usd: number, more = {}) => ({ ...sums(cost_usd), group, name: null, ...more })
    // $1 on each of the last eight days, of which the last has 12 hours: $8 in 7.5 days.
    const days = Array.from({ length: 15 }, (_, nth) =>
      rowOf(`2026-09-${String(nth + 1).padStart(2, '0')}`, nth < 7 ? 10 : 1),
    )
    const keyed = [
      { key: 'key_1', key_name: 'app', usd: 24 },
      { key: 'key_2', key_name: 'app', usd: 24 },
      { key: 'key_3', key_name: 'nightly', usd: 30 },
    ]
    const parts = keyed.map(({ usd, ...one }) => rowOf('', usd, { groups: { project: 'p', model: 'm', ...one } }))
    const hours = ['08', '10'].map((hour) => rowOf(`2026-09-01T${hour}:00:00Z`, 39))
    const rows: Readonly<Record<string, object[]>> = { day: days, hour: hours, 'project,key,model': parts }
    let date = '2026-09-15T12:00:00Z'
    // The console takes the time from the `date` header.
    await page.route('**/v1/**', async (route) => {
      const { pathname, searchParams } = new URL(route.request().url())
      const headers = { date: new Date(date).toUTCString() }
      if (pathname === '/v1/usage') {
        const data = rows[searchParams.get('group_by') ?? ''] ?? [rowOf('p', 78)]
        return await route.fulfill({ headers, json: { ...report, total: sums(78), data } })
      }
      const response = await route.fetch()
      await route.fulfill({ response, headers: { ...response.headers(), ...headers } })
    })
    await page.getByRole('link', { name: 'Usage', exact: true }).click()
    await page.getByRole('button', { name: 'This month' }).click()
    const totals = page.getByLabel('Totals')
    // $78 so far, and $8 per 7.5 days for the remaining 15.5 days.
    await totals.getByText('about $94.53 at the end of the month', { exact: true }).waitFor()
    await page.getByText(/Mostly key nightly \(38 %\), model m \(100 %\)\.$/).waitFor()
    date = '2026-09-01T12:00:00Z'
    await page.reload()
    await page.getByRole('slider', { name: 'Cost per hour' }).waitFor()
    expect(await totals.innerText()).toContain('$78.00')
    expect(await totals.getByText('at the end of the month').count(), 'forecast from the hours of one day').toBe(0)
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.context().close()
  })

  it('shows costs by project and by model, and exports CSV with escaped formulas', async () => {
    const page = await openUsage('op')
    const table = page.getByRole('table', { name: /^Usage by/ })
    await table.getByRole('row').nth(1).getByText('search').waitFor()
    const budgets = page.getByRole('table', { name: 'Budgets' })
    await budgets.getByText('$7.50').waitFor()
    await budgets.getByText('$2.50 of $10.00 (25 %)').waitFor()
    await budgets.getByText('too little spending for a forecast').first().waitFor()
    expect(await page.getByText('Changes compare').count(), 'comparison without earlier usage').toBe(0)
    const failures = page.getByRole('table', { name: 'Server errors' })
    const failure = failures.getByRole('row').filter({ hasText: 'upstream_refused' }).filter({ hasText: 'alice' })
    expect(await failure.getByRole('link', { name: '1', exact: true }).getAttribute('href')).toMatch(
      /requests\?since=\d+&until=\d+&error_code=upstream_refused&model=echo-1&project=alice&key=alice&status=502$/,
    )
    expect(await page.getByLabel('Totals').innerText()).toMatch(/Failed\s+2 \(40\.0 %\)/)
    const refused = page.getByRole('table', { name: 'Refused' }).getByRole('row').filter({ hasText: 'model_not_found' })
    await refused.getByRole('cell', { name: 'alice' }).first().waitFor()
    await page.getByLabel('Totals').getByText('1 server error, 1 refused').waitFor()
    for (const heading of ['Server errors: 1', 'Refused: 1'])
      await page.getByRole('heading', { name: heading }).waitFor()
    await page
      .getByText(/search spent most: \$2\.50 of .* Mostly key =cmd \(100 %\), model echo-\d \(\d+ %\)\./)
      .waitFor()
    await look(page, 'usage')
    const chart = page.getByRole('slider', { name: 'Cost per day' })
    await chart.hover()
    await page.locator('.chart .values').waitFor()
    await page.getByRole('button', { name: 'Requests', exact: true }).click()
    await page.getByRole('slider', { name: 'Requests per day' }).focus()
    await page.keyboard.press('End')
    expect(await page.getByRole('slider').getAttribute('aria-valuetext')).toMatch(/: Requests 5$/)
    const failed = table.getByRole('row').filter({ hasText: 'alice' }).getByRole('link', { name: '2', exact: true })
    expect(await failed.getAttribute('href')).toMatch(/requests\?project=alice&status=failed&since=\d+&until=\d+$/)
    await failed.click()
    await page.getByText('2 requests', { exact: true }).waitFor()
    await page.goBack()
    await refused.getByRole('link', { name: 'unknown' }).click()
    await page.getByRole('link', { name: /^Model: unknown/ }).waitFor()
    await page.goBack()
    await table.getByRole('link', { name: 'search' }).click()
    await page.getByRole('link', { name: /^Project: search/ }).waitFor()
    await table.getByText('echo-2').waitFor()
    expect(await page.getByLabel('Totals').innerText()).toMatch(/Requests\s+2\s/)
    expect(await budgets.getByRole('row').count(), 'rows of the header and of the filtered project').toBe(2)
    await budgets.getByText('$2.50 of $10.00 (25 %)').waitFor()
    await page.getByRole('button', { name: 'API key', exact: true }).click()
    await table.getByText('=cmd').waitFor()
    const exported = async (what: string) => {
      const download = page.waitForEvent('download')
      await page.getByRole('button', { name: `Export CSV of the ${what}` }).click()
      return await readFile(await (await download).path(), 'utf8')
    }
    const csv = await exported('top spenders')
    expect(csv.split('\r\n')[1]).toMatch(/^key_[^,]+,'=cmd,2,0,/)
    expect(await exported('budgets')).toMatch(/^owner,id,name,.*\r\nproject,[^,]+,search,\d{4}-\d\d,10,2\.5,7\.5,/)
    expect(await exported('failures')).toMatch(/^kind,status,error_code,/)
    const byDay = await exported('usage by day')
    expect(byDay).toMatch(/^day,project,project_name,key,key_name,model,calls,.*\r\n\d{4}-\d\d-\d\d,[^,]+,search,/)
    await page.reload()
    await table.getByText('=cmd').waitFor()
    expect((await admin.as('op').post('/v1/admin/projects', { name: 'lab' })).status).toBe(201)
    await page.goto(`${admin.stack.url}/console/usage`)
    await page.getByRole('link', { name: 'Set a budget for lab' }).click()
    await page
      .getByRole('dialog')
      .getByLabel(/[Bb]udget/)
      .and(page.locator(':focus'))
      .waitFor()
    await page.context().close()
  })

  it('shows a caller only the project of the key, in dark mode at a narrow width', async () => {
    // The chips of Top spenders are below the lower edge of this window.
    const page = await openUsage('alice', { viewport: { width: 360, height: 480 }, colorScheme: 'dark' })
    await page.getByRole('table', { name: 'Usage by model' }).getByText('echo-1').waitFor()
    expect(await page.content()).not.toContain('search')
    const drawn = 'new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve(scrollY))))'
    expect(await page.evaluate(drawn), 'pixels by which the page scrolled without a user').toBe(0)
    await page.setViewportSize(NARROW)
    await page.getByRole('button', { name: 'Last 24 hours' }).click()
    await page.getByRole('slider', { name: 'Cost per hour' }).waitFor()
    await look(page, 'usage-narrow-dark')
    await page.getByRole('button', { name: 'Custom' }).click()
    await page.getByLabel('From').fill('2031-01-01')
    await page.getByText(/'from' is later than 'to'/).waitFor()
    await page.context().close()
  })

  it('shows the history of metrics with values on hover, and keeps the range in the URL', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.getByRole('slider', { name: 'Time to first token over time' }).waitFor()
    await page.getByRole('button', { name: '24 h' }).click()
    await page.getByRole('button', { name: '24 h', pressed: true }).waitFor()
    await page.reload()
    await page.getByRole('button', { name: '24 h', pressed: true }).waitFor()
    await page.getByRole('slider', { name: 'Requests over time' }).hover()
    await page
      .locator('.chart .values')
      .getByText(/requests/)
      .waitFor()
    await look(page, 'home-history')
    await page.setViewportSize(NARROW)
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'home-history-narrow-dark')
    await page.context().close()
  })

  it('shows no metrics history of the previous key after a sign-out', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    const chart = page.getByRole('slider', { name: 'Requests over time' })
    await chart.waitFor()
    await page.getByRole('button', { name: 'Sign out' }).click()
    const held = Promise.withResolvers<void>()
    await page.route('**/v1/history*', async (route) => {
      await held.promise
      await route.fulfill({ status: 403, json: { error: { message: 'This key may not read the history.' } } })
    })
    await page.getByLabel('API key').fill(secretOf('alice'))
    await page.getByRole('button', { name: 'Sign in' }).click()
    await page.getByRole('heading', { name: /^History/ }).waitFor()
    expect(await chart.count(), 'charts of the previous key').toBe(0)
    held.resolve()
    await page.getByRole('heading', { name: /^History/ }).waitFor({ state: 'detached' })
    await page.context().close()
    // The browser logs an error for each failed request. Two are expected: the invalid time range of the second test, and the list of
    // models for a key without the scope `calls`.
    expect(faults.filter((fault) => !/status of (400|403)/.test(fault))).toEqual([])
  })
})
