/*
 * Performance test of the jobs table in the console: ten thousand jobs instead of 300.
 *
 * The jobs are copies of one real job, written into the database file while the service is stopped. The test compares the CPU time of the
 * browser's main thread for both numbers of jobs, because a busy machine slows down both measurements.
 */

import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { Browser, CDPSession, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { newJobId } from '#shared/store/jobs.ts'
import { CHROMIUM, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

const JOBS = 10_000
const FEW = 300
/**
 * Maximum ratio of the CPU times for scrolling: ten thousand jobs to 300 jobs. A table that renders all rows has a ratio of about thirty.
 */
const TIMES_MAX = 6
/**
 * Maximum ratio of the longest main-thread tasks: ten thousand jobs to 300 jobs. Tasks below 50 ms count as 50 ms, because the browser does
 * not report them.
 */
const STALL_TIMES_MAX = 20
/** Maximum number of table rows in the DOM: the rows that fit into a window of 860 pixels, and a margin above and below. */
const ROWS_MAX = 60
/** Maximum ratio of memory and DOM nodes after the second scroll through the table to those after the first. */
const GROWTH_MAX = 1.3

describe.skipIf(!CHROMIUM)('the job table of the console with ten thousand jobs', { timeout: 8 * PAGE_MS }, () => {
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

  it('scrolls through all jobs with correct rows and few DOM nodes', async () => {
    const page = await signIn(browser, stack.url, TEST_KEY, faults)
    const thread = await page.context().newCDPSession(page)
    await thread.send('Performance.enable', { timeDomain: 'threadTicks' })
    await page.getByRole('link', { name: 'Jobs', exact: true }).click()
    await page.getByText('100+ jobs').waitFor()
    await loadTo(page, FEW)
    const few = await scrolled(page, thread, FEW)
    await loadTo(page, JOBS)
    await page.getByText(`${JOBS.toLocaleString('en-US')} jobs`, { exact: true }).waitFor()
    const newestFirst = ids.toSorted((a, b) => (a < b ? 1 : -1))
    for (const nth of [0, 1_234, 5_000, 9_990]) {
      await page.evaluate(`scrollTo(0, document.querySelector('.rows').offsetTop + ${nth} * 48)`)
      const row = page.locator(`.rows [aria-rowindex="${nth + 2}"]`)
      await row.getByText(newestFirst[nth] ?? '', { exact: true }).waitFor()
      expect(await page.locator('.rows .row').count()).toBeLessThan(ROWS_MAX)
    }
    const many = await scrolled(page, thread, JOBS)
    expect(many.cpuSeconds / few.cpuSeconds).toBeLessThan(TIMES_MAX)
    expect(many.longestMs / few.longestMs).toBeLessThan(STALL_TIMES_MAX)
    const before = await memoryOf(thread)
    await scrolled(page, thread, JOBS)
    const after = await memoryOf(thread)
    expect(after.nodes / before.nodes).toBeLessThan(GROWTH_MAX)
    expect(after.heap / before.heap).toBeLessThan(GROWTH_MAX)
    await page.context().close()
    expect(faults.filter((fault) => !/status of 40[34]/.test(fault))).toEqual([])
  })
})

/** Inserts `count` copies of a finished job into the database, with creation times one second apart. Returns the ids of the copies. */
async function copies(dataDir: string, id: string, count: number): Promise<string[]> {
  const [file = ''] = (await readdir(dataDir)).filter((name) => name.endsWith('.db'))
  const db = new DatabaseSync(join(dataDir, file))
  const columns = db.prepare("SELECT name FROM pragma_table_xinfo('jobs') WHERE hidden = 0").all() as { name: string }[]
  const names = columns.map(({ name }) => name)
  const values = names.map((name) => ({ id: ':id', created_at_ms: ':at' })[name] ?? name)
  const copy = db.prepare(`INSERT INTO jobs (${names}) SELECT ${values} FROM jobs WHERE id = :of`)
  const now = Date.now()
  const copied = Array.from({ length: count }, (_, nth) => ({ at: now - nth * 1_000, id: newJobId(now - nth * 1_000) }))
  db.exec('BEGIN')
  for (const { id: copyId, at } of copied) copy.run({ id: copyId, at, of: id })
  db.exec('COMMIT')
  db.close()
  return copied.map((one) => one.id)
}

/** Scrolls to the end of the table repeatedly, until the table has loaded the given number of jobs. */
async function loadTo(page: Page, jobs: number): Promise<void> {
  // The loop runs inside the page, so that one call to the browser suffices for any number of pages of the list.
  const rows = await page.evaluate(`new Promise((resolve) => {
    const until = Date.now() + ${4 * PAGE_MS}
    const scroll = () => {
      const rows = Number(document.querySelector('.table').getAttribute('aria-rowcount')) - 1
      if (rows >= ${jobs} || Date.now() > until) return resolve(rows)
      scrollTo(0, document.body.scrollHeight)
      setTimeout(scroll, 50)
    }
    scroll()
  })`)
  expect(rows).toBeGreaterThanOrEqual(jobs)
}

/** CPU load of the main thread while the page scrolls through the table. */
interface Effort {
  readonly cpuSeconds: number
  /** Duration of the longest task, at least 50, because the browser does not report shorter tasks. */
  readonly longestMs: number
}

/** Scrolls from the first to the last of `jobs` rows in thirty steps, and measures the main thread. */
async function scrolled(page: Page, thread: CDPSession, jobs: number): Promise<Effort> {
  const begun = await metric(thread, 'ThreadTime')
  const longestMs = (await page.evaluate(`(async () => {
    let longest = 50
    const observer = new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) longest = Math.max(longest, duration)
    })
    observer.observe({ type: 'longtask' })
    for (let nth = 0; nth < 30; nth++) {
      scrollTo(0, Math.floor((nth / 30) * ${jobs}) * 48)
      await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))
    }
    observer.disconnect()
    return longest
  })()`)) as number
  return { cpuSeconds: (await metric(thread, 'ThreadTime')) - begun, longestMs }
}

/** Returns the heap size and the number of DOM nodes after a garbage collection. */
async function memoryOf(thread: CDPSession): Promise<{ heap: number; nodes: number }> {
  await thread.send('HeapProfiler.collectGarbage')
  return { heap: await metric(thread, 'JSHeapUsedSize'), nodes: await metric(thread, 'Nodes') }
}

async function metric(thread: CDPSession, name: string): Promise<number> {
  const { metrics } = await thread.send('Performance.getMetrics')
  const found = metrics.find((one) => one.name === name)?.value
  if (found === undefined) throw new Error(`the browser does not report ${name}`)
  return found
}
