/* Tests of the console screen Keys: an operator creates a project and a key, uses the key, and revokes it. */

import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openFileKeys } from '#shared/keys/file.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, openScreen, PAGE_MS, signIn } from '../../support/browser.ts'
import { until } from '../../support/stack.ts'

const NARROW = { width: 360, height: 740 }

describe.skipIf(!CHROMIUM)('the Keys screen of the console', { timeout: 6 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    admin = await openAdmin()
    browser = await openChromium()
    const store = openFileKeys(admin.stack.dataDir)
    await store.create(keyOf(secretOf('boss'), { id: 'boss', name: 'boss', scopes: ['calls', 'admin'] }))
    await store.close()
    await until(async () => (await admin.as('boss').get('/v1/key')).status === 200)
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  const openTab = async (who: string, options: object = {}) => {
    const page = await signIn(browser, admin.stack.url, secretOf(who), faults, options)
    await openScreen(page, 'Keys and projects')
    await page.getByRole('heading', { name: 'Keys and projects' }).waitFor()
    return page
  }
  const look = async (page: Page, name: string) => expect(await faultsOf(page, name)).toEqual([])
  const dialog = (page: Page) => page.getByRole('dialog')

  async function statusWith(secret: string): Promise<number> {
    const body = { model: 'echo-1', max_tokens: 20, messages: [{ role: 'user', content: 'hi' }] }
    const response = await admin.stack.post('/v1/chat/completions', body, {
      headers: { authorization: `Bearer ${secret}` },
    })
    await response.text()
    return response.status
  }

  it('creates a project and a key, shows the secret of the key once, and revokes the key', async () => {
    const page = await openTab('boss')
    await page.getByRole('button', { name: 'Create project' }).click()
    await dialog(page).getByLabel('Name').fill('search')
    await dialog(page).getByLabel('Monthly budget (USD)').fill('25')
    await look(page, 'keys-project')
    await page.keyboard.press('Enter')
    await page.getByText('$25.00 left of $25.00').waitFor()
    await page.getByRole('button', { name: 'Create key' }).click()
    await dialog(page).getByLabel('Name').fill('laptop')
    await dialog(page).getByRole('combobox', { name: 'Project' }).selectOption({ label: 'search' })
    await dialog(page).getByText('Models, endpoints and limits').click()
    await dialog(page).getByLabel('Models').fill('echo-9')
    await dialog(page).getByRole('button', { name: 'Create', exact: true }).click()
    await dialog(page).getByRole('alert').getByText("The model 'echo-9' does not exist").waitFor()
    await dialog(page).getByLabel('Models').fill('echo-1')
    await dialog(page).getByLabel('Requests per minute').fill('600')
    await look(page, 'keys-create')
    await dialog(page).getByRole('button', { name: 'Create', exact: true }).click()
    await dialog(page).getByText('Copy this key now.').waitFor()
    const secret = (await dialog(page).locator('.secret').textContent()) ?? ''
    expect(secret).toMatch(/^sk-[\w-]{40}$/)
    await look(page, 'keys-secret')
    await dialog(page).getByRole('button', { name: 'Done' }).click()
    const row = page.getByRole('row').filter({ hasText: 'laptop' })
    await row.getByText('600 requests/min').waitFor()
    expect(await page.content()).not.toContain(secret)
    expect(await statusWith(secret)).toBe(200)
    const used = async () => (await admin.as('boss').get('/v1/usage')).json() as Promise<{ total: { calls: number } }>
    await until(async () => (await used()).total.calls > 0)
    await look(page, 'keys')
    await row.getByRole('link', { name: 'Usage of laptop' }).click()
    await page.getByRole('table', { name: 'Usage by model' }).getByText('echo-1').waitFor()
    expect(await page.getByLabel('Totals').innerText()).toMatch(/Requests\s+1\s/)
    await page.goBack()
    await row.getByRole('button', { name: 'Actions of laptop' }).click()
    await look(page, 'keys-menu')
    await page.getByRole('menuitem', { name: 'Revoke' }).click()
    await dialog(page).getByRole('button', { name: 'Keep the key' }).waitFor()
    await look(page, 'keys-revoke')
    await dialog(page).getByRole('button', { name: 'Revoke' }).click()
    await page
      .getByRole('status')
      .getByText(/^Key .* revoked\.$/)
      .waitFor()
    await row.waitFor({ state: 'detached' })
    expect(await statusWith(secret)).toBe(401)
    await page.getByRole('button', { name: 'Revoked' }).click()
    await row.locator('.status.revoked').waitFor()
    await page.context().close()
  })

  it('edits and rotates a key by keyboard, in dark mode at a narrow width', async () => {
    const created = await admin.as('boss').post('/v1/admin/keys', { name: 'robot' })
    const { id, secret } = (await created.json()) as { id: string; secret: string }
    const page = await openTab('boss', { viewport: NARROW, colorScheme: 'dark' })
    const menu = page.getByRole('button', { name: 'Actions of robot' })
    const focused = () => page.evaluate('document.activeElement.textContent || document.activeElement.ariaLabel')
    const walk: unknown[] = []
    await menu.focus()
    await page.keyboard.press('Enter')
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowDown', 'ArrowUp', 'Home']) {
      await page.getByRole('menu', { name: 'Actions of robot' }).locator(':focus').waitFor()
      walk.push(await focused())
      await page.keyboard.press(key)
    }
    expect(walk, 'items with the focus').toEqual(['Edit', 'Rotate', 'Revoke', 'Edit', 'Revoke'])
    await look(page, 'keys-menu-narrow')
    await page.keyboard.press('Escape')
    await page.getByRole('menu').waitFor({ state: 'detached' })
    expect(await focused(), 'focus after Escape').toBe('Actions of robot')
    await page.keyboard.press('Enter')
    await page.getByRole('menuitem', { name: 'Edit' }).press('Enter')
    await dialog(page).getByText('Models, endpoints and limits').click()
    await dialog(page).getByLabel('Concurrent requests and jobs').fill('3')
    await look(page, 'keys-change-narrow')
    await page.keyboard.press('Enter')
    await page.getByText('3 concurrent').waitFor()
    await menu.click()
    await page.getByRole('menuitem', { name: 'Rotate' }).click()
    await dialog(page).getByLabel('Old key stays valid for').selectOption({ label: '1 hour' })
    await dialog(page).getByRole('button', { name: 'Rotate', exact: true }).click()
    const next = (await dialog(page).locator('.secret').textContent()) ?? ''
    await look(page, 'keys-secret-narrow')
    await dialog(page).getByRole('button', { name: 'Done' }).click()
    expect([await statusWith(secret), await statusWith(next)]).toEqual([200, 200])
    const old = (await (await admin.as('boss').get(`/v1/admin/keys/${id}`)).json()) as { expires_at: number }
    expect(old.expires_at).toBeGreaterThan(Date.now() / 1_000)
    await look(page, 'keys-narrow')
    await page.getByRole('link', { name: 'Usage of robot' }).first().click()
    await page.getByLabel('Totals').waitFor()
    await look(page, 'keys-usage-narrow')
    await page.context().close()
  })

  it('marks the permissions that the current key lacks and therefore cannot grant', async () => {
    const page = await openTab('op')
    await page.getByRole('button', { name: 'Create key' }).click()
    await dialog(page).getByText('cannot grant this permission').waitFor()
    expect(await dialog(page).getByLabel('API calls').isDisabled()).toBe(true)
    await page.keyboard.press('Escape')
    await dialog(page).waitFor({ state: 'detached' })
    await page.context().close()
  })

  it('is hidden from a key without the admin scope', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
    await page.getByText('This key shows its own project only.').waitFor()
    expect(await page.getByRole('link', { name: 'Keys and projects', exact: true }).count()).toBe(0)
    await page.context().close()
  })

  it('logs no unexpected errors and sends no requests to other hosts', () => {
    // The browser logs an error for each failed request. One status 400 is expected, because a test submits an invalid form.
    const expected = /status of 400/
    expect(faults.filter((fault) => !expected.test(fault))).toEqual([])
  })
})
