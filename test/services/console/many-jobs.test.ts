import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { Browser, CDPSession, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { newJobId } from '#shared/store/job-id.ts'
import { CHROMIUM, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

/*
 * Ten thousand jobs in the table of the console. They are copies of a job that really ran, written into its database while nobody has
 * it open. Processor time is measured by the thread that draws, and held against that of the same page with few jobs: a machine
 * that is busy makes both slow.
 */

const JOBS = 10_000
const FEW = 300
/** Times as much as with few jobs. Without a window over the rows it would be about thirty. */
const TIMES_MAX = 6
/** Times as long as the longest task with few jobs, which is less than 50 ms where the browser tells of none. */
const STALL_TIMES_MAX = 20
/** Rows of a window of 860 pixels, and those beyond it. */
const ROWS_MAX = 60
/** What a tab may have kept more of after it was scrolled through once again. */
const GROWTH_MAX = 1.3

describe.skipIf(!CHROMIUM)('ten thousand jobs in the table', { timeout: 8 * PAGE_MS }, () => {
  let dataDir: string
  let stack: Stack
  let browser: Browser
  let ids: string[]
  const faults: string[] = []

  beforeAll(async () => {
    dataDir = await mkdtemp(join(tmpdir(), 'sluice-many-'))
    const first = await startStack({ dataDir })
    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'One of many.' }] }
    const { id } = (await (await first.post('/v1/jobs', { endpoint: '/v1/chat/completions', body })).json()) as {
      id: string
    }
    await until(async () => {
      const job = (await (await first.get(`/v1/jobs/${id}`)).json()) as { status: string }
      return job.status === 'completed'
    })
    await first[Symbol.asyncDispose]()
    ids = [id, ...(await copies(dataDir, id, JOBS - 1))]
    stack = await startStack({ dataDir })
    browser = await openChromium()
  }, 2 * PAGE_MS)
  afterAll(async () => {
    await browser?.close()
    await stack?.[Symbol.asyncDispose]()
    await rm(dataDir, { recursive: true, force: true })
  })

  it('scrolls through all of them: the rows that are seen are right, and few are there', async () => {
    const page = await signIn(browser, stack.url, TEST_KEY, faults)
    const thread = await page.context().newCDPSession(page)
    await thread.send('Performance.enable', { timeDomain: 'threadTicks' })
    await page.getByRole('link', { name: 'Jobs', exact: true }).click()
    await page.getByText('100 jobs and more').waitFor()
    await loadTo(page, FEW)
    const few = await scrolled(page, thread, FEW)
    await loadTo(page, JOBS)
    await page.getByText(`${JOBS.toLocaleString('en-US')} jobs`, { exact: true }).waitFor()
    const newestFirst = ids.toSorted((a, b) => (a < b ? 1 : -1))
    for (const nth of [0, 1_234, 5_000, 9_990]) {
      await page.evaluate(`scrollTo(0, document.querySelector('.rows').offsetTop + ${nth} * 44)`)
      const row = page.locator(`.rows [aria-rowindex="${nth + 2}"]`)
      await row.getByRole('link', { name: newestFirst[nth] ?? '', exact: true }).waitFor()
      expect(await page.locator('.rows .row').count()).toBeLessThan(ROWS_MAX)
    }
    const many = await scrolled(page, thread, JOBS)
    expect(many.cpuSeconds / few.cpuSeconds).toBeLessThan(TIMES_MAX)
    expect(many.longestMs / few.longestMs).toBeLessThan(STALL_TIMES_MAX)
    const before = await kept(thread)
    await scrolled(page, thread, JOBS)
    const after = await kept(thread)
    expect(after.nodes / before.nodes).toBeLessThan(GROWTH_MAX)
    expect(after.heap / before.heap).toBeLessThan(GROWTH_MAX)
    await page.context().close()
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })
})

/** Copies a job that has ended, each made a second before the other. @returns Their ids */
async function copies(dataDir: string, id: string, count: number): Promise<string[]> {
  const [file = ''] = (await readdir(dataDir)).filter((name) => name.endsWith('.db'))
  const db = new DatabaseSync(join(dataDir, file))
  const columns = db.prepare("SELECT name FROM pragma_table_xinfo('jobs') WHERE hidden = 0").all() as { name: string }[]
  const names = columns.map(({ name }) => name)
  const values = names.map((name) => ({ id: ':id', created_at_ms: ':at' })[name] ?? name)
  const copy = db.prepare(`INSERT INTO jobs (${names}) SELECT ${values} FROM jobs WHERE id = :of`)
  const now = Date.now()
  const made = Array.from({ length: count }, (_, nth) => ({ at: now - nth * 1_000, id: newJobId(now - nth * 1_000) }))
  db.exec('BEGIN')
  for (const { id: copyId, at } of made) copy.run({ id: copyId, at, of: id })
  db.exec('COMMIT')
  db.close()
  return made.map((one) => one.id)
}

/** Scrolls to the end until so many jobs are there. */
async function loadTo(page: Page, jobs: number): Promise<void> {
  // In the page: one call of the browser, however many pages of the list it takes.
  const rows = await page.evaluate(`new Promise((resolve) => {
    const until = Date.now() + ${4 * PAGE_MS}
    const look = () => {
      const rows = Number(document.querySelector('.table').getAttribute('aria-rowcount')) - 1
      if (rows >= ${jobs} || Date.now() > until) return resolve(rows)
      scrollTo(0, document.body.scrollHeight)
      setTimeout(look, 50)
    }
    look()
  })`)
  expect(rows).toBeGreaterThanOrEqual(jobs)
}

/** What scrolling took of the thread that draws. */
interface Effort {
  readonly cpuSeconds: number
  /** Of the tasks that held it; at least 50, below which none is told of. */
  readonly longestMs: number
}

/** Scrolls down in thirty steps, as far apart as a hand that is in a hurry does. */
async function scrolled(page: Page, thread: CDPSession, jobs: number): Promise<Effort> {
  const begun = await metric(thread, 'ThreadTime')
  const longestMs = (await page.evaluate(`(async () => {
    let longest = 50
    const observer = new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) longest = Math.max(longest, duration)
    })
    observer.observe({ type: 'longtask' })
    for (let nth = 0; nth < 30; nth++) {
      scrollTo(0, Math.floor((nth / 30) * ${jobs}) * 44)
      await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))
    }
    observer.disconnect()
    return longest
  })()`)) as number
  return { cpuSeconds: (await metric(thread, 'ThreadTime')) - begun, longestMs }
}

/** What the tab holds once nothing can be let go of any more. */
async function kept(thread: CDPSession): Promise<{ heap: number; nodes: number }> {
  await thread.send('HeapProfiler.collectGarbage')
  return { heap: await metric(thread, 'JSHeapUsedSize'), nodes: await metric(thread, 'Nodes') }
}

async function metric(thread: CDPSession, name: string): Promise<number> {
  const { metrics } = await thread.send('Performance.getMetrics')
  const found = metrics.find((one) => one.name === name)?.value
  if (found === undefined) throw new Error(`the browser does not tell ${name}`)
  return found
}
