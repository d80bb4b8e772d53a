import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import OpenAI, { toFile } from 'openai'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { until } from '../../support/stack.ts'

/*
 * The page of one job, and how jobs that have others do work are shown in the table.
 */

const REQUESTS = 120
const run = promisify(execFile)

describe.skipIf(!CHROMIUM)('the page of a job', { timeout: 6 * PAGE_MS }, () => {
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

  /** A batch of requests, the last of which wait where a model is slow. @returns The id of its job */
  async function submitBatch(contentOf: (nth: number) => string): Promise<string> {
    const client = new OpenAI({ baseURL: `${admin.stack.url}/v1`, apiKey: secretOf('alice'), maxRetries: 0 })
    const lines = Array.from({ length: REQUESTS }, (_, nth) => ({
      ...{ custom_id: `request-${nth}`, method: 'POST', url: '/v1/chat/completions' },
      body: { model: 'echo-1', messages: [{ role: 'user', content: contentOf(nth) }] },
    }))
    const text = lines.map((line) => JSON.stringify(line)).join('\n')
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' })
    const asked = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const
    return (await client.batches.create(asked)).id.replace('batch_', 'job_')
  }

  it('shows what was asked and its place in the line', async () => {
    await admin.as('op').post('/v1/admin/models/echo-1/pause')
    const first = await admin.submit('alice', 'The first.')
    const second = await admin.submit('alice', 'What is a sluice?')
    const page = await openTab('alice')
    await page.goto(`${admin.stack.url}/console/jobs/${second}`)
    await page.getByText('1 job comes before it.').waitFor()
    await page.getByText('Input', { exact: true }).click()
    await page.getByText('What is a sluice?').waitFor()
    await admin.as('op').post('/v1/admin/models/echo-1/resume')
    await page.locator('.title .status.completed').waitFor()
    await page.locator('.history .job-completed').waitFor()
    expect(await faultsOf(page, 'job-input')).toEqual([])
    await page.goto(`${admin.stack.url}/console/jobs/${first}`)
    await page.locator('.title .status.completed').waitFor()
    await page.context().close()
  })

  it.each([
    ['what is no id', '../key', '/v1/key', 'Expected the id of a job or of a batch.'],
    ['a job of another project', 'bob', '/v1/jobs/job_', 'No job with the id'],
  ])('asks once at most for the job of a group where that is %s', async (_, of, path, said) => {
    const id = of === 'bob' ? await admin.submit('bob', 'Hello.') : of
    const asked: string[] = []
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), [])
    page.on('request', (request) => asked.push(new URL(request.url()).pathname))
    await page.goto(`${admin.stack.url}/console/jobs?group=${encodeURIComponent(id)}`)
    await page.getByText(said).waitFor()
    // The table is asked for again: what is wrong for ever is not.
    await expect.poll(() => asked.filter((one) => one === '/v1/jobs').length, { timeout: PAGE_MS }).toBeGreaterThan(2)
    expect(asked.filter((one) => one.startsWith(path)).length).toBe(1)
    await page.context().close()
  })

  it('keeps what a job failed with inside its box, however long a word of it is', async () => {
    const id = await admin.submit('alice', `!echo ${'x'.repeat(400)}`)
    const page = await openTab('alice')
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    await page.locator('.note.bad').getByText('Invalid !echo line').waitFor()
    expect(await faultsOf(page, 'job-failed')).toEqual([])
    await page.context().close()
  })

  it('shows output as it arrives, and copies a call that shows the same elsewhere', async () => {
    const prompt = '!echo tokens=100000 delay_ms=50'
    const body = { model: 'echo-1', stream: true, max_tokens: 100_000, messages: [{ role: 'user', content: prompt }] }
    const made = await admin.as('alice').post('/v1/jobs', { endpoint: '/v1/chat/completions', body })
    const { id } = (await made.json()) as { id: string }
    const page = await openTab('alice', { permissions: ['clipboard-read', 'clipboard-write'] })
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    const output = page.locator('pre.output').first()
    const length = async () => ((await output.textContent()) ?? '').length
    await expect.poll(length, { timeout: PAGE_MS }).toBeGreaterThan(0)
    const before = await length()
    await expect.poll(length, { timeout: PAGE_MS }).toBeGreaterThan(before)
    await page.locator('.history .job-output-delta').waitFor()
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.locator('.title .status.cancelled').waitFor()
    await page.getByRole('button', { name: 'Copy as curl' }).click()
    const command = String(await page.evaluate('navigator.clipboard.readText()'))
    const env = { ...process.env, SLUICE_API_KEY: secretOf('alice') }
    const { stdout } = await run('bash', ['-c', `${command} -s`], { env, timeout: PAGE_MS })
    expect(JSON.parse(stdout)).toMatchObject({ id, status: 'cancelled' })
    // A page without TLS that comes from another machine has no clipboard.
    await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    await page.getByRole('button', { name: 'Copy id' }).click()
    await page.evaluate('delete navigator.clipboard')
    await expect.poll(() => page.evaluate('navigator.clipboard.readText()'), { timeout: PAGE_MS }).toBe(id)
    await page.context().close()
  })

  it('shows the tree of a batch with how many have ended, as it goes on', async () => {
    const id = await submitBatch((nth) => (nth < 60 ? `Number ${nth}.` : '!echo tokens=100000 delay_ms=100'))
    await until(async () => {
      const { child_counts } = (await admin.job('alice', id)) as { child_counts?: { completed: number } }
      return child_counts?.completed === 60
    })
    const page = await openTab('alice')
    await page.goto(`${admin.stack.url}/console/jobs?endpoint=/v1/batches`)
    await page.getByRole('row').filter({ hasText: id }).getByText(`60 of ${REQUESTS}`).waitFor()
    await page.getByRole('link', { name: id }).click()
    const family = page.getByRole('region', { name: 'Children' })
    await family.getByText(`60 of ${REQUESTS}`, { exact: true }).waitFor()
    // Two parts, of which the first has a hundred requests.
    await expect.poll(() => family.locator('.tree > li').count(), { timeout: PAGE_MS }).toBe(2)
    const part = family.locator('.tree > li').filter({ hasText: 'of 100' })
    await part.getByRole('button', { name: /^Children of/ }).click()
    await expect.poll(() => part.locator('.tree > li').count(), { timeout: PAGE_MS }).toBe(50)
    await part.getByRole('button', { name: 'Show more of them' }).click()
    await expect.poll(() => part.locator('.tree > li').count(), { timeout: PAGE_MS }).toBe(100)
    expect(await part.locator('.tree .status.completed').count()).toBe(60)
    await part.getByRole('link', { name: 'request-7', exact: true }).waitFor()
    expect(await faultsOf(page, 'job-batch')).toEqual([])
    await page.getByRole('link', { name: 'All of them in the table' }).click()
    expect(new URL(page.url()).searchParams.get('group')).toBe(id)
    const group = page.getByRole('region', { name: 'Group' })
    await group.getByText(`60 of ${REQUESTS}`, { exact: true }).waitFor()
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
    await page.locator('.title .status.cancelled, .title .status.completed').waitFor()
    await family.getByText(`${REQUESTS} of ${REQUESTS}, 60 of them not completed`, { exact: true }).waitFor()
    await page.getByText('Steps', { exact: true }).click()
    await page.getByText(/^1\. validate/).waitFor()
    await page.context().close()
  })

  it('shows an operator the tree of any project, narrow and dark, without what was asked', async () => {
    const id = await submitBatch((nth) => `A secret, number ${nth}.`)
    await until(async () => (await admin.job('alice', id)).status === 'completed')
    const page = await openTab('op', { viewport: { width: 360, height: 740 }, colorScheme: 'dark' })
    await page.goto(`${admin.stack.url}/console/jobs/${id}`)
    const family = page.getByRole('region', { name: 'Children' })
    await family.getByText(`${REQUESTS} of ${REQUESTS}`, { exact: true }).waitFor()
    await family
      .getByRole('button', { name: /^Children of/ })
      .first()
      .click()
    await family.locator('.tree .tree > li').first().waitFor()
    expect(await page.getByText('Input', { exact: true }).count()).toBe(0)
    const timeline = page.locator('.history')
    await timeline
      .locator('.job-started')
      .getByText(/^attempt \d on wrk_/)
      .waitFor()
    await timeline.locator('.job-completed').waitFor()
    expect(await page.content()).not.toContain('A secret')
    expect(await faultsOf(page, 'job-batch-narrow-dark')).toEqual([])
    await page.getByRole('link', { name: 'All of them in the table' }).click()
    await page.getByRole('region', { name: 'Group' }).getByText(`${REQUESTS} of ${REQUESTS}`, { exact: true }).waitFor()
    await page.getByText('2 jobs', { exact: true }).waitFor()
    expect(await faultsOf(page, 'jobs-group-narrow-dark')).toEqual([])
    await page.context().close()
  })

  it('was never in want of anything from elsewhere, and never wrong', () => {
    // The job of another project, the operator's door that is closed to callers, and models that are for callers alone.
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })
})
