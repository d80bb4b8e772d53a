import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openFileKeys } from '#shared/keys/file.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../support/stack.ts'

/*
 * The card of a model whose upstream is unreachable: circuit breaker, health check and slots.
 */

const KEY = 'sk-operator-0123456789'
/** No server listens on this port. */
const GONE = {
  id: 'gone',
  engine: { type: 'openai', base_url: 'http://127.0.0.1:9/v1', breaker: { failures: 1, reset_ms: 600_000 } },
}

describe.skipIf(!CHROMIUM)('the Models screen of the console', { timeout: 6 * PAGE_MS }, () => {
  let stack: Stack
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    stack = await startStack({ models: [ECHO_MODEL, GONE] })
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

  it('shows the models if the checks of the service fail', async () => {
    const expected: string[] = []
    const page = await signIn(browser, stack.url, KEY, expected)
    await page.route('**/v1/admin/findings*', (route) => route.fulfill({ status: 500, json: {} }))
    await page.getByRole('link', { name: 'Models', exact: true }).click()
    await page.getByRole('heading', { name: 'echo-1', exact: true }).waitFor()
    expect(expected.filter((fault) => !fault.includes('status of 500'))).toEqual([])
    await page.context().close()
  })

  it('shows an open circuit breaker next to a ready model', async () => {
    const body = { model: 'gone', messages: [{ role: 'user', content: 'Is anybody there?' }] }
    const response = await stack.post('/v1/chat/completions', body)
    expect(response.ok).toBe(false)
    await response.text()
    const page = await signIn(browser, stack.url, KEY, faults)
    await page.getByRole('list', { name: 'Problems' }).getByText("The upstream of 'gone'").waitFor()
    await page.getByRole('link', { name: 'Models', exact: true }).click()
    const card = (name: string) =>
      page.getByRole('listitem').filter({ has: page.getByRole('heading', { name, exact: true }) })
    await card('gone').locator('.status.failed').waitFor()
    await card('gone')
      .getByText(/^The (upstream|last call) of 'gone' /)
      .waitFor()
    await card('echo-1').locator('.status.ready').waitFor()
    await card('echo-1')
      .getByText(/^up to \d+$/)
      .waitFor()
    expect(await faultsOf(page, 'models-breaker')).toEqual([])
    await page.setViewportSize({ width: 360, height: 740 })
    await page.emulateMedia({ colorScheme: 'dark' })
    expect(await faultsOf(page, 'models-breaker-narrow-dark')).toEqual([])
    await page.context().close()
    expect(faults).toEqual([])
  })
})
