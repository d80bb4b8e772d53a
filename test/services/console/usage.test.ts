import { readFile } from 'node:fs/promises'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { UsageReport } from '#schemas/usage.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, openScreen, PAGE_MS, signIn } from '../../support/browser.ts'
import { until } from '../../support/stack.ts'

/*
 * The screen Usage, and the history on the home screen.
 */

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
    for (const content of [undefined, '!echo fail=upstream_refused'])
      await (await admin.as('alice').post('/v1/chat/completions', say('echo-1', content))).text()
    const used = async () => (await (await admin.as('op').get('/v1/usage')).json()) as UsageReport
    await until(async () => (await used()).total.calls === 4)
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

  it('reports that no alerts are sent if an earlier version does not name their receiver', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.route('**/v1/usage?*', async (route) => {
      const response = await route.fetch()
      await route.fulfill({ response, json: { ...(await response.json()), alerts_to: undefined } })
    })
    await page.getByRole('link', { name: 'Usage', exact: true }).click()
    await page.getByText('No alerts are sent.').waitFor()
    await page.context().close()
  })

  it('shows who spent most and on which model, budgets by name, and exports CSV without formulas', async () => {
    const page = await openUsage('op')
    const table = page.getByRole('table', { name: /^Usage by/ })
    await table.getByRole('row').nth(1).getByText('search').waitFor()
    const budgets = page.getByRole('table', { name: 'Budgets' })
    await budgets.getByText('$7.50').waitFor()
    await look(page, 'usage')
    const chart = page.getByRole('slider', { name: 'Cost per day' })
    await chart.hover()
    await page.locator('.chart .values').waitFor()
    await page.getByRole('button', { name: 'Requests', exact: true }).click()
    await page.getByRole('slider', { name: 'Requests per day' }).focus()
    await page.keyboard.press('End')
    expect(await page.getByRole('slider').getAttribute('aria-valuetext')).toMatch(/: Requests 4$/)
    const failed = table.getByRole('row').filter({ hasText: 'alice' }).getByRole('link', { name: '1', exact: true })
    expect(await failed.getAttribute('href')).toBe('/console/requests?project=alice&status=failed&range=604800')
    await table.getByRole('button', { name: 'search' }).click()
    await page.getByRole('button', { name: /^Project: search/ }).waitFor()
    await table.getByText('echo-2').waitFor()
    expect(await page.getByLabel('Totals').innerText()).toMatch(/Requests\s+2\s/)
    await page.getByRole('button', { name: 'API key', exact: true }).click()
    await table.getByText('=cmd').waitFor()
    const download = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Export CSV' }).click()
    const csv = await readFile(await (await download).path(), 'utf8')
    expect(csv.split('\r\n')[1]).toMatch(/^key_[^,]+,'=cmd,2,0,/)
    await page.reload()
    await table.getByText('=cmd').waitFor()
    await page.context().close()
  })

  it('shows a caller the own project only, in dark mode at a narrow width, and names the remedy of an invalid range', async () => {
    const page = await openUsage('alice', { viewport: NARROW, colorScheme: 'dark' })
    await page.getByRole('table', { name: 'Usage by model' }).getByText('echo-1').waitFor()
    expect(await page.content()).not.toContain('search')
    await page.getByRole('button', { name: 'Today' }).click()
    await page.getByRole('slider', { name: 'Cost per hour' }).waitFor()
    await look(page, 'usage-narrow-dark')
    await page.getByRole('button', { name: 'Custom' }).click()
    await page.getByLabel('First day').fill('2031-01-01')
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

  it('shows no history of the previous key after a sign-out, and no panel to a key that may not read the history', async () => {
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
    // Two errors are expected: the rejected range of the second test, and the rejected list of models. A key without the scope `calls` may not read
    // that list.
    expect(faults.filter((fault) => !/status of (400|403)/.test(fault))).toEqual([])
  })
})
