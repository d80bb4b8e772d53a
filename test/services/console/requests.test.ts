/* Tests of the console screen Requests: filters in the URL, live refresh, and the page of one request. */

import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { until } from '../../support/stack.ts'

const NARROW = { width: 360, height: 740 }
const CHAT = '/v1/chat/completions'

describe.skipIf(!CHROMIUM)('the Requests screen of the console', { timeout: 6 * PAGE_MS }, () => {
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
  async function call(who: string, content: string, model = 'echo-1'): Promise<string> {
    const response = await admin.as(who).post(CHAT, { model, messages: [{ role: 'user', content }] })
    await response.text()
    return String(response.headers.get('x-request-id'))
  }

  it('shows calls as they end, stores the filters in the URL, and opens a call by its id', async () => {
    const empty = await signIn(browser, admin.stack.url, secretOf('bob'), faults)
    await empty.getByRole('link', { name: 'Requests', exact: true }).click()
    await empty.getByText('No requests yet').waitFor()
    await look(empty, 'requests-empty')
    await empty.context().close()
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.getByRole('link', { name: 'Requests', exact: true }).click()
    const running = admin.as('alice').post(CHAT, {
      ...{ model: 'echo-1', messages: [{ role: 'user', content: '!echo first_ms=60000\nx' }] },
    })
    await page.getByRole('button', { name: 'Running and queued' }).click()
    const active = page.getByRole('row').filter({ hasText: 'chat/completions' })
    await active.getByText('running', { exact: true }).waitFor()
    await look(page, 'requests-active')
    await active.getByRole('button', { name: /^Stop/ }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Stop request', exact: true }).click()
    expect((await running).status).toBe(409)
    await page.getByText('No call waits or runs').waitFor()
    await page.getByRole('button', { name: 'All', exact: true }).click()
    const done = await call('alice', 'Hello.')
    await call('bob', 'Hello.', `organisation/${'a-long-name-'.repeat(9)}`)
    const failed = await call('bob', '!echo fail=upstream_refused', 'echo-2')
    const row = (id: string) => page.getByRole('row').filter({ hasText: id })
    await row(done).getByText('200').waitFor()
    await row(failed).getByText('upstream_refused').waitFor()
    await look(page, 'requests')
    await page.setViewportSize({ width: 1440, height: 900 })
    await look(page, 'requests-wide')
    const heights = await page.locator('tbody tr').evaluateAll((rows) => rows.map((tr) => tr.clientHeight))
    expect(Math.max(...heights), 'pixels of a row, which has one line').toBeLessThan(50)
    expect(await page.evaluate('document.documentElement.scrollWidth'), 'pixels of the page').toBeLessThanOrEqual(1440)
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'requests-dark')
    await page.getByRole('button', { name: 'Failed', exact: true }).click()
    await row(done).waitFor({ state: 'detached' })
    await page.getByText('Filters', { exact: true }).click()
    const panel = page.locator('.more-filters > .fields')
    for (const viewport of [{ width: 1280, height: 700 }, NARROW]) {
      await page.setViewportSize(viewport)
      const { x, y, width, height } = (await panel.boundingBox()) ?? { x: -1, y: -1, width: 0, height: 0 }
      expect(Math.min(x, y), 'left and top edge of the panel').toBeGreaterThanOrEqual(0)
      expect(x + width, 'right edge of the panel').toBeLessThanOrEqual(viewport.width)
      expect(y + height, 'bottom edge of the panel').toBeLessThanOrEqual(viewport.height)
    }
    await look(page, 'requests-filters-narrow')
    await page.setViewportSize({ width: 1440, height: 900 })
    await page.getByLabel('Model').fill('echo-2')
    await page.keyboard.press('Enter')
    await page.getByLabel('Duration').selectOption('Over 1 s')
    await page.getByText('No matching requests').waitFor()
    expect(new URL(page.url()).search).toBe('?status=failed&model=echo-2&min_duration_ms=1000')
    await page.goto(`${admin.stack.url}/console/requests?status=failed&model=echo-2`)
    await row(failed).waitFor()
    expect(await page.getByLabel('Model').inputValue()).toBe('echo-2')
    await row(failed).getByRole('link').click()
    const error = page.getByRole('region', { name: 'Error' })
    await error.getByText('Next step:').waitFor()
    expect(new URL(page.url()).pathname).toBe(`/console/requests/${failed}`)
    for (const text of [
      /scripted to fail/,
      /The caller: Use another model\. The operator: Correct the variable of api_key_env/,
    ])
      await error.getByText(text).waitFor()
    expect(await error.getByRole('link').getAttribute('href')).toBe('/docs/guide/errors#upstream_refused')
    const attempts = page.getByRole('table', { name: 'Attempts' })
    await attempts.getByText('upstream_refused', { exact: true }).waitFor()
    expect(await attempts.getByRole('row').count(), 'rows: the head and one attempt').toBe(2)
    const values = await page.locator('.details dd').allInnerTexts()
    expect(values, 'fields without a value are left out').not.toContain('–')
    expect(await page.getByRole('link', { name: 'bob' }).first().getAttribute('href')).toBe('/console/keys?project=bob')
    await page.getByRole('heading', { name: 'echo-2, chat/completions', exact: true }).waitFor()
    await page.getByText(/^\d+ \w+ \d{4}, [\d:]+ .* · [\d.]+ m?s · no cost/).waitFor()
    await look(page, 'request-dark')
    await page.emulateMedia({ colorScheme: 'light' })
    await look(page, 'request')
    await page.context().close()
  })

  it('shows a batch as one row with its counts, which links to the batch', async () => {
    const messages = (content: string) => [{ role: 'user', content }]
    const requests = ['one', '!echo fail=upstream_refused'].map((content, nth) => ({
      ...{ custom_id: `line-${nth}`, params: { model: 'echo-1', max_tokens: 9, messages: messages(content) } },
    }))
    const made = await admin.as('alice').post('/v1/messages/batches', { requests })
    const { id } = (await made.json()) as { id: string }
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
    await page.goto(`${admin.stack.url}/console/requests`)
    const row = page.getByRole('row').filter({ hasText: 'messages/batches' })
    await row.getByText('2 calls, 1 failed').waitFor()
    const path = `/console/jobs/${id.replace('msgbatch_', 'job_')}`
    expect(await row.getByRole('link').getAttribute('href'), 'page of the batch').toBe(path)
    expect(await row.locator('[data-column="Model"]').innerText()).toBe('echo-1')
    expect(await row.locator('[data-column="Tokens"]').innerText(), 'tokens of its calls').toBe('1 → 1')
    await look(page, 'requests-batch')
    await page.context().close()
  })

  it('merges the running calls of several ingresses, and repeats a stop request until the ingress of the call receives the request', async () => {
    const expected: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf('op'), expected)
    const call = { object: 'request.active', age_ms: 1, project: 'p', project_name: null, key_id: 'k', key_name: null }
    const more = {
      endpoint: CHAT,
      pool: 'inference',
      model: 'echo-1',
      status: 'running',
      position: null,
      wait_ms: null,
    }
    const answerOf = (nth: number) => ({
      ...{ object: 'list', total: 1, has_more: false, ingress: `ingress-${nth}` },
      data: [{ ...call, ...more, id: `req_${nth}`, started_at: nth, reason: null, worker: null, attempt: 1 }],
    })
    let [polls, cancels] = [0, 0]
    await page.route('**/v1/admin/requests/active', (route) => route.fulfill({ json: answerOf(polls++ % 2) }))
    await page.route('**/v1/admin/requests/*/cancel', (route) =>
      route.fulfill(cancels++ < 2 ? { status: 404, json: {} } : { json: {} }),
    )
    await page.goto(`${admin.stack.url}/console/requests?model=echo-1&min_duration_ms=1000`)
    await page.getByRole('button', { name: 'Running and queued' }).click()
    expect(new URL(page.url()).search).toBe('?status=active')
    const row = (nth: number) => page.getByRole('row').filter({ hasText: `req_${nth}` })
    await row(1).getByText('ingress-1').waitFor()
    await row(0).getByText('ingress-0').waitFor()
    await page.getByText('2 calls running or queued').waitFor()
    await row(0).getByRole('button', { name: /^Stop/ }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Stop request', exact: true }).click()
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    expect(cancels).toBe(5)
    expect(expected.filter((fault) => !fault.includes('status of 404'))).toEqual([])
    await page.context().close()
  })

  it('shows only the calls of one project to a key of that project, and reports an unknown id, at a narrow width', async () => {
    const [mine, other] = [await call('alice', 'Hello.'), await call('bob', 'Hello.')]
    await until(async () => (await admin.as('op').get(`/v1/admin/requests/${other}`)).status === 200)
    const expected: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), expected, { viewport: NARROW })
    expect((await page.getByRole('banner').boundingBox())?.height, 'pixels of the header').toBeLessThan(70)
    const menu = page.getByRole('complementary', { name: 'Menu' })
    await page.getByRole('button', { name: 'Menu' }).click()
    await menu.getByText('Project alice').waitFor()
    await look(page, 'menu-narrow')
    await page.keyboard.press('Escape')
    await menu.getByText('Project alice').waitFor({ state: 'hidden' })
    await page.getByRole('button', { name: 'Menu' }).click()
    await page.getByRole('link', { name: 'Requests', exact: true }).click()
    await page.getByRole('navigation', { name: 'Screens' }).waitFor({ state: 'hidden' })
    await page.getByText(mine).waitFor()
    expect(await page.getByText(other).count()).toBe(0)
    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'Again.' }] }
    await fetch(`${admin.stack.url}${CHAT}`, {
      ...{ method: 'POST', body: JSON.stringify(body) },
      headers: {
        ...{ authorization: `Bearer ${secretOf('alice')}`, 'content-type': 'application/json' },
        'x-stainless-retry-count': '1',
      },
    })
    const retried = page.getByRole('row').filter({ hasText: 'SDK retry 1' })
    const badge = await retried.getByText('SDK retry 1').boundingBox()
    const status = await retried.locator('.status').boundingBox()
    const gap = (badge?.x ?? 0) - (status?.x ?? 0) - (status?.width ?? 0)
    expect(gap, 'pixels between the status and the number of the retry').toBeGreaterThan(3)
    await look(page, 'requests-narrow')
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'requests-narrow-dark')
    await page.getByLabel('Request id').fill(other)
    await page.getByRole('button', { name: 'Find request' }).click()
    await page.getByText('No request with this ID').waitFor()
    await page.getByText('may belong to another project').waitFor()
    expect(await page.getByText(other).count(), 'texts with the id').toBe(1)
    expect(await page.getByRole('button', { name: 'Copy ID' }).count(), 'buttons that copy an unknown id').toBe(0)
    await look(page, 'request-unknown-narrow')
    await page.goto(`${admin.stack.url}/console/requests?status=499`)
    const chip = page.getByRole('button', { name: 'Cancelled', exact: true })
    await chip.waitFor()
    const box = await chip.boundingBox()
    expect((box?.x ?? 0) + (box?.width ?? 0), 'right edge of the chosen status').toBeLessThanOrEqual(NARROW.width)
    expect(expected.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
    await page.context().close()
  })

  it('logs no errors and sends no requests to other hosts', () => {
    expect(faults).toEqual([])
  })
})
