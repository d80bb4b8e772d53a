/**
 * Tests of composed jobs that every store adapter must pass. The tests cover recorded steps, child jobs, and the wait of a parent, which
 * occupies no slot. The tests also cover the notification of parent and children when a job ends.
 */
import { afterAll, beforeEach, describe, expect, inject, it } from 'vitest'
import { DurableJob } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import { childJobId, type NewChild, type NewStep } from '#shared/store/jobs.ts'
import type { HeldAttempt, NewJob, Store } from '#shared/store/store.ts'
import {
  alive,
  claimed,
  HOUR_MS,
  openPostgresDatabase,
  openSqliteDatabase,
  running,
  type TestDatabase,
} from '../../support/jobs/stores.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
]
const TENANT = 'key_a'
const ERROR: ErrorBody = { code: 'upstream_error', message: 'It failed.', param: null }
const next = (run: HeldAttempt, by = 1): HeldAttempt => ({ ...run, chunk: run.chunk + by })
const step = (key: string, changes: Partial<NewStep> = {}): NewStep => {
  return { key, kind: 'search', output: { value: { hits: [key] } }, cost: { searches: 1 }, ...changes }
}
const PROGRESS = { type: 'job.progress' as const, data: { progress: { phase: 'searching' } } }
const DELTA = { type: 'job.output.delta' as const, data: { text: 'a' } }

