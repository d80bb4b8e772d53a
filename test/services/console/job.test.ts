/* Tests of the console page of one job, and of the jobs table filtered by a parent job. */

import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import OpenAI, { toFile } from 'openai'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { until } from '../../support/stack.ts'

const REQUESTS = 120
const run = promisify(execFile)

describe.skipIf(!CHROMIUM)('the job screen of the console', { timeout: 6 * PAGE_MS }, () => {
  let admin: Admin
  let browser: Browser
  const faults: string[] = []

  beforeAll(async () => {
    admin = await openAdmin()
    browser = await openChromium()
  }, PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await admin?.[Symbol.asyncDispose]()
  })

  const openTab = (who: string, options: object = {}) =>
    signIn(browser, admin.stack.url, secretOf(who), faults, options)

  /** Submits a batch of REQUESTS requests with the given prompts. Returns the id of the job that runs the batch. */
  async function submitBatch(contentOf: (nth: number) => string): Promise<string> {
    const client = new OpenAI({ baseURL: `${admin.stack.url}/v1`, apiKey: secretOf('alice'), maxRetries: 0 })
    const lines = Array.from({ length: REQUESTS }, (_, nth) => ({
      ...{ custom_id: `request-${nth}`, method: 'POST', url: '/v1/chat/completions' },
      body: { model: 'echo-1', messages: [{ role: 'user', content: contentOf(nth) }] },
    }))
    const text = lines.map((line) => JSON.stringify(line)).join('\n')
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' })
    const request = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const
    return (await client.batches.create(request)).id.replace('batch_', 'job_')
  }

  it('shows the input and the queue position of the job', async () => {
    await admin.as('op').post('/v1/admin/models/echo-1/pause')
    const first = await admin.submit('alice', 'The first.')
    const second = await admin.submit('alice', 'What is a sluice?')
    const page = await openTab('alice')
    await page.goto(`${admin.stack.url}/console/jobs/${second}`)
    await page.getByText('1 job is ahead in the queue.').waitFor()
    await page.getByText('Input', { exact: true }).click()
    await page.getByText('What is a sluice?').waitFor()
    await admin.as('op').post('/v1/admin/models/echo-1/resume')
    await page.locator('.title .status.completed').waitFor()
    await page.locator('.history .job-completed').waitFor()
    expect(await faultsOf(page, 'job-input')).toEqual([])
    await page.goto(`${admin.stack.url}/console/jobs`)
    await page.getByRole('link', { name: `The first., ${first}` }).click()
    await page.locator('.title .status.completed').waitFor()
    await page.context().close()
  })

  it('shows scheduled and retrying jobs with their due times, and filters them', async () => {
    const run_at = Math.floor(Date.now() / 1_000) + 7_000
    const scheduled = await admin.submit('alice', 'Later.', { run_at })
    const retrying = await admin.submit('alice', '!echo fail=overloaded retry_after_ms=600000')
    await until(async () => (await admin.job('alice', retrying)).run_at !== null)
    const page = await openTab('op', { viewport: { width: 360, height: 740 } })
    const summary = page.getByLabel('Summary', { exact: true })
    await summary.getByText('Scheduled').waitFor()
    await summary.getByText('Retrying').waitFor()
    await page.goto(`${admin.stack.url}/console/jobs`)
    const row = (id: string) => page.getByRole('table', { name: 'Jobs' }).getByRole('row').filter({ hasText: id })
    await row(scheduled)
      .getByText(/^in 1 h 5\d min$/)
      .waitFor()
    await row(retrying)
      .getByText(/^attempt 2 in 9 min/)
      .waitFor()
    expect(await faultsOf(page, 'jobs-waiting-narrow')).toEqual([])
    const focused = () => page.evaluate("document.activeElement?.getAttribute('aria-label')")
    await row(retrying).getByRole('link').focus()
    await page.keyboard.press('j')
    await expect.poll(focused, { timeout: PAGE_MS }).toBe(scheduled)
    await page.keyboard.press('/')
    expect(await focused()).toBe(scheduled)
    await page.setViewportSize({ width: 900, height: 800 })
    const age = await row(scheduled).locator('.made').boundingBox()
    expect((age?.x ?? 900) + (age?.width ?? 0), 'right edge of the age of a job').toBeLessThanOrEqual(900)
    for (const [filter, shown, hidden] of [
      ['Scheduled', scheduled, retrying],
      ['Retrying', retrying, scheduled],
    ] as const) {
      await page.getByRole('button', { name: filter, exact: true }).click()
      await row(hidden).waitFor({ state: 'detached' })
      await row(shown).locator(`.status.${filter.toLowerCase()}`).waitFor()
    }
    await page.getByRole('button', { name: 'Queued', exact: true }).click()
    await page.getByText('No matching jobs').waitFor()
    let pages = 0
    await page.route('**/v1/admin/jobs?*status=queued*', async (route) => {
      pages++
      const response = await route.fetch()
      await route.fulfill({ response, json: { ...(await response.json()), has_more: true, last_id: scheduled } })
    })
    await page.reload()
    await expect.poll(() => pages, { timeout: PAGE_MS }).toBeGreaterThan(5)
    await page.getByRole('button', { name: 'All', exact: true }).click()
    const readAll = () => page.waitForRequest((request) => /admin\/jobs\?limit=100$/.test(request.url()))
    await row(scheduled).waitFor()
    await readAll()
    const before = pages
    await readAll()
    expect(pages, 'pages of a list that is not shown any more').toBe(before)
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.goto(`${admin.stack.url}/console/jobs/${retrying}`)
    await page.getByText(/^Attempt 2 starts in 9 min .*\(\d+ \w+ \d{4}, \d\d:\d\d:\d\d/).waitFor()
    await page.getByLabel('Key facts').getByText('1 failed', { exact: true }).waitFor()
    await page.goto(`${admin.stack.url}/console/jobs/${scheduled}`)
    await page.getByText(/^Starts in 1 h 5\d min \(/).waitFor()
    const owner = await openTab('alice')
    await owner.goto(`${admin.stack.url}/console/jobs/${retrying}`)
    const failure = owner.locator('.history .job-retrying')
    await failure.getByText('Attempt 1 failed', { exact: true }).waitFor()
    await failure.getByText('overloaded', { exact: true }).waitFor()
    await owner.context().close()
    for (const id of [scheduled, retrying]) await admin.as('alice').post(`/v1/jobs/${id}/cancel`)
    await page.context().close()
  })

  it.each([
    ['not an id', '../key', '/v1/key', 'Expected the id of a job or of a batch.'],
    ['a job of another project', 'bob', '/v1/jobs/job_', 'No job with the id'],
  ])('requests the parent job at most once if the parent is %s', async (_, of, path, text) => {
    const id = of === 'bob' ? await admin.submit('bob', 'Hello.') : of
    const requested: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), [])
    page.on('request', (request) => requested.push(new URL(request.url()).pathname))
    await page.goto(`${admin.stack.url}/console/jobs?group=${encodeURIComponent(id)}`)
    await page.getByText(text).waitFor()
    // The jobs table must continue to poll. The request for the parent job failed permanently, so it must not be repeated.
    await expect
      .poll(() => requested.filter((one) => one === '/v1/jobs').length, { timeout: PAGE_MS })
      .toBeGreaterThan(2)
    expect(requested.filter((one) => one.startsWith(path)).length).toBe(1)
    await page.context().close()
  })

  it('shows the cause of a failed job with its next steps and a link to its request', async () => {
    const id = await admin.submit('alice', '!echo fail=upstream_error after=1\none two')
    const page = await openTab('op')
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    const cause = page.getByRole('region', { name: 'Error' })
    await cause.getByText('Next step:').waitFor()
    await cause.getByRole('link', { name: 'Open the request' }).click()
    await page.getByRole('link', { name: id }).first().waitFor()
    await page.context().close()
  })

  it('wraps long words of an error message, and shows the beginning of a long output', async () => {
    const id = await admin.submit('alice', `!echo ${'x'.repeat(400)}`)
    const page = await openTab('alice')
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    await page.locator('.note.bad').getByText('Invalid !echo line').waitFor()
    expect(await faultsOf(page, 'job-failed')).toEqual([])
    const messages = [{ role: 'user', content: 'word '.repeat(10_000) }]
    const body = { model: 'echo-1', max_tokens: 20_000, messages }
    const created = await admin.as('alice').post('/v1/jobs', { endpoint: '/v1/chat/completions', body })
    await page.goto(`${admin.stack.url}/console/jobs/${((await created.json()) as { id: string }).id}`)
    const shown = async () => ((await page.locator('pre.output').first().textContent()) ?? '').length
    await page.locator('.title .status.completed').waitFor()
    expect(await shown()).toBe(20_000)
    await page.getByRole('button', { name: 'Show all' }).click()
    await expect.poll(shown, { timeout: PAGE_MS }).toBeGreaterThan(40_000)
    await page.context().close()
  })

  it('streams the output, and copies a curl command for the job', async () => {
    const prompt = '!echo tokens=100000 delay_ms=50'
    const body = { model: 'echo-1', stream: true, max_tokens: 100_000, messages: [{ role: 'user', content: prompt }] }
    const created = await admin.as('alice').post('/v1/jobs', { endpoint: '/v1/chat/completions', body })
    const { id } = (await created.json()) as { id: string }
    const page = await openTab('alice', { permissions: ['clipboard-read', 'clipboard-write'] })
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    const output = page.locator('pre.output').first()
    const length = async () => ((await output.textContent()) ?? '').length
    await expect.poll(length, { timeout: PAGE_MS }).toBeGreaterThan(0)
    const before = await length()
    await expect.poll(length, { timeout: PAGE_MS }).toBeGreaterThan(before)
    await page.locator('.history .job-output-delta').waitFor()
    const elapsed = async () => Number(/^for (\d+) s$/.exec(await page.locator('.title .elapsed').innerText())?.[1])
    const first = await elapsed()
    await expect.poll(elapsed, { timeout: PAGE_MS }).toBeGreaterThan(first)
    const operator = await openTab('op')
    await operator.route('**/v1/admin/workers', (route) => route.fulfill({ status: 404, json: {} }))
    await operator.goto(`${admin.stack.url}/console/jobs/${id}`)
    await operator.getByLabel('Key facts').getByText(/^wrk_/).waitFor()
    await operator.waitForResponse('**/v1/admin/workers')
    expect(await operator.getByText('No job with this ID').count()).toBe(0)
    await operator.unroute('**/v1/admin/workers')
    await operator.getByText(/^Last heartbeat of the worker (now|\d+ s ago)\.$/).waitFor()
    await operator.getByLabel('Key facts').getByText(/^wrk_/).waitFor()
    await operator.context().close()
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Keep running' }).click()
    const animations = () =>
      page.evaluate("document.querySelector('.title .status.in_progress').getAnimations({ subtree: true }).length")
    expect(await animations()).toBe(1)
    await page.emulateMedia({ reducedMotion: 'reduce' })
    expect(await animations()).toBe(0)
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel job' }).click()
    await page.getByRole('status').getByText('Cancel of the job requested.').waitFor()
    await page.locator('.title .status.cancelled').waitFor()
    await page.getByRole('button', { name: 'Copy as curl' }).click()
    const command = String(await page.evaluate('navigator.clipboard.readText()'))
    const env = { ...process.env, SLUICE_API_KEY: secretOf('alice') }
    const { stdout } = await run('bash', ['-c', `${command} -s`], { env, timeout: PAGE_MS })
    expect(JSON.parse(stdout)).toMatchObject({ id, status: 'cancelled' })
    // Browsers provide no clipboard API to a page that is loaded from another host without TLS. The test simulates such a page.
    await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    await page.getByRole('button', { name: 'Copy ID' }).click()
    await page.evaluate('delete navigator.clipboard')
    await expect.poll(() => page.evaluate('navigator.clipboard.readText()'), { timeout: PAGE_MS }).toBe(id)
    await page.context().close()
  })

  it('shows the child jobs of a batch with their progress', async () => {
    const id = await submitBatch((nth) => (nth < 60 ? `Number ${nth}.` : '!echo tokens=100000 delay_ms=100'))
    await until(async () => {
      const { child_counts } = (await admin.job('alice', id)) as { child_counts?: { completed: number } }
      return child_counts?.completed === 60
    })
    const home = await openTab('op')
    const pool = home.getByRole('article').filter({ has: home.getByRole('heading', { name: 'batches' }) })
    await pool.getByText('Some jobs wait for their child jobs and use no slot').waitFor()
    await pool.locator('.status.active').waitFor()
    await home.context().close()
    const page = await openTab('alice')
    await page.goto(`${admin.stack.url}/console/jobs?endpoint=/v1/batches`)
    const row = page.getByRole('row').filter({ hasText: id })
    await row
      .locator('.progress')
      .filter({ hasText: `60 of ${REQUESTS}` })
      .waitFor()
    // The row shows the model of the batch's requests, although the job of a batch calls no model itself.
    await row.locator('.model').getByText('echo-1', { exact: true }).waitFor()
    await page.getByRole('link', { name: id }).click()
    // The page shows the progress of the batch before it has loaded the child jobs.
    const progress = page.getByRole('region', { name: 'Progress' })
    await progress.getByText(`60 of ${REQUESTS}`, { exact: true }).waitFor()
    const children = page.getByRole('region', { name: 'Child jobs', exact: true })
    // Sluice splits the batch of 120 requests into two parts; the first part has a hundred requests.
    await expect.poll(() => children.locator('.tree > li').count(), { timeout: PAGE_MS }).toBe(2)
    const part = children.locator('.tree > li').filter({ hasText: 'of 100' })
    await part.getByRole('button', { name: /^Child jobs of/ }).click()
    await expect.poll(() => part.locator('.tree > li').count(), { timeout: PAGE_MS }).toBe(50)
    await part.getByRole('button', { name: 'Show more', exact: true }).click()
    await expect.poll(() => part.locator('.tree > li').count(), { timeout: PAGE_MS }).toBe(100)
    expect(await part.locator('.tree .status.completed').count()).toBe(60)
    await part.getByRole('link', { name: 'request-7', exact: true }).waitFor()
    expect(await page.getByRole('progressbar').count(), 'progress bars of the batch').toBe(1)
    expect(await faultsOf(page, 'job-batch')).toEqual([])
    await page.getByRole('link', { name: 'Show their jobs' }).click()
    expect(new URL(page.url()).searchParams.get('group')).toBe(id.replace('job_', 'batch_'))
    const group = page.getByRole('region', { name: 'Parent job' })
    await group.getByText(`60 of ${REQUESTS} done`, { exact: true }).waitFor()
    await page.getByRole('button', { name: 'completed' }).click()
    await page.getByText('60 jobs', { exact: true }).waitFor()
    await page
      .getByRole('row')
      .getByText(/^request-\d+$/)
      .first()
      .waitFor()
    expect(await faultsOf(page, 'jobs-group')).toEqual([])
    await group.getByRole('button', { name: 'Show all jobs' }).click()
    await group.waitFor({ state: 'detached' })
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel job' }).click()
    await page
      .locator('.title .status')
      .filter({ hasText: /^(cancelled|completed with errors|all failed)$/ })
      .waitFor()
    await progress.getByText(`${REQUESTS} of ${REQUESTS}, 60 failed`, { exact: true }).waitFor()
    await page.getByRole('region', { name: 'Failures' }).getByText('batch_cancelled', { exact: true }).waitFor()
    expect(await page.getByText('Steps', { exact: true }).isVisible()).toBe(false)
    await page.getByText(/^Input, steps and result/).click()
    await page.getByText('Steps', { exact: true }).click()
    await page.getByText(/^1\. validate/).waitFor()
    await page.context().close()
  })

  it('shows the child jobs of another project to operators, but not the inputs of these jobs', async () => {
    const id = await submitBatch((nth) => `A secret, number ${nth}.`)
    await until(async () => (await admin.job('alice', id)).status === 'completed')
    const page = await openTab('op', { viewport: { width: 360, height: 740 }, colorScheme: 'dark' })
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    const children = page.getByRole('region', { name: 'Child jobs', exact: true })
    await children
      .getByRole('button', { name: /^Child jobs of/ })
      .first()
      .click()
    await children.locator('.tree .tree > li').first().waitFor()
    const progress = page.getByRole('region', { name: 'Progress' })
    await progress.getByText(`${REQUESTS} of ${REQUESTS}`, { exact: true }).waitFor()
    expect(await page.getByText('Input', { exact: true }).count()).toBe(0)
    const timeline = page.locator('.history')
    await timeline
      .locator('.job-started')
      .getByText(/^on wrk_/)
      .waitFor()
    await timeline.locator('.job-completed').waitFor()
    expect(await page.content()).not.toContain('A secret')
    expect(await faultsOf(page, 'job-batch-narrow-dark')).toEqual([])
    await page.goto(`${admin.stack.url}/console/jobs/job_unknown`)
    await page.getByText('No job with this ID').waitFor()
    expect(await faultsOf(page, 'job-unknown-narrow-dark')).toEqual([])
    await page.goBack()
    await page.getByRole('link', { name: 'Show their jobs' }).click()
    await page
      .getByRole('region', { name: 'Parent job' })
      .getByText(`${REQUESTS} of ${REQUESTS} done`, { exact: true })
      .waitFor()
    await page
      .getByRole('row')
      .getByText(/^request-\d+ · alice$/)
      .first()
      .waitFor()
    expect(await faultsOf(page, 'jobs-group-narrow-dark')).toEqual([])
    await page.context().close()
  })

  it('logs no unexpected errors and sends no requests to other hosts', () => {
    // The browser logs an error for each failed request. The expected statuses are 404 for a job of another project, and 403 for data that the key must
    // not read. (A caller's key may not use the admin API, an operator's key may not list models.)
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })
})
