/* Tests of the console screens for batches: creation from a file, progress, failures, downloads and cancellation. */

import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { CHROMIUM, faultsOf, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { sluice } from '../../support/processes/sluice.ts'

const CHAT = '/v1/chat/completions'
const NARROW = { width: 360, height: 740 }
const MANY = { total: 50_000, completed: 50_000, failed: 0 }

describe.skipIf(!CHROMIUM)('the Batches screens of the console', { timeout: 6 * PAGE_MS }, () => {
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

  const look = async (page: Page, name: string) => expect(await faultsOf(page, name)).toEqual([])
  const open = async (more: object = {}) => {
    const page = await signIn(browser, admin.stack.url, secretOf('alice'), faults, more)
    await page.goto(`${admin.stack.url}/console/batches`)
    return page
  }
  const linesOf = (prompts: readonly string[]) =>
    prompts.map((content, nth) => {
      const body = { model: 'echo-1', messages: [{ role: 'user', content }] }
      return JSON.stringify({ custom_id: `r${nth}`, method: 'POST', url: CHAT, body })
    })
  const savedNames: string[] = []
  const saved = async (page: Page, name: string) => {
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name, exact: true }).click(),
    ])
    savedNames.push(download.suggestedFilename())
    return await readFile(await download.path(), 'utf8')
  }
  const create = async (page: Page, lines: readonly string[]) => {
    await page.getByRole('button', { name: 'New batch' }).click()
    const file = { name: 'in.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from(lines.join('\n')) }
    await page.getByLabel(/File with one prompt or request/).setInputFiles(file)
    await look(page, 'batch-new')
    await page.getByRole('button', { name: /^Create batch/ }).click()
  }

  it('create a batch, show its live progress, download its results and cancel it', async () => {
    const page = await open()
    await page.getByText('No batches yet').waitFor()
    await look(page, 'batches-empty')
    const quick = Array.from({ length: 6 }, (_, nth) => `number ${nth}`)
    await create(page, linesOf([...quick, '!echo fail=invalid_value', '!echo tokens=1000 delay_ms=1000']))
    await page.getByText('7 of 8').waitFor()
    await page.getByText(/requests\/s, ends in about/).waitFor()
    await page.getByRole('region', { name: 'Failures' }).getByText('invalid_value', { exact: true }).waitFor()
    const answers = page.getByRole('region', { name: 'First answers' })
    await answers
      .getByText(/^number \d → number \d$/)
      .first()
      .waitFor()
    expect(await answers.getByRole('listitem').count()).toBe(3)
    await look(page, 'batch')
    await page.emulateMedia({ colorScheme: 'dark' })
    await look(page, 'batch-dark')
    const csv = (await saved(page, 'Download CSV')).replace(/^\uFEFF/, '').split('\r\n')
    expect(csv.map((line) => line.split(',')[0])).toEqual(['custom_id', 'r0', 'r1', 'r2', 'r3', 'r4', 'r5', 'r6', ''])
    expect((await saved(page, 'Download errors (JSONL)')).trim().split('\n')).toHaveLength(1)
    await page.goto(`${admin.stack.url}/console/batches`)
    await page.getByRole('row').getByText('7 of 8').waitFor()
    await look(page, 'batches-dark')
    await page.emulateMedia({ colorScheme: 'light' })
    await look(page, 'batches')
    await page.goto(`${admin.stack.url}/console/jobs`)
    await page.locator('.row .progress').filter({ hasText: '7 of 8' }).waitFor()
    expect(await page.getByRole('table', { name: 'Jobs' }).getByRole('row').count()).toBe(2)
    await page.getByRole('table', { name: 'Jobs' }).getByRole('link').click()
    await page.getByRole('link', { name: 'Open the batch' }).click()
    await page.getByRole('button', { name: /^Cancel batch_/ }).click()
    await page.setViewportSize(NARROW)
    await page.getByRole('heading', { name: 'Cancel in.jsonl?' }).waitFor()
    await page.getByRole('button', { name: 'Keep running' }).waitFor()
    await look(page, 'batch-cancel-narrow')
    await page.setViewportSize({ width: 1280, height: 860 })
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel batch', exact: true }).click()
    await page.locator('.title .status.cancelled').waitFor()
    await page.getByText('batch_cancelled').waitFor()
    await page.getByText(/^r6: /).waitFor()
    await page.getByText(/^\d completed, \d failed in \d/).waitFor()
    expect((await saved(page, 'Download results (JSONL)')).trim().split('\n')).toHaveLength(8)
    await page.route('**/v1/files/*', (route) => route.fulfill({ json: { bytes: 30_000_000 } }), { times: 1 })
    await page.getByRole('button', { name: 'Retry failed rows' }).click()
    await page.getByText(/has 30 MB.* npx sluice batch batch_\w+ --retry-failed$/).waitFor()
    await page.getByRole('button', { name: 'Retry failed rows' }).click()
    await page.getByText('Retry of').waitFor()
    await page.getByText('0 of 2').or(page.getByText('1 of 2')).waitFor()
    await page.context().close()
  })

  it('show an estimate for the rows of a CSV file, and then create a batch from the rows', async () => {
    const page = await open()
    const rows = ['id;prompt;note', '1;"Two\nlines";a', '2;;b', '3;Three;c']
    await page.getByRole('button', { name: 'New batch' }).click()
    const choose = async (text: string) => {
      const file = { name: 'rows.csv', mimeType: 'text/csv', buffer: Buffer.from(text) }
      await page.getByLabel(/File with one prompt or request/).setInputFiles(file)
    }
    await choose('a,b\n1\n')
    await page
      .getByRole('alert')
      .getByText(/Invalid Record Length/)
      .waitFor()
    await choose(rows.join('\r\n'))
    const estimate = page.getByText(/^2 requests, 1 without a prompt, about \d+ input tokens$/)
    const tokens = async () => Number(/(\d+) input/.exec((await estimate.textContent()) ?? '')?.[1])
    const few = await tokens()
    await page.getByLabel('Allowed answers').fill('good, bad')
    await expect.poll(tokens).toBeGreaterThan(few + 20)
    for (const name of ['Model', 'Allowed answers']) await page.getByLabel(name).press('Enter')
    await page.getByLabel('Allowed answers').fill(`good, ${'b'.repeat(600)}`)
    await page.getByText('The allowed answers are too long.').waitFor()
    await page.getByLabel('Allowed answers').fill('')
    await page.getByRole('button', { name: 'Create batch: 2 requests', exact: true }).waitFor()
    const prompt = page.getByRole('textbox', { name: /^Prompt/ })
    expect(await prompt.inputValue()).toBe('{prompt}')
    await expect.poll(() => page.getByLabel('Model').inputValue()).toBe('echo-1')
    await page.getByLabel('Instruction for all rows').fill('Be short.')
    await look(page, 'batch-csv')
    const submit = page.getByRole('button', { name: /^Create batch/ })
    await page.getByLabel('Model').fill('none')
    await submit.click()
    await page
      .getByRole('alert')
      .getByText(/The model 'none' does not exist/)
      .waitFor()
    await page.getByLabel('Model').fill('echo-1')
    await prompt.fill('Say {text}')
    await page.getByText("The table has no column 'text'. The columns are: id, prompt, note.").waitFor()
    await prompt.fill('{prompt}')
    await submit.click()
    await page.getByText('2 of 2').waitFor()
    const id = new URL(page.url()).pathname.split('/').at(-1)
    const results = await (await admin.as('alice').get(`/v1/batches/${id}/results?format=csv`)).text()
    expect(results.split('\r\n').map((line) => line.split(',')[0])).toEqual(['custom_id', 'row-1', 'row-3', ''])
    const csv = (await saved(page, 'Download CSV')).split('\r\n')
    expect(csv[0]).toBe('\uFEFFid;prompt;note;answer;error;finish_reason;input_tokens;output_tokens')
    expect(csv.slice(1).map((line) => line.slice(0, 8))).toEqual(['1;"Two\nl', '2;;b;;"e', '3;Three;', ''])
    const env = { SLUICE_URL: admin.stack.url, SLUICE_API_KEY: secretOf('alice') }
    const directory = await mkdtemp(join(tmpdir(), 'sluice-console-table-'))
    await writeFile(join(directory, 'reviews.csv'), 'id,review,answer\n1,great,=old\n2,"!echo text=Bad!",\n3,,\n')
    const options = ['--model', 'echo-1', '--prompt', '{review}', '--choices', 'great,bad']
    const { lines } = await sluice(['batch', join(directory, 'reviews.csv'), ...options], { env })
    for (const batch of [id, lines[0]?.batch]) {
      await page.goto(`${admin.stack.url}/console/batches/${batch}`)
      const printed = await sluice(['results', String(batch), '--csv'], { env })
      expect(await saved(page, 'Download CSV'), 'CSV of the console').toBe(`\uFEFF${printed.out}`)
    }
    const written = await readFile(join(directory, 'reviews.answers.csv'), 'utf8')
    expect(await saved(page, 'Download CSV')).toBe(`\uFEFF${written}`)
    await page.route('**/v1/files/file-*', (route) => route.fulfill({ status: 404, json: {} }))
    expect(await saved(page, 'Download CSV')).toMatch(/^\uFEFFcustom_id,answer,/)
    await page.getByText('The table of this batch was deleted or has expired').waitFor()
    await rm(directory, { recursive: true })
    await page.context().close()
  })

  it('run the first three rows of a table, and then only the other rows', async () => {
    const page = await open()
    await page.getByRole('button', { name: 'New batch' }).click()
    const text = ['review,note', 'one,', 'two,', 'three,', 'four,', 'five,'].join('\n')
    const file = { name: 'trial.csv', mimeType: 'text/csv', buffer: Buffer.from(text) }
    await page.getByLabel(/File with one prompt or request/).setInputFiles(file)
    await expect.poll(() => page.getByLabel('Model').inputValue()).toBe('echo-1')
    await page.getByRole('textbox', { name: /^Prompt/ }).fill('Rate ')
    await page.getByRole('button', { name: '{review} one' }).click()
    await page.getByText('First prompt: Rate one').waitFor()
    await page.getByRole('button', { name: 'Try the first 3 rows' }).click()
    await page.getByText(/^Rate three → Rate three$/).waitFor()
    await page.getByText(/^3 of 5 rows have run/).waitFor()
    await look(page, 'batch-trial')
    const prompt = page.getByRole('textbox', { name: /^Prompt/ })
    await prompt.fill('!echo fail=invalid_value {review}')
    await page.getByRole('button', { name: 'Try the first 3 rows' }).click()
    await page
      .getByText(/^The requests fail; the prompt was not tried\. .* All 3 rows failed, such as: invalid_/)
      .waitFor()
    await page.getByRole('button', { name: 'Create batch: 5 requests' }).waitFor()
    await prompt.fill('Rate {review}')
    await page.getByRole('button', { name: 'Try the first 3 rows' }).click()
    await page.getByRole('button', { name: 'Create batch: 2 requests' }).waitFor()
    await page.getByRole('button', { name: /^Create batch/ }).click()
    await page.getByRole('region', { name: 'Progress' }).getByText('2 of 2').waitFor()
    await page
      .getByText(/^In total, with earlier runs: 5 rows from 2 batches, 5 completed, 0 failed, \d+ → \d+ tokens/)
      .waitFor()
    await page.route('**/v1/batches/batch_*', async (route) => {
      const response = await route.fetch()
      await route.fulfill({ response, json: { ...(await response.json()), request_counts: MANY } })
    })
    await page.reload()
    await page.getByText(/^In total, with earlier runs: 2 batches, \d+ → \d+ tokens/).waitFor()
    await page.unroute('**/v1/batches/batch_*')
    const csv = (await saved(page, 'Download CSV')).split('\r\n')
    expect(savedNames.at(-1)).toBe('trial-results.csv')
    expect(csv[0], 'header with a byte order mark').toMatch(/^\uFEFFreview,note,answer,/)
    expect(csv.slice(1, 6).map((line) => line.split(',').slice(0, 4).join())).toEqual(
      ['one', 'two', 'three', 'four', 'five'].map((name) => `${name},,Rate ${name},`),
    )
    await page.goto(`${admin.stack.url}/console/batches`)
    await page
      .getByText(/prompt: review/)
      .first()
      .waitFor()
    await page.context().close()
  })

  it('complete a table with a trial of the first rows if no other row has a prompt, and download all rows', async () => {
    const page = await open()
    await page.getByRole('button', { name: 'New batch' }).click()
    const text = ['review,note', 'one,', 'two,', 'three,', ',none'].join('\n')
    await page.evaluate(`{
      const { arrayBuffer } = Blob.prototype
      const held = new Promise((resolve) => { window.release = resolve })
      Blob.prototype.arrayBuffer = async function () {
        if (this.name === 'slow.csv') await held
        return await arrayBuffer.call(this)
      }
    }`)
    const fileOf = (name: string, content: string) => ({ name, mimeType: 'text/csv', buffer: Buffer.from(content) })
    const input = page.getByLabel(/File with one prompt or request/)
    await input.setInputFiles(fileOf('slow.csv', 'other\nrow'))
    await input.setInputFiles(fileOf('short.csv', text))
    await page.getByText('First prompt: one').waitFor()
    // The browser reads the first file only now. The table of the second file must not be replaced.
    await page.evaluate('release()')
    await page.route('**/v1/batches/batch_*', async (route) => {
      const response = await route.fetch()
      await route.fulfill({ response, json: { ...(await response.json()), cost_usd: 0.03 } })
    })
    await expect.poll(() => page.getByLabel('Model').inputValue()).toBe('echo-1')
    await page.getByRole('textbox', { name: /^Prompt/ }).fill('{review}')
    await page.getByLabel('Allowed answers').fill('good, bad')
    await page.getByText('Advanced', { exact: true }).click()
    await page.getByLabel('Maximum output tokens').fill('20')
    await page.getByLabel('Temperature').fill('0.5')
    await look(page, 'batch-advanced')
    await page.getByRole('button', { name: 'Try the first 3 rows' }).click()
    await page.getByText(/^3 of 4 rows have run, and all rows cost about \$0\.03\./).waitFor()
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.getByRole('button', { name: 'Show the batch' }).click()
    await page.getByRole('region', { name: 'Progress' }).getByText('3 of 3').waitFor()
    const csv = (await saved(page, 'Download CSV')).split('\r\n')
    expect(csv.slice(3)).toEqual([
      expect.stringMatching(/^three,,good,,/),
      expect.stringMatching(/^,none,,"empty_prompt: /),
      '',
    ])
    const id = new URL(page.url()).pathname.split('/').at(-1)
    const batch = (await (await admin.as('alice').get(`/v1/batches/${id}`)).json()) as { input_file_id: string }
    const requests = await (await admin.as('alice').get(`/v1/files/${batch.input_file_id}/content`)).text()
    expect(JSON.parse(requests.split('\n')[0] ?? '').body).toMatchObject({
      ...{ max_tokens: 20, temperature: 0.5, messages: [{ content: 'Answer with exactly one of: good, bad.' }, {}] },
      response_format: { json_schema: { schema: { properties: { answer: { enum: ['good', 'bad'] } } } } },
    })
    await page.context().close()
  })

  it('count the answers that are none of the choices as invalid on the page and in the list, and repeat their requests', async () => {
    const env = { SLUICE_URL: admin.stack.url, SLUICE_API_KEY: secretOf('alice') }
    const directory = await mkdtemp(join(tmpdir(), 'sluice-console-choices-'))
    await writeFile(join(directory, 'moods.csv'), 'review\ngreat\n!echo text=unknown\n')
    const options = ['--model', 'echo-1', '--prompt', '{review}', '--choices', 'great,bad']
    const { lines } = await sluice(['batch', join(directory, 'moods.csv'), ...options], { env })
    const page = await open()
    await page.getByRole('row').filter({ hasText: 'moods.csv' }).getByText('completed with errors').waitFor()
    await page.getByRole('row').filter({ hasText: 'moods.csv' }).locator('.counts-bar .failed').waitFor()
    await page.setViewportSize(NARROW)
    const isCut =
      "[...document.querySelectorAll('[data-column=Status] > div')].some((one) => one.scrollWidth > one.clientWidth)"
    expect(await page.evaluate(isCut), 'a status is cut').toBe(false)
    await look(page, 'batches-invalid-narrow')
    await page.setViewportSize({ width: 1280, height: 860 })
    await page.goto(`${admin.stack.url}/console/batches/${lines[0]?.batch}`)
    await page.locator('.title').getByText('completed with errors').waitFor()
    await page.getByRole('region', { name: 'Failures' }).getByText('invalid_answer', { exact: true }).waitFor()
    await page.getByText(/^2 completed, 0 failed in .*, 1 with an invalid answer/).waitFor()
    await page.getByRole('button', { name: 'Retry failed rows' }).click()
    await page.getByText('Retry of').waitFor()
    await page.getByText('1 of 1').waitFor()
    await page.locator('.title').getByText('completed with errors').waitFor()
    const csv = (await saved(page, 'Download CSV')).split('\r\n')
    expect(csv.slice(1, 3)).toEqual([
      expect.stringMatching(/^great,great,,stop/),
      expect.stringMatching(/^!echo text=unknown,,invalid_answer: .*,unknown$/),
    ])
    await rm(directory, { recursive: true })
    await page.context().close()
  })

  it('show an operator the batches of all projects, but not their results', async () => {
    const page = await signIn(browser, admin.stack.url, secretOf('op'), faults)
    await page.goto(`${admin.stack.url}/console/batches`)
    const row = page.getByRole('row').filter({ hasText: 'alice' }).filter({ hasText: 'rows.csv' })
    await row.getByRole('link').click()
    await page.getByText('Only keys of the project alice can read the results.').waitFor()
    await page.getByRole('region', { name: 'Progress' }).getByText('2 of 2', { exact: true }).waitFor()
    expect(await page.getByRole('button', { name: /^Download/ }).count(), 'buttons for results').toBe(0)
    await look(page, 'batch-admin')
    await page.context().close()
  })

  it('name the problems of a file, and fit into a narrow window', async () => {
    const page = await open({ viewport: NARROW })
    await create(page, ['{"custom_id": "a"}'])
    await page.getByText(/Line 1/).waitFor()
    await page.goto(`${admin.stack.url}/console/batches`)
    await page.getByRole('row').getByRole('link').first().waitFor()
    await look(page, 'batches-narrow')
    await page.getByRole('row').getByRole('link').first().click()
    await page.getByRole('heading', { name: 'Progress' }).waitFor()
    await look(page, 'batch-narrow')
    await page.context().close()
  })

  it('show the same status on every screen for a batch with a failed request', async () => {
    const page = await open()
    const lines = linesOf(['one', '!echo fail=invalid_value'])
    // The first id begins with `=`, so CSV results have an apostrophe before it. The console must nevertheless show the answer of this request.
    await create(
      page,
      lines.map((line) => line.replace('"r0"', '"=r0"')),
    )
    const status = 'completed with errors'
    await page.locator('.title').getByText(status).waitFor()
    await page.getByRole('region', { name: 'First answers' }).getByText('one → one', { exact: true }).waitFor()
    await page.goto(`${admin.stack.url}/console/batches`)
    await page.getByRole('row').getByText(status).first().waitFor()
    await page.goto(`${admin.stack.url}/console/jobs`)
    await page.getByRole('row').filter({ hasText: status }).first().getByRole('link').click()
    await page.locator('.title').getByText(status).waitFor()
    await page.context().close()
  })

  it('log no errors and send no requests to other hosts', () => {
    expect(faults.filter((fault) => !/40[04]/.test(fault))).toEqual([])
  })
})
