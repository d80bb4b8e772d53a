/**
 * Tests that every store adapter must pass. The tests cover each guarantee in `store.ts` and each condition of docs/internals/protocol.md, State
 * transitions, including refusals.
 *
 * Tests of single adapters are in sqlite.test.ts and postgres.test.ts.
 */
import { afterAll, beforeEach, describe, expect, inject, it } from 'vitest'
import { DurableEvent, DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import { childJobId, newJobId, REAPER_LEASE } from '#shared/store/jobs.ts'
import { ALL_TENANTS, type HeldAttempt, type IdempotencyKey, type NewJob, type Store } from '#shared/store/store.ts'
import {
  alive,
  claimed,
  HOUR_MS,
  LEASE_MS,
  newJob,
  openPooledDatabase,
  openPostgresDatabase,
  openSqliteDatabase,
  running,
  type TestDatabase,
} from '../../support/jobs/stores.ts'
import { startPgBouncer, whyNoPgBouncer } from '../../support/processes/pgbouncer.ts'
import { until } from '../../support/stack.ts'

const postgres = inject('postgres')
const noPooler = postgres ? whyNoPgBouncer() : 'no Postgres'
if (noPooler && process.env.CI === 'true') throw new Error(`The store behind PgBouncer cannot be tested: ${noPooler}`)
const pooler = noPooler === undefined ? await startPgBouncer(postgres ?? '', 'transaction') : undefined
afterAll(async () => await pooler?.[Symbol.asyncDispose]())
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
  {
    name: 'postgres behind PgBouncer in transaction mode',
    isHere: pooler !== undefined,
    openDatabase: () => openPooledDatabase(postgres ?? '', pooler?.url ?? ''),
  },
]
const ERROR: ErrorBody = { code: 'upstream_error', message: 'The upstream failed.', param: null }
const POLICY = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 5_000 }
const KEY: IdempotencyKey = { scope: 'POST /v1/jobs', key: 'k', fingerprint: 'f', keepMs: 24 * HOUR_MS }
const TENANT = 'key_a'
const delta = (text: string) => ({ type: 'job.output.delta' as const, data: { text } })
const next = (run: HeldAttempt): HeldAttempt => ({ ...run, chunk: run.chunk + 1 })

