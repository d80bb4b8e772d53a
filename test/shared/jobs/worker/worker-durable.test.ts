import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { recordOf } from '#shared/jobs/body.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import { Worker, type WorkerDefinition } from '#shared/jobs/worker/worker.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ALL_TENANTS, type NewJob, type Store } from '#shared/store/store.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { envelopeOf, openBroker, sayKind, silentLog } from '../../../support/jobs/jobs.ts'
import { newJob, openSqliteDatabase, type TestDatabase } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

const ENCODE = { request_id: 'req_1', call_id: '1', created_at: 0, model: 'm', include_usage: false, version: '' }
const blobs = memoryBlobs()

let broker: Broker
let database: TestDatabase
let store: Store
let pools: Worker[]
let work: Work
beforeEach(async () => {
  broker = await openBroker()
  database = await openSqliteDatabase()
  store = await database.open()
  pools = []
  work = new Work()
})
afterEach(async () => {
  work.isOpen = true
  for (const pool of pools) await pool.close()
  await broker.close()
  await database[Symbol.asyncDispose]()
})

/** Records the running jobs and their maximum concurrency. Each job runs until the test releases it. */
class Work {
  readonly running = new Map<string, () => void>()
  readonly order: string[] = []
  /** If true, then jobs end by themselves. */
  isOpen = false
  most = 0

  kind(worker: string): Handler {
    return {
      ...sayKind,
      parse: (body) => body,
      run: (body, context) => this.#run(worker, body as { text: string }, context.signal),
    }
  }

  async *#run(worker: string, { text }: { text: string }, signal: AbortSignal) {
    const name = `${worker}:${text}`
    const { promise, resolve } = Promise.withResolvers<void>()
    this.running.set(name, resolve)
    this.order.push(text)
    this.most = Math.max(this.most, this.running.size)
    signal.addEventListener('abort', () => resolve())
    // If jobs may end by themselves, then each job ends in the next event-loop iteration.
    if (this.isOpen) setImmediate(resolve)
    await promise
    this.running.delete(name)
    signal.throwIfAborted()
    yield { text }
  }

  /** Number of running jobs on a worker. */
  on(worker: string): number {
    return [...this.running.keys()].filter((name) => name.startsWith(`${worker}:`)).length
  }

  /** Ends all running jobs. Later jobs end by themselves. */
  open(): void {
    this.isOpen = true
    for (const end of this.running.values()) end()
  }
}

async function openPool(
  worker: string,
  definition: Partial<WorkerDefinition> = {},
  of: Store = store,
): Promise<Worker> {
  const onFatal = (error: unknown) => {
    throw error
  }
  const more = {
    blobs,
    log: silentLog,
    version: 'test',
    observer: { onEnd: () => {} },
    leaseMs: 9_000,
    bodyBudgetBytes: 1024 * 1024,
    onFatal,
  }
  const kinds = { say: work.kind(worker) }
  const pool = await Worker.open({ name: 'inference', slots: 64, kinds, ...definition }, { broker, store: of, ...more })
  pools.push(pool)
  return pool
}

const bounded = (capacity: number, ...models: string[]) => ({
  models: ['m', ...models],
  concurrencyLimits: [{ kind: 'say', model: 'm', capacity }],
})

/** Creates durable jobs and publishes their records, as an ingress does. The text of each job is its number. */
async function submit(count: number, changes: Partial<NewJob> = {}): Promise<string[]> {
  const dispatcher = new Dispatcher(broker, silentLog)
  const ids: string[] = []
  for (let i = 0; i < count; i++) {
    const request = { body: { text: `${changes.priority ?? ''}${changes.model ?? 'm'}${i}` }, encode: ENCODE }
    const created = await store.create(newJob({ kind: 'say', model: 'm', request, ...changes }))
    if (created.outcome !== 'created') throw new Error('not created')
    ids.push(created.job.id)
    await dispatcher.publishJob(created.job, request)
  }
  return ids
}

/** Waits until all jobs have ended, and returns them. */
async function ended(ids: readonly string[]): Promise<DurableJob[]> {
  return await until(async () => {
    const jobs = await Promise.all(ids.map((id) => store.find(ALL_TENANTS, id)))
    const all = jobs.filter((job): job is DurableJob => typeof job?.finished_at_ms === 'number')
    return all.length === ids.length ? all : undefined
  })
}

const inProgress = async () => (await store.list(ALL_TENANTS, { limit: 1_000, states: ['in_progress'] })).jobs.length

