/*
 * Tests of every screen in the console menu, in five combinations of colour scheme and width. No screen may have a serious accessibility
 * violation (axe), horizontal overflow, a logged error or a request to another host.
 *
 * If CONSOLE_PICTURES=DIR is set, the test saves a screenshot of every combination.
 */

import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { writeDeadLetter } from '#shared/jobs/dead-letters.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'

const LOOKS = [
  { name: 'light-wide', colorScheme: 'light', viewport: { width: 1280, height: 860 } },
  { name: 'dark-wide', colorScheme: 'dark', viewport: { width: 1280, height: 860 } },
  // At a width of 961 pixels, the console still shows tables. In a narrower window, the console shows cards.
  { name: 'light-middle', colorScheme: 'light', viewport: { width: 961, height: 768 } },
  { name: 'light-narrow', colorScheme: 'light', viewport: { width: 360, height: 740 } },
  { name: 'dark-narrow', colorScheme: 'dark', viewport: { width: 360, height: 740 } },
] as const

/** Maximum height of a table row in a narrow window, in pixels. Four lines of text fit, or two lines and one row of buttons. */
const CARD_MAX = 112

/** Returns the table rows that are taller than {@link CARD_MAX}. The details of a model are left out, because they appear only after a click. */
async function tallCardsOf(page: Page, name: string): Promise<unknown[]> {
  const rows = page.locator('.sheet tbody tr:not(.more)')
  const heights = await rows.evaluateAll((all) => all.map((row) => [row.clientHeight, row.textContent] as const))
  return heights.filter(([height]) => height > CARD_MAX).map((row) => [name, ...row])
}

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
    // The menu shows the screens for operators once it has loaded the scopes of the key.
    await page
      .getByText(who === 'op' ? '1 worker' : 'This key shows its own project only')
      .first()
      .waitFor()
    const links = page.getByRole('navigation', { name: 'Screens' }).locator('a')
    const names = await links.evaluateAll((all) => all.map((one) => String(one.textContent).trim()))
    expect(names).toEqual(expect.arrayContaining(['Home', 'Jobs', 'Playground', 'Models']))
    expect(names.includes('Dead letters')).toBe(who === 'op')
    const found: unknown[] = []
    // The screens of a caller are a subset of the operator screens, so two combinations suffice for them.
    const looks = who === 'op' ? LOOKS : [LOOKS[0], LOOKS[4]]
    for (const name of names) {
      await page.setViewportSize(LOOKS[0].viewport)
      await page.getByRole('link', { name, exact: true }).click()
      await page.getByRole('heading', { level: 1 }).waitFor()
      await page.getByText('Loading…').waitFor({ state: 'detached' })
      for (const { name: look, colorScheme, viewport } of looks) {
        await page.setViewportSize(viewport)
        await page.emulateMedia({ colorScheme })
        if (viewport.width < 400) found.push(...(await tallCardsOf(page, name)))
        found.push(...(await faultsOf(page, `walk-${who}-${name.toLowerCase().replaceAll(' ', '-')}-${look}`)))
      }
    }
    await page.context().close()
    expect(found).toEqual([])
    // The browser logs an error for each failed request. Status 403 is expected, because a caller's key may not use the admin API, and an
    // operator's key may not make calls.
    expect(faults.filter((fault) => !/status of 403/.test(fault))).toEqual([])
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
      // The window is still narrow, because the loop above ended with the narrow combination.
      await page.getByRole('searchbox', { name: 'Filter the endpoints' }).fill('post /v1/chat')
      const shown = page.locator('.item:visible')
      await page.getByText(/^\d+ match/).waitFor()
      expect(await shown.locator('summary').allInnerTexts()).toEqual(
        expect.arrayContaining([expect.stringMatching(/POST\s+\/v1\/chat\/completions/)]),
      )
      await shown
        .filter({ hasText: /POST\s*\/v1\/chat\/completions\s/ })
        .first()
        .locator('summary')
        .click()
      await shown.getByRole('button', { name: 'Copy' }).first().waitFor()
      expect(await faultsOf(page, 'reference-open')).toEqual([])
    }
    if (name === 'guide') {
      await page.setViewportSize(LOOKS[0].viewport)
      await page
        .getByRole('navigation', { name: 'On this page' })
        .locator('visible=true')
        .getByRole('link')
        .first()
        .click()
      expect(new URL(page.url()).hash).not.toBe('')
      await page.getByRole('button', { name: 'Copy' }).first().waitFor()
    }
    await page.context().close()
    expect(found).toEqual([])
    expect(faults.filter((fault) => !/status of 403/.test(fault))).toEqual([])
  })
})