describe.each(ADAPTERS)('the store on $name', ({ isHere, openDatabase }) => {
  let database: TestDatabase
  let store: Store
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres or no PgBouncer')
    database ??= await openDatabase()
    await database.reset()
    store = await database.open()
  })
  afterAll(async () => await database?.[Symbol.asyncDispose]())

  const job = async (id: string) => (await store.find(TENANT, id)) as DurableJob
  const types = async (id: string) => (await store.listEvents(TENANT, id, 0, 100)).map(({ type }) => type)
  /**
   * Takes the lease of the sweep, and keeps it for as long as the lease of a process lasts. The processes in `boots` renew their leases during
   * this time; the leases of all others expire.
   */
  async function watch(...boots: string[]) {
    await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
    for (let waited = 0; waited < LEASE_MS; waited += 3_000) {
      await database.advance(3_000)
      for (const boot of boots) await alive(store, boot)
      await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
    }
  }
  const reap = (holder = 'scheduler', policy = POLICY) => store.reap(holder, policy, 100)
  /** Purges until nothing is left. Returns the requests of the deleted jobs. */
  async function purgeAll() {
    const requests: unknown[] = []
    for (let hasMore = true; hasMore; ) {
      const purged = await store.purge()
      requests.push(...purged.requests)
      hasMore = purged.hasMore
    }
    return requests
  }
  /** Simulates the loss of a worker. The job is then requeued by the lease sweep. */
  async function lose(run: HeldAttempt) {
    await store.deregister(run.boot)
    await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
    return (await reap()).find(({ job: { id } }) => id === run.id)
  }

  describe('a new job', () => {
    it('can be read at once, together with its first event', async () => {
      const given = newJob({
        metadata: { a: 'b' },
        webhook: { url: 'https://x', events: ['job.failed'] },
        stream: true,
      })
      const created = await store.create(given)
      expect(created).toMatchObject({ outcome: 'created', events: [{ seq: 1, type: 'job.queued', data: null }] })
      const found = DurableJob.parse(await store.find(TENANT, given.id))
      expect(found).toMatchObject({ state: 'queued', attempt: 0, last_seq: 1, metadata: { a: 'b' }, stream: true })
      expect(found).toEqual('job' in created && created.job)
      expect(found.deadline_ms - found.created_at_ms).toBe(HOUR_MS)
      expect(found.published_at_ms).toBe(found.created_at_ms)
      expect(DurableEvent.array().parse(await store.listEvents(TENANT, given.id, 0, 10))).toHaveLength(1)
    })

    it('keeps any JSON unchanged, including NUL characters and lone surrogates', async () => {
      const request = { text: '\u0000 \ud800 "quoted" :name $1 ?1', n: 1e300, list: [null, { __proto__: 1 }] }
      const given = newJob({ request, metadata: { key: '\u0000' } })
      await store.create(given)
      expect(await store.findContent(TENANT, given.id)).toEqual({ request, result: null })
      expect((await job(given.id)).metadata).toEqual({ key: '\u0000' })
    })

    it('is not created if a job with the same id exists', async () => {
      const given = newJob()
      await store.create(given, KEY)
      expect(await store.create(given, KEY)).toMatchObject({ outcome: 'exists', job: { id: given.id } })
      expect(await store.create(given)).toMatchObject({ outcome: 'exists', job: { id: given.id } })
      expect(await types(given.id)).toEqual(['job.queued'])
    })

    it('is created once by 24 concurrent requests with one Idempotency-Key', async () => {
      const stores = [store, await database.open(), await database.open()]
      const all = await Promise.all(
        Array.from({ length: 24 }, (_, i) => (stores[i % 3] as Store).create(newJob(), KEY)),
      )
      expect(all.filter(({ outcome }) => outcome === 'created')).toHaveLength(1)
      expect(new Set(all.map((created) => 'job' in created && created.job.id)).size).toBe(1)
      expect((await store.list(TENANT, { limit: 100 })).jobs).toHaveLength(1)
    })

    it('is refused as a conflict if its Idempotency-Key belongs to a different request', async () => {
      const first = newJob()
      await store.create(first, KEY)
      const other = await store.create(newJob(), { ...KEY, fingerprint: 'g' })
      expect(other).toEqual({ outcome: 'conflict', jobId: first.id })
      expect(await store.create(newJob(), KEY)).toMatchObject({ outcome: 'exists', job: { state: 'queued' } })
    })

    it('is found by its Idempotency-Key and the fingerprint of its request', async () => {
      expect(await store.findMade(TENANT, KEY)).toBeUndefined()
      const { id } = newJob()
      await store.create(newJob({ id }), KEY)
      expect(await store.findMade(TENANT, KEY)).toMatchObject({ outcome: 'exists', job: { id } })
      expect(await store.findMade(TENANT, { ...KEY, fingerprint: 'g' })).toEqual({ outcome: 'conflict', jobId: id })
      expect(await store.findMade('key_b', KEY)).toBeUndefined()
    })

    it('may have an equal Idempotency-Key in another tenant or on another path', async () => {
      const created = [
        await store.create(newJob(), KEY),
        await store.create(newJob({ tenant: 'key_b' }), KEY),
        await store.create(newJob(), { ...KEY, scope: 'POST /v1/embeddings' }),
      ]
      expect(created.map(({ outcome }) => outcome)).toEqual(['created', 'created', 'created'])
    })

    it('loses its Idempotency-Key after 24 hours', async () => {
      await store.create(newJob(), KEY)
      await database.advance(24 * HOUR_MS - 60_000)
      expect((await store.create(newJob(), KEY)).outcome).toBe('exists')
      await database.advance(60_000)
      expect(await store.findMade(TENANT, KEY)).toBeUndefined()
      expect((await store.create(newJob(), { ...KEY, fingerprint: 'g' })).outcome).toBe('created')
    })

    it('takes over the Idempotency-Key of a failed job, unless another job has already done so', async () => {
      const first = await running(store)
      await store.create(newJob({ id: first.id }), KEY)
      await store.fail(first, { error: ERROR })
      const keyed = { ...KEY, replaces: first.id }
      const all = await Promise.all([1, 2, 3].map(() => store.create(newJob(), keyed)))
      expect(all.map(({ outcome }) => outcome).toSorted()).toEqual(['created', 'exists', 'exists'])
    })

    it('has state scheduled if its start time is in the future', async () => {
      const given = newJob({ runAtMs: Date.now() + HOUR_MS })
      await store.create(given)
      expect(await job(given.id)).toMatchObject({ state: 'scheduled', published_at_ms: null })
      expect((await job(given.id)).deadline_ms).toBe((given.runAtMs ?? 0) + HOUR_MS)
    })
  })

  describe('concurrent writes of jobs', () => {
    it('do not affect the outcomes of each other', async () => {
      const owner = await alive(store)
      const given = Array.from({ length: 200 }, () => newJob())
      const created = await Promise.all(given.map((each) => store.create(each)))
      expect(created.map((each) => each.outcome === 'created' && each.job.id)).toEqual(given.map(({ id }) => id))
      const isCancelled = (i: number) => i % 3 === 0
      await Promise.all(given.filter((_, i) => isCancelled(i)).map(({ id }) => store.cancel(TENANT, id)))
      // Each job is claimed twice at the same time. At most one claim may succeed, and none if the job was cancelled.
      const claims = await Promise.all([...given, ...given].map(({ id }) => store.claim(id, owner)))
      const runs = given.map(({ id }) => ({ id, attempt: 1, boot: owner, chunk: 0 }))
      for (const [i, { id }] of given.entries()) {
        const won = [claims[i], claims[i + given.length]].filter((claim) => claim !== undefined)
        expect(won.map(({ job }) => job.id)).toEqual(isCancelled(i) ? [] : [id])
      }
      // The outputs have different lengths. Each output must be stored with its own job.
      const outputs = runs.map(({ id }, i) => Array.from({ length: i % 4 }, (_, n) => delta(`${id} ${n}`)))
      const appended = await Promise.all(runs.map((run, i) => store.append(run, outputs[i] ?? [])))
      const ended = await Promise.all(
        runs.map((run, i) =>
          i % 2 === 0
            ? store.complete({ ...run, chunk: 1 }, { result: run.id })
            : store.fail({ ...run, chunk: 1 }, { error: { ...ERROR, message: run.id } }),
        ),
      )
      const stateOf = (i: number) => (i % 2 === 0 ? 'completed' : 'failed')
      const dataOf = (events: readonly { data: unknown }[] | undefined) => events?.map(({ data }) => data)
      for (const [i, { id }] of given.entries()) {
        expect(dataOf(appended[i]?.events)).toEqual(isCancelled(i) ? undefined : dataOf(outputs[i]))
        expect(ended[i]?.job.id).toBe(isCancelled(i) ? undefined : id)
        expect((await job(id)).state).toBe(isCancelled(i) ? 'cancelled' : stateOf(i))
        const events = await store.listEvents(TENANT, id, 0, 100)
        expect(events.map(({ seq }) => seq)).toEqual(events.map((_, n) => n + 1))
      }
    })

    it('succeed even if one write in the same database statement is invalid', async () => {
      const given = Array.from({ length: 20 }, (_, i) =>
        newJob({ retentionMs: i % 7 === 3 ? Number.NaN : HOUR_MS, request: i }),
      )
      const created = await Promise.allSettled(given.map((each) => store.create(each)))
      expect(created.map(({ status }) => status)).toEqual(given.map((_, i) => (i % 7 === 3 ? 'rejected' : 'fulfilled')))
      for (const [i, { id }] of given.entries()) {
        const content = await store.findContent(TENANT, id)
        expect(content?.request).toBe(i % 7 === 3 ? undefined : i)
      }
    })

    it('create one job if two submissions have the same id', async () => {
      const twice = newJob()
      const created = await Promise.all([store.create(twice), store.create(twice)])
      expect(created.map(({ outcome }) => outcome)).toEqual(['created', 'exists'])
    })
  })

  describe('the claim of a job', () => {
    it('succeeds for exactly one of 24 concurrent claims', async () => {
      const given = newJob()
      await store.create(given)
      const stores = [store, await database.open(), await database.open()]
      const boots = await Promise.all(stores.map((each) => alive(each)))
      const claims = await Promise.all(
        Array.from({ length: 24 }, (_, i) => (stores[i % 3] as Store).claim(given.id, boots[i % 3] as string)),
      )
      const won = claims.filter((claim) => claim !== undefined)
      expect(won).toHaveLength(1)
      expect(won[0]).toMatchObject({ job: { state: 'in_progress', attempt: 1 }, events: [{ type: 'job.started' }] })
      expect(await types(given.id)).toEqual(['job.queued', 'job.started'])
    })

    it('is refused to a process without a lease', async () => {
      const given = newJob()
      await store.create(given)
      expect(await store.claim(given.id, 'boot_unknown')).toBeUndefined()
      const boot = await alive(store)
      await database.advance(LEASE_MS)
      expect(await store.claim(given.id, boot)).toBeUndefined()
      await alive(store, boot)
      expect(await store.claim(given.id, boot)).toBeDefined()
    })

    it('is refused after the start deadline or the final deadline of the job', async () => {
      const early = newJob({ startInMs: 1_000 })
      const late = newJob({ deadlineInMs: 2_000 })
      for (const given of [early, late]) await store.create(given)
      await database.advance(1_000)
      const boot = await alive(store)
      expect(await store.claim(early.id, boot)).toBeUndefined()
      await database.advance(1_000)
      expect(await store.claim(late.id, boot)).toBeUndefined()
      expect(await job(early.id)).toMatchObject({ state: 'queued', attempt: 0 })
    })

    it('is refused for a job that is scheduled, running, ended or unknown', async () => {
      const boot = await alive(store)
      const later = newJob({ runAtMs: Date.now() + HOUR_MS })
      await store.create(later)
      const run = await running(store)
      const done = await running(store)
      await store.complete(done, { result: 1 })
      for (const id of [later.id, run.id, done.id, newJobId(), 'job_unknown']) {
        expect(await store.claim(id, boot)).toBeUndefined()
      }
    })

    it('increases the attempt number, and applies the start deadline only to the first attempt', async () => {
      const run = await running(store, { startInMs: 1_000 })
      await store.handBack(run)
      await database.advance(1_000)
      expect(await claimed(store, run.id, await alive(store))).toMatchObject({ attempt: 2 })
    })
  })

  describe('the claim of the next jobs', () => {
    const OF = { pool: 'inference', kind: 'generate', model: 'echo-1', priority: 'normal' } as const

    async function createMany(count: number, changes: Partial<NewJob> = {}): Promise<string[]> {
      const jobs = Array.from({ length: count }, () => newJob(changes))
      for (const given of jobs) await store.create(given)
      return jobs.map(({ id }) => id).toSorted()
    }

    it('returns the oldest jobs of one model, kind and priority, with their requests', async () => {
      const ids = await createMany(5)
      await createMany(2, { model: 'other' })
      await createMany(2, { kind: 'count_tokens' })
      await createMany(2, { priority: 'low' })
      await createMany(2, { pool: 'embeddings' })
      const boot = await alive(store)
      const first = await store.claimNext(OF, boot, 3)
      expect(first.map(({ job: { id } }) => id)).toEqual(ids.slice(0, 3))
      expect(first[0]).toMatchObject({
        job: { state: 'in_progress', attempt: 1, owner: boot },
        events: [{ seq: 2, type: 'job.started', attempt: 1 }],
        request: { body: 'hello' },
      })
      const rest = await store.claimNext(OF, boot, 3)
      expect(rest.map(({ job: { id } }) => id)).toEqual(ids.slice(3))
      expect(await store.claimNext(OF, boot, 3)).toEqual([])
      const run = { id: ids[0] ?? '', attempt: 1, boot, chunk: 0 }
      expect((await store.complete(run, { result: null }))?.job.state).toBe('completed')
    })

    it('returns each job to exactly one of three workers', async () => {
      const ids = await createMany(30)
      const stores = [store, await database.open(), await database.open()]
      const boots = await Promise.all(stores.map((one) => alive(one)))
      const taken: string[] = []
      await until(async () => {
        const all = await Promise.all(stores.map((one, i) => one.claimNext(OF, boots[i] ?? '', 4)))
        taken.push(...all.flat().map(({ job: { id } }) => id))
        return taken.length >= ids.length
      })
      expect(taken.toSorted()).toEqual(ids)
    })

    it('is refused to a process without a lease, and skips jobs past their start deadline', async () => {
      const [late, fresh] = [await createMany(1, { startInMs: 1_000 }), await createMany(1)]
      expect(await store.claimNext(OF, 'nobody', 5)).toEqual([])
      await database.advance(2_000)
      const boot = await alive(store)
      expect((await store.claimNext(OF, boot, 5)).map(({ job: { id } }) => id)).toEqual(fresh)
      expect((await job(late[0] ?? '')).state).toBe('queued')
    })
  })

  it('returns the number of queued jobs per model and priority', async () => {
    for (let i = 0; i < 3; i++) await store.create(newJob())
    await store.create(newJob({ model: 'other', priority: 'low' }))
    await running(store)
    const of = { pool: 'inference', kind: 'generate' }
    const counts = (await store.queuedModels()).toSorted((a, b) => b.count - a.count)
    expect(counts).toEqual([
      { ...of, model: 'echo-1', priority: 'normal', count: 3 },
      { ...of, model: 'other', priority: 'low', count: 1 },
    ])
  })

  describe('the worker of a running job', () => {
    it('completes the job with a result, the usage and the last output', async () => {
      const run = await running(store)
      const moved = await store.complete(run, { result: { a: 1 }, usage: { n: 2 }, output: [delta('x')] })
      expect(moved?.events.map(({ seq, type }) => [seq, type])).toEqual([
        [3, 'job.output.delta'],
        [4, 'job.completed'],
      ])
      expect(await job(run.id)).toMatchObject({ state: 'completed', usage: { n: 2 }, last_seq: 4 })
      expect((await job(run.id)).purge_at_ms).toBe(((await job(run.id)).finished_at_ms ?? 0) + 24 * HOUR_MS)
      expect(await store.findContent(TENANT, run.id)).toMatchObject({ result: { a: 1 } })
      expect(await store.listEvents(TENANT, run.id, 2, 10)).toEqual(moved?.events)
    })

    it('writes large events, which are then listed in pages that end after 256 KiB', async () => {
      const run = await running(store)
      const output = Array.from({ length: 12 }, (_, at) => delta(String.fromCharCode(97 + at).repeat(100 * 1024)))
      await store.complete(run, { result: 'x'.repeat(300 * 1024), output })
      const pages: number[] = []
      const read: DurableEvent[] = []
      for (let page = await store.listEvents(TENANT, run.id, 0, 100); page.length > 0; ) {
        pages.push(page.length)
        read.push(...page)
        page = await store.listEvents(TENANT, run.id, read.at(-1)?.seq ?? 0, 100)
      }
      expect(pages, 'events per page').toEqual([5, 3, 3, 3, 1])
      expect(read.map(({ seq }) => seq)).toEqual(read.map((_, at) => at + 1))
      expect(read.slice(2, -1).map(({ data }) => data)).toEqual(output.map(({ data }) => data))
      expect(await store.findContent(TENANT, run.id)).toMatchObject({ result: 'x'.repeat(300 * 1024) })
    })

    it('fails the job with an error', async () => {
      const run = await running(store)
      expect((await store.fail(run, { error: ERROR }))?.job).toMatchObject({ state: 'failed', error: ERROR, tries: 0 })
    })

    it('schedules a retry, and counts one failed attempt', async () => {
      const run = await running(store)
      await store.append(run, [delta('x')])
      const moved = await store.retry(next(run), { error: ERROR, delayMs: 5_000 })
      expect(moved?.job).toMatchObject({ state: 'scheduled', tries: 1, crashes: 0, attempt: 1 })
      expect(moved?.events).toMatchObject([
        { type: 'job.retrying', data: { reason: 'upstream_error', delay_ms: 5_000, output_reset: true } },
      ])
      expect(await store.startDue(10)).toEqual([])
      await database.advance(5_000)
      expect(await store.startDue(10)).toMatchObject([{ job: { id: run.id, state: 'queued' } }])
      expect(await claimed(store, run.id, await alive(store))).toMatchObject({ attempt: 2 })
      expect(await job(run.id)).toMatchObject({ has_output: false, chunk: 0, error: null })
    })

    it('schedules a retry without counting a failed attempt if the job only waited for a slot', async () => {
      const run = await running(store)
      const moved = await store.retry(run, { error: ERROR, delayMs: 5_000, isTry: false })
      expect(moved?.job).toMatchObject({ state: 'scheduled', tries: 0, attempt: 1 })
    })

    it('requeues the job at once without counting a failed attempt', async () => {
      const run = await running(store)
      const moved = await store.handBack(run)
      expect(moved?.job).toMatchObject({ state: 'queued', tries: 0, crashes: 0, attempt: 1 })
      expect(moved?.events).toMatchObject([
        { type: 'job.retrying', data: { reason: 'handed_back', output_reset: false } },
      ])
    })

    const WRITES: [string, (run: HeldAttempt) => Promise<unknown>][] = [
      ['append output', (run) => store.append(run, [delta('late')])],
      ['complete the job', (run) => store.complete(run, { result: 'late' })],
      ['fail the job', (run) => store.fail(run, { error: ERROR })],
      ['retry the job', (run) => store.retry(run, { error: ERROR, delayMs: 0 })],
      ['requeue the job', (run) => store.handBack(run)],
      ['apply a cancel', (run) => store.honourCancel(run)],
    ]
    it.each(WRITES)(
      'cannot %s in a lost attempt, for another worker, or after the end of the job',
      async (_, write) => {
        const run = await running(store)
        expect(await write({ ...run, boot: await alive(store) })).toBeUndefined()
        expect(await write({ ...run, attempt: 2 })).toBeUndefined()
        expect(await write({ ...run, chunk: 1 })).toBeUndefined()
        await lose(run)
        expect(await write(run)).toBeUndefined()
        // The process claims the job again. The old and the new run then belong to one process, and differ only in their attempt numbers.
        const again = await claimed(store, run.id, await alive(store, run.boot))
        await store.cancel(TENANT, run.id)
        expect(await write(run)).toBeUndefined()
        await store.complete(again, { result: 'good' })
        const before = await job(run.id)
        expect(await write(run)).toBeUndefined()
        expect(await write(next(again))).toBeUndefined()
        expect(await job(run.id)).toEqual(before)
        expect(await store.findContent(TENANT, run.id)).toMatchObject({ result: 'good' })
      },
    )

    it.each(WRITES.slice(0, -1))('receives an equal response if it repeats this write: %s', async (_, write) => {
      const run = await running(store)
      const first = (await write(run)) as { events: unknown; job: DurableJob }
      expect(first.events).not.toEqual([])
      expect(await write(run)).toEqual(first)
      expect((await job(run.id)).last_seq).toBe(first.job.last_seq)
    })

    it('receives no acknowledgement for a different write with an already used sequence number', async () => {
      const run = await running(store)
      await store.append(run, [delta('x')])
      expect(await store.complete(run, { result: 'x' })).toBeUndefined()
      expect(await store.append(run, [delta('x'), delta('y')])).toBeUndefined()
    })
  })

  describe('the events of a job', () => {
    it('are numbered without gaps while the worker appends output and the caller cancels', async () => {
      const run = await running(store)
      const other = await database.open()
      const writes: Promise<unknown>[] = []
      for (let chunk = 0; chunk < 20; chunk++) {
        const append = store.append({ ...run, chunk }, [delta(`${chunk}a`), delta(`${chunk}b`)])
        if (chunk === 10) writes.push(other.cancel(TENANT, run.id))
        await append
      }
      await Promise.all(writes)
      const events = await other.listEvents(TENANT, run.id, 0, 100)
      expect(events.map(({ seq }) => seq)).toEqual(events.map((_, i) => i + 1))
      expect(events).toHaveLength(2 + 40 + 1)
      const texts = events
        .filter(({ type }) => type === 'job.output.delta')
        .map(({ data }) => (data as { text: string }).text)
      expect(texts).toEqual(Array.from({ length: 20 }, (_, i) => [`${i}a`, `${i}b`]).flat())
    })

    it('are stored once if an append is repeated concurrently', async () => {
      const run = await running(store)
      const stores = [store, await database.open()]
      const all = await Promise.all(
        Array.from({ length: 10 }, (_, i) => (stores[i % 2] as Store).append(run, [delta('x'), delta('y')])),
      )
      expect(new Set(all.map((moved) => JSON.stringify(moved?.events))).size).toBe(1)
      expect(await types(run.id)).toEqual(['job.queued', 'job.started', 'job.output.delta', 'job.output.delta'])
    })

    it('update the progress of the job', async () => {
      const run = await running(store)
      await store.append(run, [
        { type: 'job.progress', data: { percent: 10 } },
        { type: 'job.progress', data: { percent: 20 } },
      ])
      await store.append(next(run), [delta('x')])
      expect((await job(run.id)).progress).toEqual({ percent: 20 })
    })

    it('are read in pages', async () => {
      const run = await running(store)
      await store.append(run, [delta('a'), delta('b'), delta('c')])
      const seqs = async (after: number, limit: number) =>
        (await store.listEvents(TENANT, run.id, after, limit)).map(({ seq }) => seq)
      expect(await seqs(0, 2)).toEqual([1, 2])
      expect(await seqs(2, 10)).toEqual([3, 4, 5])
      expect(await seqs(5, 10)).toEqual([])
      expect(await seqs(99, 10)).toEqual([])
    })
  })

  describe('the cancellation of a job', () => {
    it('ends a queued or scheduled job', async () => {
      const waiting = [newJob(), newJob({ runAtMs: Date.now() + HOUR_MS })]
      for (const given of waiting) {
        await store.create(given)
        expect(await store.cancel(TENANT, given.id)).toMatchObject({
          job: { state: 'cancelled' },
          events: [{ type: 'job.cancelled' }],
        })
        expect(await store.claim(given.id, await alive(store))).toBeUndefined()
      }
    })

    it('reaches the worker of a running job at the next lease renewal', async () => {
      const run = await running(store)
      expect(await store.honourCancel(run)).toBeUndefined()
      expect(await store.cancel(TENANT, run.id)).toMatchObject({
        job: { state: 'in_progress' },
        events: [{ seq: 3, type: 'job.cancelling' }],
      })
      expect(await store.cancel(TENANT, run.id)).toBeUndefined()
      const process = { boot: run.boot, role: 'inference', slots: 1, version: 't', draining: false, leaseMs: LEASE_MS }
      expect(await store.renew(process)).toEqual([
        { id: run.id, attempt: 1, isCancelRequested: true, isToWrapUp: false },
      ])
      expect((await store.honourCancel(run, [delta('x')]))?.job).toMatchObject({ state: 'cancelled', last_seq: 5 })
      expect(await store.renew(process)).toEqual([])
    })

    it('has no effect if the job completes first', async () => {
      const run = await running(store)
      await store.cancel(TENANT, run.id)
      expect((await store.complete(run, { result: 1 }))?.job.state).toBe('completed')
      expect(await store.cancel(TENANT, run.id)).toBeUndefined()
    })

    it.each([
      ['retry', (run: HeldAttempt) => store.retry(run, { error: ERROR, delayMs: 0 })],
      ['requeue', (run: HeldAttempt) => store.handBack(run)],
      ['lost worker', lose],
    ] as const)('ends the job as cancelled when the job would be requeued: %s', async (_, goBack) => {
      const run = await running(store)
      await store.cancel(TENANT, run.id)
      const moved = await goBack(run)
      expect(moved?.job.state).toBe('cancelled')
      expect(moved?.job.finished_at_ms).not.toBeNull()
      expect(moved?.events).toMatchObject([{ type: 'job.cancelled', data: null }])
    })

    it('is forced after the grace period if the worker does not stop the job', async () => {
      const run = await running(store)
      await watch(run.boot)
      await store.cancel(TENANT, run.id)
      await database.advance(4_000)
      await alive(store, run.boot)
      await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
      expect(await reap()).toEqual([])
      expect(await reap('scheduler', { ...POLICY, cancelGraceMs: 4_000 })).toMatchObject([
        { job: { state: 'cancelled' }, events: [{ type: 'job.cancelled' }] },
      ])
    })
  })

  describe('the sweep of expired leases', () => {
    it('requeues the job of a process with an expired lease, and records a crash', async () => {
      const run = await running(store, { request: { a: 1 } })
      await store.append(run, [delta('x')])
      await watch()
      const reaped = await reap()
      expect(reaped).toMatchObject([
        {
          job: { state: 'queued', attempt: 1, crashes: 1, tries: 0 },
          events: [{ type: 'job.retrying', data: { reason: 'worker_lost', delay_ms: 0, output_reset: true } }],
          request: { a: 1 },
        },
      ])
      expect(reaped[0]?.job.published_at_ms).toBeGreaterThan(reaped[0]?.job.created_at_ms ?? 0)
      expect(await reap()).toEqual([])
    })

    it('ignores the jobs of processes with a valid lease', async () => {
      const run = await running(store)
      await watch(run.boot)
      expect(await reap()).toEqual([])
      expect((await store.complete(run, { result: 1 }))?.job.state).toBe('completed')
    })

    it('waits for one whole lease after an outage of the store', async () => {
      const run = await running(store)
      await watch(run.boot)
      // Simulates an outage of the store: for some time, neither processes nor the sweep renew their leases.
      await database.advance(LEASE_MS + 5_000)
      await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
      expect(await reap()).toEqual([])
      await alive(store, run.boot)
      for (let waited = 0; waited < LEASE_MS; waited += 3_000) {
        await database.advance(3_000)
        await alive(store, run.boot)
        await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
        expect(await reap()).toEqual([])
      }
      expect((await store.complete(run, { result: 1 }))?.job.state).toBe('completed')
    })

    it('requeues only the jobs of dead processes after the clock was set back', async () => {
      await store.holdLease(REAPER_LEASE, 'scheduler', 3 * HOUR_MS)
      await database.advance(2 * HOUR_MS)
      const [lives, dies] = [await running(store), await running(store)]
      await watch(lives.boot, dies.boot)
      await database.advance(-HOUR_MS)
      await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
      expect(await reap()).toEqual([])
      await watch(lives.boot)
      expect(await reap()).toMatchObject([{ job: { id: dies.id, state: 'queued', crashes: 1 } }])
    })

    it('can be taken over by another process if the clock was set back', async () => {
      await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
      expect(await store.holdLease(REAPER_LEASE, 'another', 5_000)).toBe(false)
      await database.advance(-HOUR_MS)
      expect(await store.holdLease(REAPER_LEASE, 'another', 5_000)).toBe(true)
    })

    it('does nothing in a process without the lease of the sweep', async () => {
      const run = await running(store)
      await watch()
      expect(await reap('another')).toEqual([])
      await database.advance(5_000)
      expect(await reap()).toEqual([])
      expect(await store.holdLease(REAPER_LEASE, 'another', 5_000)).toBe(true)
      expect(await reap('another')).toEqual([])
      expect((await job(run.id)).state).toBe('in_progress')
    })

    it('requeues the job of a deregistered process without a delay', async () => {
      expect(await lose(await running(store))).toMatchObject({ job: { state: 'queued' } })
    })

    it('fails a job with worker_lost after the third lost worker', async () => {
      let run = await running(store)
      for (const crashes of [1, 2]) {
        expect((await lose(run))?.job).toMatchObject({ state: 'queued', crashes })
        run = await claimed(store, run.id, await alive(store))
      }
      expect(await lose(run)).toMatchObject({
        job: { state: 'failed', crashes: 3, attempt: 3, error: { code: 'worker_lost' } },
        events: [{ type: 'job.failed', data: null }],
      })
    })

    it('takes back the crash of a job if its worker sends heartbeats again', async () => {
      const given = newJob()
      await store.create(given)
      for (let lapse = 1; lapse <= 4; lapse++) {
        const run = await claimed(store, given.id, await alive(store))
        expect((await lose(run))?.job).toMatchObject({ state: 'queued', crashes: 1 })
        await alive(store, run.boot)
        expect(await job(given.id)).toMatchObject({ state: 'queued', crashes: 0, attempt: lapse })
      }
    })

    it('counts a crash for a dead worker, but not for a worker that was only silent', async () => {
      const given = newJob()
      await store.create(given)
      const silent = await alive(store)
      for (const owner of [silent, await alive(store), silent]) {
        expect((await lose(await claimed(store, given.id, await alive(store, owner))))?.job.state).toBe('queued')
      }
      expect((await job(given.id)).crashes).toBe(2)
      await alive(store, silent)
      expect((await job(given.id)).crashes).toBe(1)
      expect((await lose(await claimed(store, given.id, await alive(store))))?.job.state).toBe('queued')
      expect((await lose(await claimed(store, given.id, await alive(store))))?.job).toMatchObject({
        state: 'failed',
        crashes: 3,
      })
      await alive(store, silent)
      expect((await job(given.id)).state).toBe('failed')
    })

    it('fails a running job with timeout when the grace period after its deadline ends', async () => {
      const run = await running(store, { deadlineInMs: 10_000 })
      await watch(run.boot)
      await database.advance(2_000)
      await alive(store, run.boot)
      await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
      expect(await reap()).toEqual([])
      await database.advance(4_000)
      await alive(store, run.boot)
      await store.holdLease(REAPER_LEASE, 'scheduler', 5_000)
      expect(await reap()).toMatchObject([{ job: { state: 'failed', error: { code: 'timeout' }, crashes: 0 } }])
    })

    it('fails a lost job with timeout if its deadline has passed', async () => {
      const run = await running(store, { deadlineInMs: 8_000 })
      await watch()
      expect(await reap()).toMatchObject([{ job: { id: run.id, state: 'failed', error: { code: 'timeout' } } }])
    })

    it('requeues each lost job once with three concurrent sweeps', async () => {
      const boot = await alive(store)
      for (let i = 0; i < 10; i++) await running(store, {}, boot)
      await watch()
      const stores = [store, await database.open(), await database.open()]
      const reaped = (await Promise.all(stores.map((each) => each.reap('scheduler', POLICY, 100)))).flat()
      expect(reaped).toHaveLength(10)
      expect(new Set(reaped.map(({ job: { id } }) => id)).size).toBe(10)
    })
  })

  describe('the periodic sweeps', () => {
    it('expire jobs that waited beyond their start deadline, and no others', async () => {
      const late = newJob({ startInMs: 1_000 })
      const scheduled = await running(store, { deadlineInMs: 2_000 })
      const handedBack = await running(store, { startInMs: 1_000 })
      for (const given of [late, newJob()]) await store.create(given)
      await store.retry(scheduled, { error: ERROR, delayMs: HOUR_MS })
      await store.handBack(handedBack)
      const isRunning = await running(store, { startInMs: 1_000, deadlineInMs: 1_500 })
      await database.advance(1_000)
      expect(await store.expire(10)).toMatchObject([
        { job: { id: late.id, state: 'expired' }, events: [{ seq: 2, type: 'job.expired' }] },
      ])
      await database.advance(1_000)
      expect((await store.expire(10)).map(({ job: { id } }) => id)).toEqual([scheduled.id])
      expect((await job(isRunning.id)).state).toBe('in_progress')
    })

    it('expire a scheduled job past its deadline instead of queueing it', async () => {
      const run = await running(store, { deadlineInMs: 2_000 })
      await store.retry(run, { error: ERROR, delayMs: 2_000 })
      await database.advance(2_000)
      expect(await store.startDue(10)).toEqual([])
      expect(await store.expire(10)).toHaveLength(1)
    })

    it('queue due jobs, oldest first and up to the limit', async () => {
      const base = Date.now()
      const given = [3, 1, 2, 9].map((hours) =>
        newJob({ runAtMs: base + hours * HOUR_MS, request: hours, deadlineInMs: 9 * HOUR_MS }),
      )
      for (const each of given) await store.create(each)
      await database.advance(3 * HOUR_MS + 1_000)
      const started = [...(await store.startDue(2)), ...(await store.startDue(2)), ...(await store.startDue(2))]
      expect(started.map(({ request }) => request).toSorted()).toEqual([1, 2, 3])
      expect(started.slice(0, 2).map(({ request }) => request)).not.toContain(3)
      expect(started[0]?.job.published_at_ms).toBeGreaterThan(base)
    })

    it('publish a job again once per interval while it stays queued', async () => {
      const old = newJob({ request: 'old' })
      await store.create(old)
      await running(store)
      await store.create(newJob({ pool: 'code' as PoolName }))
      await database.advance(30_000)
      await store.create(newJob())
      const taken = await Promise.all([1, 2, 3].map(() => store.takeUnpublished('inference', 30_000, 10)))
      expect(taken.flat()).toMatchObject([
        { job: { id: old.id, state: 'queued', attempt: 0 }, request: 'old', events: [] },
      ])
      await database.advance(30_000)
      expect(await store.takeUnpublished('inference', 30_000, 1)).toHaveLength(1)
    })

    it('queue each due job once with three concurrent sweeps', async () => {
      for (let i = 0; i < 20; i++) await store.create(newJob({ runAtMs: Date.now() + HOUR_MS }))
      await database.advance(HOUR_MS)
      const stores = [store, await database.open(), await database.open()]
      const moved: string[] = []
      for (let round = 0; round < 8; round++) {
        const started = await Promise.all(stores.map((each) => each.startDue(3)))
        moved.push(...started.flat().map(({ job: { id } }) => id))
      }
      expect(moved).toHaveLength(20)
      expect(new Set(moved).size).toBe(20)
    })
  })

  describe('the leases of the store', () => {
    it('are held by one process at a time, and can be acquired by another after they expire', async () => {
      expect(await store.holdLease('due', 'a', 5_000)).toBe(true)
      expect(await store.holdLease('due', 'b', 5_000)).toBe(false)
      expect(await store.holdLease('other', 'b', 5_000)).toBe(true)
      await database.advance(4_000)
      expect(await store.holdLease('due', 'a', 5_000)).toBe(true)
      await database.advance(4_000)
      expect(await store.holdLease('due', 'b', 5_000)).toBe(false)
      await database.advance(1_000)
      expect(await store.holdLease('due', 'b', 5_000)).toBe(true)
      await store.releaseLease('due', 'a')
      expect(await store.holdLease('due', 'a', 5_000)).toBe(false)
      await store.releaseLease('due', 'b')
      expect(await store.holdLease('due', 'a', 5_000)).toBe(true)
    })

    it('are granted to exactly one of ten concurrent processes', async () => {
      const stores = [store, await database.open()]
      const held = await Promise.all(
        Array.from({ length: 10 }, (_, i) => (stores[i % 2] as Store).holdLease('due', `holder-${i}`, 5_000)),
      )
      expect(held.filter(Boolean)).toHaveLength(1)
    })
  })

  describe('the job queries of the store', () => {
    it('return only jobs of the given tenant', async () => {
      const mine = await running(store)
      await store.complete(mine, { result: 1 })
      const waiting = newJob()
      await store.create(waiting)
      for (const id of [mine.id, waiting.id]) {
        expect(await store.find('key_b', id)).toBeUndefined()
        expect(await store.findContent('key_b', id)).toBeUndefined()
        expect(await store.listEvents('key_b', id, 0, 10)).toEqual([])
        expect(await store.cancel('key_b', id)).toBeUndefined()
        expect(await store.erase('key_b', id)).toBe(false)
        expect(await store.redrive('key_b', id, newJobId())).toBeUndefined()
        expect(await store.find(ALL_TENANTS, id)).toBeDefined()
      }
      expect((await store.list('key_b', { limit: 10 })).jobs).toEqual([])
      expect((await store.list(ALL_TENANTS, { limit: 10 })).jobs).toHaveLength(2)
      expect(await store.create(newJob({ tenant: 'key_b', id: mine.id }))).toMatchObject({ outcome: 'conflict' })
    })

    it('return pages of jobs in ascending and descending order', async () => {
      const ids = Array.from({ length: 7 }, (_, i) => newJobId(Date.now() + i))
      for (const id of ids.toSorted(() => Math.random() - 0.5)) await store.create(newJob({ id }))
      const walk = async (order: 'asc' | 'desc') => {
        const seen: string[] = []
        for (let after: string | undefined; ; after = seen.at(-1)) {
          const page = await store.list(TENANT, { limit: 3, order, ...(after !== undefined && { after }) })
          seen.push(...page.jobs.map(({ id }) => id))
          if (!page.hasMore) return seen
        }
      }
      expect(await walk('asc')).toEqual(ids)
      expect(await walk('desc')).toEqual(ids.toReversed())
    })

    it('filter jobs by state, endpoint and parent', async () => {
      const run = await running(store, { endpoint: '/v1/embeddings' })
      const child = newJob({ id: childJobId(run.id, 'step 1'), parentId: run.id })
      await store.create(child)
      const list = async (query: object) =>
        (await store.list(TENANT, { limit: 10, ...query })).jobs.map(({ id }) => id).toSorted()
      expect(await list({ states: ['in_progress', 'failed'] })).toEqual([run.id])
      expect(await list({ endpoint: '/v1/embeddings' })).toEqual([run.id])
      expect(await list({ parentId: run.id })).toEqual([child.id])
      expect(await list({ states: ['expired'] })).toEqual([])
    })

    it('count queued and running jobs by pool and priority', async () => {
      await running(store)
      await store.create(newJob({ priority: 'low' }))
      await store.create(newJob({ priority: 'low' }))
      expect(await store.depth()).toMatchObject([
        { pool: 'inference', priority: 'low', state: 'queued', count: 2 },
        { pool: 'inference', priority: 'normal', state: 'in_progress', count: 1 },
      ])
    })

    it('count queued, running and scheduled jobs of each tenant', async () => {
      await running(store)
      await store.create(newJob())
      await store.create(newJob({ tenant: 'key_b', runAtMs: Date.now() + HOUR_MS }))
      const depth = (await store.tenants.depth()).toSorted((a, b) => (a.tenant + a.state < b.tenant + b.state ? -1 : 1))
      expect(depth).toEqual([
        { tenant: TENANT, state: 'in_progress', count: 1 },
        { tenant: TENANT, state: 'queued', count: 1 },
        { tenant: 'key_b', state: 'scheduled', count: 1 },
      ])
    })

    it("return the queue positions of a tenant's jobs of one kind, model and priority", async () => {
      const { pool, kind, model } = newJob()
      const of = { pool, kind, model, priority: 'normal' } as const
      const ids: string[] = []
      for (let i = 0; i < 3; i++) {
        const given = newJob()
        await store.create(given)
        ids.push(given.id)
      }
      await store.create(newJob({ tenant: 'key_b' }))
      await store.create(newJob({ priority: 'low' }))
      await store.create(newJob({ model: 'other' }))
      const tenants = (await store.tenants.queued(of)).toSorted((a, b) => b.count - a.count)
      expect(tenants).toEqual([
        { tenant: TENANT, count: 3 },
        { tenant: 'key_b', count: 1 },
      ])
      // The ids are sorted first, because two ids of the same millisecond have a random order.
      expect(await store.tenants.positions(of, TENANT)).toEqual(ids.toSorted().map((id, i) => ({ id, nth: i + 1 })))
      expect(await store.tenants.positions(of, 'key_c')).toEqual([])
    })
  })

  describe('ended jobs', () => {
    it('are erased, except for id, state, usage and times', async () => {
      const webhook = { url: 'https://example.com/secret', events: ['job.completed'] }
      const run = await running(store, { metadata: { secret: 'x' }, request: 'secret', webhook })
      expect(await store.erase(TENANT, run.id)).toBe(false)
      await store.complete(run, { result: 'secret', usage: { n: 1 }, output: [delta('secret')] })
      expect(await store.erase(TENANT, run.id)).toBe(true)
      expect(await job(run.id)).toMatchObject({
        state: 'completed',
        attempt: 1,
        last_seq: 4,
        usage: { n: 1 },
        metadata: {},
      })
      expect((await job(run.id)).erased_at_ms).not.toBeNull()
      expect(await store.findContent(TENANT, run.id)).toBeUndefined()
      expect(await store.listEvents(TENANT, run.id, 0, 10)).toEqual([])
      expect((await store.list(TENANT, { limit: 10 })).jobs).toEqual([])
      for (const table of ['jobs', 'job_events', 'deliveries']) {
        expect(JSON.stringify(await database.query(`SELECT * FROM ${table}`))).not.toContain('secret')
      }
    })

    it('can be redriven as new jobs if they failed, were cancelled or expired', async () => {
      const failed = await running(store, { request: 'again' })
      expect(await store.redrive(TENANT, failed.id, newJobId())).toBeUndefined()
      await store.fail(failed, { error: ERROR })
      const id = newJobId()
      const before = await job(failed.id)
      expect(await store.redrive(TENANT, failed.id, id)).toMatchObject({
        job: { id, parent_id: failed.id, state: 'queued', attempt: 0, tries: 0, error: null },
        request: 'again',
        events: [{ seq: 1, type: 'job.queued' }],
      })
      expect((await job(id)).deadline_ms - (await job(id)).created_at_ms).toBe(HOUR_MS)
      expect(await job(failed.id)).toEqual(before)
      const done = await running(store)
      await store.complete(done, { result: 1 })
      expect(await store.redrive(TENANT, done.id, newJobId())).toBeUndefined()
      await store.erase(TENANT, failed.id)
      expect(await store.redrive(TENANT, failed.id, newJobId())).toBeUndefined()
    })

    it('are hidden after their retention period, and later purged with their events and Idempotency-Keys', async () => {
      const run = await running(store)
      await store.create(newJob({ id: run.id }), KEY)
      await store.complete(run, { result: 1 })
      const open = newJob({ deadlineInMs: 100 * HOUR_MS })
      await store.create(open)
      await database.advance(24 * HOUR_MS)
      expect(await store.find(TENANT, run.id)).toBeUndefined()
      expect(await store.listEvents(TENANT, run.id, 0, 10)).toEqual([])
      expect(await store.find(TENANT, open.id)).toBeDefined()
      const asked = [TENANT, 'key_other', ALL_TENANTS] as const
      expect(await Promise.all(asked.map((scope) => store.isPast(scope, run.id)))).toEqual([true, false, true])
      expect(await store.isPast(TENANT, open.id)).toBe(false)
      await store.cancel(TENANT, open.id)
      await database.advance(72 * HOUR_MS)
      await store.purge()
      await store.close()
      for (const table of ['jobs', 'job_events', 'idempotency_keys']) {
        expect(await database.query(`SELECT * FROM ${table}`)).toEqual([])
      }
    })

    it('are purged even if another job of the same day has not ended', async () => {
      const requests = [
        { blob: 'a', encode: {} },
        { body: 1, attachments: ['b'], encode: {} },
        { body: 2, encode: {} },
      ]
      for (const request of requests) await store.complete(await running(store, { request }), { result: 1 })
      const kept = newJob({ runAtMs: Date.now() + 7 * 24 * HOUR_MS, deadlineInMs: HOUR_MS })
      await store.create(kept)
      await store.purge()
      await database.advance(24 * HOUR_MS)
      const purged = await purgeAll()
      expect(purged).toHaveLength(2)
      expect(purged).toEqual(expect.arrayContaining(requests.slice(0, 2)))
      expect(await types(kept.id)).toEqual(['job.queued'])
      await store.close()
      expect(await database.query('SELECT id FROM jobs')).toEqual([{ id: kept.id }])
      expect(await database.query('SELECT DISTINCT job_id FROM job_events')).toEqual([{ job_id: kept.id }])
    })

    it('are purged and erased in steps of bounded size', async () => {
      const long = await running(store)
      for (let chunk = 0; chunk < 3; chunk++) {
        await store.append(
          { ...long, chunk },
          Array.from({ length: 1_500 }, () => delta('x')),
        )
      }
      await store.complete({ ...long, chunk: 3 }, { result: 1 })
      const erased = await running(store)
      await store.append(
        erased,
        Array.from({ length: 4_500 }, () => delta('x')),
      )
      await store.complete(next(erased), { result: 1 })
      expect(await store.erase('key_b', erased.id)).toBe(false)
      expect((await store.listEvents(TENANT, erased.id, 0, 10)).length).toBe(10)
      expect(await store.erase(TENANT, erased.id)).toBe(true)
      for (let i = 0; i < 150; i++) await store.create(newJob({ startInMs: 1_000 }))
      await database.advance(1_000)
      expect(await store.expire(120)).toHaveLength(120)
      expect(await store.expire(120)).toHaveLength(30)
      await database.advance(24 * HOUR_MS)
      expect(await store.purge()).toMatchObject({ hasMore: true })
      const left = async () => (await store.purge()).hasMore
      for (let steps = 0; await left(); steps++) expect(steps).toBeLessThan(10)
      await store.close()
      for (const table of ['jobs', 'job_events']) expect(await database.query(`SELECT * FROM ${table}`)).toEqual([])
    })

    it('are purged, but old unfinished jobs are not', async () => {
      const given = newJob({ deadlineInMs: 1_000 * HOUR_MS })
      await store.create(given)
      await database.advance(500 * HOUR_MS)
      await store.purge()
      expect(await claimed(store, given.id, await alive(store))).toMatchObject({ attempt: 1 })
      const later = newJob({ id: newJobId(Date.now() + 500 * HOUR_MS) })
      expect((await store.create(later)).outcome).toBe('created')
    })
  })

  describe('webhook deliveries', () => {
    const webhook = { url: 'https://example.com/hook', events: ['job.started', 'job.completed', 'job.expired'] }
    const tried = { at_ms: 1, duration_ms: 12, status: 500, error: 'It is broken.' }

    it('are written in the transaction of the state transition', async () => {
      const run = await running(store, { webhook })
      await store.complete(run, { result: 1 })
      await running(store)
      const deliveries = WebhookDelivery.array().parse(await store.listDeliveries(run.id))
      const pending = await store.pendingDeliveries()
      expect(pending).toEqual({ count: deliveries.length, oldest_at_ms: deliveries[0]?.created_at_ms })
      expect(deliveries.map(({ type, state }) => [type, state])).toEqual([
        ['job.started', 'pending'],
        ['job.completed', 'pending'],
      ])
      const expiring = newJob({ webhook, startInMs: 1_000 })
      await store.create(expiring)
      await database.advance(1_000)
      await store.expire(10)
      expect(await store.listDeliveries(expiring.id)).toMatchObject([{ type: 'job.expired', url: webhook.url }])
    })

    it('wait until the earlier delivery of the same job has succeeded', async () => {
      const run = await running(store, { webhook })
      await store.complete(run, { result: 1 })
      const nextAt = async () => (await store.listDeliveries(run.id)).map(({ next_at_ms }) => next_at_ms)
      const [first] = await store.takeDeliveries(10, 20_000)
      const refused = { state: 'pending', retryInMs: HOUR_MS, error: 'status 500' } as const
      if (!first) throw new Error('no delivery is due')
      await store.recordDelivery(first, refused, [tried])
      await database.advance(20_000)
      expect(await store.takeDeliveries(10, 20_000)).toEqual([])
      const [tryAt = 0, waitsUntil = 0] = await nextAt()
      expect(waitsUntil).toBe(tryAt)
      await database.advance(HOUR_MS)
      const [again] = await store.takeDeliveries(10, 20_000)
      expect(again).toMatchObject({ id: first.id, tries: 1 })
      if (again) await store.recordDelivery(again, { state: 'delivered', status: 200 }, [tried])
      expect(await store.takeDeliveries(10, 20_000)).toMatchObject([{ type: 'job.completed', tries: 0 }])
    })

    it('are not delayed by 220 deliveries of other jobs that wait for a retry', async () => {
      const boot = await alive(store)
      const runs = await Promise.all(Array.from({ length: 220 }, () => running(store, { webhook }, boot)))
      const firsts = await store.takeDeliveries(300, 20_000)
      const away = { state: 'pending', retryInMs: HOUR_MS, error: 'away' } as const
      await Promise.all(firsts.map((first) => store.recordDelivery(first, away, [tried])))
      await Promise.all(runs.map((run) => store.complete(run, { result: 1 })))
      await database.advance(1_000)
      const last = await running(store, { webhook })
      expect(firsts).toHaveLength(220)
      expect(await store.takeDeliveries(10, 20_000)).toMatchObject([{ job_id: last.id }])
    })

    it('are attempted by one process at a time, in the order of the events of their job', async () => {
      const run = await running(store, { webhook })
      await store.complete(run, { result: 1 })
      const [taken, ...none] = (await Promise.all([1, 2].map(() => store.takeDeliveries(10, 20_000)))).flat()
      expect(none).toEqual([])
      if (!taken) throw new Error('no delivery is due')
      expect(taken).toMatchObject({ type: 'job.started', tries: 0 })
      const { id } = taken
      await database.advance(20_000)
      const [second] = await store.takeDeliveries(10, 20_000)
      expect(second).toMatchObject({ id, tries: 0 })
      if (!second) throw new Error('no delivery is due')
      expect(await store.recordDelivery(taken, { state: 'delivered', status: 200 }, [tried])).toBe(false)
      const refused = { state: 'pending', retryInMs: 5_000, status: 500, error: 'status 500' } as const
      expect(await store.recordDelivery(second, refused, [tried])).toBe(true)
      expect(await store.takeDeliveries(10, 20_000)).toEqual([])
      await database.advance(5_000)
      const [third] = await store.takeDeliveries(10, 20_000)
      expect(third).toMatchObject({ id, tries: 1, status: 500 })
      if (third) expect(await store.recordDelivery(third, { state: 'delivered', status: 204 }, [tried])).toBe(true)
      const [last] = await store.takeDeliveries(10, 20_000)
      expect(last).toMatchObject({ type: 'job.completed' })
      if (last) await store.recordDelivery(last, { state: 'failed', error: 'given up' }, [tried])
      await database.advance(HOUR_MS)
      expect(await store.takeDeliveries(10, 20_000)).toEqual([])
      const states = (await store.listDeliveries(run.id)).map(({ state }) => state)
      expect(states).toEqual(['delivered', 'failed'])
    })

    it('keep their attempts, status and history if they are postponed without an attempt', async () => {
      const run = await running(store, { webhook })
      const take = async () => (await store.takeDeliveries(10, 20_000))[0] ?? expect.fail('no delivery is due')
      const refused = { state: 'pending', retryInMs: 0, status: 500, error: 'status 500' } as const
      await store.recordDelivery(await take(), refused, [tried])
      expect(await store.recordDelivery(await take(), { state: 'pending', retryInMs: 5_000 })).toBe(true)
      expect(await store.takeDeliveries(10, 20_000)).toEqual([])
      await database.advance(5_000)
      expect(await take()).toMatchObject({
        job_id: run.id,
        tries: 1,
        status: 500,
        error: 'status 500',
        history: [tried],
      })
    })

    it('count as delivered if the running attempt succeeds after an operator has requested a retry', async () => {
      await running(store, { webhook })
      const [taken] = await store.takeDeliveries(10, 20_000)
      if (!taken) throw new Error('no delivery is due')
      expect(await store.operator.retryDelivery(taken.id)).toMatchObject({ state: 'pending' })
      expect(await store.recordDelivery(taken, { state: 'delivered', status: 200 }, [tried])).toBe(true)
    })
  })

  it('fails calls with overloaded after it was closed', async () => {
    await store.close()
    await store.close()
    await expect(store.find(TENANT, 'job_x')).rejects.toMatchObject({ code: 'overloaded' })
  })
})