describe('durable jobs of a model with a low limit', () => {
  it('wait in the store for slots, and each completes in one attempt', async () => {
    await openPool('a', bounded(2))
    const ids = await submit(100)
    await until(async () => (await broker.lag(jobsTopic('inference'))) === 0)
    expect(await inProgress()).toBe(3)
    work.open()
    const jobs = await ended(ids)
    expect(new Set(jobs.map(({ state, attempt }) => `${state} ${attempt}`))).toEqual(new Set(['completed 1']))
    expect(work.most).toBeLessThanOrEqual(3)
    expect(work.order.toSorted()).toEqual(Array.from({ length: 100 }, (_, i) => `m${i}`).toSorted())
  })

  it('do not delay jobs of another model', async () => {
    await openPool('a', { ...bounded(1, 'quick'), slots: 8 })
    await submit(50)
    await until(() => work.on('a') === 2)
    await submit(4, { model: 'quick' })
    await until(() => work.on('a') === 6)
    expect(work.order.filter((text) => text.startsWith('quick'))).toHaveLength(4)
  })

  it('leave at least one slot to each priority', async () => {
    await openPool('a', bounded(4))
    await submit(20, { priority: 'low', model: 'm' })
    await until(() => work.on('a') === 3)
    await submit(20)
    await until(() => work.on('a') === 8)
    work.open()
    await until(async () => (await store.depth()).length === 0)
  })

  it('that fail have the token counts of all output until the failure, even without streaming', async () => {
    const run = async function* () {
      yield { type: 'start', input_tokens: 7 }
      yield { text: 'word'.repeat(10), apart: true }
      throw new ServiceError('upstream_refused', 'No.')
    }
    await openPool('a', { kinds: { say: { ...work.kind('a'), run } } })
    const used = { input_tokens: 7, output_tokens: 10 }
    const jobs = await ended([...(await submit(1)), ...(await submit(1, { stream: true }))])
    expect(jobs).toMatchObject([
      { state: 'failed', usage: used },
      { state: 'failed', usage: used },
    ])
    expect(await store.usage.listEnded(10)).toMatchObject([{ metered: used }, { metered: used }])
  })

  it('run on a worker that joined later, without a new queue record', async () => {
    await openPool('a', bounded(2))
    const ids = await submit(40)
    await until(async () => (await broker.lag(jobsTopic('inference'))) === 0)
    await openPool('b', bounded(4))
    await until(() => work.on('b') === 5, { withinMs: 10_000 })
    expect(work.on('a')).toBe(3)
    work.open()
    for (const { attempt } of await ended(ids)) expect(attempt).toBe(1)
  })

  it('complete even if the store fails three claims', async () => {
    let failures = 3
    const fragile = new Proxy(store, {
      get(target, name) {
        const value = Reflect.get(target, name) as unknown
        if (name === 'claimNext' && failures-- > 0) return () => Promise.reject(new Error('cut'))
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    await openPool('a', bounded(1), fragile)
    const ids = await submit(5)
    work.open()
    for (const { state } of await ended(ids)) expect(state).toBe('completed')
    expect(failures).toBeLessThan(0)
  })
})

describe('the jobs of two priorities on one worker', () => {
  it.each([1, 4])('occupy at most %i slots together, in any order of queue records', async (slots) => {
    for (let round = 0; round < 8; round++) {
      const pool = await openPool(`${round}`, { slots })
      const attached = Array.from({ length: 8 }, (_, i) => {
        const { body: _body, ...envelope } = envelopeOf({ id: `job_${round}_${i}` })
        return recordOf(envelope, { json: JSON.stringify({ text: `attached ${i}` }) })
      })
      const low = submit(8, { priority: 'low' })
      for (const value of attached) await broker.submit(jobsTopic('inference'), value)
      const ids = await low
      await until(() => work.on(`${round}`) === slots)
      expect(pool.running).toBe(slots)
      work.open()
      await ended(ids)
      await until(() => pool.running === 0)
      work.isOpen = false
      await pool.close()
    }
    expect(work.most).toBe(slots)
  })
})

it('the drain of a worker ends even if a claim in flight fails', async () => {
  let claim: PromiseWithResolvers<never> | undefined
  let isClaiming = false
  const failing = new Proxy(store, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown
      if (name === 'claimNext' && claim) {
        return () => {
          isClaiming = true
          return claim?.promise
        }
      }
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  const pool = await openPool('a', bounded(1), failing)
  await submit(4)
  await until(() => work.running.size > 0)
  const broken = Promise.withResolvers<never>()
  claim = broken
  work.open()
  await until(() => isClaiming && work.running.size === 0 && pool.running > 0)
  let isDrained = false
  const drained = pool.drain(new AbortController().signal).then(() => {
    isDrained = true
  })
  // The test waits until the drain has stopped the polls and waits for the running claim, which then fails.
  await sleep(200)
  broken.reject(new Error('The store is unreachable.'))
  await until(() => isDrained)
  await drained
})
