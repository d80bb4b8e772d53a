/** Tests two workers of one pool with different models, under load. Each call must run on a worker that has its model, in one attempt. */
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Broker } from '#shared/broker/broker.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { ALL_TENANTS, type Store } from '#shared/store/store.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, sayKind, silentLog, textOf } from '../../../support/jobs/jobs.ts'
import { newJob, openSqliteDatabase, type TestDatabase } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

const SLOTS = 4
const ENCODE = { request_id: 'req_1', call_id: '1', created_at: 0, model: 'a', include_usage: false, version: '' }
const common = { blobs: memoryBlobs(), log: silentLog, version: 'test' }

let broker: Broker
let database: TestDatabase
let store: Store
let workers: Worker[]
let jobs: AttachedJobs
/** Reasons of the retries that happened, one per retry. */
let retries: string[]
/** Running jobs. The key is the model of their worker, and the values are functions that end the jobs. */
let running: Map<string, Set<() => void>>
/** Duration after which jobs end by themselves. If undefined, then the test ends them. */
let runMs: number | undefined

beforeEach(async () => {
  broker = await openBroker()
  database = await openSqliteDatabase()
  store = await database.open()
  retries = []
  running = new Map()
  runMs = 2
  const observer = { onRetry: (_: unknown, why: string) => void retries.push(why), onEnd: () => {} }
  const times = { workerSuspectedMs: 2_000, workerLostMs: 5_000, startTimeoutMs: 60_000 }
  jobs = await AttachedJobs.open({ ...common, broker, observer, ...times, jobsMax: 1_000 })
  workers = [await openWorker('a'), await openWorker('b')]
  await until(() => jobs.presence.capacityOf('inference', { kind: 'say', model: 'a' }) === SLOTS)
})
afterEach(async () => {
  await jobs.close()
  for (const worker of workers) await worker.close()
  await broker.close()
  await database[Symbol.asyncDispose]()
})

async function openWorker(model: string): Promise<Worker> {
  const own = new Set<() => void>()
  running.set(model, own)
  const say: Handler = {
    ...sayKind,
    parse: (body) => body,
    async *run(_body, { signal }) {
      await new Promise<void>((resolve) => {
        own.add(resolve)
        signal.addEventListener('abort', () => resolve())
        if (runMs !== undefined) setTimeout(resolve, runMs)
      })
      yield { text: model }
    },
  }
  const onFatal = (error: unknown) => {
    throw error
  }
  const more = { observer: { onEnd: () => {} }, leaseMs: 9_000, bodyBudgetBytes: 1024 * 1024, onFatal }
  const definition = { name: 'inference', slots: SLOTS, kinds: { say }, models: [model], modelCount: 1 } as const
  return await Worker.open(definition, { ...common, broker, store, ...more })
}

async function call(model: string): Promise<string> {
  const job = await jobs.submit({
    ...{ pool: 'inference', kind: 'say', tenant: 'key_1', model, body: {}, stream: false, timeoutMs: 60_000 },
    ...{ requestId: 'req_1', traceparent: undefined, merge: sayKind.merge, isOutput: () => true },
  })
  return textOf((await job.next()) ?? [])
}

/** Starts concurrent callers of a model. Each caller makes `each` calls, one after the other. */
async function load(model: string, callers: number, each: number): Promise<string[]> {
  const said: string[] = []
  const caller = async () => {
    for (let i = 0; i < each; i++) said.push(await call(model))
  }
  await Promise.all(Array.from({ length: callers }, caller))
  return said
}

test('each call runs in one attempt on the only worker that has the model', async () => {
  const [a, b] = await Promise.all([load('a', 2 * SLOTS, 25), load('b', 2 * SLOTS, 25)])
  expect(new Set(a)).toEqual(new Set(['a']))
  expect(new Set(b)).toEqual(new Set(['b']))
  expect(a.length + b.length).toBe(4 * SLOTS * 25)
  expect(retries).toEqual([])
})

test('calls that wait for slots of one worker do not delay calls of a model on another worker', async () => {
  runMs = undefined
  const waiting = Array.from({ length: 3 * SLOTS }, () => call('a'))
  await until(() => workers[0]?.running === SLOTS)
  runMs = 0
  expect(await load('b', 2, 25)).toEqual(Array(50).fill('b'))
  for (const end of running.get('a') ?? []) end()
  await until(() => {
    for (const end of running.get('a') ?? []) end()
    return workers[0]?.running === 0 && workers[1]?.running === 0
  })
  expect(await Promise.all(waiting)).toEqual(Array(3 * SLOTS).fill('a'))
  expect(retries).toEqual([])
})

test('each durable job is claimed in one attempt by the only worker that has the model', async () => {
  const request = { body: {}, encode: ENCODE }
  const submit = async (model: string) => {
    const created = await store.create(newJob({ kind: 'say', model, request }))
    if (created.outcome !== 'created') throw new Error('not created')
    await new Dispatcher(broker, silentLog).publishJob(created.job, request)
    return created.job.id
  }
  const ids = await Promise.all(Array.from({ length: 40 }, (_, i) => submit(i % 2 ? 'a' : 'b')))
  for (const id of ids) {
    const ended = await until(async () => {
      const job = await store.find(ALL_TENANTS, id)
      return job?.finished_at_ms === null ? undefined : job
    })
    expect(ended).toMatchObject({ state: 'completed', attempt: 1 })
  }
})
