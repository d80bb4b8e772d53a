/** Tests the rollout of a new model: its jobs must run on the workers that already have it. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Broker } from '#shared/broker/broker.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ALL_TENANTS, type Store } from '#shared/store/store.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, sayKind, silentLog, textOf } from '../../../support/jobs/jobs.ts'
import { newJob, openSqliteDatabase, type TestDatabase } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

const ENCODE = { request_id: 'req_1', call_id: '1', created_at: 0, model: 'new', include_usage: false, version: '' }
const REQUEST = { body: { text: 'hello' }, encode: ENCODE }
const blobs = memoryBlobs()
const common = { blobs, log: silentLog, version: 'test' }

let broker: Broker
let database: TestDatabase
let store: Store
let pools: Worker[]
beforeEach(async () => {
  broker = await openBroker()
  database = await openSqliteDatabase()
  store = await database.open()
  pools = []
})
afterEach(async () => {
  vi.useRealTimers()
  for (const pool of pools) await pool.close()
  await broker.close()
  await database[Symbol.asyncDispose]()
})

/** Starts a worker whose catalogue has these models. If a worker starts a job whose model is missing in its catalogue, then the job fails. */
async function openPool(...models: string[]): Promise<Worker> {
  const say: Handler = {
    ...sayKind,
    parse: (body) => body,
    async *run(body) {
      if (!models.includes('new')) throw new ServiceError('model_not_found', 'No such model.')
      yield body
    },
  }
  const onFatal = (error: unknown) => {
    throw error
  }
  const more = {
    ...common,
    broker,
    store,
    observer: { onEnd: () => {} },
    leaseMs: 9_000,
    bodyBudgetBytes: 1024 * 1024,
    onFatal,
  }
  const pool = await Worker.open({ name: 'inference', slots: 4, kinds: { say }, models }, more)
  pools.push(pool)
  return pool
}

async function submit(): Promise<string> {
  const created = await store.create(newJob({ kind: 'say', model: 'new', request: REQUEST }))
  if (created.outcome !== 'created') throw new Error('not created')
  await new Dispatcher(broker, silentLog).publishJob(created.job, REQUEST)
  return created.job.id
}

const find = async (id: string) => await store.find(ALL_TENANTS, id)

describe('a job for a model that only one of three workers has', () => {
  it('runs on that worker in one attempt', async () => {
    await openPool('old')
    await openPool('old', 'new')
    await openPool('old')
    const ids = await Promise.all(Array.from({ length: 20 }, submit))
    for (const id of ids) {
      const job = await until(async () => ((await find(id))?.finished_at_ms === null ? undefined : await find(id)))
      expect(job).toMatchObject({ state: 'completed', attempt: 1 })
    }
  })

  it('returns its output to a waiting caller', async () => {
    const observer = { onRetry: () => {}, onEnd: () => {} }
    const times = { workerSuspectedMs: 2_000, workerLostMs: 5_000, startTimeoutMs: 60_000 }
    const jobs = await AttachedJobs.open({ ...common, broker, observer, ...times, jobsMax: 100 })
    await openPool('old')
    await openPool('old', 'new')
    const calls = Array.from({ length: 10 }, async () => {
      const job = await jobs.submit({
        ...{ pool: 'inference', kind: 'say', tenant: 'key_1', model: 'new', body: { text: 'hello' }, stream: false },
        ...{
          timeoutMs: 60_000,
          requestId: 'req_1',
          traceparent: undefined,
          merge: sayKind.merge,
          isOutput: () => true,
        },
      })
      return textOf((await job.next()) ?? [])
    })
    expect(await Promise.all(calls)).toEqual(Array(10).fill('hello'))
    await jobs.close()
  })
})

it('a job for a model that no worker has fails with model_not_found after five minutes', async () => {
  await openPool('old')
  const id = await submit()
  await until(async () => (await broker.lag('jobs.inference')) === 0)
  expect(await find(id)).toMatchObject({ state: 'queued', attempt: 0 })
  vi.useFakeTimers({ toFake: ['Date'] })
  vi.setSystemTime(Date.now() + 310_000)
  const ended = await until(async () => {
    const job = await find(id)
    if (job?.state !== 'queued') return job?.finished_at_ms ? job : undefined
    // The test publishes the job's record again, as the scheduler does every few seconds.
    await new Dispatcher(broker, silentLog).publishJob(job, REQUEST)
    await new Promise((resolve) => setTimeout(resolve, 200))
    return undefined
  })
  expect(ended).toMatchObject({ state: 'failed', attempt: 1, error: { code: 'model_not_found' } })
})
