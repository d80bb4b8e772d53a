import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { bury } from '#shared/jobs/dead-letters.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'

/*
 * Every screen that the menu leads to, light and dark, wide, narrow and between: nothing serious by axe, nothing beyond the edge, nothing logged
 * as an error and nothing asked of other hosts. With CONSOLE_PICTURES=DIR each leaves a picture.
 */

const LOOKS = [
  { name: 'light-wide', colorScheme: 'light', viewport: { width: 1280, height: 860 } },
  { name: 'dark-wide', colorScheme: 'dark', viewport: { width: 1280, height: 860 } },
  // The narrowest at which tables are tables.
  { name: 'light-middle', colorScheme: 'light', viewport: { width: 1161, height: 860 } },
  { name: 'light-narrow', colorScheme: 'light', viewport: { width: 360, height: 740 } },
  { name: 'dark-narrow', colorScheme: 'dark', viewport: { width: 360, height: 740 } },
] as const

describe.skipIf(!CHROMIUM)('a walk over every screen of the console', { timeout: 8 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser

  beforeAll(async () => {
    admin = await openAdmin()
    browser = await openChromium()
    await bury(admin.stack.broker, 'inference', 'jobs.inference/0@9', Buffer.from('not a job'))
    for (const prompt of ['One.', '!echo error=400', '!echo tokens=100000 delay_ms=100'])
      await admin.submit('alice', prompt)
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  it.each(['op', 'alice'])('finds nothing wrong with any of them, as %s', async (who) => {
    const faults: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf(who), faults)
    // What is for operators comes once the key is known to be one.
    await page
      .getByText(who === 'op' ? '1 worker' : 'This key sees its own project')
      .first()
      .waitFor()
    const links = page.getByRole('navigation', { name: 'Screens' }).locator('a:not([target])')
    const names = await links.evaluateAll((all) => all.map((one) => String(one.textContent).trim()))
    expect(names).toEqual(expect.arrayContaining(['Home', 'Jobs', 'Playground', 'Models']))
    expect(names.includes('Dead letters')).toBe(who === 'op')
    const found: unknown[] = []
    // Callers see fewer of the same screens: two looks tell what differs.
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
    // The operator's door that is closed to callers, and calls that are closed to a key for operators.
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })

  it.each([
    ['reference', '/docs', 'Submits a call as a durable job'],
    ['guide', '/docs/guide', 'Sluice'],
  ])('finds nothing wrong with the %s that the menu leads to', async (name, path, words) => {
    const faults: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
    const link = page.getByRole('navigation', { name: 'Screens' }).locator(`a[href="${path}"]`)
    expect(await link.getAttribute('target')).toBe('_blank')
    await page.goto(admin.stack.url + path)
    await page.getByText(words).first().waitFor()
    const found: unknown[] = []
    for (const { name: look, colorScheme, viewport } of LOOKS) {
      await page.setViewportSize(viewport)
      await page.emulateMedia({ colorScheme })
      found.push(...(await faultsOf(page, `${name}-${look}`, { isWhole: false })))
    }
    if (name === 'reference') {
      // On the narrow screen, which is the last one.
      await page.locator('.opblock-summary-control').first().click()
      await page.getByRole('textbox', { name: 'Request body' }).waitFor()
      expect(await page.evaluate('document.documentElement.scrollWidth > innerWidth')).toBe(false)
    }
    await page.context().close()
    expect(found).toEqual([])
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })
})
