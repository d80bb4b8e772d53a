/** Tests composed jobs with the real worker, ingress and scheduler, on each store. */
import { afterAll, afterEach, beforeEach, describe, expect, inject, it, vi } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import { jobObject, statusOf } from '#services/ingress/calls/job-object.ts'
import { startScheduler } from '#services/scheduler/scheduler.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { ownerOfBlob } from '#shared/store/jobs.ts'
import { ALL_TENANTS, type Store } from '#shared/store/store.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { composeKind, type Outside, type Plan } from '../../../support/jobs/compose-kind.ts'
import { openBroker, openNoKeys, sayKind, silentLog } from '../../../support/jobs/jobs.ts'
import { openPostgresDatabase, openSqliteDatabase, type TestDatabase } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
]
const TENANT = 'key_1'
const LEASE_MS = 3_000
const noCounter = { inc: () => {} }
const metrics = {
  gauge: () => {},
  rows: () => {},
  jobs: noCounter,
  retries: noCounter,
  reaped: noCounter,
  republished: noCounter,
  expired: noCounter,
}

describe.each(ADAPTERS)('composed jobs on $name', ({ isHere, openDatabase }) => {
  const kept = new Map<string, Buffer>()
  const blobs = memoryBlobs(kept)
  let broker: Broker
  let database: TestDatabase
  let store: Store
  let jobs: DurableJobs
  let presence: Presence
  let scheduler: Service
  let pools: Worker[]
  /** Log of the steps that ran and of the children that ended, in order. */
  let outside: string[]
  let onStep: Outside
  let change: (plan: Plan) => Plan
  /** Waiting children. The test ends a child by calling its function. */
  let held: Map<string, () => void>

  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    broker = await openBroker()
    database ??= await openDatabase()
    await database.reset()
    store = await database.open()
    outside = []
    onStep = async () => {}
    change = (plan) => plan
    held = new Map()
    pools = []
    const none = () => 0
    const self = {
      boot: newId('ing_', 16),
      role: 'ingress',
      version: 'test',
      slots: none,
      running: none,
      isDraining: () => false,
    } as const
    presence = await Presence.open({ broker, self, listener: {}, lostMs: 5_000, log: silentLog })
    const more = { blobs, log: silentLog, retentionMs: 86_400_000, bounds: { jobsMax: 1_000, scheduledMax: 1_000 } }
    jobs = await DurableJobs.open({ store, broker, presence: () => presence, ...more })
    const config = { jobLeaseMs: LEASE_MS, workerLostMs: 5_000, webhookSecret: `whsec_${'a'.repeat(32)}` }
    const served = { broker, store, blobs, openKeys: openNoKeys, config, log: silentLog, metrics }
    const ports = { ...served, models: { models: [] }, version: 'test' }
    scheduler = await startScheduler(ports as unknown as Ports)
  })
  afterEach(async () => {
    if (!isHere) return
    for (const release of held.values()) release()
    await scheduler.close()
    for (const pool of pools) await pool.close()
    await jobs.close()
    await presence.close()
    await broker.close()
  })
  afterAll(async () => await database?.[Symbol.asyncDispose]())

  const say: Handler = {
    ...sayKind,
    parse: (body) => body,
    async *run(body, { signal }) {
      const { text, isHeld } = body as { text: string; isHeld?: boolean }
      outside.push(`say ${text}`)
      if (isHeld) {
        await new Promise<void>((resolve, reject) => {
          held.set(text, resolve)
          signal.addEventListener('abort', () => reject(signal.reason), { once: true })
        })
      }
      signal.throwIfAborted()
      yield { text }
    },
  }

  async function openWorker(slots = 4): Promise<Worker> {
    const compose = composeKind(
      async (step, signal) => {
        outside.push(`step ${step.nth}`)
        await onStep(step, signal)
      },
      (plan) => change(plan),
    )
    const definition = { name: 'inference', slots, kinds: { say, compose } } as const
    const onFatal = (error: unknown) => {
      throw error
    }
    const more = {
      blobs,
      log: silentLog,
      version: 'test',
      observer: { onEnd: () => {} },
      leaseMs: LEASE_MS,
      bodyBudgetBytes: 1024 * 1024,
      onFatal,
    }
    const worker = await Worker.open(definition, { broker, store, ...more })
    pools.push(worker)
    return worker
  }

  async function submit(
    plan: Plan,
    more: { deadlineInMs?: number; stream?: boolean; partialMs?: number } = {},
  ): Promise<string> {
    const encode = { request_id: 'req_1', model: 'echo-1', include_usage: false, version: '' }
    const call = {
      pool: 'inference',
      kind: 'compose',
      tenant: TENANT,
      endpoint: '/v1/chat/completions',
      model: 'echo-1',
    } as const
    const created = await jobs.create({ ...call, body: plan, stream: false, encode, deadlineInMs: 600_000, ...more })
    if (created.outcome !== 'created') throw new Error(created.outcome)
    return created.job.id
  }

  const job = async (id: string) => (await store.find(ALL_TENANTS, id)) as DurableJob
  const ended = (id: string) =>
    until(async () =>
      (await job(id)).state === 'waiting' || !TERMINAL.has((await job(id)).state) ? undefined : await job(id),
    )
  const waiting = (id: string) => until(async () => ((await job(id)).state === 'waiting' ? await job(id) : undefined))
  const textOf = async (id: string) =>
    ((await store.findContent(ALL_TENANTS, id))?.result as { text: string } | null)?.text
  const types = async (id: string) => (await store.listEvents(ALL_TENANTS, id, 0, 100)).map(({ type }) => type)
  const children = async (id: string) => await store.listChildren(ALL_TENANTS, id)

  it('run each step once, and occupy no slot while child jobs run', async () => {
    await openWorker(1)
    const id = await submit({ steps: 3, children: [{ text: 'a' }, { text: 'b' }, { text: 'c' }] })
    expect(await ended(id)).toMatchObject({ state: 'completed', tries: 0, crashes: 0, children: 3, steps: 4 })
    expect(await textOf(id)).toBe('3 a b c {"searches":4,"tokens":0}')
    expect(outside.toSorted()).toEqual(['say a', 'say b', 'say c', 'step 0', 'step 1', 'step 2', 'step sum'])
    expect((await types(id)).filter((type) => type !== 'job.progress')).toEqual([
      'job.queued',
      'job.started',
      'job.waiting',
      'job.started',
      'job.completed',
    ])
    const shown = jobObject(await job(id), { children: await children(id), steps: await jobs.stepsOf(await job(id)) })
    const child = { endpoint: '/v1/chat/completions', model: 'echo-1', status: 'completed' }
    expect(shown.children).toMatchObject([child, child, child])
    expect(shown.steps).toHaveLength(4)
    expect(shown.steps).toContainEqual({
      kind: 'count',
      cost: { searches: 1 },
      attempt: 2,
      done_at: expect.any(Number),
    })
    for (const child of await children(id))
      expect(child).toMatchObject({ depth: 1, parent_id: id, tenant: TENANT, state: 'completed' })
  })

  it('continue from their stored steps on another worker if their worker is lost', async () => {
    const first = await openWorker()
    onStep = async ({ nth }, signal) => {
      if (nth !== 2 || outside.filter((what) => what === 'step 2').length > 1) return
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    }
    const id = await submit({ steps: 4, children: [{ text: 'a' }] })
    await until(() => outside.includes('step 2') || undefined)
    await openWorker()
    await first.close()
    expect(await ended(id)).toMatchObject({ state: 'completed', steps: 5, children: 1 })
    expect(outside.filter((what) => what.startsWith('step'))).toEqual([
      'step 0',
      'step 1',
      'step 2',
      'step 2',
      'step 3',
      'step sum',
    ])
  })

  it('store the result of each concurrent step once, and a large result in a blob', async () => {
    await openWorker()
    const id = await submit({ steps: 20, children: [{ text: 'a' }], isParallel: true, large: 100_000 })
    expect(await ended(id)).toMatchObject({ state: 'completed', steps: 22, attempt: 2 })
    expect(await textOf(id)).toBe('100190 a {"searches":21,"tokens":0}')
    const blob = (await store.listSteps(TENANT, id)).find((step) => step.kind === 'large')?.blob ?? ''
    expect(kept.get(blob)?.length).toBe(200_002)
    expect(ownerOfBlob(blob)).toBe(id)
    await jobs.erase(TENANT, id)
    expect(kept.has(blob)).toBe(false)
    const tooLarge = await submit({ steps: 0, children: [], large: 600_000 })
    expect(await ended(tooLarge)).toMatchObject({ state: 'failed', error: { code: 'invalid_request' } })
  })

  it('store the input of each step, truncated if it is long', async () => {
    await openWorker()
    const id = await submit({ steps: 1, children: [], large: 10, asked: 'ä'.repeat(70_000) })
    await ended(id)
    const { steps, hasMore } = await jobs.listStepViews(await job(id), 0, 2)
    expect(steps).toMatchObject([
      { number: 1, kind: 'count', input: { value: { nth: 0 } }, output: 0 },
      { number: 2, kind: 'large', input: { length: 70_012 }, output: 'é'.repeat(10) },
    ])
    expect(steps[1]?.input).toMatchObject({ cut: `{"asked":"${'ä'.repeat(4_086)}` })
    expect(hasMore).toBe(true)
  })

  it('are cancelled together with their children at all depths', async () => {
    await openWorker()
    const inner: Plan = { steps: 0, children: [{ text: 'deep', isHeld: true }] }
    const id = await submit({ steps: 1, children: [inner], childKind: 'compose' })
    expect(statusOf(await waiting(id))).toBe('in_progress')
    const [child] = await until(async () =>
      (await children(id)).some(({ state }) => state === 'waiting') ? await children(id) : undefined,
    )
    await until(() => held.has('deep') || undefined)
    expect((await jobs.cancel(TENANT, id)).state).toBe('cancelled')
    expect((await ended(child?.id ?? '')).state).toBe('cancelled')
    const [deep] = await children(child?.id ?? '')
    expect(await ended(deep?.id ?? '')).toMatchObject({ state: 'cancelled', depth: 2 })
  })

  it('write a partial result if they are cancelled while they wait for children', async () => {
    await openWorker()
    const children = [{ text: 'slow', isHeld: true }, { text: 'quick' }]
    const id = await submit({ steps: 1, children }, { partialMs: 30_000 })
    await waiting(id)
    await until(
      async () => (await store.listChildren(TENANT, id)).some(({ state }) => state === 'completed') || undefined,
    )
    expect(statusOf(await jobs.cancel(TENANT, id))).toBe('cancelling')
    expect(await ended(id)).toMatchObject({ state: 'completed', tries: 0, crashes: 0 })
    expect(await textOf(id)).toMatch(/^0 (nothing|cancelled) quick /)
    await until(
      async () => (await store.listChildren(TENANT, id)).every(({ state }) => TERMINAL.has(state)) || undefined,
    )
    expect((await types(id)).filter((type) => type !== 'job.progress').slice(-3)).toEqual([
      'job.cancelling',
      'job.started',
      'job.completed',
    ])
  })

  it('write a partial result after a cancel even if their worker is lost', async () => {
    const first = await openWorker()
    onStep = async ({ nth }, signal) => {
      if (nth !== 1 || outside.filter((what) => what === 'step 1').length > 1) return
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    }
    const id = await submit({ steps: 2, children: [{ text: 'late', isHeld: true }] }, { partialMs: 30_000 })
    await until(() => outside.includes('step 1') || undefined)
    expect(statusOf(await jobs.cancel(TENANT, id))).toBe('cancelling')
    await openWorker()
    await first.close()
    expect(await ended(id)).toMatchObject({ state: 'completed' })
    expect(await textOf(id)).toMatch(/^1 (nothing|cancelled) /)
    expect(outside.filter((what) => what === 'step 0')).toHaveLength(1)
  })

  it('end as cancelled at a second cancel, or at the time limit for a partial result', async () => {
    await openWorker()
    const held: Plan = { steps: 1, children: [{ text: 'slow', isHeld: true }] }
    const empty = await submit({ ...held, writesNothing: true }, { partialMs: 30_000 })
    await waiting(empty)
    await jobs.cancel(TENANT, empty)
    expect((await ended(empty)).state).toBe('cancelled')
    onStep = ({ nth }, signal) =>
      nth === 'sum'
        ? new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
        : Promise.resolve()
    const [twice, late] = [await submit(held, { partialMs: 30_000 }), await submit(held, { partialMs: 1_000 })]
    for (const id of [twice, late]) {
      await waiting(id)
      await jobs.cancel(TENANT, id)
    }
    await until(() => outside.filter((what) => what === 'step sum').length === 2 || undefined)
    expect(statusOf(await jobs.cancel(TENANT, twice))).toBe('cancelling')
    expect((await ended(twice)).state).toBe('cancelled')
    expect((await ended(late)).state).toBe('cancelled')
    expect((await types(late)).filter((type) => type.startsWith('job.cancel'))).toEqual([
      'job.cancelling',
      'job.cancelled',
    ])
  })

  it('write a partial result shortly before their deadline', async () => {
    await openWorker()
    const id = await submit(
      { steps: 1, children: [{ text: 'slow', isHeld: true }, { text: 'quick' }] },
      { deadlineInMs: 10_000 },
    )
    expect(await ended(id)).toMatchObject({ state: 'completed', attempt: 2 })
    expect(await textOf(id)).toBe('0 nothing quick {"searches":2,"tokens":0}')
    const [one, other] =
      (await until(async () =>
        (await children(id)).every(({ state }) => TERMINAL.has(state)) ? await children(id) : undefined,
      )) ?? []
    expect([one?.state, other?.state].toSorted()).toEqual(['cancelled', 'completed'])
  })

  it('fail with more than 50 concurrent children or beyond the maximum depth', async () => {
    await openWorker(8)
    const many = Array.from({ length: 51 }, (_, nth) => ({ text: `${nth}`, isHeld: true }))
    const id = await submit({ steps: 0, children: many })
    expect(await ended(id)).toMatchObject({ state: 'failed', error: { code: 'invalid_request' } })
    const deep = [1, 2, 3].reduce<Plan>((inner) => ({ steps: 0, children: [inner], childKind: 'compose' }), {
      steps: 0,
      children: [{ text: 'x' }],
    })
    const top = await submit(deep)
    expect(await ended(top)).toMatchObject({ state: 'completed' })
    expect(await textOf(top)).toContain('failed')
  })

  it('submit further children while the first child is being published', async () => {
    const find = store.find.bind(store)
    const gate = Promise.withResolvers<void>()
    vi.spyOn(store, 'find').mockImplementation(async (scope, id) => {
      const found = await find(scope, id)
      if (found?.state === 'queued' && found.depth > 0) await gate.promise
      return found
    })
    await openWorker()
    const id = await submit({ steps: 0, children: [{ text: 'a' }, { text: 'b' }, { text: 'c' }] })
    await until(async () => (await children(id)).length === 3)
    gate.resolve()
    expect(await ended(id)).toMatchObject({ state: 'completed', children: 3 })
  })

  it('are deleted together with their children, and a later purge deletes the grandchildren', async () => {
    await openWorker()
    const lines = Array.from({ length: 3 }, (_, nth) => ({ text: `${nth}` }))
    const part: Plan = { steps: 1, children: lines }
    const id = await submit({ steps: 1, children: [part, part], childKind: 'compose' })
    await ended(id)
    const parts = await children(id)
    expect((await Promise.all(parts.map((one) => children(one.id)))).flat()).toHaveLength(6)
    const erase = vi.spyOn(store, 'erase')
    await jobs.erase(TENANT, id)
    expect(erase).toHaveBeenCalledTimes(1)
    for (const one of parts) expect(await store.find(ALL_TENANTS, one.id)).toBeUndefined()
    while ((await store.purge()).hasMore);
    expect(await store.list(TENANT, { limit: 100 })).toMatchObject({ jobs: [] })
  })

  it('are deleted with their children and steps, although a single child cannot be deleted', async () => {
    await openWorker()
    const id = await submit({ steps: 2, children: [{ text: 'a', isHeld: true }, { text: 'b' }] })
    const b = await until(async () => (await children(id)).find(({ state }) => state === 'completed'))
    await expect(jobs.erase(TENANT, b?.id ?? '')).rejects.toThrow(ServiceError)
    await until(() => held.get('a'))
    held.get('a')?.()
    await ended(id)
    await jobs.erase(TENANT, id)
    expect(await store.listSteps(ALL_TENANTS, id)).toEqual([])
    expect(await children(id)).toEqual([])
    expect(await store.findContent(ALL_TENANTS, b?.id ?? '')).toBeUndefined()
  })

  describe('the replay of a composed job', () => {
    const plan: Plan = { steps: 2, children: [{ text: 'a' }, { text: 'b' }], large: 100_000 }
    const replayOf = async (id: string) => {
      const created = await jobs.replay(TENANT, id)
      return created.outcome === 'created' ? await ended(created.job.id) : undefined
    }

    it('returns an equal result from the recorded steps alone, without new calls', async () => {
      await openWorker()
      const id = await submit(plan)
      await ended(id)
      const before = [...outside]
      const replay = await replayOf(id)
      expect(replay).toMatchObject({ state: 'completed', attempt: 1, steps: 4, children: 0, parent_id: null })
      expect(await textOf(replay?.id ?? '')).toBe(await textOf(id))
      const again = await replayOf(replay?.id ?? '')
      expect(await textOf(again?.id ?? '')).toBe(await textOf(id))
      expect(outside).toEqual(before)
      await jobs.erase(TENANT, replay?.id ?? '')
      expect((await jobs.listStepViews(await job(id), 0, 20)).steps).toHaveLength(4)
    })

    it('fails at a request that was not recorded, and names the most similar recorded request', async () => {
      await openWorker()
      const id = await submit(plan)
      await ended(id)
      const before = [...outside]
      change = (asked) => ({ ...asked, steps: 3 })
      expect((await replayOf(id))?.error).toMatchObject({
        code: 'invalid_request',
        message: expect.stringContaining(
          `differs from the recorded job ${id}: it requests count {"nth":2}, but the recorded job has no such step; the most similar recorded step is {"nth":0} (recorded ≠ requested: nth: 0 ≠ 2)`,
        ),
      })
      change = (asked) => ({ ...asked, children: [{ text: 'a' }, { text: 'c' }] })
      const message = expect.stringContaining(
        `it submits the child 'child 1' with another request (recorded ≠ requested: body.text: "b" ≠ "c")`,
      )
      expect(await replayOf(id)).toMatchObject({ state: 'failed', error: { message } })
      expect(outside).toEqual(before)
    })

    it('reproduces the partial result of a cancelled job', async () => {
      await openWorker()
      const id = await submit({ steps: 1, children: [{ text: 'slow', isHeld: true }] }, { partialMs: 30_000 })
      await waiting(id)
      await jobs.cancel(TENANT, id)
      await ended(id)
      await until(
        async () => (await store.listChildren(TENANT, id)).every(({ state }) => TERMINAL.has(state)) || undefined,
      )
      expect(await replayOf(id)).toMatchObject({ state: 'completed' })
      const before = [...outside]
      change = (asked) => ({ ...asked, steps: 2 })
      const message = expect.stringContaining('requests count {"nth":1}, but the recorded job has no such step')
      expect(await replayOf(id)).toMatchObject({ state: 'failed', error: { message } })
      expect(outside).toEqual(before)
    })

    it('is refused for a job that has not ended or has no recorded steps', async () => {
      await openWorker()
      const id = await submit({ steps: 1, children: [{ text: 'slow', isHeld: true }] })
      await waiting(id)
      await expect(jobs.replay(TENANT, id)).rejects.toMatchObject({ code: 'job_not_finished' })
      await expect(jobs.replay('key_2', id)).rejects.toMatchObject({ code: 'job_not_found' })
      const [child] = await store.listChildren(TENANT, id)
      await until(() => held.get('slow'))
      held.get('slow')?.()
      await ended(id)
      await expect(jobs.replay(TENANT, child?.id ?? '')).rejects.toMatchObject({ code: 'invalid_request' })
    })
  })
})
