/* Tests of the console screens Audit log and Pools, and of the names that the menu shows. */

import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, openScreen, PAGE_MS, signIn } from '../../support/browser.ts'

describe.skipIf(!CHROMIUM)('the operator screens of the console', { timeout: 6 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    admin = await openAdmin()
    browser = await openChromium()
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  const look = async (page: Page, name: string) => {
    expect(await faultsOf(page, name)).toEqual([])
    await page.setViewportSize({ width: 360, height: 740 })
    await page.emulateMedia({ colorScheme: 'dark' })
    expect(await faultsOf(page, `${name}-narrow-dark`)).toEqual([])
    await page.setViewportSize({ width: 1280, height: 860 })
  }

  it('list the audit events with author, old values and new values, and filter the list', async () => {
    const post = async (path: string, body: object) => {
      const response = await admin.as('op').post(path, body)
      expect([path, response.ok]).toEqual([path, true])
      return (await response.json()) as { id: string }
    }
    const { id } = await post('/v1/admin/projects', { name: 'reports', limits: { running: 3 } })
    await post(`/v1/admin/projects/${id}`, { limits: { running: 5 } })
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await openScreen(page, 'Audit log')
    const row = (action: string) => page.getByRole('row').filter({ hasText: action }).filter({ hasText: id })
    await row('Project updated').getByText('Concurrent requests and jobs: 3 → 5').waitFor()
    await row('Project created').getByText('Concurrent requests and jobs: 3').waitFor()
    await look(page, 'audit')
    await page.getByLabel('Action').selectOption('project.updated')
    await row('Project created').waitFor({ state: 'detached' })
    expect(new URL(page.url()).searchParams.get('action')).toBe('project.updated')
    await page.getByLabel('Who').selectOption({ index: 1 })
    await page.goto(`${admin.stack.url}/console/audit?action=key.rotated`)
    await page.getByText('No matching events').waitFor()
    await page.getByRole('button', { name: 'Remove all filters' }).click()
    await row('Project created').waitFor()
    await page.context().close()
  })

  it('pause and resume a pool after a confirmation', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await openScreen(page, 'Pools')
    const row = page.getByRole('row').filter({ hasText: 'inference' })
    for (const [verb, status] of [
      ['Pause', 'paused'],
      ['Resume', 'idle'],
    ] as const) {
      await row.getByRole('button', { name: `${verb} pool inference` }).click()
      await page.getByRole('dialog').getByRole('button', { name: verb, exact: true }).click()
      await row.getByText(status, { exact: true }).waitFor()
      await page.getByRole('dialog').waitFor({ state: 'detached' })
      await look(page, `pools-${status}`)
    }
    await page.context().close()
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })
})
