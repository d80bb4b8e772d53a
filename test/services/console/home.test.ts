/*
 * Tests of the home screen of the console: progress of model preparation, current problems, and the statistics, plots and models of each
 * pool.
 */

import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'

const NARROW = { width: 360, height: 740 }

describe.skipIf(!CHROMIUM)('the home screen of the console', { timeout: 6 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    admin = await openAdmin({ models: 2 })
    browser = await openChromium()
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  const look = async (page: Page, name: string) => expect(await faultsOf(page, name)).toEqual([])

  it('shows queued jobs, latency and failures of each model', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.getByRole('table', { name: 'Models of inference' }).waitFor()
    await admin.submit('alice', 'One.')
    await admin.submit('alice', '!echo error=400', { model: 'echo-2' })
    await admin.as('op').post('/v1/admin/models/echo-1/pause')
    await admin.submit('alice', 'Queued.')
    const row = (model: string) =>
      page.getByRole('table', { name: 'Models of inference' }).getByRole('row', { name: model })
    await row('echo-2').getByText('1 of 1', { exact: true }).waitFor()
    await row('echo-1').getByText('0 of 1', { exact: true }).waitFor()
    await row('echo-1').getByRole('cell').first().getByText('1', { exact: true }).waitFor()
    await row('echo-1').getByText('ready', { exact: true }).waitFor()
    const summary = page.getByLabel('Summary', { exact: true })
    await summary.getByText('Scheduled').waitFor()
    const list = await summary.getByRole('link', { name: '1', exact: true }).first().getAttribute('href')
    expect(list, 'list of the waiting durable jobs').toMatch(/\/jobs\?status=queued$/)
    // The table lists models with queued jobs first.
    expect(await page.getByRole('rowheader').first().textContent()).toContain('echo-1')
    await page
      .getByRole('list', { name: 'Problems' })
      .getByRole('link', { name: 'Models' })
      .and(page.getByTitle('npx sluice resume model echo-1'))
      .waitFor()
    await look(page, 'home-by-model')
    await page.getByRole('button', { name: 'Oldest wait' }).click()
    await page.getByRole('img', { name: 'inference, Oldest wait: 0 of 256 slots in use, 1 queued' }).waitFor()
    expect(new URL(page.url()).searchParams.get('plot')).toBe('wait')
    await page.reload()
    await page.getByRole('img', { name: /^inference, Oldest wait/ }).waitFor()
    const failures = row('echo-2').getByRole('link', { name: '1 of 1', exact: true })
    expect(await failures.getAttribute('href')).toMatch(/requests\?model=echo-2&since=\d+&status=failed$/)
    await page.setViewportSize(NARROW)
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'home-by-model-narrow-dark')
    await page.reload()
    const refreshes = () =>
      page.evaluate("performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/metrics')).length")
    await expect.poll(refreshes, { timeout: PAGE_MS }).toBeGreaterThan(2)
    await row('echo-2').getByText('1 of 1', { exact: true }).waitFor()
    await admin.as('op').post('/v1/admin/models/echo-1/resume')
    await page.route('**/v1/admin/jobs?status=scheduled*', async (route) => {
      const response = await route.fetch()
      await route.fulfill({ response, json: { ...(await response.json()), data: [], has_more: true } })
    })
    expect(
      await summary.getByRole('link', { name: '0+' }).first().getAttribute('href'),
      'jobs that were not read',
    ).toMatch(/\/jobs\?status=scheduled$/)
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.context().close()
  })

  it('shows only the running calls of one project to a key without the admin scope', async () => {
    const body = {
      model: 'echo-1',
      stream: true,
      messages: [{ role: 'user', content: '!echo tokens=5000 delay_ms=100' }],
    }
    const left = new AbortController()
    const call = await fetch(`${admin.stack.url}/v1/chat/completions`, {
      ...{ method: 'POST', body: JSON.stringify(body), signal: left.signal },
      headers: { authorization: `Bearer ${secretOf('bob')}`, 'content-type': 'application/json' },
    })
    await call.body?.getReader().read()
    for (const [who, running] of [
      ['bob', '1'],
      ['alice', '0'],
    ] as const) {
      const page = await signIn(browser, admin.stack.url, secretOf(who), faults)
      const summary = page.getByLabel('Summary of your project')
      await summary.getByText('Requests this month').waitFor()
      await expect.poll(() => summary.locator('dd').first().innerText(), { timeout: PAGE_MS }).toBe(running)
      await page.getByText('This key shows its own project only').waitFor()
      await page.context().close()
    }
    left.abort()
  })

  it('shows a progress bar for each model or sandbox that is in preparation', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
    // A real first start would download a gigabyte of models, so the test replaces the response of /readyz.
    await page.route('**/readyz', (route) =>
      route.fulfill({ json: { ready: true, preparing: ['whisper-tiny.en (40 %)', 'the sandbox (5 %)'] } }),
    )
    const bar = page.getByRole('progressbar', { name: 'whisper-tiny.en' })
    await bar.waitFor()
    expect(await bar.getAttribute('value')).toBe('0.4')
    await page.getByText('5 %', { exact: true }).waitFor()
    await page.getByText('All systems operational.').waitFor({ state: 'detached' })
    await look(page, 'home-preparing')
    await page.setViewportSize(NARROW)
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'home-preparing-narrow-dark')
    await page.context().close()
  })

  it.each([
    ['an error', { status: 500, json: { error: { message: 'Something broke.' } } }, 'Something broke.'],
    ['an HTML page with the status 502', { status: 502, body: '<html>' }, 'The service returned HTTP 502.'],
    ['the status 429', { status: 429, json: { error: { message: 'Slow down.' } } }, 'Slow down.'],
    [
      'an HTML page with the status 200',
      { status: 200, body: '<html>' },
      'Unexpected response; a proxy may have intercepted the request.',
    ],
  ])('shows that the service returned %s, and recovers when the service responds again', async (_, answer, text) => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), [])
    await page.getByText(/^ ?(All systems operational|No problems found)\./).waitFor()
    const isOfService = ({ pathname }: URL) => /^\/(v1|readyz|metrics)/.test(pathname)
    await page.route(isOfService, (route) => route.fulfill(answer))
    await page.getByRole('list', { name: 'Problems' }).getByText(text).waitFor()
    expect(await page.getByText('METRICS_PORT').count()).toBe(0)
    await page.unroute(isOfService)
    await page.getByText(/^ ?(All systems operational|No problems found)\./).waitFor()
    await page.context().close()
  })

  it('shows a timeout if the service does not respond, and retries the request', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), [])
    await page.getByText(/^ ?(All systems operational|No problems found)\./).waitFor()
    await page.clock.install()
    let requests = 0
    await page.route('**/readyz', () => {
      requests++
    })
    const later = async () => {
      await page.clock.runFor(2_000)
      return requests
    }
    await expect.poll(later, { timeout: PAGE_MS }).toBe(1)
    await page.clock.runFor(16_000)
    await page.getByText('The service is not responding; it may be restarting.').waitFor()
    await page.clock.runFor(4_000)
    await expect.poll(() => requests, { timeout: PAGE_MS }).toBe(2)
    await page.context().close()
  })

  it('shows the menu of the last visit before the service responds', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), [])
    await page.route('**/v1/key', (route) => route.fulfill({ status: 503, body: '' }))
    await page.reload()
    await page.getByRole('link', { name: 'Audit log' }).waitFor()
    await page.evaluate("sessionStorage.removeItem('sluice-own-key')")
    await page.reload()
    await page.getByText('This key shows its own project only').waitFor()
    await page.unroute('**/v1/key')
    await page.getByRole('link', { name: 'Dead letters' }).waitFor()
    const held = Promise.withResolvers<void>()
    await page.route(/\/v1\/(usage|history)/, async (route) => {
      await held.promise
      await route.continue()
    })
    await page.reload()
    const placeOf = async (name: string) => (await page.getByRole('heading', { name }).boundingBox())?.y
    const places = async () => [await placeOf('History'), await placeOf('Pools')]
    await page.getByRole('table', { name: 'Models of inference' }).waitFor()
    await page.getByText('Scheduled', { exact: true }).waitFor()
    await page.locator('.note').first().waitFor()
    const before = await places()
    held.resolve()
    await page.getByRole('slider', { name: 'Requests over time' }).waitFor()
    await page.getByLabel('Summary', { exact: true }).getByText('$').waitFor()
    expect(await places(), 'places of the headings after usage and history have arrived').toEqual(before)
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.context().close()
  })

  it.each(['constructor', '__proto__', 'nothing'])(
    'plots jobs by default if the URL names the unknown plot %s',
    async (name) => {
      const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
      await page.goto(`${admin.stack.url}/console?plot=${name}`)
      await page.getByRole('img', { name: /^inference, Jobs/ }).waitFor()
      await page.context().close()
    },
  )

  it('logs no unexpected errors and sends no requests to other hosts', () => {
    // The browser logs an error for each failed request. Status 403 is expected, because the operator's key has no permission to call
    // models.
    expect(faults.filter((fault) => !/status of 403/.test(fault))).toEqual([])
  })
})
