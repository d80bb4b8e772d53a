/** Pages of the console in Chromium, and the checks that every page must pass. */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import axe from 'axe-core'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'

const BROWSERS = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
/** Path of a Chromium; undefined: tests that need one are skipped. */
export const CHROMIUM = process.env.CHROMIUM ?? BROWSERS.find(existsSync)
/** Directory for screenshots. */
const PICTURES = process.env.CONSOLE_PICTURES
/** Timeout of one step in a page. */
export const PAGE_MS = 60_000

/** Settles when no transition or animation is pending, except endless ones. A page starts transitions in the frame after a change of colours. */
const SETTLED = `new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))).then(() =>
  Promise.all(
    document.getAnimations()
      .filter(({ effect }) => effect?.getTiming().iterations !== Infinity)
      .map(({ finished }) => finished.catch(() => {})),
  ),
)`

interface Finding {
  readonly id: string
  readonly impact: string
  readonly nodes: readonly { readonly html: string }[]
}

/** A browser whose microphone records a tone. */
export async function openChromium(): Promise<Browser> {
  const microphone = ['--use-fake-device-for-media-stream', '--use-fake-ui-for-media-stream']
  return await chromium.launch({
    ...(CHROMIUM && { executablePath: CHROMIUM }),
    args: ['--no-sandbox', ...microphone],
  })
}

/** A signed-in tab. @param faults Receives logged errors, exceptions and requests to other origins */
export async function signIn(
  browser: Browser,
  url: string,
  key: string,
  faults: string[],
  options: BrowserContextOptions = {},
): Promise<Page> {
  const page = await (await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options })).newPage()
  page.setDefaultTimeout(PAGE_MS)
  page.on('console', (message) => message.type() === 'error' && faults.push(`console: ${message.text()}`))
  page.on('pageerror', (error) => faults.push(`thrown: ${error.message}`))
  page.on('request', (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith(`blob:${url}`) && !isInline(request.url())) {
      faults.push(`asked elsewhere: ${request.url()}`)
    }
  })
  await page.goto(`${url}/console`)
  await page.getByLabel('API key').fill(key)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { name: 'Home' }).waitFor()
  return page
}

/** Opens a screen through the menu, which a narrow window folds. */
export async function openScreen(page: Page, name: string): Promise<void> {
  const menu = page.getByRole('button', { name: 'Menu', exact: true })
  if (await menu.isVisible()) await menu.click()
  await page.getByRole('navigation', { name: 'Screens' }).getByRole('link', { name, exact: true }).click()
}

/**
 * Problems of a page: serious findings of axe, and content beyond the window edge. Writes a screenshot if CONSOLE_PICTURES is set.
 *
 * @param options `isWhole`: the screenshot includes content below the window; default: true
 */
export async function faultsOf(page: Page, name: string, { isWhole = true } = {}): Promise<unknown[]> {
  // While colours change, axe would report low contrast, so the check waits until all transitions have ended.
  await page.evaluate(SETTLED)
  if (PICTURES) {
    mkdirSync(PICTURES, { recursive: true })
    await page.screenshot({ path: join(PICTURES, `${name}.png`), fullPage: isWhole })
  }
  await page.evaluate(axe.source)
  const found = (await page.evaluate('axe.run().then(({ violations }) => violations)')) as Finding[]
  const serious = found.filter(({ impact }) => impact === 'serious' || impact === 'critical')
  const isWide = (await page.evaluate('document.documentElement.scrollWidth > innerWidth')) as boolean
  return [
    ...serious.map(({ id, nodes }) => [name, id, nodes.map(({ html }) => html.slice(0, 200))]),
    ...(isWide ? [[name, 'something is beyond the edge']] : []),
  ]
}

/** Requests for `data:` URLs are expected, because the page draws some images itself. */
function isInline(url: string): boolean {
  return url.startsWith('data:image/')
}
