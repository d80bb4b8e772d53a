/** Tests the queries and actions of operators in the store, on each adapter. */
import { afterAll, beforeEach, describe, expect, inject, it } from 'vitest'
import { newJobId, type OperatorJobs } from '#shared/store/jobs.ts'
import type { NewJob, Store } from '#shared/store/store.ts'
import {
  alive,
  claimed,
  newJob,
  openPostgresDatabase,
  openSqliteDatabase,
  type TestDatabase,
} from '../../support/jobs/stores.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
]
const ERROR = { code: 'upstream_error', message: 'The upstream failed.', param: null } as const
const HOUR_MS = 3_600_000

describe.each(ADAPTERS)('the operator queries of the store on $name', ({ isHere, openDatabase }) => {
  let database: TestDatabase
  let store: Store
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    database ??= await openDatabase()
    await database.reset()
    store = await database.open()
  })
  afterAll(async () => await database?.[Symbol.asyncDispose]())

  const startMs = Date.now() - 60_000
  /** Creates a job. A job with a higher number is newer. */
  async function create(nth: number, changes: Partial<NewJob> = {}): Promise<string> {
    const id = newJobId(startMs + nth * 1_000)
    await store.create(newJob({ id, ...changes }))
    return id
  }
  async function fail(id: string): Promise<void> {
    const owner = await alive(store)
    await store.fail(await claimed(store, id, owner), { error: ERROR })
  }
  const ids = async (query: Partial<OperatorJobs> = {}) =>
    (await store.operator.listJobs({ limit: 100, ...query })).jobs.map(({ id }) => id)

  it('list the jobs of all tenants, newest first, by tenant, pool, model, state and time', async () => {
    const first = await create(1)
    const failed = await create(2, { tenant: 'key_b' })
    const other = await create(3, { pool: 'embeddings', model: 'embed-1' })
    const later = await create(4, { tenant: 'key_b', runAtMs: Date.now() + HOUR_MS })
    const done = await create(5)
    await fail(failed)
    const owner = await alive(store)
    await store.complete(await claimed(store, done, owner), { result: 1 })
    await claimed(store, other, owner)
    expect(await ids()).toEqual([done, later, other, failed, first])
    expect(await ids({ tenant: 'key_b' })).toEqual([later, failed])
    expect(await ids({ tenant: 'key_b', states: ['failed', 'completed'] })).toEqual([failed])
    expect(await ids({ states: ['failed'] })).toEqual([failed])
    expect(await ids({ states: ['queued', 'scheduled', 'in_progress'] })).toEqual([later, other, first])
    expect(await ids({ states: ['queued', 'completed'] })).toEqual([done, first])
    expect(await ids({ states: ['waiting', 'cancelled', 'expired'] })).toEqual([])
    expect(await ids({ model: 'embed-1' })).toEqual([other])
    expect(await ids({ pool: 'embeddings', states: ['queued'] })).toEqual([])
    expect(await ids({ sinceMs: startMs + 3_500 })).toEqual([done, later])
    await store.erase('key_b', failed)
    expect(await ids({ states: ['failed'] })).toEqual([])
    expect(await ids({ tenant: 'key_b' })).toEqual([later])
  })

  it.each([
    { of: 'all tenants', query: {} },
    { of: 'one tenant', query: { tenant: 'key_a' } },
    { of: 'one state', query: { states: ['queued'] as const } },
    { of: 'a model', query: { model: 'echo-1' } },
  ])('list each job of $of exactly once over several pages', async ({ query }) => {
    const all: string[] = []
    for (let nth = 0; nth < 7; nth++) all.unshift(await create(nth))
    const seen: string[] = []
    for (let after: string | undefined, pages = 0; pages < 10; pages++) {
      const { jobs, next } = await store.operator.listJobs({ limit: 3, after, ...query })
      seen.push(...jobs.map(({ id }) => id))
      if (next === null) break
      after = next
    }
    expect(seen).toEqual(all)
  })

  it('count the older jobs of equal kind, model and priority', async () => {
    const [first, , third] = [await create(1), await create(2), await create(3)]
    await create(0, { model: 'echo-2' })
    await create(0, { priority: 'low' })
    const work = { pool: 'inference', kind: 'generate', model: 'echo-1', priority: 'normal' } as const
    expect(await store.operator.countAhead({ id: first, ...work })).toBe(0)
    expect(await store.operator.countAhead({ id: third, ...work })).toBe(2)
  })

  it('list webhook deliveries by state, and schedule another attempt of a failed delivery', async () => {
    const webhook = { url: 'https://example.com/a-secret', events: ['job.failed'] }
    const [given, pending] = [await create(1, { webhook }), await create(2, { webhook, tenant: 'key_b' })]
    for (const id of [given, pending]) await fail(id)
    const listed = async (state?: 'pending' | 'failed' | 'delivered' | 'all', tenant?: string) =>
      (await store.operator.listDeliveries({ limit: 10, state, tenant })).deliveries
    const taken = (await store.takeDeliveries(10, 30_000)).find(({ job_id }) => job_id === given)
    if (!taken) throw new Error('no delivery is due')
    const tried = { at_ms: 1, duration_ms: 12, status: 500, error: 'It is broken.' }
    const broken = { state: 'failed', status: 500, error: 'It is broken.' } as const
    await store.recordDelivery(taken, broken, [tried])
    expect((await listed()).map(({ job_id }) => job_id)).toEqual([pending, given])
    expect(await listed('failed')).toMatchObject([{ id: taken.id, status: 500, tries: 1, history: [tried] }])
    expect(await listed('pending', 'key_a')).toEqual([])
    const page = await store.operator.listDeliveries({ limit: 1 })
    const rest = await store.operator.listDeliveries({ limit: 1, after: page.next ?? '' })
    expect(rest).toMatchObject({ next: null, deliveries: [{ job_id: given }] })
    expect(await store.operator.retryDelivery(taken.id)).toMatchObject({ state: 'pending', tries: 0 })
    const [again] = await store.takeDeliveries(10, 30_000)
    if (!again) throw new Error('no delivery is due')
    expect(again).toMatchObject({ id: taken.id, tries: 0, history: [tried] })
    expect(await listed('delivered')).toEqual([])
    await store.recordDelivery(again, { state: 'delivered', status: 200 }, [tried])
    expect(await listed('delivered')).toMatchObject([{ id: taken.id, status: 200, error: null }])
    expect(await listed('delivered', 'key_b')).toEqual([])
    expect((await listed()).map(({ job_id }) => job_id)).toEqual([pending])
    expect((await listed('all')).map(({ job_id }) => job_id)).toEqual([pending, given])
    expect(await store.operator.retryDelivery(taken.id)).toBeUndefined()
    expect(await store.operator.retryDelivery('evt_unknown')).toBeUndefined()
  })

  it('store at most one pause per model or pool, until the model or pool is resumed', async () => {
    const [model, pool] = [{ target: 'model', id: 'echo-1' } as const, { target: 'pool', id: 'code' } as const]
    await store.operator.pause(model, 'key_1')
    await store.operator.pause(model, 'key_2')
    await store.operator.pause(pool, 'key_2')
    expect(await store.operator.listPauses()).toMatchObject(
      expect.arrayContaining([
        expect.objectContaining({ ...model, by: 'key_1' }),
        expect.objectContaining({ ...pool, by: 'key_2' }),
      ]),
    )
    await store.operator.resume(model)
    await store.operator.resume(model)
    expect(await store.operator.listPauses()).toMatchObject([pool])
  })
})
