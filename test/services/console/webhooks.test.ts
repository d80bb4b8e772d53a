/* Tests of the console screen Webhooks, with a local receiver that rejects deliveries at first. */

import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { until } from '../../support/stack.ts'

const NARROW = { width: 360, height: 740 }

async function openReceiver() {
  const state = { status: 500, received: [] as string[] }
  const server = createServer((req, res) => {
    state.received.push(String(req.headers['webhook-id']))
    req.resume().on('end', () => res.writeHead(state.status).end())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  return { state, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/events` }
}

describe.skipIf(!CHROMIUM)('the Webhooks screen of the console', { timeout: 6 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    admin = await openAdmin({ settings: { WEBHOOK_ALLOW_PRIVATE: 'true' } })
    browser = await openChromium()
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  const look = async (page: Page, name: string) => expect(await faultsOf(page, name)).toEqual([])

  it('shows undelivered events with their attempts, and resends a selected event', async () => {
    const { state, url } = await openReceiver()
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.getByRole('link', { name: 'Webhooks', exact: true }).click()
    await page.getByText('No deliveries').waitFor()
    await page.getByRole('button', { name: 'Undelivered', exact: true }).click()
    const id = await admin.submit('alice', 'Hello.', { webhook: { url } })
    const row = page.getByRole('row').filter({ hasText: id })
    await row.getByText(/^(1 attempt|Last \d+ attempts)$/).click()
    await row.getByText('The receiver responded with status 500.').first().waitFor()
    await look(page, 'webhooks')
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'webhooks-dark')
    const before = state.received.length
    state.status = 204
    await row.getByRole('button', { name: /^Resend evt_/ }).click()
    await page.getByRole('status').getByText('Delivery queued again.').waitFor()
    await row.waitFor({ state: 'detached' })
    await until(() => state.received.length > before)
    expect(new Set(state.received).size).toBe(1)
    await page.getByRole('button', { name: 'Delivered', exact: true }).click()
    await row.getByText('delivered', { exact: true }).waitFor()
    await row.getByText('204').first().waitFor()
    expect(await row.getByRole('button', { name: /^Resend/ }).count()).toBe(0)
    await look(page, 'webhooks-delivered')
    expect(admin.auditEvents().map(({ action }) => action)).toEqual(['retry_delivery'])
    await page.context().close()
  })

  it('shows failed deliveries at a narrow width', async () => {
    const { state, url } = await openReceiver()
    // The service does not retry a delivery after the status 410 Gone.
    state.status = 410
    const id = await admin.submit('bob', 'Hello.', { webhook: { url } })
    const failed = async () => (await (await admin.as('op').get('/v1/admin/deliveries?status=failed')).json()) as object
    await until(async () => JSON.stringify(await failed()).includes(id))
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults, { viewport: NARROW })
    await page.goto(`${admin.stack.url}/console/webhooks`)
    await page.getByRole('button', { name: 'Failed' }).click()
    const row = page.getByRole('row').filter({ hasText: id })
    await row.locator('.status.failed').waitFor()
    await look(page, 'webhooks-narrow')
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'webhooks-narrow-dark')
    state.status = 200
    await row.getByRole('button', { name: /^Resend evt_/ }).focus()
    await page.keyboard.press('Enter')
    // The list shows failed deliveries only. The resent delivery is pending and leaves the list before the receiver gets the request.
    await row.waitFor({ state: 'detached' })
    await until(() => state.received.length > 1)
    expect(state.received).toHaveLength(2)
    await page.context().close()
  })

  it('logs no errors and sends no requests to other hosts', () => {
    expect(faults).toEqual([])
  })
})
