/** Tests the history of metrics: the samples in each store, the recorder, and GET /v1/history. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, inject, it, onTestFinished } from 'vitest'
import type { HistoryReport, UsageReport } from '#schemas/usage.ts'
import type { HistorySample, HistoryStore } from '#shared/store/records.ts'
import type { Store } from '#shared/store/store.ts'
import { HistoryRecorder } from '#shared/usage/history.ts'
import { openAdmin } from '../../support/admin.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { openPostgresDatabase, openSqliteDatabase, type TestDatabase } from '../../support/jobs/stores.ts'
import { until } from '../../support/stack.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
]
const SAMPLE: HistorySample = {
  ...{ project: '', atSeconds: 3_000, calls: 2, failed: 1, inputTokens: 10, outputTokens: 4, costNanos: 7 },
  ...{ queueCalls: 2, queueMs: 30, queueMsMax: 20, firstCalls: 1, firstMs: 50, firstMsMax: 50 },
  ...{ running: 3, waiting: 5, jobsRunning: 1, jobsWaiting: 9 },
}
const WORK = { project: 'proj', calls: 1, failed: 0, inputTokens: 3, outputTokens: 5, costNanos: 11 }

describe.each(ADAPTERS)('the history on $name', ({ isHere, openDatabase }) => {
  let database: TestDatabase
  let store: Store
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    database = await openDatabase()
    store = await database.open()
  })
  afterEach(async () => {
    if (isHere) await database[Symbol.asyncDispose]()
  })
  const read = (step: number, project = '') => store.history.read({ project, from: 0, to: 10_000, step })

  it('adds up the calls of all processes, and counts durable jobs once', async () => {
    await Promise.all([1, 2, 3].map(() => store.history.add([SAMPLE, { ...SAMPLE, project: 'proj' }])))
    const whole = { ...SAMPLE, calls: 6, failed: 3, inputTokens: 30, outputTokens: 12, costNanos: 21 }
    const times = { queueCalls: 6, queueMs: 90, firstCalls: 3, firstMs: 150 }
    expect(await read(15)).toEqual([{ ...whole, ...times, running: 9, waiting: 15 }])
    expect(await read(15, 'proj')).toHaveLength(1)
    expect(await read(15, 'other')).toEqual([])
  })

  it('adds up several samples of one interval in one write', async () => {
    await store.history.add([SAMPLE, { ...SAMPLE, project: 'proj' }, { ...SAMPLE, running: 1, jobsWaiting: 11 }])
    const whole = { ...SAMPLE, calls: 4, failed: 2, inputTokens: 20, outputTokens: 8, costNanos: 14 }
    const times = { queueCalls: 4, queueMs: 60, firstCalls: 2, firstMs: 100 }
    expect(await read(15)).toEqual([{ ...whole, ...times, running: 4, waiting: 10, jobsWaiting: 11 }])
    expect(await read(15, 'proj')).toEqual([{ ...SAMPLE, project: 'proj' }])
  })

  it('returns the maximum running work per interval, before and after samples are merged', async () => {
    const times = [2_985, 3_000, 3_015, 3_285, 3_300]
    await store.history.add(times.map((atSeconds, nth) => ({ ...SAMPLE, atSeconds, running: nth })))
    const before = await read(300)
    expect(before.map(({ atSeconds, calls, running, queueMs }) => [atSeconds, calls, running, queueMs])).toEqual([
      [2_700, 2, 0, 30],
      [3_000, 6, 3, 90],
      [3_300, 2, 4, 30],
    ])
    while (await store.history.tidy(3_300, 0, 2));
    expect([await read(300), await read(15)]).toEqual([before, before])
    while (await store.history.tidy(3_300, 3_300, 2));
    expect((await read(15)).map(({ atSeconds }) => atSeconds)).toEqual([3_300])
  })
})

describe('the recorder of usage samples', () => {
  const openRecorder = (add: HistoryStore['add'], gauges = async () => new Map()) => {
    const store = { add, read: async () => [], tidy: async () => false }
    return new HistoryRecorder({ store, log: silentLog, gauges })
  }

  it('writes one sample per active project and one of the whole service, and nothing while idle', async () => {
    const written: HistorySample[][] = []
    const recorder = openRecorder(async (samples) => void written.push([...samples]))
    await recorder.flush()
    expect(written).toEqual([])
    recorder.add({ ...WORK, queueMs: 10, firstOutputMs: 40 })
    recorder.add({ ...WORK, queueMs: 30 })
    recorder.add({ ...WORK, project: 'other', failed: 1 })
    await recorder.close()
    const [samples] = written
    expect(samples?.map(({ project, calls, failed }) => [project, calls, failed])).toEqual([
      ['', 3, 1],
      ['proj', 2, 0],
      ['other', 1, 1],
    ])
    expect(samples?.[1]).toMatchObject({ queueCalls: 2, queueMs: 40, queueMsMax: 30, firstCalls: 1, firstMs: 40 })
  })

  it('buffers a bounded number of samples while the store is unreachable, and writes them later', async () => {
    let isAway = true
    const written: HistorySample[] = []
    const recorder = openRecorder(async (samples) => {
      if (isAway) throw new Error('away')
      written.push(...samples)
    })
    for (let nth = 0; nth < 30; nth++) {
      for (let project = 0; project < 300; project++) recorder.add({ ...WORK, project: `proj_${project}` })
      await recorder.flush()
    }
    isAway = false
    await recorder.close()
    expect(written).toHaveLength(2_000)
    expect(new Set(written.map(({ project }) => project)).size).toBe(201)
    expect(written.filter(({ project }) => project === '').every(({ calls }) => calls === 300)).toBe(true)
  })
})

describe('GET /v1/history', () => {
  it("returns the intervals of the caller's project, or of all projects for an operator", async () => {
    const dataDir = mkdtempSync(join(tmpdir(), 'sluice-history-'))
    onTestFinished(() => rmSync(dataDir, { recursive: true }))
    const before = await openAdmin({ dataDir })
    const say = { model: 'echo-1', messages: [{ role: 'user', content: '!echo tokens=5' }] }
    for (const who of ['alice', 'bob']) await (await before.as(who).post('/v1/chat/completions', say)).text()
    await before.submit('bob', '!echo tokens=7')
    const used = async () => (await (await before.as('op').get('/v1/usage')).json()) as UsageReport
    await until(async () => (await used()).total.calls === 3)
    await before[Symbol.asyncDispose]()
    await using admin = await openAdmin({ dataDir })
    const get = async (who: string, query = '') =>
      (await (await admin.as(who).get(`/v1/history${query}`)).json()) as HistoryReport
    const sum = ({ data }: HistoryReport, name: 'calls' | 'output_tokens') =>
      data.reduce((total, point) => total + point[name], 0)
    const whole = await get('op', '?range=15m')
    expect([whole.project, whole.step_seconds, whole.data.length, sum(whole, 'calls')]).toEqual([null, 15, 60, 3])
    expect(whole.data.map(({ at }) => at)).toEqual(whole.data.map((_, nth) => whole.from + nth * 15))
    expect(whole.data.find(({ queue_seconds }) => queue_seconds !== null)?.first_output_seconds).toBeGreaterThan(0)
    const own = await get('alice', '?range=24h')
    expect([own.project, sum(own, 'calls'), sum(own, 'output_tokens')]).toEqual(['alice', 1, 5])
    expect(sum(await get('op', '?project=bob'), 'output_tokens')).toBe(12)
    const refused = await admin.as('bob').get('/v1/history?project=alice')
    expect([refused.status, await refused.json()]).toMatchObject([403, { error: { param: 'project' } }])
    const bad = await admin.as('bob').get('/v1/history?range=2h')
    const message = expect.stringContaining('15m')
    expect([bad.status, await bad.json()]).toMatchObject([400, { error: { param: 'range', message } }])
  })
})