describe.each(ADAPTERS)('composed jobs in the store on $name', ({ isHere, openDatabase }) => {
  let database: TestDatabase
  let store: Store
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    database ??= await openDatabase()
    await database.reset()
    store = await database.open()
  })
  afterAll(async () => await database?.[Symbol.asyncDispose]())

  const job = async (id: string) => (await store.find(TENANT, id)) as DurableJob
  const types = async (id: string) => (await store.listEvents(TENANT, id, 0, 100)).map(({ type }) => type)
  const unsettled = async () => (await store.listUnsettled(100)).map(({ id }) => id)
  const childOf = (run: HeldAttempt, key: string, changes: Partial<NewChild> = {}): NewChild => {
    const call = { pool: 'embeddings', kind: 'embed', endpoint: '/v1/embeddings', model: 'm' } as const
    return { id: childJobId(run.id, key), ...call, request: { body: key }, ...changes }
  }
  /** Creates a parent job, claims the job and submits its children. The returned `run` has the number of the next write. */
  async function parentOf(count: number, changes: Partial<NewJob> = {}): Promise<{ run: HeldAttempt; ids: string[] }> {
    const run = await running(store, { priority: 'low', ...changes })
    const children = Array.from({ length: count }, (_, nth) => childOf(run, `${nth}`))
    for (const [nth, child] of children.entries()) await store.submitChild(next(run, nth), child)
    return { run: next(run, count), ids: children.map(({ id }) => id) }
  }
  const park = (run: HeldAttempt, ids: readonly string[], wrapUpMs = 60_000) => store.park(run, { ids, wrapUpMs })
  async function end(id: string) {
    const run = await claimed(store, id, await alive(store))
    return await store.complete(run, { result: { text: id }, usage: { total_tokens: 3 } })
  }

  it('store a step once, in one write with the pending output and progress', async () => {
    const run = await running(store)
    const moved = await store.addStep(run, step('a'), [DELTA, PROGRESS])
    expect(moved?.events).toMatchObject([
      { seq: 3, type: 'job.output.delta' },
      { seq: 4, type: 'job.progress' },
    ])
    expect(moved?.job).toMatchObject({ steps: 1, chunk: 1, progress: PROGRESS.data })
    const again = await store.addStep(run, step('a'), [DELTA, PROGRESS])
    expect(again?.events).toEqual(moved?.events)
    expect(await store.findStep(run.id, 'a')).toMatchObject({
      output: { value: { hits: ['a'] } },
      cost: { searches: 1 },
    })
    expect(await store.findStep(run.id, 'b')).toBeUndefined()
    expect(await job(run.id)).toMatchObject({ steps: 1, chunk: 1, last_seq: 4 })
  })

  it('list their steps in order and in pages, only for their own tenant', async () => {
    const run = await running(store)
    const input = (text: string) => JSON.stringify({ value: { text } })
    for (const [nth, key] of ['c', 'a', 'b'].entries())
      await store.addStep(next(run, nth), step(key, key === 'b' ? {} : { input: input(key) }), [])
    expect(await store.listRecordedSteps(TENANT, run.id, 0, 2)).toMatchObject([
      {
        key: 'c',
        input: { value: { text: 'c' } },
        output: { value: { hits: ['c'] } },
        cost: { searches: 1 },
        attempt: 1,
      },
      { key: 'a', input: { value: { text: 'a' } } },
    ])
    expect(await store.listRecordedSteps(TENANT, run.id, 2, 2)).toMatchObject([{ key: 'b', input: null }])
    expect(await store.listRecordedSteps(TENANT, run.id, 3, 2)).toEqual([])
    expect(await store.listRecordedSteps('key_b', run.id, 0, 2)).toEqual([])
  })

  it('are listed without child jobs if the query excludes child jobs', async () => {
    const { ids } = await parentOf(3)
    for (const id of ids) await end(id)
    const own = await running(store, { endpoint: '/v1/embeddings' })
    await store.complete(own, { result: { text: 'own' }, usage: null })
    const query = { limit: 1, endpoint: '/v1/embeddings', states: ['completed' as const] }
    expect(await store.list(TENANT, { ...query, order: 'asc' })).toMatchObject({ hasMore: true })
    for (const order of ['asc', 'desc'] as const) {
      const { jobs, hasMore } = await store.list(TENANT, { ...query, order, isOwn: true })
      expect([jobs.map(({ id }) => id), hasMore]).toEqual([[own.id], false])
      expect((await store.list(TENANT, { ...query, order, isOwn: true, after: own.id })).jobs).toEqual([])
    }
    expect(JSON.parse((await store.findResultText(TENANT, own.id)) ?? '')).toEqual({ text: 'own' })
    expect(await store.findResultText('key_b', own.id)).toBeNull()
  })

  it('store a step once if the write is repeated, and refuse another step with the same sequence number', async () => {
    const run = await running(store)
    await store.addStep(run, step('a'), [])
    expect((await store.addStep(run, step('a'), []))?.job).toMatchObject({ steps: 1, chunk: 1 })
    expect(await store.addStep(run, step('b'), [])).toBeUndefined()
    await store.addStep(next(run), step('b', { output: { blob: 'job_1-x' }, cost: {} }), [])
    expect(await store.listSteps(TENANT, run.id)).toMatchObject([
      { key: 'a', kind: 'search', cost: { searches: 1 }, attempt: 1, blob: null },
      { key: 'b', blob: 'job_1-x' },
    ])
    expect(await store.listSteps('key_b', run.id)).toEqual([])
  })

  it.each([
    ['a step', (run: HeldAttempt) => store.addStep(run, step('a'), [])],
    ['a child', (run: HeldAttempt) => store.submitChild(run, childOf(run, 'a'))],
    ['waiting for children', (run: HeldAttempt) => park(run, [])],
  ])('refuse %s from a lost attempt, from another worker, and after their end', async (_, write) => {
    const run = await running(store)
    await store.handBack(run)
    expect(await write(next(run))).toBeUndefined()
    const second = await claimed(store, run.id, await alive(store))
    expect(await write({ ...next(run), boot: second.boot })).toBeUndefined()
    expect(await write({ ...second, boot: run.boot })).toBeUndefined()
    expect(await write(next(second))).toBeUndefined()
    await store.fail(second, { error: ERROR })
    expect(await write(next(second))).toBeUndefined()
    expect(await store.listChildren(TENANT, run.id)).toEqual([])
    expect(await store.listSteps(TENANT, run.id)).toEqual([])
    expect(await job(run.id)).toMatchObject({ state: 'failed', children: 0, steps: 0 })
  })

  it('create a child job once, with the tenant, priority, trace and deadline of the parent', async () => {
    const run = await running(store, { priority: 'low', traceparent: '00-a-b-01', requestId: 'req_1' })
    const moved = await store.submitChild(run, childOf(run, 'a'))
    expect(moved?.job).toMatchObject({ id: run.id, children: 1, chunk: 1 })
    expect((await store.submitChild(run, childOf(run, 'a')))?.job).toMatchObject({ children: 1, chunk: 1 })
    await store.submitChild(next(run), childOf(run, 'b', { deadlineInMs: 5_000 }))
    await store.submitChild(next(run, 2), childOf(run, 'c', { deadlineInMs: 2 * HOUR_MS }))
    const children = (await store.listChildren(TENANT, run.id)).map((child) => DurableJob.parse(child))
    const [a, b, c] = ['a', 'b', 'c'].map((key) => children.find(({ id }) => id === childJobId(run.id, key)))
    const parent = await job(run.id)
    const same = {
      parent_id: run.id,
      depth: 1,
      tenant: TENANT,
      priority: 'low',
      traceparent: '00-a-b-01',
      request_id: 'req_1',
    }
    expect(a).toMatchObject({ ...same, state: 'queued', kind: 'embed', deadline_ms: parent.deadline_ms, last_seq: 1 })
    expect((b?.deadline_ms ?? 0) - (b?.created_at_ms ?? 0)).toBe(5_000)
    expect(c?.deadline_ms).toBe(parent.deadline_ms)
    expect(await types(a?.id ?? '')).toEqual(['job.queued'])
    expect(await store.findContent(TENANT, a?.id ?? '')).toMatchObject({ request: { body: 'a' } })
    expect(children).toHaveLength(3)
  })

  it('list only their own children, not redriven jobs with the same parent_id', async () => {
    const { run } = await parentOf(1)
    await running(store, { parentId: run.id })
    await store.fail(run, { error: ERROR })
    await store.redrive(TENANT, run.id, childJobId(run.id, 'again'))
    expect(await store.listChildren(TENANT, run.id)).toHaveLength(1)
    expect(await job(childJobId(run.id, 'again'))).toMatchObject({ parent_id: run.id, depth: 0 })
  })

  it('wait until the last awaited child has ended, and are queued once', async () => {
    const { run, ids } = await parentOf(3)
    const [one = '', other = '', third = ''] = ids
    const moved = await park(run, [one, other])
    expect(moved).toMatchObject({
      job: { state: 'waiting' },
      events: [{ type: 'job.waiting', data: { output_reset: false } }],
    })
    expect((await park(run, [one, other]))?.events).toEqual(moved?.events)
    expect(await store.claim(run.id, await alive(store))).toBeUndefined()
    await end(one)
    expect(await store.wake(run.id)).toBeUndefined()
    await end(other)
    const woken = await store.wake(run.id)
    expect(woken).toMatchObject({
      job: { state: 'queued', tries: 0, crashes: 0 },
      request: { body: 'hello' },
      events: [],
    })
    expect(await store.wake(run.id)).toBeUndefined()
    expect(await claimed(store, run.id, await alive(store))).toMatchObject({ attempt: 2 })
    expect(await types(run.id)).toEqual(['job.queued', 'job.started', 'job.waiting', 'job.started'])
    expect((await job(third)).state).toBe('queued')
  })

  it('are queued at once if all children ended before the wait began', async () => {
    const { run, ids } = await parentOf(1)
    await end(ids[0] ?? '')
    const moved = await store.park(run, { ids, wrapUpMs: 60_000, output: [DELTA] })
    expect(moved).toMatchObject({
      job: { state: 'queued' },
      events: [{ type: 'job.output.delta' }, { data: { output_reset: true } }],
    })
  })

  it('are cancelled if a cancel is requested before or during their wait', async () => {
    const { run, ids } = await parentOf(1)
    await store.cancel(TENANT, run.id)
    expect(await park(run, ids)).toMatchObject({ job: { state: 'cancelled' }, events: [{ type: 'job.cancelled' }] })
    const { run: second, ids: others } = await parentOf(1)
    await park(second, others)
    expect((await store.cancel(TENANT, second.id))?.job).toMatchObject({
      state: 'cancelled',
      finished_at_ms: expect.any(Number),
    })
  })

  it('are queued after the maximum wait for their children, and fail with timeout at their deadline', async () => {
    const { run, ids } = await parentOf(1)
    await park(run, ids, 60_000)
    await database.advance(HOUR_MS - 120_000)
    expect(await store.wakeDue(100)).toEqual([])
    await database.advance(70_000)
    expect(await store.timeOutWaiting(100)).toEqual([])
    expect(await store.wakeDue(100)).toMatchObject([
      { job: { id: run.id, state: 'queued' }, request: { body: 'hello' } },
    ])
    const { run: second, ids: others } = await parentOf(1)
    await park(second, others)
    await database.advance(2 * HOUR_MS)
    expect(await store.wakeDue(100)).toEqual([])
    expect(await store.timeOutWaiting(100)).toMatchObject([
      { job: { id: second.id, state: 'failed', error: { code: 'timeout' } } },
    ])
    expect((await types(second.id)).at(-1)).toBe('job.failed')
  })

  it('are queued exactly once if their last child ends while the wait begins', async () => {
    for (let round = 0; round < 10; round++) {
      const { run, ids } = await parentOf(2)
      const ends = ids.map(async (id) => {
        await end(id)
        return await store.wake(run.id)
      })
      const [parked, ...woken] = await Promise.all([park(run, ids), ...ends])
      const queued = [parked, ...woken].filter((moved) => moved?.job.state === 'queued')
      expect(queued).toHaveLength(1)
    }
  })

  it('cancel their unfinished children when they end', async () => {
    const { run, ids } = await parentOf(3)
    const [waits = '', runs = '', over = ''] = ids
    await claimed(store, runs, await alive(store))
    await end(over)
    await store.fail(run, { error: ERROR })
    expect((await unsettled()).toSorted()).toEqual([over, run.id].toSorted())
    await store.settle(run.id)
    expect(await unsettled()).toContain(run.id)
    const moved = await store.cancelChildren(run.id, 100)
    expect(moved.map(({ job: { id, state }, events }) => [id, state, events[0]?.type]).toSorted()).toEqual(
      [
        [waits, 'cancelled', 'job.cancelled'],
        [runs, 'in_progress', 'job.cancelling'],
      ].toSorted(),
    )
    expect(await store.cancelChildren(run.id, 100)).toEqual([])
    for (const id of [run.id, over, waits]) await store.settle(id)
    expect(await unsettled()).toEqual([])
    const before = await job(over)
    await store.settle(over)
    expect(await job(over)).toEqual(before)
  })

  describe('with the option of a partial result after a cancel', () => {
    const PARTIAL_MS = 30_000
    const partial = { partialMs: PARTIAL_MS }
    /** Creates a job that has run a step and waits for a child. */
    async function waiting(): Promise<{ id: string; child: string }> {
      const { run, ids } = await parentOf(1, partial)
      await store.addStep(run, step('a'), [])
      await park(next(run), ids)
      return { id: run.id, child: ids[0] ?? '' }
    }
    const owned = async (run: HeldAttempt) => {
      const lease = { role: 'inference', slots: 4, version: 'test', draining: false, leaseMs: 9_000 }
      return (await store.renew({ boot: run.boot, ...lease })).find(({ id }) => id === run.id)
    }

    it('receive a finish request at the first cancel, and a stop request at the second cancel', async () => {
      const run = await running(store, partial)
      expect(await store.cancel(TENANT, run.id)).toMatchObject({
        job: { state: 'in_progress', partial_ms: PARTIAL_MS },
        events: [{ type: 'job.cancelling', data: { partial: true } }],
      })
      expect(await owned(run)).toMatchObject({ isCancelRequested: false, isToWrapUp: true })
      expect((await store.append(run, [DELTA]))?.job.state).toBe('in_progress')
      expect((await store.cancel(TENANT, run.id))?.events).toMatchObject([{ type: 'job.cancelling', data: null }])
      expect(await owned(run)).toMatchObject({ isCancelRequested: true, isToWrapUp: false })
      expect(await store.cancel(TENANT, run.id)).toBeUndefined()
      expect((await store.honourCancel(next(run)))?.job.state).toBe('cancelled')
      const second = await running(store, partial)
      await store.cancel(TENANT, second.id)
      expect((await store.complete(second, { result: 1 }))?.job.state).toBe('completed')
    })

    it('end as cancelled at the first cancel if they have no steps, and otherwise at the second', async () => {
      const { id, child } = await waiting()
      expect((await store.cancel(TENANT, id, 'final'))?.job.state).toBe('cancelled')
      expect((await job(child)).state).toBe('queued')
      const { id: twice } = await waiting()
      await store.cancel(TENANT, twice)
      expect((await store.cancel(TENANT, twice))?.events).toMatchObject([{ type: 'job.cancelled' }])
      const run = await running(store, partial)
      await store.handBack(run)
      expect((await store.cancel(TENANT, run.id))?.job.state).toBe('cancelled')
      const left = await running(store, partial)
      await store.cancel(TENANT, left.id, 'final')
      expect(await owned(left)).toMatchObject({ isCancelRequested: true, isToWrapUp: false })
    })

    it('finish with a partial result even after three concurrent cancels', async () => {
      const run = await running(store, partial)
      const moved = await Promise.all([1, 2, 3].map(() => store.cancel(TENANT, run.id, 'once')))
      expect(moved.filter(Boolean)).toMatchObject([{ events: [{ type: 'job.cancelling', data: { partial: true } }] }])
      expect(await owned(run)).toMatchObject({ isCancelRequested: false, isToWrapUp: true })
    })

    it('are queued at a cancel during a wait, and may run until the time limit', async () => {
      const { id } = await waiting()
      expect(await store.cancel(TENANT, id)).toMatchObject({ job: { state: 'queued' }, request: { body: 'hello' } })
      expect(await store.wake(id)).toBeUndefined()
      const second = await claimed(store, id, await alive(store))
      expect((await store.handBack(second))?.job.state).toBe('queued')
      const third = await claimed(store, id, await alive(store))
      const failed = await store.retry(third, { error: ERROR, delayMs: 0 })
      expect(failed?.job.state).toBe('scheduled')
      await store.startDue(100)
      const fourth = await claimed(store, id, await alive(store))
      expect(
        (
          await park(
            fourth,
            (await store.listChildren(TENANT, id)).map((child) => child.id),
          )
        )?.job.state,
      ).toBe('queued')
      await database.advance(PARTIAL_MS)
      expect(await store.claim(id, await alive(store))).toBeUndefined()
      expect(await store.expire(100)).toMatchObject([
        { job: { id, state: 'cancelled' }, events: [{ type: 'job.cancelled' }] },
      ])
    })

    it.each([
      ['requeues the job', (run: HeldAttempt) => store.handBack(run)],
      ['fails the attempt', (run: HeldAttempt) => store.retry(run, { error: ERROR, delayMs: 0 })],
      ['waits for children', (run: HeldAttempt) => park(run, [])],
    ])('end as cancelled if their worker %s after the time limit', async (_, write) => {
      const run = await running(store, partial)
      await store.cancel(TENANT, run.id)
      await database.advance(PARTIAL_MS)
      expect((await write(run))?.job.state).toBe('cancelled')
    })

    it('are requeued if the worker is lost, and cancelled if the worker exceeds the time limit', async () => {
      const reaper = await alive(store, 'boot_reaper', 3_600_000)
      await store.holdLease('reaper', reaper, 3_600_000)
      const policy = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 10_000 }
      const renew = () => alive(store, 'boot_still')
      const [dead, still] = [await running(store, partial), await running(store, partial, await renew())]
      for (const run of [dead, still]) await store.cancel(TENANT, run.id)
      await database.advance(20_000)
      await renew()
      expect(await store.reap(reaper, policy, 100)).toMatchObject([
        { job: { id: dead.id, state: 'queued', crashes: 1 } },
      ])
      await database.advance(15_000)
      await renew()
      expect(await store.reap(reaper, policy, 100)).toEqual([])
      await database.advance(10_000)
      await renew()
      expect(await store.reap(reaper, policy, 100)).toMatchObject([
        { job: { id: still.id, state: 'cancelled', error: null } },
      ])
    })

    it('keep the time limit for a partial result when they are redriven', async () => {
      const run = await running(store, partial)
      await store.fail(run, { error: ERROR })
      const again = await store.redrive(TENANT, run.id, childJobId(run.id, 'again'))
      expect(again?.job.partial_ms).toBe(PARTIAL_MS)
    })
  })

  it('are counted and listed in state waiting', async () => {
    const { run, ids } = await parentOf(1)
    await park(run, ids)
    expect(await store.depth()).toEqual(
      expect.arrayContaining([expect.objectContaining({ state: 'waiting', count: 1 })]),
    )
    expect((await store.list(TENANT, { limit: 10, states: ['waiting'] })).jobs.map(({ id }) => id)).toEqual([run.id])
  })

  it('are purged together with their children and steps, and no child is purged before its parent', async () => {
    const { run, ids } = await parentOf(2)
    await store.addStep(run, step('a', { output: { blob: 'job_1-x' } }), [])
    for (const id of ids) await end(id)
    await database.advance(HOUR_MS / 2)
    await store.complete(next(run), { result: 1 })
    // The clock of Postgres also advances by real time. The margin of a minute covers a slow machine.
    await database.advance(24 * HOUR_MS - 60_000)
    await store.purge()
    expect(await store.listChildren(TENANT, run.id)).toHaveLength(2)
    await database.advance(61_000)
    const requests: unknown[] = []
    for (let hasMore = true; hasMore; ) {
      const purged = await store.purge()
      requests.push(...purged.requests)
      hasMore = purged.hasMore
    }
    expect(requests).toContainEqual({ blob: 'job_1-x' })
    const left = await database.query(
      `SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM job_steps) + (SELECT count(*) FROM job_events) AS count`,
    )
    expect(Number(left[0]?.count)).toBe(0)
  })

  it('are purged in several steps if the family has 55 parents with children', async () => {
    const keysById = (parent: string, count: number) => {
      const keys = Array.from({ length: count }, (_, nth) => `${nth}`)
      return keys.toSorted((a, b) => (childJobId(parent, a) < childJobId(parent, b) ? -1 : 1))
    }
    const run = await running(store)
    const parents = keysById(run.id, 2_000).slice(0, 55)
    for (const [nth, key] of parents.entries()) await store.submitChild(next(run, nth), childOf(run, key))
    for (const key of parents) {
      const parent = await claimed(store, childJobId(run.id, key), await alive(store))
      await store.submitChild(parent, childOf(parent, keysById(parent.id, 200).at(-1) ?? ''))
      await store.complete(next(parent), { result: 1 })
      await store.cancelChildren(parent.id, 10)
    }
    await store.complete(next(run, parents.length), { result: 1 })
    await database.advance(24 * HOUR_MS + 1_000)
    while ((await store.purge()).hasMore);
    expect(await database.query('SELECT id FROM jobs')).toEqual([])
  })
})
