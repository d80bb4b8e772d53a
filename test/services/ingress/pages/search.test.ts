import type { Browser, BrowserContextOptions, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { CHAPTERS, GUIDE } from '#services/ingress/pages/guide.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS } from '../../../support/browser.ts'
import { type Stack, startStack } from '../../../support/stack.ts'

/** JavaScript expression for the browser: horizontal overflow of the page, in pixels. */
const OVERFLOW = 'document.documentElement.scrollWidth - document.documentElement.clientWidth'

describe.skipIf(!CHROMIUM)('the guide and its search', { timeout: 2 * PAGE_MS }, () => {
  let stack: Stack
  let browser: Browser
  const faults: string[] = []
  beforeAll(async () => {
    stack = await startStack()
    browser = await openChromium()
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await stack?.[Symbol.asyncDispose]()
  })

  async function openGuide(options: BrowserContextOptions = {}): Promise<Page> {
    const page = await (await browser.newContext(options)).newPage()
    page.setDefaultTimeout(PAGE_MS)
    page.on('console', (message) => message.type() === 'error' && faults.push(message.text()))
    page.on('pageerror', (error) => faults.push(error.message))
    page.on('request', (request) => {
      const url = request.url()
      if (!url.startsWith(stack.url) && !url.startsWith('data:')) faults.push(`request to another host: ${url}`)
    })
    await page.goto(stack.url + GUIDE)
    await page.getByRole('combobox', { name: 'Search the guide' }).waitFor()
    return page
  }

  it('can open a section by keyboard only', async () => {
    const page = await openGuide()
    await page.keyboard.press('/')
    await page.keyboard.type('change the secret')
    const options = page.getByRole('option')
    await options.first().waitFor()
    expect(await options.first().innerText()).toContain('Webhooks › Change the secret')
    const box = page.getByRole('combobox')
    expect(await box.getAttribute('aria-expanded')).toBe('true')

    await page.keyboard.press('ArrowDown')
    expect(await box.getAttribute('aria-activedescendant')).toBe('found-0')
    expect(await options.first().getAttribute('aria-selected')).toBe('true')
    await page.keyboard.press('Enter')
    await page.waitForURL(`${stack.url}${GUIDE}/webhooks#change-the-secret`)
    await page.getByRole('heading', { name: 'Change the secret' }).waitFor()
  })

  it('report an empty result, treat HTML in a query as text, and close with Escape', async () => {
    const page = await openGuide()
    const box = page.getByRole('combobox')
    await box.fill('aardvark<b>(')
    await page.getByText('No results.').waitFor()
    await box.fill('Idempotency-Key')
    await page.getByRole('option').first().waitFor()
    expect(await page.locator('mark').allInnerTexts()).toContain('Idempotency-Key')
    await box.press('Escape')
    expect(await page.getByRole('option').count()).toBe(0)
    expect(await box.getAttribute('aria-expanded')).toBe('false')
  })

  it.each([
    ['light', { colorScheme: 'light' }],
    ['dark', { colorScheme: 'dark' }],
    ['narrow', { viewport: { width: 360, height: 720 } }],
  ] as const)('have no accessibility errors: %s', async (name, options) => {
    const page = await openGuide(options)
    expect(await faultsOf(page, `guide-${name}`)).toEqual([])
    await page.getByRole('combobox').fill('webhook')
    await page.getByRole('option').first().waitFor()
    await page.keyboard.press('ArrowDown')
    expect(await faultsOf(page, `guide-search-${name}`)).toEqual([])
  })

  it.each([360, 1280])('have no page wider than a screen of %i pixels', async (width) => {
    const page = await openGuide({ viewport: { width, height: 720 } })
    const wide: string[] = []
    for (const { name } of CHAPTERS) {
      await page.goto(`${stack.url}${GUIDE}/${name}`, { waitUntil: 'domcontentloaded' })
      const overflow = Number(await page.evaluate(OVERFLOW))
      if (overflow > 0) wide.push(`${name}: ${overflow}`)
    }
    expect(wide, 'pages wider than the screen, with the excess in pixels').toEqual([])
  })

  it('send no request to other hosts and comply with the content security policy', () => {
    expect(faults).toEqual([])
  })
})
