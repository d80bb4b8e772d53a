/** Tests of the request log that every store adapter must pass. */
import { afterAll, beforeEach, describe, expect, inject, it } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { ModelCatalogue } from '#shared/models/models.ts'
import { childJobId } from '#shared/store/jobs.ts'
import type { RequestPage, RequestQuery, RequestRow } from '#shared/store/requests.ts'
import type { Store } from '#shared/store/store.ts'
import { enterEnded } from '#shared/usage/enter-ended.ts'
import {
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
const HOUR_MS = 3_600_000
const PRICE = { input_per_million: 2, output_per_million: 10 }
const MODELS = new ModelCatalogue([ModelConfig.parse({ id: 'echo-1', engine: { type: 'echo' }, price: PRICE })])
const ERROR = { code: 'upstream_error', message: '', param: null } as const

describe.each(ADAPTERS)('the request log on $name', ({ isHere, openDatabase }) => {
  let database: TestDatabase
  let store: Store
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    database ??= await openDatabase()
    await database.reset()
    store = await database.open()
  })
  afterAll(async () => await database?.[Symbol.asyncDispose]())

  const now = Date.now()
  const row = (id: string, changes: Partial<RequestRow> = {}): RequestRow => ({
    ...{ id, project: 'alice', keyId: 'key_1', endpoint: '/v1/chat/completions', kind: 'generate', model: 'm1' },
    ...{ worker: 'inf_1', server: '1', status: 200, errorCode: null, startedAtMs: now - 1_000, endedAtMs: now - 900 },
    ...{ queueMs: 1, firstOutputMs: 20, durationMs: 100, inputTokens: 7, cachedInputTokens: 2, outputTokens: 3 },
    ...{ costNanos: 5, attempts: 1, jobId: null, batchId: null, traceId: 'f'.repeat(32), userAgent: 'test/1' },
    ...{ errorMessage: null, errorParam: null, upstreamMessage: null, failedAttempts: null, sdkRetry: null },
    ...{ unknownParameters: null, formatIgnored: null },
    ...{ batchCalls: null, batchFailed: null },
    ...changes,
  })
  const idsOf = ({ rows }: RequestPage) => rows.map(({ id }) => id)
  const list = async (query: Partial<RequestQuery> = {}) => await store.requests.list({ limit: 10, ...query })
  const ids = async (query: Partial<RequestQuery> = {}) => idsOf(await list(query))

  async function all(query: Partial<RequestQuery> = {}): Promise<string[]> {
    const page = await list({ limit: 100, ...query })
    return page.next ? [...idsOf(page), ...(await all({ ...query, after: page.next }))] : idsOf(page)
  }

  it('returns each field as it was recorded', async () => {
    const full = row('req_1', {
      jobId: 'job_1',
      batchId: 'job_2',
      status: 503,
      errorCode: 'overloaded',
      errorMessage: 'Try\'é"',
      errorParam: 'a[0]',
      upstreamMessage: 'Out of memory.',
      sdkRetry: 2,
      unknownParameters: 'temprature, top_a',
      formatIgnored: 'json',
      batchCalls: 40,
      batchFailed: 4,
      failedAttempts: '[{"attempt":1}]',
    })
    const bare = row('req_2', {
      ...{
        kind: null,
        model: null,
        worker: null,
        server: null,
        queueMs: null,
        firstOutputMs: null,
        traceId: null,
        userAgent: null,
      },
      endedAtMs: now - 800,
    })
    await store.requests.add([full, bare])
    expect((await list()).rows).toEqual([bare, full])
    expect(await store.requests.find('req_1')).toEqual(full)
    expect(await store.requests.find('req_1', 'alice')).toEqual(full)
    expect(await store.requests.find('req_1', 'bob')).toBeUndefined()
    expect(await store.requests.find('req_3')).toBeUndefined()
  })

  it('filters by each field, alone and together', async () => {
    await store.requests.add([
      row('req_1', { model: 'm2', durationMs: 5_000 }),
      row('req_2', { project: 'bob', keyId: 'key_2', server: '0', endedAtMs: now - 800 }),
      row('req_3', { status: 429, errorCode: 'rate_limit_exceeded', endpoint: '/v1/embeddings', endedAtMs: now - 700 }),
      row('req_4', { status: 503, errorCode: 'overloaded', project: 'bob', keyId: 'key_2', endedAtMs: now - 600 }),
      row('req_5', { jobId: 'job_5', batchId: 'job_9', endedAtMs: now - 500 }),
    ])
    expect(await ids()).toEqual(['req_5', 'req_4', 'req_3', 'req_2', 'req_1'])
    expect(await ids({ project: 'bob' })).toEqual(['req_4', 'req_2'])
    expect(await ids({ keyId: 'key_1' })).toEqual(['req_5', 'req_3', 'req_1'])
    expect(await ids({ model: 'm2' })).toEqual(['req_1'])
    expect(await ids({ endpoint: '/v1/embeddings' })).toEqual(['req_3'])
    expect(await ids({ server: '0' })).toEqual(['req_2'])
    expect(await ids({ statuses: [400, 599] })).toEqual(['req_4', 'req_3'])
    expect(await ids({ statuses: [500, 599], project: 'bob' })).toEqual(['req_4'])
    expect(await ids({ statuses: [200, 299], project: 'bob' })).toEqual(['req_2'])
    expect(await ids({ errorCode: 'rate_limit_exceeded' })).toEqual(['req_3'])
    expect(await ids({ jobId: 'job_5' })).toEqual(['req_5'])
    expect(await ids({ jobId: 'job_5', project: 'bob' })).toEqual([])
    expect(await ids({ batchId: 'job_9' })).toEqual(['req_5'])
    const isWithoutLines = true
    expect(await ids({ isWithoutLines })).toEqual(['req_4', 'req_3', 'req_2', 'req_1'])
    expect(await ids({ isWithoutLines, project: 'alice' })).toEqual(['req_3', 'req_1'])
    expect(await ids({ isWithoutLines, model: 'm1' })).toEqual(['req_4', 'req_3', 'req_2'])
    expect(await ids({ isWithoutLines, statuses: [200, 299], keyId: 'key_1' })).toEqual(['req_1'])
    expect(await ids({ durationMsMin: 5_000 })).toEqual(['req_1'])
    expect(await ids({ sinceMs: now - 700, untilMs: now - 500 })).toEqual(['req_4', 'req_3'])
    expect(await ids({ model: 'm1', project: 'alice', keyId: 'key_1', statuses: [429, 429], sinceMs: 0 })).toEqual([
      'req_3',
    ])
    expect(await ids({ model: "m1' OR TRUE --" })).toEqual([])
    await store.requests.add([row('req_6', { sdkRetry: 1 }), row('req_7', { sdkRetry: 2 })])
    expect(await ids({ project: 'alice', sdkRetry: 1 })).toEqual(['req_6'])
  })

  it('counts the requests that match a query, up to the maximum of a count', async () => {
    expect([await store.requests.startsAtMs(), await store.requests.count({})]).toEqual([
      undefined,
      { count: 0, isLowerBound: false },
    ])
    await store.requests.add([
      ...[row('req_1'), row('req_2', { status: 502 }), row('req_3', { project: 'bob', endedAtMs: now - HOUR_MS })],
    ])
    const countOf = async (query: object) => (await store.requests.count(query)).count
    expect(await countOf({})).toBe(3)
    expect(await countOf({ project: 'alice', isFailed: true })).toBe(1)
    expect(await countOf({ model: 'm1', sinceMs: now - 60_000 })).toBe(2)
    expect(await store.requests.startsAtMs(), 'end of the oldest request').toBe(now - HOUR_MS)
    for (let nth = 0; nth < 3; nth++) {
      const rows = Array.from({ length: 3_500 }, (_, of) => row(`req_${nth}_${of}`, { project: 'busy' }))
      await store.requests.add(rows)
    }
    expect(await store.requests.count({ project: 'busy' })).toEqual({ count: 10_000, isLowerBound: true })
    expect(await store.requests.count({ project: 'busy', keyId: 'key_1' }), 'with a filter without an index').toEqual({
      ...{ count: 10_000, isLowerBound: true },
    })
  })

  it('counts the outcomes of recent calls, for one project or for all projects', async () => {
    const failed = { status: 502, errorCode: 'upstream_error' }
    await store.requests.add([
      ...[row('req_1'), row('req_2', { endedAtMs: now - 800 }), row('req_3', { ...failed, errorMessage: 'Down.' })],
      row('req_4', { ...failed, project: 'bob', model: null, worker: null }),
      row('req_5', { endedAtMs: now - HOUR_MS }),
    ])
    const times = {
      isRun: true,
      notSent: 0,
      firstEndedAtMs: now - 900,
      lastEndedAtMs: now - 900,
      message: null,
      messageCalls: 1,
    }
    const ofAlice = [
      {
        ...{ project: 'alice', keyId: 'key_1', model: 'm1', status: 200, errorCode: null, calls: 2, ...times },
        ...{ lastEndedAtMs: now - 800, newestId: 'req_2', messageCalls: 2 },
      },
      {
        project: 'alice',
        keyId: 'key_1',
        model: 'm1',
        ...failed,
        calls: 1,
        ...times,
        newestId: 'req_3',
        message: 'Down.',
      },
    ]
    const sinceMs = now - 60_000
    expect(await store.requests.outcomes({ sinceMs, project: 'alice' })).toEqual({ outcomes: ofAlice, next: null })
    const { outcomes } = await store.requests.outcomes({ sinceMs })
    expect(outcomes).toHaveLength(3)
    const ofBob = {
      ...failed,
      project: 'bob',
      keyId: 'key_1',
      model: null,
      calls: 1,
      ...times,
      isRun: false,
      newestId: 'req_4',
    }
    expect(outcomes).toEqual(expect.arrayContaining([...ofAlice, ofBob]))
    const ofFailed = await store.requests.outcomes({ statuses: [400, 599], keyId: 'key_1', model: 'm1' })
    expect(ofFailed.outcomes).toEqual([ofAlice[1]])
  })

  it('counts the most frequent error message of an outcome', async () => {
    const failed = { status: 502, errorCode: 'upstream_error' }
    await store.requests.add([
      row('req_1', { ...failed, errorMessage: 'HTTP 500', upstreamMessage: 'Out of memory.', endedAtMs: now - 900 }),
      row('req_2', { ...failed, errorMessage: 'HTTP 500', upstreamMessage: 'Out of memory.', endedAtMs: now - 800 }),
      row('req_3', { ...failed, errorMessage: 'HTTP 500', endedAtMs: now - 700 }),
      row('req_4', { ...failed, errorMessage: 'Refused', endedAtMs: now - 600 }),
    ])
    const counted = async (hasUpstreamMessages: boolean) =>
      (await store.requests.outcomes({ statuses: [400, 599] }, hasUpstreamMessages)).outcomes
    const all = { calls: 4, firstEndedAtMs: now - 900, lastEndedAtMs: now - 600 }
    expect(await counted(false)).toMatchObject([{ ...all, message: 'HTTP 500', messageCalls: 3, newestId: 'req_3' }])
    expect(await counted(true)).toMatchObject([
      { ...all, message: 'Out of memory.', messageCalls: 2, newestId: 'req_2' },
    ])
  })

  it('is paged without gaps or repetitions, even if rows have equal times', async () => {
    const all = Array.from({ length: 25 }, (_, nth) =>
      row(`req_${nth + 100}`, { endedAtMs: now - 500 + Math.floor(nth / 10) }),
    )
    await store.requests.add(all)
    for (const query of [{}, { project: 'alice' }, { keyId: 'key_1' }, { statuses: [200, 299] as const }]) {
      const seen: string[] = []
      for (
        let page = await list({ ...query, limit: 4 });
        ;
        page = await list({ ...query, limit: 4, after: page.next ?? undefined })
      ) {
        seen.push(...idsOf(page))
        if (!page.next) break
      }
      expect(seen.toSorted()).toEqual(all.map(({ id }) => id))
      expect(seen[0]?.localeCompare('req_119')).toBe(1)
    }
  })

  it('can be paged from the oldest request to the newest', async () => {
    const all = Array.from({ length: 5 }, (_, nth) => row(`req_${nth}`, { sdkRetry: 1, endedAtMs: now - 500 + nth }))
    await store.requests.add(all)
    const query = { project: 'alice', sdkRetry: 1, isOldestFirst: true, limit: 3 }
    const first = await list(query)
    expect(idsOf(first)).toEqual(['req_0', 'req_1', 'req_2'])
    expect(await ids({ ...query, after: first.next ?? undefined })).toEqual(['req_3', 'req_4'])
  })

  it('deletes the bodies of requests after the retention period, and the oldest bodies above the maximum number', async () => {
    const bodies = (id: string, atMs: number, answer: string | null = '{"a":"\\u0000é"}') => {
      const previews = { promptPreview: `prompt of ${id}`, answerPreview: answer && 'é' }
      return { id, atMs, expiresAtMs: null, request: '{"model":"m1"}', answer, ...previews }
    }
    const added = [bodies('req_1', now - 2 * HOUR_MS), bodies('req_2', now - 900, null), bodies('req_3', now - 800)]
    await store.requests.addBodies(added)
    expect(await store.requests.findBodies('req_1')).toEqual(added[0])
    expect(await store.requests.findBodies('req_2')).toEqual(added[1])
    expect(await store.requests.findBodies('req_4')).toBeUndefined()
    expect(await store.requests.previews(['req_2', 'req_4', 'req_1'])).toHaveLength(2)
    expect(await store.requests.previews(['req_2'])).toEqual([
      { id: 'req_2', promptPreview: 'prompt of req_2', answerPreview: null },
    ])
    const kept = async () => {
      const found = await Promise.all(added.map(({ id }) => store.requests.findBodies(id)))
      return found.map((body) => body !== undefined)
    }
    const requests = { keepMs: 24 * HOUR_MS, rowsMax: 1_000 }
    await store.purge(requests)
    expect(await kept()).toEqual([true, true, true])
    await store.purge({ ...requests, bodies: { keepMs: HOUR_MS, rowsMax: 1_000 } })
    expect(await kept()).toEqual([false, true, true])
    await store.purge({ ...requests, bodies: { keepMs: HOUR_MS, rowsMax: 1 } })
    expect(await kept()).toEqual([false, false, true])
    await store.purge({ ...requests, bodies: { keepMs: 0, rowsMax: 1 } })
    expect(await kept()).toEqual([false, false, false])
  })

  it('deletes bodies that have an expiry time only after that time', async () => {
    const bodies = (id: string, expiresAtMs: number | null) => {
      const previews = { promptPreview: null, answerPreview: null }
      return { id, atMs: now - HOUR_MS, expiresAtMs, request: '{}', answer: null, ...previews }
    }
    const added = [bodies('req_1', now - 1), bodies('req_2', now + HOUR_MS), bodies('req_3', null)]
    await store.requests.addBodies(added)
    expect(await store.requests.findBodies('req_2')).toEqual(added[1])
    const kept = async () => {
      const found = await Promise.all(added.map(({ id }) => store.requests.findBodies(id)))
      return found.map((body) => body !== undefined)
    }
    const requests = { keepMs: 24 * HOUR_MS, rowsMax: 1_000 }
    await store.purge({ ...requests, bodies: { keepMs: 24 * HOUR_MS, rowsMax: 1_000 } })
    expect(await kept()).toEqual([false, true, true])
    await store.purge({ ...requests, bodies: { keepMs: 0, rowsMax: 1_000 } })
    expect(await kept()).toEqual([false, true, false])
  })

  it('ignores rows that are sent twice', async () => {
    if (store.name === 'sqlite') return
    await store.requests.add([row('req_1')])
    await store.requests.add([row('req_1'), row('req_2')])
    expect((await ids()).toSorted()).toEqual(['req_1', 'req_2'])
  })

  it('deletes rows after the retention period, and the oldest rows above the maximum number', async () => {
    const rows = Array.from({ length: 300 }, (_, nth) =>
      row(`req_${nth + 100}`, { endedAtMs: now - 2 * HOUR_MS + nth }),
    )
    await store.requests.add([...rows, row('req_new')])
    await store.purge({ keepMs: 3 * HOUR_MS, rowsMax: 1_000 })
    expect(await all()).toHaveLength(301)
    while ((await store.purge({ keepMs: 3 * HOUR_MS, rowsMax: 11 })).hasMore);
    expect(await all()).toEqual([
      'req_new',
      ...rows
        .slice(-10)
        .map(({ id }) => id)
        .reverse(),
    ])
    while ((await store.purge({ keepMs: HOUR_MS, rowsMax: 1_000 })).hasMore);
    expect(await ids()).toEqual(['req_new'])
    while ((await store.purge({ keepMs: 0, rowsMax: 0 })).hasMore);
    expect(await ids()).toEqual([])
  })

  it('has one row per ended durable job, with usage and cost', async () => {
    const metered = { input_tokens: 100, cached_tokens: 0, output_tokens: 10, audio_ms: 0, run_ms: 0, cost_nanos: 0 }
    const trace = 'a'.repeat(32)
    const done = await running(store, {
      requestId: 'req_done',
      keyId: 'key_1',
      traceparent: `00-${trace}-${'b'.repeat(16)}-01`,
    })
    await store.complete(done, { result: 1, usage: null, metered })
    const failed = await running(store, { requestId: 'req_failed' })
    await store.fail(failed, { error: ERROR })
    const cancelled = newJob({ requestId: 'req_cancelled', runAtMs: Date.now() + HOUR_MS })
    await store.create(cancelled)
    await store.cancel(cancelled.tenant, cancelled.id)
    const both = await Promise.all([1, 2].map(() => enterEnded(store.usage, MODELS)))
    expect(both).toEqual([false, false])
    const rows = Object.fromEntries((await list()).rows.map((one) => [one.id, one]))
    expect(Object.keys(rows).toSorted()).toEqual(['req_cancelled', 'req_done', 'req_failed'])
    expect(rows.req_done).toMatchObject({
      ...{ status: 200, errorCode: null, keyId: 'key_1', model: 'echo-1', kind: 'generate', attempts: 1 },
      ...{ inputTokens: 100, outputTokens: 10, costNanos: 300_000, jobId: done.id, traceId: trace, worker: done.boot },
    })
    expect(rows.req_done?.queueMs).toBeGreaterThanOrEqual(0)
    expect(rows.req_failed).toMatchObject({ status: 502, errorCode: 'upstream_error' })
    expect(rows.req_cancelled).toMatchObject({ status: 499, errorCode: 'job_cancelled', attempts: 0, queueMs: null })
    expect(await ids({ jobId: done.id })).toEqual(['req_done'])
  })

  it('has one row per line of a batch, and none for the batch or for the parts of the batch', async () => {
    const batch = await running(store, { requestId: 'req_batch', pool: 'batches', kind: 'batch', model: 'batch' })
    const partId = childJobId(batch.id, '0')
    const common = { endpoint: '/v1/chat/completions', request: null }
    await store.submitChild(batch, { id: partId, pool: 'batches', kind: 'batch_part', model: 'batch', ...common })
    const part = await claimed(store, partId, batch.boot)
    const lineId = childJobId(partId, '1')
    await store.submitChild(part, { id: lineId, pool: 'inference', kind: 'generate', model: 'echo-1', ...common })
    await store.complete(await claimed(store, lineId, batch.boot), { result: 1 })
    await store.complete({ ...part, chunk: 1 }, { result: 1 })
    await enterEnded(store.usage, MODELS)
    expect((await list()).rows).toMatchObject([{ id: lineId, jobId: lineId, batchId: batch.id }])
  })

  it('has no row of a durable job that ended while the log was turned off', async () => {
    await store.complete(await running(store, { requestId: 'req_1' }), { result: 1 })
    await enterEnded(store.usage, MODELS, { isLogged: false })
    expect(await ids()).toEqual([])
  })
})
