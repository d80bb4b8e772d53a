/* Tests of the attempts of one call in the request log: attempts of a durable job, and retries of an SDK. */

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { attemptsOfJob, retriesOf } from '#services/ingress/admin/attempts.ts'
import { eventObject } from '#services/ingress/calls/job-object.ts'
import type { RequestLog } from '#shared/store/requests.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { Store } from '#shared/store/store.ts'
import { NOTHING } from '#shared/usage/usage.ts'
import { requestRow } from '../../../support/admin.ts'
import { openSqliteDatabase, running, type TestDatabase } from '../../../support/jobs/stores.ts'
import { startStack } from '../../../support/stack.ts'

const NOW = Date.now()
const row: typeof requestRow = (id, changes) => requestRow(id, { startedAtMs: NOW, endedAtMs: NOW, ...changes })
let database: TestDatabase
let store: Store
beforeAll(async () => {
  database = await openSqliteDatabase()
  store = await database.open()
})
afterAll(async () => await database[Symbol.asyncDispose]())

describe('a failed attempt of a durable job', () => {
  it('is shown with its status and server, and with the message of the upstream server to operators only', async () => {
    const run = await running(store)
    const error = {
      code: 'upstream_error',
      message: 'It failed.',
      param: null,
      upstream_message: 'GPU 3 is lost.',
    } as const
    const moved = await store.retry(run, { error, delayMs: 5, metered: { ...NOTHING, server: '1' } })
    const [event] = moved?.events ?? []
    if (!moved || !event) throw new Error('not retried')
    const { tenant, last_seq } = moved.job
    const shown = eventObject(event, 'inference')
    expect(shown).toMatchObject({ reason: 'upstream_error', message: 'It failed.', status: 502, server: '1' })
    expect(shown).toMatchObject({ delay_ms: 5, output_reset: false })
    expect(JSON.stringify(shown)).not.toContain('GPU 3')
    const events = await store.listEvents(tenant, run.id, 0, last_seq)
    const ended = row('req_1', { jobId: run.id, attempts: 2 })
    expect(attemptsOfJob(ended, events, true)).toMatchObject([{ server: '1', upstream_message: 'GPU 3 is lost.' }])
    expect(JSON.stringify(attemptsOfJob(ended, events, false))).not.toContain('GPU 3')
  })
})

describe('the retries of a failed request', () => {
  it('are found in a bounded number of reads, even if many requests are alike', async () => {
    const alike = Array.from({ length: 20 }, (_, i) => [
      row(`req_first${i}`, { endedAtMs: NOW + i }),
      row(`req_retry${i}`, { startedAtMs: NOW + 100 + i, endedAtMs: NOW + 200 + i, sdkRetry: 1 }),
    ])
    await store.requests.add(alike.flat())
    let reads = 0
    const log: RequestLog = Object.create(store.requests)
    log.list = async (query) => {
      reads++
      return await store.requests.list(query)
    }
    await retriesOf(log, row('req_first0'), 60_000)
    expect(reads).toBeLessThanOrEqual(7)
  })
})

it('the counts of failed requests have at most 10,000 rows, even if each request names another model', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'sluice-test-'))
  onTestFinished(() => rmSync(dataDir, { recursive: true }))
  const log = openSqliteStore({ directory: dataDir, boot: 'test' })
  const refused = { status: 404, errorCode: 'model_not_found', worker: null }
  for (let page = 0; page < 20; page++)
    await log.requests.add(
      Array.from({ length: 1_000 }, (_, i) => row(`${page}_${i}`, { ...refused, model: `${page}_${i}` })),
    )
  await log.close()
  await using stack = await startStack({ dataDir, settings: { FIRST_KEY_ADMIN: 'true' } })
  const answer = await stack.get('/v1/admin/requests/failures')
  const { data, has_more } = (await answer.json()) as { data: object[]; has_more: boolean }
  expect(data.length).toBe(10_000)
  expect(has_more).toBe(true)
})
