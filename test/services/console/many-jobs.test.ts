import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { Browser, CDPSession, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { newJobId } from '#shared/store/jobs.ts'
import { CHROMIUM, openChromium, PAGE_MS, signIn } from '../../support/browser.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

/*
 * The jobs table with ten thousand jobs. These are copies of a real job, written into the closed database of the service. CPU time of the
 * browser's main thread is compared with that of the same page with few jobs, because a busy machine slows down both.
 */

const JOBS = 10_000
const FEW = 300
/** Maximum ratio of the CPU times. Without a virtual table the ratio is about thirty. */
const TIMES_MAX = 6
/** Maximum ratio of the longest tasks. The browser reports tasks from 50 ms. */
const STALL_TIMES_MAX = 20
/** Maximum rows in the DOM: those of a window of 860 pixels, and the margin above and below. */
const ROWS_MAX = 60
/** Maximum growth of heap and DOM after scrolling a second time. */
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
      await page.evaluate(`scrollTo(0, document.querySelector('.rows').offsetTop + ${nth} * 44)`)
      const row = page.locator(`.rows [aria-rowindex="${nth + 2}"]`)
      await row.getByRole('link', { name: newestFirst[nth] ?? '', exact: true }).waitFor()
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

/** Copies a finished job, with creation times one second apart. @returns Ids of the copies */
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

/** Scrolls to the end until the given number of jobs is loaded. */
async function loadTo(page: Page, jobs: number): Promise<void> {
  // Loops inside the page, which needs one browser call for any number of list pages.
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

/** Cost of scrolling on the main thread. */
interface Effort {
  readonly cpuSeconds: number
  /** Longest task; at least 50, because the browser does not report shorter ones. */
  readonly longestMs: number
}

/** Scrolls to the end in thirty large steps. */
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

/** Memory after garbage collection. */
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
