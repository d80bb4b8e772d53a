/* Tests of the screen content that `sluice top` renders for a given snapshot of the fleet. */

import { describe, expect, it } from 'vitest'
import { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { JobView } from '#services/cli/client/job.ts'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import {
  afterKey,
  FIRST_VIEW,
  frameOf,
  Reader,
  type Snapshot,
  shareRows,
  sorted,
  type View,
} from '#services/cli/top/frame.ts'

const NOW = 2_000_000_000
const POOLS = ['inference', 'embeddings', 'transcription', 'code', 'research', 'batches']

const job = (nth: number, more: object = {}) =>
  JobView.parse({ id: `job_${String(nth).padStart(32, '0')}`, status: 'queued', created_at: NOW - 100 + nth, ...more })

const pool = (id: string, more: object = {}) =>
  PoolView.parse({
    ...{ id, workers: 1, draining: 0, slots: 4, free: 4, running: 0, paused: [], oldest_queued_at: null },
    calls: { queued: 0, running: 0 },
    jobs: { queued: { normal: 0, low: 0 }, scheduled: 0 },
    ...more,
  })

const worker = (id: string, more: object = {}) =>
  WorkerView.parse({ id, role: 'inference', version: '1', slots: 4, running: 0, draining: false, ...more })

const snapshot = (more: Partial<Snapshot> = {}): Snapshot => ({
  object: 'top',
  created_at: NOW,
  sees: 'all',
  pools: POOLS.map((id) => pool(id)),
  workers: Array.from({ length: 30 }, (_, nth) => worker(`wrk_${nth}`)),
  models: [{ id: 'echo-1', workers: 1, capacity: 4, running: 0, waiting: 200, paused: false }],
  jobs: Array.from({ length: 150 }, (_, nth) => job(nth, { project: 'alice', model: 'echo-1' })),
  has_more_jobs: true,
  problems: null,
  ...more,
})

function draw(shown: Snapshot, { columns = 80, rows = 24, view = FIRST_VIEW, readError = '' } = {}): string[] {
  return frameOf(shown, { columns, rows, view, url: 'http://127.0.0.1:8080', readError: readError || undefined })
}

describe('a snapshot of sluice top', () => {
  it('contains pools and models even if the findings of the service cannot be read', async () => {
    const none = async function* () {}
    const fleet = { pools: async () => [pool('inference')], workers: async () => [worker('wrk_1')], list: none }
    const findings = async () => await Promise.reject(new Error('The check failed.'))
    const api = { admin: { ...fleet, findings }, models: async () => ['echo-1'], list: none }
    const read = await new Reader(api as unknown as JobsApi).read()
    expect(read).toMatchObject({
      sees: 'all',
      pools: [{ id: 'inference' }],
      models: [{ id: 'echo-1' }],
      problems: null,
    })
  })
})

describe('a screen of sluice top', () => {
  it.each([
    [80, 24],
    [79, 23],
    [200, 60],
    [40, 10],
    [12, 5],
    [1, 1],
    [300, 300],
  ])('has at most %s columns and exactly %s rows', (columns, rows) => {
    const lines = draw(snapshot(), { columns, rows })
    expect(lines).toHaveLength(rows)
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(columns)
  })

  it('shows every section in 80 columns and 24 rows, with the number of hidden rows', () => {
    const text = draw(snapshot()).join('\n')
    expect(text).toMatch(/^sluice top \d\d:\d\d:\d\d · 0 running, 150\+ queued · all projects/)
    expect(text).toMatch(/\npool +workers +running +calls +jobs .*oldest/)
    expect(text).toMatch(/\nmodel +workers +capacity .*\necho-1 +1 +4 +0 +200/)
    expect(text).toMatch(/\nworker +role +state/)
    expect(text).toMatch(/\njob +project +age +.*model +status\njob_0{32} /)
    const below = [...text.matchAll(/… (\d+\+?) more/g)].map(([, count]) => count)
    const rows = (pattern: RegExp) => [...text.matchAll(pattern)].length
    expect(below).toEqual([
      String(6 - rows(/^(inference|embeddings|transcription|code|research|batches) /gm)),
      String(30 - rows(/^wrk_/gm)),
      `${150 - rows(/^job_/gm)}+`,
    ])
    expect(text).toMatch(/q quit · sort: s status↓ a age m model p project e endpoint · r reverse · ↑↓$/)
  })

  it('omits workers first, then models, then pools if the terminal has few rows, and always shows jobs', () => {
    const sections = (rows: number) =>
      draw(snapshot(), { rows }).flatMap((line) => /^(pool|model|worker|job) /.exec(line)?.[1] ?? [])
    expect(sections(24)).toEqual(['pool', 'model', 'worker', 'job'])
    expect(sections(14)).toEqual(['pool', 'model', 'job'])
    expect(sections(10)).toEqual(['pool', 'job'])
    expect(sections(7)).toEqual(['job'])
  })

  it('lists busy pools and workers first, and shows which pools are paused', () => {
    const text = draw(
      snapshot({
        pools: [
          ...POOLS.map((id) => pool(id)),
          pool('idle', { workers: 0, slots: 0, calls: { queued: 3, running: 0 }, oldest_queued_at: NOW - 120 }),
          pool('held', { paused: [{ target: 'pool', id: 'held' }] }),
        ],
        workers: [...Array.from({ length: 30 }, (_, nth) => worker(`wrk_${nth}`)), worker('wrk_busy', { running: 3 })],
      }),
    ).join('\n')
    expect(text).toMatch(/oldest\nidle +0 +0\/0 +3 .* 2 min +no workers\nheld +.* paused\n/)
    expect(text).toMatch(/models\nwrk_busy +inference +up +3\/4/)
  })

  it('shows the capacity of a worker, or its slots if the service reports no capacity', () => {
    const workers = [worker('wrk_1', { running: 2, slots: 256, capacity: 2 }), worker('wrk_2', { slots: 256 })]
    const text = draw(snapshot({ workers })).join('\n')
    expect(text).toMatch(/wrk_1 +inference +up +2\/2 .*\n.*wrk_2 +inference +up +0\/256 /)
  })

  it('omits workers and pools for a key without the admin scope', () => {
    const models = [{ id: 'echo-1', workers: null, capacity: null, running: 0, waiting: 1, paused: false }]
    const text = draw(
      snapshot({ sees: 'own', pools: null, workers: null, models, jobs: [job(1)], has_more_jobs: false }),
    )
    expect(text.join('\n')).toMatch(/own project.*\n\nmodel +running +queued\necho-1 +0 +1\n\njob +age/)
    expect(text.join('\n')).not.toMatch(/pool|worker/)
  })

  it('reports that no job is running, or that the service has no job store', () => {
    expect(draw(snapshot({ jobs: [] }))).toContain('No running or queued durable jobs.')
    expect(draw(snapshot({ jobs: null }))).toContain('Durable jobs are not available: the service has no job store.')
  })

  it('strips bidirectional overrides, and never splits a surrogate pair, at any width', () => {
    const model = `a\u202egnp.\u2066${'\u{1f600}'.repeat(40)}`
    for (let columns = 30; columns < 90; columns++) {
      const text = draw(snapshot({ jobs: [job(1, { model })] }), { columns, readError: model }).join('\n')
      expect([columns, text.isWellFormed(), /[\u202a-\u202e\u2066-\u2069]/.test(text)]).toEqual([columns, true, false])
    }
  })

  it('shows the read error of a stale snapshot and strips control characters of untrusted text', () => {
    const lines = draw(snapshot({ jobs: [job(1, { model: 'a\x1b[2Jb\nc' })] }), {
      readError: 'Retrying:\n\x1b[2Jgone',
    })
    expect(lines.at(-1)).toBe('Retrying: gone')
    expect(lines.join('\n')).toMatch(/ ab c +queued/)
  })
})

describe('the job list of sluice top', () => {
  const jobs = [
    job(3, { model: 'a', project: 'y', endpoint: '/v1/messages' }),
    job(1, { model: 'b', project: 'x', endpoint: '/v1/messages' }),
    job(2, { model: 'c', project: 'y', endpoint: '/v1/embeddings', status: 'in_progress' }),
  ]
  const order = (...keys: string[]) => {
    const view = keys.reduce<View>((at, key) => afterKey(at, key, jobs.length), FIRST_VIEW)
    return sorted(jobs, view).map(({ id }) => Number(id.slice(4)))
  }

  it.each([
    { keys: [], ids: [2, 1, 3] },
    { keys: ['a'], ids: [1, 2, 3] },
    { keys: ['m'], ids: [3, 1, 2] },
    { keys: ['p'], ids: [1, 2, 3] },
    { keys: ['e'], ids: [2, 1, 3] },
    { keys: ['a', 'r'], ids: [3, 2, 1] },
    { keys: ['a', 'r', 's'], ids: [2, 1, 3] },
    { keys: ['a', 'down'], ids: [2, 3] },
    { keys: ['a', 'j', 'j', 'j', 'pagedown'], ids: [3] },
    { keys: ['a', 'pagedown', 'home'], ids: [1, 2, 3] },
    { keys: ['a', 'up', 'x', 'constructor'], ids: [1, 2, 3] },
  ])('shows the jobs in the order $ids after the key presses $keys', ({ keys, ids }) => {
    expect(order(...keys)).toEqual(ids)
  })

  it('shows the last job if the list becomes shorter than the scroll position', () => {
    expect(sorted(jobs.slice(0, 1), { ...FIRST_VIEW, offset: 2 })).toHaveLength(1)
    expect(sorted([], { ...FIRST_VIEW, offset: 2 })).toEqual([])
  })
})

it('the row allocation of sluice top divides rows evenly among the sections that need more', () => {
  expect(shareRows([2, 50, 50], 22)).toEqual([2, 10, 10])
  expect(shareRows([50, 3], 100)).toEqual([50, 3])
  expect(shareRows([5, 5], 0)).toEqual([0, 0])
  expect(shareRows([], 5)).toEqual([])
})
