/*
 * Tests of the main workflows of the console in Chromium, as a caller and as an operator. No screen may have a serious accessibility
 * violation (axe), log an error or send a request to another host.
 */

import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import axe from 'axe-core'
import { type Browser, chromium, type Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { writeDeadLetter } from '#shared/jobs/dead-letters.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { openScreen } from '../../support/browser.ts'

const BROWSERS = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
const browserPath = process.env.CHROMIUM ?? BROWSERS.find(existsSync)
if (!browserPath) process.stderr.write('skipped, the console needs a Chromium: apt-get install chromium\n')

/** Directory in which the test saves screenshots; no screenshots if the variable is not set. */
const PICTURES = process.env.CONSOLE_PICTURES
const WAIT_MS = 30_000
/** Number of jobs that the test submits. One page of the jobs list has fewer jobs, so the console must load a second page. */
const MANY = 130

/** Returns the JSON of a durable job. The test writes it to the dead letters, as a worker does that cannot read the job. */
const letter = (more: object = {}) =>
  JSON.stringify({
    ...{ id: 'job_dead', attempt: 0, pool: 'inference', kind: 'generate', tenant: 'alice', model: 'echo-1' },
    ...{ stream: false, created_at_ms: Date.now(), deadline_ms: Date.now() + 60_000, ...more },
  })

async function deadLetter({ stack }: Admin, values: readonly string[]): Promise<void> {
  for (const value of values) await writeDeadLetter(stack.broker, 'inference', 'jobs.inference/0@9', Buffer.from(value))
}

interface Finding {
  readonly id: string
  readonly impact: string
  readonly nodes: readonly { readonly html: string }[]
}

describe.skipIf(!browserPath)('the console', { timeout: 8 * WAIT_MS }, () => {
  let admin: Admin
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    admin = await openAdmin()
    browser = await chromium.launch({ ...(browserPath && { executablePath: browserPath }), args: ['--no-sandbox'] })
  }, WAIT_MS)
  afterAll(async () => {
    await browser.close()
    await admin[Symbol.asyncDispose]()
  })

  /** Opens a tab, signs in with the key of `who`, and records errors and requests to other hosts in `faults`. */
  async function openTab(who: string, options: object = {}): Promise<Page> {
    const page = await (await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options })).newPage()
    page.setDefaultTimeout(WAIT_MS)
    page.on('console', (message) => message.type() === 'error' && faults.push(`console: ${message.text()}`))
    page.on('pageerror', (error) => faults.push(`thrown: ${error.message}`))
    page.on('request', (request) => {
      if (!request.url().startsWith(admin.stack.url)) faults.push(`request to another host: ${request.url()}`)
    })
    await page.goto(admin.stack.url)
    await page.getByLabel('API key').fill(secretOf(who))
    await page.getByRole('button', { name: 'Sign in' }).click()
    await page.getByRole('heading', { name: 'Home' }).waitFor()
    return page
  }

  /** Checks accessibility and horizontal overflow, and saves a screenshot if CONSOLE_PICTURES is set. */
  async function look(page: Page, name: string): Promise<void> {
    await page.evaluate(axe.source)
    const found = (await page.evaluate('axe.run().then(({ violations }) => violations)')) as Finding[]
    const serious = found.filter(({ impact }) => impact === 'serious' || impact === 'critical')
    expect(serious.map(({ id, nodes }) => [name, id, nodes.map(({ html }) => html.slice(0, 200))])).toEqual([])
    expect([name, await page.evaluate('document.documentElement.scrollWidth <= innerWidth')]).toEqual([name, true])
    if (!PICTURES) return
    mkdirSync(PICTURES, { recursive: true })
    await page.screenshot({ path: join(PICTURES, `${name}.png`) })
  }

  it('rejects an invalid key with the error message of the service', async () => {
    const page = await browser.newPage()
    await page.goto(`${admin.stack.url}/console`)
    await page.getByLabel('API key').fill('sk-nobody-0123456789')
    await page.getByRole('button', { name: 'Sign in' }).click()
    await page.getByText('Incorrect API key').waitFor()
    await look(page, 'sign-in')
    await page.close()
  })

  it('signs a new tab in with the key of an open tab, unless that tab is signed out', async () => {
    const first = await openTab('alice')
    const openOther = async () => {
      const page = await first.context().newPage()
      await page.goto(`${admin.stack.url}/console`)
      return page
    }
    const second = await openOther()
    await second.getByRole('heading', { name: 'Home' }).waitFor()
    await second.getByRole('button', { name: 'Sign out' }).click()
    await second.reload()
    await second.getByLabel('API key').waitFor()
    await first.getByRole('button', { name: 'Sign out' }).click()
    await (await openOther()).getByLabel('API key').waitFor()
    await first.context().close()
  })

  it('streams a reply, stops another reply, and shows code for the request', async () => {
    const page = await openTab('alice')
    await page.getByRole('link', { name: 'Playground', exact: true }).click()
    await page.getByLabel('Message').fill('!echo text="Hello there."')
    await page.getByRole('button', { name: 'Send' }).click()
    await page.getByText('Hello there.', { exact: true }).waitFor()
    await page.getByText(/^\d+ tokens in/).waitFor()
    await page.getByLabel('Message').fill('!echo tokens=5000 delay_ms=50')
    await page.keyboard.press('Enter')
    await page.getByRole('button', { name: 'Stop' }).click()
    await page.getByText('stopped', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Python' }).click()
    await page.getByText('from openai import OpenAI').waitFor()
    await look(page, 'playground')
    await page.context().close()
  })

  it('shows the composer of the playground and three examples at 360 pixels, and sends an example', async () => {
    const page = await openTab('alice', { viewport: { width: 360, height: 640 } })
    await page.goto(`${admin.stack.url}/console/playground`)
    const examples = page.locator('.hint button')
    await examples.first().waitFor()
    expect(await examples.count()).toBe(3)
    const bottomOf = async (name: string) => {
      const { y, height } = (await page.getByRole('button', { name, exact: true }).boundingBox()) ?? { y: 0, height: 0 }
      return y + height
    }
    expect(await bottomOf('Send'), 'end of the button Send in pixels').toBeLessThanOrEqual(640)
    const tabs = page.getByRole('navigation', { name: 'Endpoints' })
    expect((await tabs.boundingBox())?.height, 'height of one line of tabs').toBeLessThan(45)
    await look(page, 'playground-examples')
    const text = await examples.first().innerText()
    await examples.first().click()
    await page.getByRole('log').getByText(text, { exact: true }).first().waitFor()
    await page.context().close()
  })

  it('shows the events of a job, then cancels and redrives the job', async () => {
    const id = await admin.submit('alice', '!echo tokens=5000 delay_ms=100')
    const page = await openTab('alice')
    await page.getByRole('link', { name: 'Jobs', exact: true }).click()
    await page.getByRole('link', { name: id }).click()
    await page.getByText('Started').waitFor()
    expect(await page.title()).toBe(`${id} · Jobs · Sluice`)
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel job' }).click()
    await page.locator('.title .status.cancelled').waitFor()
    await look(page, 'job')
    await page.getByRole('button', { name: 'Run again' }).click()
    await page.getByRole('button', { name: 'Cancel' }).waitFor()
    expect(page.url()).not.toContain(id)
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel job' }).click()
    await page.locator('.title .status.cancelled').waitFor()
    await page.getByRole('link', { name: 'Jobs', exact: true }).first().click()
    await page.getByRole('button', { name: 'cancelled' }).click()
    expect(new URL(page.url()).searchParams.get('status')).toBe('cancelled')
    await page.reload()
    await page.getByRole('link', { name: id }).waitFor()
    await page.context().close()
  })

  it('renders only the visible rows, and loads more jobs on scroll', async () => {
    for (let nth = 0; nth < MANY; nth++) await admin.submit('bob', `Number ${nth}.`)
    const page = await openTab('bob')
    await page.getByRole('link', { name: 'Jobs', exact: true }).click()
    await page.getByText('100+ jobs').waitFor()
    await look(page, 'jobs')
    await page.evaluate('scrollTo(0, document.body.scrollHeight)')
    await page.getByText(`${MANY} jobs`, { exact: true }).waitFor()
    expect(await page.locator('.rows .row').count()).toBeLessThan(100)
    await page.context().close()
  })

  it('shows all pools and the jobs of every project to an operator, in dark mode at 360 pixels', async () => {
    const id = await admin.submit('alice', 'One.')
    const page = await openTab('op', { viewport: { width: 360, height: 740 }, colorScheme: 'dark' })
    await page.getByRole('heading', { name: 'inference' }).waitFor()
    await page.getByText('1 worker').first().waitFor()
    await look(page, 'home-narrow')
    await openScreen(page, 'Jobs')
    await page.getByRole('link', { name: id }).waitFor()
    await page.getByRole('row').filter({ hasText: id }).getByText('chat/completions · alice').waitFor()
    await look(page, 'jobs-narrow')
    await page.getByRole('link', { name: id }).click()
    await page.getByText('This job belongs to another project.').waitFor()
    await look(page, 'job-narrow')
    await page.goto(`${admin.stack.url}/console/playground`)
    await page.getByText('This key cannot call models').waitFor()
    await look(page, 'playground-narrow')
    await page.goto(`${admin.stack.url}/console/workers`)
    await page.getByRole('button', { name: 'Drain' }).first().waitFor()
    await look(page, 'workers-narrow')
    await page.goto(`${admin.stack.url}/console/models`)
    await page.getByRole('button', { name: 'Pause echo-1' }).waitFor()
    await look(page, 'models-narrow')
    await page.context().close()
  })

  it('drains a worker after confirmation, and undrains the worker', async () => {
    const page = await openTab('op')
    await page.getByRole('link', { name: 'Workers', exact: true }).click()
    const row = page.getByRole('row').filter({ hasText: 'echo-1' }).filter({ hasText: 'inference' })
    await row.getByRole('button', { name: 'Drain' }).click()
    await page.getByText('No other worker of the pool inference accepts jobs.').waitFor()
    await look(page, 'workers-drain')
    await page.getByRole('button', { name: 'Keep in service' }).click()
    await row.getByRole('button', { name: 'Drain' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click()
    await page.getByRole('status').getByText('Worker drained.').waitFor()
    await row.locator('.status.drained').waitFor()
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    await look(page, 'workers')
    await row.getByRole('button', { name: 'Undrain' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Undrain' }).click()
    await row.locator('.status.idle').waitFor()
    expect(admin.auditEvents().map(({ action }) => action)).toEqual(['drain_worker', 'undrain_worker'])
    await page.context().close()
  })

  it('lists the models of a key, and lets an operator pause a model', async () => {
    await admin
      .as('alice')
      .post('/v1/chat/completions', { model: 'echo-1', messages: [{ role: 'user', content: 'x' }] })
    const caller = await openTab('alice')
    await caller.getByLabel('Summary of your project').getByText('Requests this month').waitFor()
    expect(await caller.getByRole('heading', { name: 'Pools' }).count(), 'figures of the fleet').toBe(0)
    await look(caller, 'home')
    await caller.getByRole('link', { name: 'Models', exact: true }).click()
    const card = (page: Page) => page.locator('tr.model').filter({ hasText: 'echo-1' })
    await card(caller).getByText('ready', { exact: true }).waitFor()
    expect(await card(caller).getByRole('button', { name: 'Pause' }).count()).toBe(0)
    await look(caller, 'models')
    const operator = await openTab('op', { colorScheme: 'dark' })
    await operator.getByRole('link', { name: 'Models', exact: true }).click()
    await card(operator).getByRole('button', { name: 'echo-1', exact: true }).click()
    await operator.getByText('up to 256').waitFor()
    for (const column of ['First output p50 / p95', 'Duration p50 / p95'])
      await card(operator)
        .locator(`[data-column="${column}"]`)
        .getByText(/^[\d.]+ m?s \/ [\d.]+ m?s$/)
        .waitFor()
    await card(operator).getByRole('button', { name: 'Pause' }).click()
    await operator.getByRole('dialog').getByRole('button', { name: 'Pause' }).click()
    await card(operator).locator('.status.paused').waitFor()
    await admin.submit('alice', 'Queued.')
    await operator.getByRole('link', { name: 'Home', exact: true }).click()
    const problems = operator.getByRole('list', { name: 'Problems' })
    await problems.getByText("The model 'echo-1' is paused").waitFor()
    await problems
      .getByRole('link', { name: 'Models' })
      .and(operator.getByTitle('npx sluice resume model echo-1'))
      .waitFor()
    const oldest = operator.getByText('oldest wait', { exact: true }).first().locator('..')
    await oldest.getByText(/^(< 1|\d+) (s|min)/).waitFor()
    await look(operator, 'home-attention')
    await operator.getByRole('navigation').getByRole('link', { name: 'Models', exact: true }).click()
    await card(operator).locator('[data-column="Queued"]').getByText('1', { exact: true }).waitFor()
    expect(await card(caller).locator('[data-column="Queued"]').count(), 'queued work of all projects').toBe(0)
    await look(operator, 'models-operator')
    await card(operator).getByRole('button', { name: 'Resume' }).click()
    await operator.getByRole('dialog').getByRole('button', { name: 'Resume' }).click()
    await card(operator).locator('.status.ready').waitFor()
    await Promise.all([caller, operator].map((page) => page.context().close()))
  })

  it('shows dead letters with their reasons, and requeues a dead letter after a preview', async () => {
    await deadLetter(admin, ['not a job', letter({ kind: 'dream', reply: { boot: 'ing_x', shard: 0 } }), letter()])
    const page = await openTab('op')
    await page.getByRole('link', { name: 'Dead letters', exact: true }).click()
    for (const reason of ['unreadable', 'unknown kind', 'version mismatch']) await page.getByText(reason).waitFor()
    await look(page, 'dead-letters')
    await page.getByRole('button', { name: 'Requeue all' }).click()
    await page.getByLabel('Maximum').fill('5')
    await page.getByRole('button', { name: 'Preview' }).click()
    await page.getByText('1 to be requeued:').waitFor()
    expect(admin.auditEvents().filter(({ action }) => action === 'redrive_dead_letter')).toEqual([])
    await look(page, 'dead-letters-redrive')
    await page.getByRole('button', { name: 'Requeue 1' }).click()
    await page.getByText('1 requeued.').waitFor()
    expect(admin.auditEvents().filter(({ action }) => action === 'redrive_dead_letter')).toMatchObject([
      { job_id: 'job_dead' },
    ])
    await page.getByRole('button', { name: 'Done' }).click()
    const row = page.getByRole('row').filter({ hasText: 'job_dead' }).filter({ hasText: 'version mismatch' })
    await row.getByRole('button', { name: /^Requeue \S+$/ }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Requeue' }).click()
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    expect(admin.auditEvents().filter(({ action }) => action === 'redrive_dead_letter')).toHaveLength(2)
    await row.getByRole('button', { name: /^Discard/ }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Discard' }).click()
    await row.waitFor({ state: 'detached' })
    await page.reload()
    await page.getByText('unknown kind').waitFor()
    expect(await row.count()).toBe(0)
    await page.getByLabel('Pool').selectOption('code')
    await page.getByText('No dead letters').waitFor()
    expect(new URL(page.url()).searchParams.get('pool')).toBe('code')
    await page.setViewportSize({ width: 360, height: 740 })
    await page.getByLabel('Pool').selectOption('')
    await page.getByText('unknown kind').waitFor()
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'dead-letters-narrow')
    await page.context().close()
  })

  it('hides operator screens if the key has no admin scope', async () => {
    const page = await openTab('alice')
    expect(await page.getByRole('link', { name: 'Workers', exact: true }).count()).toBe(0)
    await page.goto(`${admin.stack.url}/console/workers`)
    await page.getByText('This page requires a key with the').waitFor()
    await page.context().close()
  })

  it('logs no unexpected errors and sends no requests to other hosts', () => {
    // The browser logs an error for each failed request. The expected statuses are 401 for a rejected key, and 403 for a missing permission.
    const expected = /status of 40[13]/
    expect(faults.filter((fault) => !expected.test(fault))).toEqual([])
  })
})
