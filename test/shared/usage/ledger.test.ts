/** Tests the usage ledger on each store: each guarantee of shared/store/records.ts, and the entries of durable jobs. */
import { afterAll, beforeEach, describe, expect, inject, it } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { ModelCatalogue } from '#shared/models/models.ts'
import { newJobId } from '#shared/store/jobs.ts'
import type { UsageEntry, UsageQuery } from '#shared/store/records.ts'
import { ALL_TENANTS, type Store } from '#shared/store/store.ts'
import { enterEnded } from '#shared/usage/enter-ended.ts'
import { dayOf, NOTHING } from '#shared/usage/usage.ts'
import {
  alive,
  claimed,
  newJob,
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
const PRICE = { input_per_million: 2, cached_input_per_million: 0.5, output_per_million: 10, per_call: 0.001 }
const MODELS = new ModelCatalogue([
  ModelConfig.parse({ id: 'echo-1', engine: { type: 'echo' }, price: PRICE }),
  ModelConfig.parse({ id: 'deep-research', pool: 'research', engine: { type: 'research' } }),
])
const ENTRY: UsageEntry = {
  ...{
    project: 'proj',
    keyId: 'key_a',
    model: 'echo-1',
    endpoint: '/v1/chat/completions',
    hour: '2030-01-31T08',
    calls: 1,
    failed: 0,
  },
  ...{ inputTokens: 10, cachedInputTokens: 1, outputTokens: 5, audioMs: 0, costNanos: 7 },
}
const today = dayOf(Date.now())

describe.each(ADAPTERS)('the usage ledger on $name', ({ name, isHere, openDatabase }) => {
  let database: TestDatabase
  let store: Store
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    database ??= await openDatabase()
    await database.reset()
    store = await database.open()
  })
  afterAll(async () => await database?.[Symbol.asyncDispose]())

  const sum = async (groupBy: UsageQuery['groupBy'], project?: string) =>
    await store.usage.sum({ project, from: '2000-01-01', to: '2099-12-31', groupBy, limit: 100 })
  const whole = async () => (await sum('project'))[0]
  async function enterAll() {
    while (await enterEnded(store.usage, MODELS));
  }

  it('adds up concurrent entries of several processes', async () => {
    const entries = Array.from({ length: 20 }, (_, i) => ({ ...ENTRY, keyId: `key_${i}`, model: `m${i % 3}` }))
    const both = [entries, entries.toReversed()]
    await Promise.all([1, 2, 3].flatMap((n) => both.map((rows, i) => store.usage.add(`ing_${n}_${i}`, 1, rows))))
    expect(await sum('project')).toEqual([
      {
        ...{ group: 'proj', calls: 120, failed: 0, inputTokens: 1_200, cachedInputTokens: 120, outputTokens: 600 },
        ...{ audioMs: 0, costNanos: 840 },
      },
    ])
    expect((await sum('key')).map(({ calls }) => calls)).toEqual(Array(20).fill(6))
    expect((await sum('model')).map(({ group }) => group)).toEqual(['m0', 'm1', 'm2'])
  })

  it('merges old hours into days without changing any sum', async () => {
    const embeddings = { ...ENTRY, endpoint: '/v1/embeddings' }
    // On 2030-03-31, many time zones change to summer time. The ledger uses UTC, so this day has 24 hours, too.
    const hours = Array.from({ length: 24 }, (_, nth) => `2030-03-31T${String(nth).padStart(2, '0')}`)
    await store.usage.add('ing', 1, [
      ...hours.map((hour) => ({ ...ENTRY, hour })),
      ...hours.map((hour) => ({ ...embeddings, hour, costNanos: 100 })),
      { ...ENTRY, hour: '2030-04-01T00' },
      { ...ENTRY, hour: '2030-04-01T05' },
    ])
    const days = [
      ['2030-03-31', 48],
      ['2030-04-01', 2],
    ]
    const counts = async (by: UsageQuery['groupBy']) => (await sum(by)).map(({ group, calls }) => [group, calls])
    expect(await counts('day')).toEqual(days)
    expect(await counts('hour')).toHaveLength(26)
    const before = await sum('endpoint')
    expect(before.map(({ group, calls }) => [group, calls])).toEqual([
      ['/v1/chat/completions', 26],
      ['/v1/embeddings', 24],
    ])
    while (await store.usage.mergeHours('2030-04-01T00', 10));
    expect(await counts('hour')).toEqual([
      ['2030-03-31T00', 48],
      ['2030-04-01T00', 1],
      ['2030-04-01T05', 1],
    ])
    expect([await sum('endpoint'), await counts('day')]).toEqual([before, days])
    const twoDays = { from: '2030-03-31', to: '2030-04-01', groupBy: 'endpoint', limit: 9 } as const
    expect(await store.usage.sum(twoDays)).toEqual(before)
    expect((await store.usage.sum({ ...twoDays, groupBy: 'day', limit: 1 })).map(({ group }) => group)).toEqual([
      '2030-03-31',
    ])
    const query = { from: '2030-03-31', to: '2030-03-31', groupBy: 'endpoint', orderBy: 'cost', limit: 1 } as const
    expect((await store.usage.sum(query)).map(({ group }) => group)).toEqual(['/v1/embeddings'])
    const filtered = await store.usage.sum({ ...query, model: 'echo-1', endpoint: ENTRY.endpoint, limit: 9 })
    expect(filtered.map(({ calls }) => calls)).toEqual([24])
  })

  it('returns the last active day of keys and projects, and their recent usage', async () => {
    const old = { ...ENTRY, endpoint: '/v1/chat/completions', hour: '2029-12-01T08', costNanos: 100 }
    await store.usage.add('ing', 1, [
      ENTRY,
      { ...ENTRY, endpoint: '/v1/chat/completions', hour: '2030-01-02T08' },
      old,
      { ...old, keyId: 'key_b' },
    ])
    const of = [
      { owner: 'key', id: 'key_a' },
      { owner: 'key', id: 'key_b' },
      { owner: 'key', id: 'none' },
      { owner: 'project', id: 'proj' },
    ] as const
    expect(await store.usage.activity(of, '2029-11-01', '2030-01-01')).toEqual([
      { lastDay: '2030-01-31', calls: 2, costNanos: 14 },
      { lastDay: '2029-12-01', calls: 0, costNanos: 0 },
      { lastDay: null, calls: 0, costNanos: 0 },
      { lastDay: '2030-01-31', calls: 2, costNanos: 14 },
    ])
    expect(await store.usage.activity(of.slice(1, 2), '2030-01-01', '2030-01-01')).toMatchObject([{ lastDay: null }])
    const ofKey = { from: '2029-01-01', to: '2030-12-31', groupBy: 'day', limit: 10, keyId: 'key_b' } as const
    expect(await store.usage.sum(ofKey)).toMatchObject([{ group: '2029-12-01', calls: 1 }])
    expect(await store.usage.sum({ ...ofKey, project: 'other' })).toEqual([])
  })

  it('returns the sums of only the requested project and days', async () => {
    await store.usage.add('ing', 1, [
      ENTRY,
      { ...ENTRY, endpoint: '/v1/chat/completions', hour: '2030-02-01T08' },
      { ...ENTRY, project: 'other' },
    ])
    expect((await sum('day', 'proj')).map(({ group, calls }) => [group, calls])).toEqual([
      ['2030-01-31', 1],
      ['2030-02-01', 1],
    ])
    const of = [
      { owner: 'project', id: 'proj' },
      { owner: 'key', id: 'key_a' },
      { owner: 'key', id: 'none' },
    ] as const
    const spent = await store.usage.spent(of, '2030-01-01', '2030-01-31')
    expect(spent.map(({ costNanos }) => costNanos)).toEqual([7, 14, 0])
  })

  it('returns the spending of many projects and keys in the requested order', async () => {
    await store.usage.add('ing', 1, [ENTRY, { ...ENTRY, keyId: 'key_199' }])
    const of = Array.from({ length: 200 }, (_, i) => ({ owner: 'key', id: `key_${i}` }) as const)
    let turns = 0
    const count = () => {
      turns++
      counter = setImmediate(count)
    }
    let counter = setImmediate(count)
    const spent = await store.usage.spent(of, '2030-01-01', '2030-01-31')
    const active = await store.usage.activity(of, '2030-01-01', '2030-01-01')
    clearImmediate(counter)
    expect([spent.map(({ id }) => id), spent[199]?.costNanos, active[199]?.calls]).toEqual([
      of.map(({ id }) => id),
      7,
      1,
    ])
    if (name === 'sqlite') expect(turns).toBeGreaterThanOrEqual(of.length)
  })

  it('counts each ended durable job once for its key, even if several processes record the job', async () => {
    const done = await running(store, { tenant: 'proj', keyId: 'key_a' })
    const metered = { ...NOTHING, input_tokens: 1_000, cached_tokens: 400, output_tokens: 100 }
    await store.complete(done, { result: {}, metered })
    const failed = await running(store, { tenant: 'proj', keyId: 'key_a' })
    const error = { code: 'upstream_error', message: 'It failed.', param: null } as const
    await store.fail(failed, { error, metered: { ...NOTHING, input_tokens: 10 } })
    const job = newJob({ tenant: 'proj', keyId: 'key_b' })
    await store.create(job)
    await store.cancel('proj', job.id)
    await Promise.all([enterAll(), enterAll(), enterAll()])
    await enterAll()
    expect(await whole()).toEqual({
      ...{
        group: 'proj',
        calls: 3,
        failed: 1,
        inputTokens: 1_010,
        cachedInputTokens: 400,
        outputTokens: 100,
        audioMs: 0,
      },
      // Cost in billionths of a dollar. The completed call costs 600 × 2 + 400 × 0.5 + 100 × 10 millionths for its tokens, and a thousandth for
      // the call. The failed call costs 10 × 2 millionths.
      costNanos: 2_400_000 + 1_000_000 + 20_000,
    })
    expect((await sum('key')).map(({ group, calls }) => [group, calls])).toEqual([
      ['key_a', 2],
      ['key_b', 1],
    ])
    expect((await sum('day')).map(({ group }) => group)).toEqual([today])
    expect(await store.usage.listEnded(10)).toEqual([])
  })

  it('counts each request of a batch as a call, but not the batch job', async () => {
    const lane = { tenant: 'proj', keyId: 'key_a', pool: 'batches', kind: 'batch', model: 'batch' } as const
    await store.complete(await running(store, lane), { result: {}, metered: NOTHING })
    await store.complete(await running(store, { tenant: 'proj', keyId: 'key_a' }), { result: {}, metered: NOTHING })
    await enterAll()
    expect((await sum('model')).map(({ group, calls }) => [group, calls])).toEqual([['echo-1', 1]])
    expect(await store.usage.listEnded(10)).toEqual([])
  })

  it('counts the tokens of a research job at its child jobs, and the searches at the job itself', async () => {
    const research = {
      tenant: 'proj',
      keyId: 'key_a',
      pool: 'research',
      kind: 'research',
      model: 'deep-research',
    } as const
    const run = await running(store, research)
    const id = newJobId()
    const child = {
      id,
      pool: 'inference',
      kind: 'generate',
      endpoint: '/v1/chat/completions',
      model: 'echo-1',
    } as const
    await store.submitChild(run, { ...child, request: {}, deadlineInMs: 60_000 })
    const held = await claimed(store, id, await alive(store))
    await store.complete(held, { result: {}, metered: { ...NOTHING, input_tokens: 500, output_tokens: 50 } })
    const metered = { ...NOTHING, input_tokens: 500, output_tokens: 50, cost_nanos: 3_000 }
    await store.complete({ ...run, chunk: 1 }, { result: {}, metered })
    await enterAll()
    expect(await sum('model')).toMatchObject([
      { group: 'deep-research', calls: 1, inputTokens: 0, costNanos: 3_000 },
      { group: 'echo-1', calls: 1, inputTokens: 500, outputTokens: 50, costNanos: 1_000_000 + 500_000 + 1_000_000 },
    ])
    expect((await sum('key')).map(({ group }) => group)).toEqual(['key_a'])
  })

  it('counts a redriven job as a second call', async () => {
    const run = await running(store, { tenant: 'proj', keyId: 'key_a' })
    await store.fail(run, { error: { code: 'internal_error', message: 'x', param: null } })
    const again = newJobId()
    await store.redrive(ALL_TENANTS, run.id, again)
    await store.complete(await claimed(store, again, await alive(store)), { result: {} })
    await enterAll()
    expect(await sum('key')).toMatchObject([{ group: 'key_a', calls: 2, failed: 1 }])
  })
})

describe.skipIf(!postgres)('a write of ledger entries whose response was lost', () => {
  it('is counted once if it is sent again', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    for (const batch of [1, 1, 2, 2, 1]) await store.usage.add('ing', batch, [ENTRY])
    await store.usage.add('other', 1, [ENTRY])
    const sums = await store.usage.sum({ from: '2030-01-01', to: '2030-12-31', groupBy: 'project', limit: 10 })
    expect(sums.map(({ calls }) => calls)).toEqual([3])
  })
})
