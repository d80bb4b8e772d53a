/**
 * Tests one worker with several models. One model may use every slot while the other models are idle, and must release slots when another model gets
 * work.
 */
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ControlRecord } from '#schemas/event.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { CONTROL } from '#shared/jobs/records.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Store } from '#shared/store/store.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, sayKind, silentLog } from '../../../support/jobs/jobs.ts'
import { newJob, openSqliteDatabase, type TestDatabase } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

const SLOTS = 8
const EXTRA = 2
const MODELS = ['a', 'b', 'c', 'd']
const ENCODE = { request_id: 'req_1', call_id: '1', created_at: 0, model: 'a', include_usage: false, version: '' }
const common = { blobs: memoryBlobs(), log: silentLog, version: 'test' }

let broker: Broker
let database: TestDatabase
let store: Store
let worker: Worker
let jobs: AttachedJobs
let dispatcher: Dispatcher
/** Models for which the worker has reported waiting durable jobs. */
let told: Set<string>
/** For each model: functions that end its running jobs, oldest first. */
let running: Map<string, Set<() => void>>
/** Models of the started jobs, in order of their starts. */
let starts: string[]

beforeEach(async () => {
  broker = await openBroker()
  database = await openSqliteDatabase()
  store = await database.open()
  running = new Map(MODELS.map((model) => [model, new Set()]))
  starts = []
  const observer = { onRetry: () => {}, onEnd: () => {} }
  const times = { workerSuspectedMs: 2_000, workerLostMs: 5_000, startTimeoutMs: 60_000 }
  jobs = await AttachedJobs.open({ ...common, broker, observer, ...times, jobsMax: 1_000 })
  const concurrencyLimits = MODELS.map((model) => ({ kind: 'say', model, capacity: SLOTS }))
  const own = { models: MODELS, concurrencyLimits, modelCount: MODELS.length }
  const onFatal = (error: unknown) => {
    throw error
  }
  const more = { observer: { onEnd: () => {} }, leaseMs: 9_000, bodyBudgetBytes: 1024 * 1024, onFatal }
  const definition = { name: 'inference', slots: SLOTS, kinds: { say }, ...own } as const
  worker = await Worker.open(definition, { ...common, broker, store, ...more })
  dispatcher = new Dispatcher(broker, silentLog, () => jobs.presence)
  told = new Set()
  await broker.receive(CONTROL, [0], ({ value }) => {
    const record = ControlRecord.safeParse(JSON.parse(value.toString())).data
    if (record?.type === 'jobs_waiting') for (const { model } of record.backlog) told.add(model)
  })
  await until(() => jobs.presence.capacityOf('inference', { kind: 'say', model: 'a' }) === SLOTS)
})
afterEach(async () => {
  await jobs.close()
  await worker.close()
  await broker.close()
  await database[Symbol.asyncDispose]()
})

/** A kind whose jobs run until the test ends them. The body is the name of the model. */
const say: Handler = {
  ...sayKind,
  parse: (body) => body,
  async *run(body, { signal }) {
    const own = running.get((body as { model: string }).model)
    starts.push((body as { model: string }).model)
    await new Promise<void>((resolve) => {
      own?.add(resolve)
      signal.addEventListener('abort', () => resolve())
    })
    yield { text: 'done' }
  },
}

async function call(model: string, count: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    await jobs.submit({
      ...{ pool: 'inference', kind: 'say', tenant: 'key_1', model, body: { model }, stream: false, timeoutMs: 60_000 },
      ...{ requestId: 'req_1', traceparent: undefined, merge: sayKind.merge, isOutput: () => true },
    })
  }
}

async function submitDurable(model: string, count: number): Promise<void> {
  const request = { body: { model }, encode: ENCODE }
  for (let i = 0; i < count; i++) {
    const created = await store.create(newJob({ kind: 'say', model, request }))
    if (created.outcome !== 'created') throw new Error('not created')
    await dispatcher.publishJob(created.job, request)
  }
  if (worker.running === SLOTS) await until(() => told.has(model))
}

const runs = (model: string) => running.get(model)?.size ?? 0

/** Ends the oldest job of a model. */
function endOne(model: string): void {
  const own = running.get(model)
  const [oldest] = own ?? []
  if (!own || !oldest) throw new Error(`no job of ${model} runs`)
  own.delete(oldest)
  oldest()
}

/**
 * Ends jobs of one model, one after the other. Waits each time until the free slot is in use again. Stops when `count` jobs of the other model
 * have started.
 * @returns Number of ended jobs
 */
async function endUntilBegun(model: string, other: string, count: number): Promise<number> {
  let ended = 0
  for (; runs(other) < count; ended++) {
    const begun = starts.length
    endOne(model)
    await until(() => starts.length > begun)
  }
  return ended
}

const ways = [
  ['a', 'b'],
  ['b', 'a'],
] as const
const kinds = [
  ['calls', call],
  ['durable jobs', submitDurable],
] as const

describe.each(kinds)('%s on a worker with several models', (_, submit) => {
  it('use all slots of the worker, and no more, if only one model has work', async () => {
    await submit('a', 3 * SLOTS)
    await until(() => runs('a') === SLOTS)
    await until(() => jobs.presence.freeSlots('inference') === 0)
    // The worker checks within this time whether jobs of other models wait. No such job waits here, so no slot may be released.
    await new Promise((resolve) => setTimeout(resolve, 1_200))
    expect(worker.running, 'running jobs').toBe(SLOTS)
  })

  it.each(ways)(
    'release slots to a second model, and use all slots again after the last job of that model (first model %s, second model %s)',
    async (first, second) => {
      await submit(first, 3 * SLOTS)
      await until(() => runs(first) === SLOTS)
      await submit(second, 3)
      expect(
        await endUntilBegun(first, second, 3),
        'jobs that ended before the other model started',
      ).toBeLessThanOrEqual(SLOTS)
      while (runs(second) > 0) endOne(second)
      await until(() => runs(first) === SLOTS)
      expect(worker.running).toBe(SLOTS)
    },
  )

  it('run in additional slots if calls of another model hang in every slot', async () => {
    await submit('a', 3 * SLOTS)
    await until(() => runs('a') === SLOTS)
    await submit('b', 6)
    for (let i = 0; i < 6; i++) {
      await until(() => runs('b') > 0)
      expect(worker.running).toBeLessThanOrEqual(SLOTS + EXTRA)
      endOne('b')
    }
    await submit('c', 1)
    await until(() => runs('c') === 1)
    expect(runs('a')).toBe(SLOTS)
  })
})
