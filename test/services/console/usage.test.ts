/* Tests of the console screen Usage, and of the usage history on the home screen. */

import { readFile } from 'node:fs/promises'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { UsageReport } from '#schemas/usage.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, openScreen, PAGE_MS, signIn } from '../../support/browser.ts'
import { directoryWithDays } from '../../support/ledger.ts'
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

  it('shows only the project of the key if the key has no admin scope, in dark mode at a narrow width', async () => {
    // The chips of Top spenders are below the lower edge of this window. Their arrival must not scroll the page.
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

  it('compares a range with the period before it, and forecasts the month in the totals and on Home', async () => {
    // One call of $1 on each of the last seven days, and on three of the seven days before them. The calls are older than the request log.
    const dataDir = await directoryWithDays([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], {
      project: 'alice',
      keyId: 'alice',
      failed: 1,
    })
    await using earlier = await openAdmin({ dataDir })
    await (await earlier.as('alice').post('/v1/chat/completions', { model: 'unknown', messages: [] })).text()
    const page = await signIn(browser, earlier.stack.url, secretOf('op'), faults)
    const forecast = 'at the end of the month, at the rate of the last 7 days'
    await page.getByLabel('Summary', { exact: true }).getByText(forecast).waitFor()
    await openScreen(page, 'Usage')
    const totals = page.getByLabel('Totals')
    await totals.getByText(forecast).waitFor()
    await totals.getByText(/^\+133 %(: \$7\.00 after| from) \$3\.00 \(3 of 7 days with data\)$/).waitFor()
    await page.getByText('previous period: 3 of 7 days with data', { exact: true }).waitFor()
    await page.getByText(/spent most: .* after .*; previous period: 3 of 7 days with data\)/).waitFor()
    const row = page.getByRole('table', { name: 'Usage by project' }).getByRole('row', { name: 'alice' })
    await row.getByText('$7.00 after $3.00').waitFor()
    await totals.getByText(/request log since \d+ \w+; 7 older failures are not listed/).waitFor()
    await totals
      .getByRole('link', { name: '8' })
      .or(row.getByRole('link', { name: '8' }))
      .first()
      .click()
    await page.getByText('1 request', { exact: true }).waitFor()
    await page
      .getByText(/^The request log begins on \d+ \w+\. Older requests are counted in the usage report only\.$/)
      .waitFor()
    await page.goBack()
    await page.getByRole('button', { name: '90 days' }).click()
    await page.getByText(/^No change is shown: .* has no data\.$/).waitFor()
    await page.getByRole('button', { name: 'Last 24 hours' }).click()
    await page.getByText('to now: 24 full hours and the running hour.').waitFor()
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
