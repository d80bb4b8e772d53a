import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { writeDeadLetter } from '#shared/jobs/dead-letters.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'

/*
 * Every screen of the menu in five combinations of colour scheme and width. Each must have no serious axe violation, no horizontal
 * overflow, no logged error and no request to another host. With CONSOLE_PICTURES=DIR every combination is saved as a screenshot.
 */

const LOOKS = [
  { name: 'light-wide', colorScheme: 'light', viewport: { width: 1280, height: 860 } },
  { name: 'dark-wide', colorScheme: 'dark', viewport: { width: 1280, height: 860 } },
  // The narrowest width with real tables instead of cards.
  { name: 'light-middle', colorScheme: 'light', viewport: { width: 1161, height: 860 } },
  { name: 'light-narrow', colorScheme: 'light', viewport: { width: 360, height: 740 } },
  { name: 'dark-narrow', colorScheme: 'dark', viewport: { width: 360, height: 740 } },
] as const

describe.skipIf(!CHROMIUM)('every screen of the console', { timeout: 8 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser

  beforeAll(async () => {
    admin = await openAdmin()
    browser = await openChromium()
    await writeDeadLetter(admin.stack.broker, 'inference', 'jobs.inference/0@9', Buffer.from('not a job'))
    for (const prompt of ['One.', '!echo error=400', '!echo tokens=100000 delay_ms=100'])
      await admin.submit('alice', prompt)
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  it.each(['op', 'alice'])('is accessible and fits the window if the user is %s', async (who) => {
    const faults: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf(who), faults)
    // Operator screens appear after the scopes of the key are loaded.
    await page
      .getByText(who === 'op' ? '1 worker' : 'This key shows its own project only')
      .first()
      .waitFor()
    const links = page.getByRole('navigation', { name: 'Screens' }).locator('a')
    const names = await links.evaluateAll((all) => all.map((one) => String(one.textContent).trim()))
    expect(names).toEqual(expect.arrayContaining(['Home', 'Jobs', 'Playground', 'Models']))
    expect(names.includes('Dead letters')).toBe(who === 'op')
    const found: unknown[] = []
    // Callers see a subset of these screens, so two combinations suffice.
    const looks = who === 'op' ? LOOKS : [LOOKS[0], LOOKS[4]]
    for (const name of names) {
      await page.setViewportSize(LOOKS[0].viewport)
      await page.getByRole('link', { name, exact: true }).click()
      await page.getByRole('heading', { level: 1 }).waitFor()
      await page.getByText('Loading…').waitFor({ state: 'detached' })
      for (const { name: look, colorScheme, viewport } of looks) {
        await page.setViewportSize(viewport)
        await page.emulateMedia({ colorScheme })
        found.push(...(await faultsOf(page, `walk-${who}-${name.toLowerCase().replaceAll(' ', '-')}-${look}`)))
      }
    }
    await page.context().close()
    expect(found).toEqual([])
    // Expected: 403 for the admin API with a caller's key, and for calls with an operator's key.
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })

  it.each([
    ['reference', '/docs', 'Submit a job'],
    ['guide', '/docs/guide', 'Sluice'],
  ])('links to an accessible page with the same header and theme: %s', async (name, path, words) => {
    const faults: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
    const header = page.getByRole('banner')
    const links = await header.getByRole('link').allInnerTexts()
    await page.getByRole('button', { name: 'Theme: system' }).click()
    await header.locator(`a[href="${path}"]`).click()
    await page.getByText(words).first().waitFor()
    expect(await header.getByRole('link').allInnerTexts()).toEqual(links)
    expect(await header.locator('[aria-current]').getAttribute('href')).toBe(path)
    expect(await page.evaluate('document.documentElement.dataset.theme')).toBe('light')
    await page.evaluate("localStorage.setItem('sluice-theme', 'system')")
    await page.reload()
    await page.getByText(words).first().waitFor()
    const found: unknown[] = []
    for (const { name: look, colorScheme, viewport } of LOOKS) {
      await page.setViewportSize(viewport)
      await page.emulateMedia({ colorScheme })
      found.push(...(await faultsOf(page, `${name}-${look}`, { isWhole: false })))
    }
    if (name === 'reference') {
      // The page is still in the last combination of this test, which is the narrow window.
      await page.locator('.opblock-summary-control').first().click()
      await page.getByRole('textbox', { name: 'Request body' }).waitFor()
      expect(await page.evaluate('document.documentElement.scrollWidth > innerWidth')).toBe(false)
    }
    await page.context().close()
    expect(found).toEqual([])
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })
})
