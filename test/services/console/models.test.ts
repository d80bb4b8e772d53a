/* Tests of the console screen Models for a model whose upstream is unreachable: circuit breaker, health check and slots. */

import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openFileKeys } from '#shared/keys/file.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../support/stack.ts'

const KEY = 'sk-operator-0123456789'
/** A model whose upstream is unreachable, because no server listens on port 9. */
const GONE = {
  id: 'gone',
  engine: { type: 'openai', base_url: 'http://127.0.0.1:9/v1', breaker: { failures: 1, reset_ms: 600_000 } },
}

describe.skipIf(!CHROMIUM)('the Models screen of the console', { timeout: 6 * PAGE_MS }, () => {
  let stack: Stack
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    stack = await startStack({ models: [{ ...ECHO_MODEL, aliases: ['gpt-4o-mini'] }, GONE] })
    const store = openFileKeys(stack.dataDir)
    await store.create(keyOf(KEY, { id: 'key_operator', scopes: ['calls', 'admin'] }))
    await store.close()
    const headers = { authorization: `Bearer ${KEY}` }
    await until(async () => (await stack.get('/v1/admin/workers', { headers })).status === 200)
    browser = await openChromium()
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await stack?.[Symbol.asyncDispose]()
  })

  it('shows the models even if the findings of the service cannot be read', async () => {
    const expected: string[] = []
    const page = await signIn(browser, stack.url, KEY, expected)
    await page.route('**/v1/admin/findings*', (route) => route.fulfill({ status: 500, json: {} }))
    await page.getByRole('link', { name: 'Models', exact: true }).click()
    await page.getByRole('button', { name: 'echo-1', exact: true }).click()
    await page.getByText('gpt-4o-mini', { exact: true }).waitFor()
    expect(await page.getByRole('button', { name: 'gpt-4o-mini' }).count(), 'rows of aliases').toBe(0)
    expect(expected.filter((fault) => !fault.includes('status of 500'))).toEqual([])
    await page.context().close()
  })

  it('shows an open circuit breaker next to a ready model', async () => {
    const body = { model: 'gone', messages: [{ role: 'user', content: 'Is anybody there?' }] }
    for (let nth = 0; nth < 3; nth++) {
      const response = await stack.post('/v1/chat/completions', body)
      expect(response.ok).toBe(false)
      await response.text()
    }
    const page = await signIn(browser, stack.url, KEY, faults)
    const problems = page.getByRole('list', { name: 'Problems' })
    await problems.getByText('gone is failing', { exact: true }).waitFor()
    await problems
      .getByText(/^Failing since \d\d:\d\d \(.*\)\. 3 of 3 calls failed in the last hour, all with \w+\.$/)
      .waitFor()
    await problems.getByRole('link', { name: '3 of 3 calls in the last hour' }).waitFor()
    const sinceStart = problems.getByRole('link', { name: '3 of 3 calls since the failures began' })
    expect(await sinceStart.getAttribute('href')).toMatch(/requests\?model=gone&error_code=\w+&since=\d+$/)
    // The first call opened the circuit breaker, which refused the other calls.
    await problems.getByText('2 of those of the last hour, because the server was paused after failures').waitFor()
    await problems.getByText(/New calls are refused until a test call succeeds\./).waitFor()
    const project = problems.getByRole('link', { name: 'Owner key' })
    expect(await project.getAttribute('href')).toMatch(/requests\?model=gone&error_code=\w+&since=\d+&project=\w+$/)
    await problems.getByText(/^upstream_\w+ 3: /).waitFor()
    const link = problems.getByRole('link', { name: 'Show these requests' })
    expect(await link.getAttribute('href')).toMatch(/requests\?model=gone&error_code=\w+&since=\d+$/)
    expect(await faultsOf(page, 'home-failing')).toEqual([])
    await page.route('**/v1/admin/findings*', async (route) => {
      const response = await route.fetch()
      const { data, ...rest } = (await response.json()) as {
        data: { model: string | null; since: number; trend: object }[]
      }
      const hours = [0, 1].map((nth) => ({ at: 1_800_000_000 + nth * 3_600, failed: 15 * nth + 8, calls: 46 }))
      const verdict = {
        verdict: 'worse',
        last_hour: { failed: 46, calls: 46 },
        previous_hour: { failed: 8, calls: 46 },
      }
      const more = { failed: 56, calls: 92, hours, ...verdict }
      const shown = data.map((one) =>
        one.trend ? { ...one, since: one.since - 90_000, trend: { ...one.trend, ...more } } : one,
      )
      await route.fulfill({ response, json: { ...rest, data: shown } })
    })
    await problems
      .getByText(
        /^Getting worse: 100 % of the calls failed in the last hour, 17 % in the hour before\. Failing since \d+ \w+, \d\d:\d\d \(1 d ago\), last failure/,
      )
      .waitFor()
    await problems.getByRole('img', { name: /^Failed share per hour: \d\d:\d\d 17 %, \d\d:\d\d 50 %$/ }).waitFor()
    await problems.getByText('Failed share per hour', { exact: true }).waitFor()
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await problems.getByText(/ ago\)\. 3 of 3 calls/).waitFor()
    await page.setViewportSize({ width: 360, height: 740 })
    const alert = problems.locator('li > div')
    const lines = async () => ((await alert.boundingBox())?.height ?? 0) / 22.5
    await expect.poll(lines, { message: 'lines of the alert', timeout: PAGE_MS }).toBeLessThanOrEqual(6)
    const isCut = "(one) => one.scrollHeight > one.clientHeight + 1 && getComputedStyle(one).overflow === 'hidden'"
    const cut = await page.evaluate(`[...document.querySelectorAll('.attention, .attention *')].some(${isCut})`)
    expect(cut, 'text of the alert is cut').toBe(false)
    expect(await faultsOf(page, 'home-failing-narrow')).toEqual([])
    await page.setViewportSize({ width: 1280, height: 860 })
    await page.getByRole('link', { name: 'Models', exact: true }).click()
    const button = (name: string) => page.getByRole('button', { name, exact: true })
    const row = (name: string) => page.locator('tr.model').filter({ has: button(name) })
    await row('gone').locator('.status.failed').waitFor()
    // The details of a failing model are open without a click.
    await page
      .locator('tr.more')
      .getByText(/^Failing since .* 3 of 3 calls failed in the last hour/)
      .waitFor()
    const measured = 'one => ({ all: one.scrollWidth, shown: one.clientWidth, row: one.parentElement.clientWidth })'
    const widths = async () =>
      (await page.evaluate(`(${measured})(document.querySelector('tr.more .note'))`)) as Record<string, number>
    for (const width of [1440, 1024, 360]) {
      await page.setViewportSize({ width, height: 860 })
      const { all, shown = 0, row: rowWidth = 0 } = await widths()
      expect(all, `width of the alert at ${width} px`).toBeLessThanOrEqual(shown)
      expect(shown, `width of the alert in its row at ${width} px`).toBeGreaterThan(rowWidth * 0.85)
    }
    await page.setViewportSize({ width: 1280, height: 860 })
    await row('echo-1').locator('.status.ready').waitFor()
    await button('echo-1').click()
    await page
      .locator('tr.more')
      .getByText(/^up to \d+$/)
      .first()
      .waitFor()
    expect(await faultsOf(page, 'models-breaker')).toEqual([])
    await page.setViewportSize({ width: 360, height: 740 })
    await page.emulateMedia({ colorScheme: 'dark' })
    expect(await faultsOf(page, 'models-breaker-narrow-dark')).toEqual([])
    await page.context().close()
    expect(faults).toEqual([])
  })
})
