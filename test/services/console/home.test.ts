import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'

/*
 * Home: what is prepared and what still loads, each pool with its figures, their plots and its models.
 */

const NARROW = { width: 360, height: 740 }

describe.skipIf(!CHROMIUM)('home', { timeout: 6 * PAGE_MS }, () => {
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

  it('shows by model what waits, how long runs take and how many failed', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.getByRole('table', { name: 'Models of inference' }).waitFor()
    await admin.submit('alice', 'One.')
    await admin.submit('alice', '!echo error=400', { model: 'echo-2' })
    await admin.as('op').post('/v1/admin/models/echo-1/pause')
    await admin.submit('alice', 'It waits.')
    const row = (model: string) =>
      page.getByRole('table', { name: 'Models of inference' }).getByRole('row', { name: model })
    await row('echo-2').getByText('1 of 1', { exact: true }).waitFor()
    await row('echo-1').getByText('0 of 1', { exact: true }).waitFor()
    await row('echo-1').getByRole('cell').first().getByText('1', { exact: true }).waitFor()
    await row('echo-1').getByText('prepared', { exact: true }).waitFor()
    // What waits stands first.
    expect(await page.getByRole('rowheader').first().textContent()).toContain('echo-1')
    await page.getByRole('list', { name: 'What needs attention' }).getByText('npx sluice resume model echo-1').waitFor()
    await look(page, 'home-by-model')
    await page.getByRole('button', { name: 'Oldest wait' }).click()
    await page.getByRole('img', { name: 'inference, Oldest wait: 0 of 256 run, 1 wait' }).waitFor()
    await page.getByRole('button', { name: 'p50 and p95' }).click()
    expect(new URL(page.url()).searchParams.get('plot')).toBe('latency')
    await page.reload()
    await page.getByRole('img', { name: /^inference, p50 and p95/ }).waitFor()
    await page.getByRole('button', { name: 'Failures' }).click()
    await page.getByRole('img', { name: /^inference, Failures/ }).waitFor()
    await page.setViewportSize(NARROW)
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'home-by-model-narrow-dark')
    // Whoever comes later sees what failed before as well, at the second look as at the first.
    await page.reload()
    await page.getByRole('img', { name: /^inference, Failures/ }).waitFor()
    const looked = () =>
      page.evaluate("performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/metrics')).length")
    await expect.poll(looked, { timeout: PAGE_MS }).toBeGreaterThan(2)
    await row('echo-2').getByText('1 of 1', { exact: true }).waitFor()
    await admin.as('op').post('/v1/admin/models/echo-1/resume')
    await page.context().close()
  })

  it('shows a bar for each part that still loads', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
    // A first start fetches a gigabyte, which no test waits for: the answer is one of such a start.
    await page.route('**/readyz', (route) =>
      route.fulfill({ json: { ready: true, preparing: ['whisper-tiny.en (40 %)', 'the sandbox (5 %)'] } }),
    )
    const bar = page.getByRole('progressbar', { name: 'whisper-tiny.en' })
    await bar.waitFor()
    expect(await bar.getAttribute('value')).toBe('0.4')
    await page.getByText('5 %', { exact: true }).waitFor()
    await page.getByText('Everything works.').waitFor({ state: 'detached' })
    await look(page, 'home-preparing')
    await page.setViewportSize(NARROW)
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'home-preparing-narrow-dark')
    await page.context().close()
  })

  it.each([
    ['an error', { status: 500, json: { error: { message: 'Something broke.' } } }, 'Something broke.'],
    ['a page of a proxy', { status: 502, body: '<html>' }, 'The service answered 502.'],
    ['too many requests', { status: 429, json: { error: { message: 'Slow down.' } } }, 'Slow down.'],
    ['a page that is no JSON', { status: 200, body: '<html>' }, 'The answer is not one of the service'],
  ])('says that the service answers with %s, and recovers by itself', async (_, answer, said) => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), [])
    await page.getByText('Everything works.').waitFor()
    const isOfService = ({ pathname }: URL) => /^\/(v1|readyz|metrics)/.test(pathname)
    await page.route(isOfService, (route) => route.fulfill(answer))
    await page.getByRole('list', { name: 'What needs attention' }).getByText(said).waitFor()
    expect(await page.getByText('METRICS_PORT').count()).toBe(0)
    await page.unroute(isOfService)
    await page.getByText('Everything works.').waitFor()
    await page.context().close()
  })

  it('says that the service does not answer where it is silent, and asks again', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), [])
    await page.getByText('Everything works.').waitFor()
    await page.clock.install()
    let asked = 0
    await page.route('**/readyz', () => {
      asked++
    })
    const later = async () => {
      await page.clock.runFor(2_000)
      return asked
    }
    await expect.poll(later, { timeout: PAGE_MS }).toBe(1)
    await page.clock.runFor(16_000)
    await page.getByText('The service does not answer. It may be restarting.').waitFor()
    await page.clock.runFor(4_000)
    await expect.poll(() => asked, { timeout: PAGE_MS }).toBe(2)
    await page.context().close()
  })

  it('shows an operator the screens for operators once the service is back', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), [])
    await page.route('**/v1/key', (route) => route.fulfill({ status: 503, body: '' }))
    await page.reload()
    await page.getByText('This key sees its own project').waitFor()
    await page.unroute('**/v1/key')
    await page.getByRole('link', { name: 'Dead letters' }).waitFor()
    await page.context().close()
  })

  it.each(['constructor', '__proto__', 'nothing'])(
    'draws jobs where the address asks for the plot %s',
    async (name) => {
      const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
      await page.goto(`${admin.stack.url}/console?plot=${name}`)
      await page.getByRole('img', { name: /^inference, Jobs/ }).waitFor()
      await page.context().close()
    },
  )

  it('draws what took longer than every bound at the top of the plot', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults)
    const bucket = (le: string, count: number) =>
      `sluice_attempt_duration_seconds_bucket{le="${le}",pool="inference",model="echo-1"} ${count}`
    const body = ['sluice_pool_slots{pool="inference"} 8', bucket('600', 0), bucket('+Inf', 3)].join('\n')
    await page.route('**/metrics', (route) => route.fulfill({ body }))
    await page.goto(`${admin.stack.url}/console?plot=latency`)
    const plot = page.getByRole('img', { name: /^inference, p50 and p95/ })
    await plot.waitFor()
    await page.getByText('> 10 min').first().waitFor()
    expect(await plot.innerHTML()).not.toContain('NaN')
    await page.context().close()
  })

  it('was never in want of anything from elsewhere, and never wrong', () => {
    // A key for operators may not call models.
    expect(faults.filter((fault) => !/status of 403/.test(fault))).toEqual([])
  })
})
