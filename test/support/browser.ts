/** Pages of the console in a Chromium, and what must never be wrong with one. */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import axe from 'axe-core'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'

const BROWSERS = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
/** Where there is a Chromium; undefined: tests that need one are skipped. */
export const CHROMIUM = process.env.CHROMIUM ?? BROWSERS.find(existsSync)
/** A directory for pictures of the screens, for people who look at them. */
const PICTURES = process.env.CONSOLE_PICTURES
/** How long a page may take for one thing. */
export const PAGE_MS = 60_000

/**
 * Settles once what changes in a page has changed; what pulses for ever is left out. A page hears of other colours in the frame after
 * they were asked for, and begins to change then.
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

/** A browser whose microphone hears a tone. */
export async function openChromium(): Promise<Browser> {
  const microphone = ['--use-fake-device-for-media-stream', '--use-fake-ui-for-media-stream']
  return await chromium.launch({
    ...(CHROMIUM && { executablePath: CHROMIUM }),
    args: ['--no-sandbox', ...microphone],
  })
}

/** A tab in which somebody has signed in. @param faults What is logged as an error, thrown, or asked of others is added to it */
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

/**
 * What is wrong with a page: serious findings of axe, and what is beyond the edge. It leaves a picture where they are wanted.
 *
 * @param options `isWhole`: the picture has what is below the window as well; default: true
 */
export async function faultsOf(page: Page, name: string, { isWhole = true } = {}): Promise<unknown[]> {
  // Colours that still change are none that anybody reads.
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

/** Figures that the code drew are data in the page. */
function isInline(url: string): boolean {
  return url.startsWith('data:image/')
}
