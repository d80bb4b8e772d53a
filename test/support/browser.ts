/** Opens pages of the console in Chromium, and runs the checks that every page must pass. */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import axe from 'axe-core'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'
import { until } from './stack.ts'

const BROWSERS = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
/** Path of the Chromium executable. If undefined, then tests that need a browser are skipped. */
export const CHROMIUM = process.env.CHROMIUM ?? BROWSERS.find(existsSync)
/** Directory to which {@link faultsOf} writes screenshots. If unset, none are written. */
const PICTURES = process.env.CONSOLE_PICTURES
/** Timeout of one step in a page. */
export const PAGE_MS = 60_000
/** Timeout until the content of a page fits into the window. */
const LAYOUT_MS = 5_000

/**
 * JavaScript that runs in the page. The promise settles when no transition or animation is pending, except endless ones. The two frames before
 * the check are needed, because a page starts transitions in the frame after a change of colours.
 */
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

/** Starts Chromium with a fake microphone that plays a tone, so that tests can record speech. */
export async function openChromium(): Promise<Browser> {
  const microphone = ['--use-fake-device-for-media-stream', '--use-fake-ui-for-media-stream']
  return await chromium.launch({
    ...(CHROMIUM && { executablePath: CHROMIUM }),
    args: ['--no-sandbox', ...microphone],
  })
}

/**
 * Opens a tab and signs in to the console.
 * @param faults Receives a text for each logged error, exception and request to another origin. Must be empty at the end of a test.
 */
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

/** Opens a screen of the console with its menu link. In a narrow window, the menu must be opened first. */
export async function openScreen(page: Page, name: string): Promise<void> {
  const menu = page.getByRole('button', { name: 'Menu', exact: true })
  if (await menu.isVisible()) await menu.click()
  await page.getByRole('navigation', { name: 'Screens' }).getByRole('link', { name, exact: true }).click()
}

async function violationsIn(page: Page): Promise<Finding[]> {
  if (!(await page.evaluate("'axe' in window"))) await page.evaluate(axe.source)
  // Without details of the elements that pass, axe is several times faster on large pages.
  const run = "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations)"
  return (await page.evaluate(run)) as Finding[]
}

/**
 * Problems of a page: serious findings of the accessibility checker axe, and content beyond the window edge. Writes a screenshot if CONSOLE_PICTURES
 * is set.
 *
 * @param options `isWhole`: the screenshot includes content below the window; default: true.
 */
export async function faultsOf(page: Page, name: string, { isWhole = true } = {}): Promise<unknown[]> {
  // While colours change, axe would report low contrast, so the check waits until all transitions have ended.
  await page.evaluate(SETTLED)
  if (PICTURES) {
    mkdirSync(PICTURES, { recursive: true })
    await page.screenshot({ path: join(PICTURES, `${name}.png`), fullPage: isWhole })
  }
  const found = await violationsIn(page)
  const serious = found.filter(({ impact }) => impact === 'serious' || impact === 'critical')
  // On a busy machine, the layout can follow a new window size late, so the check waits for it.
  // `waitForFunction` would evaluate a text in the page, which the content security policy of the console forbids.
  const fits = until(() => page.evaluate('document.documentElement.scrollWidth <= innerWidth'), { withinMs: LAYOUT_MS })
  const isWide = await fits.then(
    () => false,
    () => true,
  )
  return [
    ...serious.map(({ id, nodes }) => [name, id, nodes.map(({ html }) => html.slice(0, 200))]),
    ...(isWide ? [[name, 'something is beyond the edge']] : []),
  ]
}

/** Requests for `data:` URLs are expected, because the page draws some images itself. */
function isInline(url: string): boolean {
  return url.startsWith('data:image/')
}
