import { mkdtemp, readdir, rm, utimes } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { DurableEvent } from '#schemas/durable-job.ts'
import { EventsRecord } from '#schemas/event.ts'
import { JobEnvelope } from '#schemas/job.ts'
import { Loop, startScheduler } from '#services/scheduler/scheduler.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { parseConfig } from '#shared/config/config.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { Backlog } from '#shared/jobs/durable/sweeps/backlog.ts'
import { Republisher, republishPlan } from '#shared/jobs/durable/sweeps/sweeps.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { CONTROL, EVENTS, eventPartition, jobsTopic } from '#shared/jobs/records.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { Metrics } from '#shared/lib/metrics.ts'
import { openPorts, type Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { PURGE_LEASE, REAPER_LEASE } from '#shared/store/jobs.ts'
import { ALL_TENANTS, type NewJob, type Store } from '#shared/store/store.ts'
import { openBroker, silentLog } from '../../support/jobs/jobs.ts'
import { alive, claimed, newJob, openSqliteDatabase, running, type TestDatabase } from '../../support/jobs/stores.ts'
import { until } from '../../support/stack.ts'

/** Settings with a lease so short that the tests can wait until it expires. */
const SETTINGS = { JOB_LEASE_MS: '200', LOG_LEVEL: 'silent' }
const LEASE_MS = 200
const REQUEST = {
  body: { text: 'hello' },
  encode: { request_id: 'req_1', call_id: 'x', created_at: 1, model: 'echo-1', include_usage: false, version: '' },
}

let database: TestDatabase
let store: Store
let broker: Broker
let dataDir: string
const started: { close(): Promise<void> }[] = []

beforeEach(async () => {
  database = await openSqliteDatabase()
  store = await database.open()
  broker = await openBroker()
  dataDir = await mkdtemp(join(tmpdir(), 'sluice-scheduler-'))
})
afterEach(async () => {
  for (const each of started.splice(0).reverse()) await each.close()
  await broker.close()
  await database[Symbol.asyncDispose]()
  await rm(dataDir, { recursive: true, force: true })
})

/** Starts a scheduler with the store and the broker of the test. `changes` replaces other dependencies. */
async function start(
  changes: Partial<Ports> = {},
  settings: Record<string, string> = {},
): Promise<Service & { ports: Ports }> {
  const config = parseConfig({ ...SETTINGS, DATA_DIR: dataDir, ...settings })
  const own = await openPorts(config, silentLog, 'test', false, (error) => {
    throw error
  })
  await own.broker.close()
  const ports = { ...own, broker, store, ...changes }
  const scheduler = await startScheduler(ports)
  started.push(scheduler)
  return { ...scheduler, ports }
}

/** Takes records from the queue, as a worker does. The returned array grows as records arrive. */
async function takeAll(): Promise<JobEnvelope[]> {
  const taken: JobEnvelope[] = []
  const stop = new AbortController()
  const consumer = await broker.openQueue(jobsTopic('inference'))
  const loop = (async () => {
    while (!stop.signal.aborted) {
      for (const delivery of await consumer.take(100, stop.signal)) {
        taken.push(JobEnvelope.parse(JSON.parse(delivery.value.toString())))
        delivery.acknowledge()
      }
    }
  })()
  started.push({
    async close() {
      stop.abort()
      await loop
      await consumer.close()
    },
  })
  return taken
}

/** Subscribes to the events of a job. The returned array grows as events arrive. */
async function follow(jobId: string): Promise<DurableEvent[]> {
  const events: DurableEvent[] = []
  const receiver = await broker.receive(EVENTS, [eventPartition(jobId)], ({ key, value }) => {
    if (key !== jobId) return
    events.push(...(EventsRecord.parse(JSON.parse(value.toString())).events ?? []))
  })
  started.push(receiver)
  return events
}

async function create(changes: Partial<NewJob> = {}): Promise<string> {
  const job = newJob({ request: REQUEST, ...changes })
  await store.create(job)
  return job.id
}

/** Wraps the store of the test. While `isDown` is true, its calls fail. */
function fragileStore(): { store: Store; isDown: boolean } {
  const state = { store, isDown: false }
  state.store = new Proxy(store, {
    get: (target, name) => {
      if (name === 'isReachable') return !state.isDown
      const value = Reflect.get(target, name) as unknown
      if (typeof value !== 'function') return value
      return state.isDown ? () => Promise.reject(new ServiceError('overloaded', 'down')) : value.bind(target)
    },
  })
  return state
}

describe('the scheduler', () => {
  it('does not start without a store', async () => {
    await expect(start({ store: undefined })).rejects.toMatchObject({
      name: 'ConfigError',
      problems: ['DATABASE_URL: must be set for the role scheduler'],
    })
  })

  it('queues a scheduled job once at its scheduled time, whatever the number of schedulers', async () => {
    const taken = await takeAll()
    const id = await create({ runAtMs: Date.now() + 60_000 })
    const other = await create({ runAtMs: Date.now() + 7_200_000, deadlineInMs: 7_200_000 })
    await Promise.all([start(), start(), start()])
    expect(taken).toEqual([])
    await database.advance(61_000)
    await until(() => taken.length > 0)
    await until(async () => (await store.find(ALL_TENANTS, id))?.state === 'queued')
    expect(taken).toMatchObject([{ id, attempt: 0, kind: 'generate', body: { text: 'hello' } }])
    expect(await store.find(ALL_TENANTS, other)).toMatchObject({ state: 'scheduled' })
  })

  it('expires jobs that waited too long, and notifies their subscribers', async () => {
    const id = await create({ startInMs: 60_000 })
    const events = await follow(id)
    const { ports } = await start()
    await database.advance(61_000)
    await until(() => events.some(({ type }) => type === 'job.expired'))
    expect(await store.find(ALL_TENANTS, id)).toMatchObject({ state: 'expired' })
    expect(await ports.metrics.registry.metrics()).toContain('sluice_jobs_expired_total{pool="inference"} 1')
  })

  it('ends a job with worker_lost after its third lost worker', async () => {
    const taken = await takeAll()
    const id = await create()
    const events = await follow(id)
    const { ports } = await start()
    for (let attempt = 1; attempt <= 3; attempt++) {
      const worker = await alive(store, `wrk_${attempt}`, LEASE_MS)
      await claimed(store, id, worker)
      // No process renews the lease, so it expires, and the scheduler requeues the job.
      await until(async () => (await store.find(ALL_TENANTS, id))?.state !== 'in_progress')
    }
    expect(await store.find(ALL_TENANTS, id)).toMatchObject({
      state: 'failed',
      attempt: 3,
      error: { code: 'worker_lost' },
    })
    await until(() => events.at(-1)?.type === 'job.failed')
    expect(events.map(({ type }) => type)).toEqual(['job.retrying', 'job.retrying', 'job.failed'])
    await until(() => taken.length === 2)
    expect(taken.map((envelope) => envelope.id)).toEqual([id, id])
    const metrics = await ports.metrics.registry.metrics()
    expect(metrics).toContain('sluice_jobs_reaped_total{pool="inference",outcome="queued"} 2')
    expect(metrics).toContain('sluice_jobs_total{pool="inference",outcome="failed",code="worker_lost"} 1')
  })

  it('ends running jobs after their deadline, or if the worker does not confirm a cancel', async () => {
    const worker = await alive(store, 'wrk_1', 3_600_000)
    const late = await running(store, { request: REQUEST, deadlineInMs: 60_000 }, worker)
    const cancelled = await running(store, { request: REQUEST }, worker)
    await store.cancel(ALL_TENANTS, cancelled.id)
    await start()
    await database.advance(71_000)
    // The worker stays alive during the test, so only the deadline and the cancel can end the jobs. After its start, the scheduler waits for one
    // lease before its first sweep. If the store was down before, then workers need this time to renew their leases.
    await alive(store, worker, LEASE_MS)
    const renewing = setInterval(() => void alive(store, worker, LEASE_MS), 20)
    try {
      await until(async () => (await store.find(ALL_TENANTS, late.id))?.state === 'failed')
      await until(async () => (await store.find(ALL_TENANTS, cancelled.id))?.state === 'cancelled')
    } finally {
      clearInterval(renewing)
    }
    expect(await store.find(ALL_TENANTS, late.id)).toMatchObject({ error: { code: 'timeout' } })
  })

  it('republishes every queued job once if the broker lost all records', { timeout: 60_000 }, async () => {
    const ids = new Set<string>()
    for (let i = 0; i < 700; i++) ids.add(await create())
    await database.advance(6_000)
    const taken = await takeAll()
    const beat = { type: 'heartbeat', boot: 'wrk_1', role: 'inference', slots: 1_000, running: 0, draining: false }
    const alive = Buffer.from(JSON.stringify({ ...beat, version: 'test' }))
    const beating = setInterval(() => void broker.send(CONTROL, 0, '', alive), 50)
    started.push({ close: async () => clearInterval(beating) })
    const { ports } = await start()
    await until(() => taken.length >= 700, { withinMs: 30_000 })
    expect(new Set(taken.map(({ id }) => id))).toEqual(ids)
    expect(taken).toHaveLength(700)
    expect(await ports.metrics.registry.metrics()).toContain('sluice_jobs_republished_total{pool="inference"} 700')
  })

  it('leaves due jobs scheduled while the broker is down, and queues them afterwards', async () => {
    const taken = await takeAll()
    let isReachable = false
    const away = new Proxy(broker, {
      get: (target, name) => {
        if (name === 'isReachable') return isReachable
        const value = Reflect.get(target, name) as unknown
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    const id = await create({ runAtMs: Date.now() + 1_000 })
    const expiring = await create({ startInMs: 1_000 })
    await start({ broker: away })
    await database.advance(2_000)
    await until(async () => (await store.find(ALL_TENANTS, expiring))?.state === 'expired')
    expect(await store.find(ALL_TENANTS, id)).toMatchObject({ state: 'scheduled' })
    isReachable = true
    await until(() => taken.some((envelope) => envelope.id === id))
  })

  it('reports an outage of the store, and continues afterwards', async () => {
    const fragile = fragileStore()
    const scheduler = await start({ store: fragile.store })
    expect(scheduler.problems()).toEqual([])
    fragile.isDown = true
    expect(scheduler.problems()).toEqual(['The job store (sqlite) cannot be reached.'])
    const id = await create({ startInMs: 1_000 })
    await database.advance(2_000)
    fragile.isDown = false
    await until(async () => (await store.find(ALL_TENANTS, id))?.state === 'expired')
    expect(scheduler.problems()).toEqual([])
  })

  it('stops after a drain, so that another scheduler can sweep immediately', async () => {
    const calls: string[] = []
    const watched = new Proxy(store, {
      get: (target, name) => {
        calls.push(String(name))
        const value = Reflect.get(target, name) as unknown
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    const drained = await start({ store: watched })
    await until(async () => !(await store.holdLease(REAPER_LEASE, 'other', 1)))
    await drained.drain(AbortSignal.timeout(10_000))
    expect(await store.holdLease(REAPER_LEASE, 'other', 1)).toBe(true)
    await drained.drain(AbortSignal.timeout(10_000))
    calls.length = 0
    await start()
    const id = await create({ startInMs: 1_000 })
    await database.advance(2_000)
    await until(async () => (await store.find(ALL_TENANTS, id))?.state === 'expired')
    expect(calls).toEqual([])
  })

  it('deletes expired jobs', async () => {
    const run = await running(store, { request: REQUEST, retentionMs: 1_000 })
    await store.complete(run, { result: null })
    const kept = await create()
    await database.advance(2_000)
    const scheduler = await start()
    await scheduler.drain(AbortSignal.timeout(10_000))
    expect(await database.query('SELECT id FROM jobs')).toEqual([{ id: kept }])
  })

  it('deletes the blobs of deleted jobs, and blobs that a crash left behind', async () => {
    const { ports, ...first } = await start()
    await first.drain(AbortSignal.timeout(10_000))
    const put = (key: string) => ports.blobs.put(key, Buffer.from('x'))
    const [past, kept] = [newJob({ retentionMs: 1_000 }), newJob()]
    const requestOf = (id: string) => ({ ...REQUEST, blob: id, attachments: [`${id}-audio000`] })
    for (const job of [past, kept]) {
      await store.create({ ...job, request: requestOf(job.id) })
      for (const key of [job.id, `${job.id}-audio000`]) await put(key)
    }
    await store.cancel(ALL_TENANTS, past.id)
    const left = newJob().id
    await put(left)
    const hourAgo = Date.now() / 1_000 - 3_600
    for (const key of [left, kept.id, `${kept.id}-audio000`])
      await utimes(join(ports.config.blobDir, key), hourAgo, hourAgo)
    await database.advance(2_000)
    started.push(await startScheduler(ports))
    await until(async () => (await readdir(ports.config.blobDir)).length === 2)
    expect((await readdir(ports.config.blobDir)).toSorted()).toEqual([kept.id, `${kept.id}-audio000`])
  })

  it('deletes all expired jobs in small steps, but waits while another scheduler deletes', async () => {
    const boot = await alive(store)
    for (let i = 0; i < 300; i++) {
      const run = await running(store, { request: REQUEST, retentionMs: 1_000 }, boot)
      await store.complete(run, { result: null })
    }
    await database.advance(2_000)
    const steps: boolean[] = []
    const purge: Store['purge'] = async () => {
      const purged = await store.purge()
      steps.push(purged.hasMore)
      return purged
    }
    const watched = new Proxy(store, {
      get: (target, name) => {
        const value = name === 'purge' ? purge : (Reflect.get(target, name) as unknown)
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    await store.holdLease(PURGE_LEASE, 'another', 60_000)
    const idle = await start({ store: watched })
    await idle.drain(AbortSignal.timeout(10_000))
    expect(steps).toEqual([])
    await store.releaseLease(PURGE_LEASE, 'another')
    await start({ store: watched })
    await until(async () => steps.at(-1) === false)
    expect(steps.length).toBeGreaterThan(3)
    expect(steps.indexOf(false)).toBe(steps.length - 1)
    expect(await database.query('SELECT id FROM jobs')).toEqual([])
  })

  it('deletes old blobs that no job refers to', async () => {
    const { ports, ...first } = await start()
    await first.drain(AbortSignal.timeout(10_000))
    await ports.blobs.put('old', Buffer.from('x'))
    await ports.blobs.put('new', Buffer.from('x'))
    await utimes(join(ports.config.blobDir, 'old'), 0, 0)
    started.push(await startScheduler(ports))
    await until(async () => (await ports.blobs.get('old').catch(() => undefined)) === undefined)
    expect((await ports.blobs.get('new')).toString()).toBe('x')
  })

  it('reports the numbers of queued and running jobs in its metrics', async () => {
    await create()
    await create({ priority: 'low' })
    await running(store, { request: REQUEST })
    const { ports } = await start()
    const metrics = await until(async () => {
      const text = await ports.metrics.registry.metrics()
      return text.includes('sluice_jobs{') ? text : undefined
    })
    expect(metrics).toContain('sluice_jobs{pool="inference",priority="normal",state="queued"} 1')
    expect(metrics).toContain('sluice_jobs{pool="inference",priority="low",state="queued"} 1')
    expect(metrics).toContain('sluice_jobs{pool="inference",priority="normal",state="in_progress"} 1')
    expect(metrics).toContain('sluice_jobs{pool="inference",priority="low",state="in_progress"} 0')
    expect(metrics).toMatch(/sluice_jobs_oldest_seconds\{pool="inference",priority="low",state="queued"\} \d/)
  })
})

describe('the republication of queued jobs', () => {
  it.each([
    [
      'an empty queue, where all jobs are republished soon',
      { lag: 0, missing: 0, idleRuns: 0, hasTwice: false },
      { olderThanMs: 5_000, limit: 500 },
    ],
    ['idle workers', { lag: 10, missing: 0, idleRuns: 3, hasTwice: false }, { olderThanMs: 30_000, limit: 500 }],
    [
      'idle workers and an unknown lag',
      { lag: undefined, missing: 0, idleRuns: 3, hasTwice: false },
      { olderThanMs: 30_000, limit: 500 },
    ],
    [
      'a queue shorter than the number of queued jobs',
      { lag: 10, missing: 90, idleRuns: 0, hasTwice: false },
      { olderThanMs: 30_000, limit: 90 },
    ],
    [
      'a queue far shorter than the number of queued jobs',
      { lag: 10, missing: 9_000, idleRuns: 0, hasTwice: false },
      { olderThanMs: 30_000, limit: 500 },
    ],
    [
      'a long queue and busy workers, where a search for lost records runs',
      { lag: 9_000, missing: 0, idleRuns: 2, hasTwice: false },
      { olderThanMs: 300_000, limit: 5 },
    ],
    [
      'an unknown lag and busy workers',
      { lag: undefined, missing: 0, idleRuns: 0, hasTwice: false },
      { olderThanMs: 300_000, limit: 5 },
    ],
    [
      'idle workers and a queue with duplicate records, where a search for lost records runs',
      { lag: 20, missing: 0, idleRuns: 9, hasTwice: true },
      { olderThanMs: 300_000, limit: 5 },
    ],
  ])('includes at most the expected number of jobs above the expected age for %s', (_what, view, plan) => {
    expect(republishPlan({ ...view, hasClaimer: false })).toEqual(plan)
    const search = { olderThanMs: 300_000, limit: 5 }
    expect(republishPlan({ ...view, hasClaimer: true })).toEqual(search)
  })

  /**
   * Opens a republisher with the store and the broker of the test, and one worker whose heartbeat the test sends. Each call of `turn` runs
   * one sweep and returns the number of jobs that were published again so far.
   */
  async function openTurns(worker: { slots: number; running: number }) {
    const self = {
      boot: 'sch_1',
      role: 'scheduler',
      version: 'test',
      slots: () => 0,
      running: () => 0,
      isDraining: () => false,
    } as const
    const presence = await Presence.open({ broker, log: silentLog, self, listener: {}, lostMs: 60_000 })
    started.push(presence)
    const beat = { type: 'heartbeat', boot: 'wrk_1', role: 'inference', ...worker, draining: false, version: 'test' }
    await broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(beat)))
    const dispatcher = new Dispatcher(broker, silentLog)
    const metrics = new Metrics()
    const backlog = new Backlog(store, broker)
    const republisher = new Republisher({ store, broker, dispatcher, log: silentLog, metrics }, presence, backlog)
    return {
      async turn() {
        await backlog.read()
        await republisher.run()
        const lines = (await metrics.text()).text.matchAll(/^sluice_jobs_republished_total\{.*\} (\d+)$/gm)
        return [...lines].reduce((sum, [, count]) => sum + Number(count), 0)
      },
    }
  }

  async function createMany(count: number, isPublished: boolean) {
    const dispatcher = new Dispatcher(broker, silentLog)
    for (let i = 0; i < count; i++) {
      const created = await store.create(newJob({ request: REQUEST }))
      if (isPublished && created.outcome === 'created') await dispatcher.publishJob(created.job, REQUEST)
    }
  }

  it('skips jobs whose records wait in the queue while all workers are busy', async () => {
    await createMany(200, true)
    const { turn } = await openTurns({ slots: 4, running: 4 })
    for (let i = 0; i < 5; i++) {
      await database.advance(40_000)
      expect(await turn()).toBe(0)
    }
    expect(await broker.lag(jobsTopic('inference'))).toBe(200)
  })

  it('treats all workers as busy while only a quarter of the slots is free', async () => {
    await createMany(20, true)
    const { turn } = await openTurns({ slots: 4, running: 3 })
    for (let i = 0; i < 5; i++) {
      await database.advance(40_000)
      expect(await turn()).toBe(0)
    }
  })

  it('publishes the lost records of a queue even if the workers are busy', async () => {
    await createMany(30, true)
    await createMany(70, false)
    const { turn } = await openTurns({ slots: 4, running: 4 })
    expect(await turn()).toBe(0)
    await database.advance(31_000)
    expect(await turn()).toBe(70)
    await database.advance(31_000)
    expect(await turn()).toBe(70)
    expect(await broker.lag(jobsTopic('inference'))).toBe(100)
  })

  it('publishes jobs again if workers are idle in three sweeps in a row', async () => {
    await createMany(10, true)
    const { turn } = await openTurns({ slots: 4, running: 1 })
    await database.advance(31_000)
    expect(await turn()).toBe(0)
    expect(await turn()).toBe(0)
    expect(await turn()).toBe(10)
    for (let i = 0; i < 5; i++) {
      await database.advance(31_000)
      expect(await turn()).toBe(10)
    }
    expect(await broker.lag(jobsTopic('inference'))).toBe(20)
  })

  it('finds a single lost record even if the queue always has other records', async () => {
    await createMany(1, false)
    await database.advance(1_000)
    await createMany(20, true)
    await broker.submit(jobsTopic('inference'), Buffer.from('a record of an attached call'))
    const { turn } = await openTurns({ slots: 4, running: 4 })
    await database.advance(301_000)
    expect(await turn()).toBe(5)
  })
})

describe('a scheduler loop', () => {
  it('runs one iteration at a time, and starts the next one at once while work remains', async () => {
    let [running, overlaps, turns] = [0, 0, 0]
    const loop = new Loop({
      name: 'test',
      intervalMs: 3_600_000,
      log: silentLog,
      canRun: () => true,
      async run() {
        running++
        if (running > 1) overlaps++
        await new Promise((resolve) => setTimeout(resolve, 1))
        running--
        turns++
        return turns < 5
      },
    })
    await until(() => turns === 5)
    await loop.stop()
    expect(overlaps).toBe(0)
    expect(turns).toBe(5)
  })

  it('logs an outage once, and completes the current iteration before it stops', async () => {
    const lines: string[] = []
    const say = (_fields: object, message: string) => lines.push(message)
    const log = { error: say, info: say } as unknown as typeof silentLog
    let [isAway, failures, turns] = [true, 0, 0]
    let held: PromiseWithResolvers<void> | undefined
    const loop = new Loop({
      name: 'test',
      intervalMs: 1,
      log,
      canRun: () => true,
      async run() {
        if (isAway) failures++
        if (isAway) throw new Error('away')
        turns++
        await held?.promise
      },
    })
    await until(() => failures > 2)
    expect(loop.problem).toBe("The scheduler's loop 'test' fails.")
    isAway = false
    await until(() => turns > 2)
    expect(loop.problem).toBeUndefined()
    expect(lines).toEqual(['scheduler loop failed; retrying', 'scheduler loop recovered'])
    held = Promise.withResolvers<void>()
    const before = turns
    await until(() => turns > before)
    let hasStopped = false
    const stopping = loop.stop().then(() => {
      hasStopped = true
    })
    await new Promise((resolve) => setImmediate(resolve))
    expect(hasStopped).toBe(false)
    held.resolve()
    await stopping
    expect(turns).toBe(before + 1)
  })
})
