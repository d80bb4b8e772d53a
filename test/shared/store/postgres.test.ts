/** Tests cases that only the store on Postgres has: outages, use by several processes, partitions, and concurrent migrations. */
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { describe, expect, inject, it, vi } from 'vitest'
import { childJobId, newJobId } from '#shared/store/jobs.ts'
import { migrate } from '#shared/store/postgres/migrate.ts'
import { openPostgresStore } from '#shared/store/postgres/postgres.ts'
import { loadMigrations } from '#shared/store/sql/migrations.ts'
import type { HeldAttempt, Store } from '#shared/store/store.ts'
import { alive, claimed, HOUR_MS, newJob, openPostgresDatabase, running } from '../../support/jobs/stores.ts'
import { startLocalPostgres, whyNoLocalPostgres } from '../../support/processes/postgres.ts'
import { until } from '../../support/stack.ts'

const DAY_MS = 24 * HOUR_MS
const WITHIN = { withinMs: 30_000 }
const postgres = inject('postgres')
const noLocal = postgres ? whyNoLocalPostgres() : 'no Postgres'
if (noLocal && process.env.CI === 'true') throw new Error(`The restart tests cannot run: ${noLocal}`)

const open = (url: string, options = {}) => openPostgresStore({ url, onProblem: () => undefined, ...options })

describe.skipIf(!postgres)('the store on a shared Postgres', () => {
  it('is migrated once by concurrent and repeated starts', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const stores = await Promise.all([1, 2, 3, 4].map(() => open(database.url)))
    stores.push(await open(database.url))
    expect(await database.query('SELECT name FROM migrations')).toHaveLength(loadMigrations('postgres').length)
    for (const store of stores) {
      await store.create(newJob())
      await store.close()
    }
    expect(await database.query('SELECT id FROM jobs')).toHaveLength(5)
  })

  it('refuses a schema whose migrations differ, and accepts one with later migrations', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await (await open(database.url)).close()
    await database.query("INSERT INTO migrations VALUES ('999-later.sql', 'x')")
    await (await open(database.url)).close()
    await database.query("UPDATE migrations SET hash = 'other'")
    await expect(open(database.url)).rejects.toThrow('001-tables.sql differs from the one applied to this database')
  })

  it('refuses the schema of an older version, and changes nothing', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await database.query('CREATE TABLE migrations (name text PRIMARY KEY, hash text NOT NULL)')
    await database.query("INSERT INTO migrations VALUES ('001-durable-jobs.sql', 'a'), ('031-shared-history.sql', 'b')")
    const read = async () => [
      await database.query('SELECT oid, relname FROM pg_class WHERE relnamespace = current_schema::regnamespace'),
      await database.query('SELECT proname FROM pg_proc WHERE pronamespace = current_schema::regnamespace'),
      await database.query('SELECT xmin::text, name, hash FROM migrations'),
    ]
    const before = await read()
    await expect(open(database.url)).rejects.toThrow(
      'The job store has the schema of version 0.2.0 or older (last migration 031-shared-history.sql); nothing was changed. ' +
        'Export what you need with that version, then set DATABASE_URL to an empty database.',
    )
    expect(await read()).toEqual(before)
  })

  it('measures leases and deadlines by the clock of the database, not of the process', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const boot = await alive(store, undefined, 2_000)
    const given = newJob({ deadlineInMs: 3_000 })
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + HOUR_MS })
    try {
      await store.create(given)
      expect(await store.expire(10)).toEqual([])
      await claimed(store, given.id, boot)
    } finally {
      vi.useRealTimers()
    }
    await database.advance(2_000)
    const other = newJob()
    await store.create(other)
    expect(await store.claim(other.id, boot)).toBeUndefined()
  })

  it('stores jobs, events and steps in daily partitions, which are created in advance and dropped whole', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const partitions = async () =>
      (
        await database.query(
          `SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid
           WHERE inhparent IN (to_regclass('jobs'), to_regclass('job_events'), to_regclass('job_steps'))`,
        )
      ).filter(({ relname }) => /^job(s|_events|_steps)_\d{8}$/.test(String(relname))).length
    expect(await partitions()).toBe(15)
    const parent = await running(store)
    const child = newJob({ id: childJobId(parent.id, 'a') })
    await store.create(child)
    await store.complete(parent, { result: 1 })
    const rows = await database.query('SELECT DISTINCT tableoid::regclass::text AS partition FROM jobs')
    expect(rows).toHaveLength(1)
    await database.advance(3 * DAY_MS)
    await store.purge()
    // The child has not ended, so the partition of its day must not be dropped. Only the ended jobs of that day are deleted.
    expect(await database.query('SELECT id FROM jobs')).toEqual([{ id: child.id }])
    expect(await database.query('SELECT DISTINCT job_id FROM job_events')).toEqual([{ job_id: child.id }])
    await store.cancel('key_a', child.id)
    await database.advance(DAY_MS)
    await store.purge()
    expect(await database.query('SELECT id FROM jobs')).toEqual([])
    expect(await database.query('SELECT job_id FROM job_events')).toEqual([])
    expect(await partitions()).toBe(15)
  })

  it('reads one job by its id from a single partition', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await database.open()
    const plan = JSON.stringify(await database.query(`EXPLAIN SELECT * FROM jobs WHERE id = '${newJobId()}'`))
    expect(plan.match(/jobs_\d{8}_pkey/g)).toHaveLength(1)
  })

  it('finds changed jobs by the primary key, even with a query plan that was made for empty tables', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await open(database.url, { connectionsMax: 2 })
    const boot = await alive(store)
    const createAll = async (count: number) => {
      const jobs = Array.from({ length: count }, () => newJob())
      await Promise.all(jobs.map((job) => store.create(job)))
      return jobs
    }
    // After a few executions of a prepared statement, Postgres switches to a generic plan. The next twenty claims cause this switch.
    for (const { id } of await createAll(20)) await store.claim(id, boot)
    const many = await createAll(400)
    for (const { id } of many.slice(0, 50)) await store.claim(id, boot)
    await store.close()
    const read = async (index: string) => {
      const sql = `SELECT coalesce(sum(idx_tup_read), 0)::int AS rows FROM pg_stat_user_indexes
                   WHERE schemaname = current_schema AND indexrelname LIKE '${index}'`
      return Number((await database.query(sql))[0]?.rows)
    }
    // Postgres adds the reads of a connection to its statistics only when the connection ends, so the test waits for the numbers.
    await until(async () => (await read('jobs_%_pkey')) >= 70, WITHIN)
    expect(await read('jobs_%_published_at_ms_idx')).toBeLessThan(400)
  })

  it('cancels a statement that waits too long for a lock, and runs later ones', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const first = await database.open()
    const store = await open(database.url, { statementTimeoutMs: 300 })
    const given = newJob()
    await first.create(given)
    await database.query('BEGIN')
    await database.query(`SELECT 1 FROM jobs WHERE id = '${given.id}' FOR UPDATE`)
    await expect(store.cancel('key_a', given.id)).rejects.toMatchObject({ code: 'overloaded' })
    expect(store.isReachable).toBe(true)
    // The sweep must skip the job, because its row is locked by another transaction.
    await database.advance(HOUR_MS)
    expect(await store.expire(10)).toEqual([])
    await database.query('ROLLBACK')
    expect(await store.cancel('key_a', given.id)).toBeDefined()
    await store.close()
  })

  it('does not requeue the jobs of a process whose lease renewal is in flight', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const run = await running(store)
    await store.deregister(run.boot)
    await store.holdLease('reaper', 'scheduler', 5_000)
    const policy = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 5_000 }
    await database.query('BEGIN')
    await database.query(`UPDATE processes SET lease_ms = 9000, lease_until_ms = now_ms() + 9000`)
    expect(await store.reap('scheduler', policy, 10)).toEqual([])
    await database.query('COMMIT')
    expect(await store.reap('scheduler', policy, 10)).toEqual([])
    expect(await store.complete(run, { result: 1 })).toBeDefined()
  })
})

describe.skipIf(!postgres)('a schema migration of Postgres', () => {
  it('creates new indexes of jobs in each partition separately, so that writes continue', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await migrate(database.url)
    await database.query('CREATE TABLE jobs_old PARTITION OF jobs DEFAULT')
    await migrate(database.url, undefined, [...loadMigrations('postgres'), LATER])
    const indexes = await database.query(`SELECT relname, indisvalid FROM pg_index JOIN pg_class ON oid = indexrelid
      WHERE relnamespace = current_schema::regnamespace AND relname LIKE 'jobs_old_jobs_by_request%'`)
    expect(indexes).toEqual([{ relname: 'jobs_old_jobs_by_request', indisvalid: true }])
  }, 60_000)

  it('blocks no writes, and is completed by the next start after an interruption', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await (await open(database.url)).close()
    const job = newJob()
    const insert = (id: string) =>
      database.query(`INSERT INTO jobs (id, tenant, pool, kind, endpoint, model, priority, stream, state, run_at_ms,
        expires_at_ms, deadline_ms, created_at_ms, retention_ms, metadata, webhook_events)
        VALUES ('${id}', 'key_a', 'inference', 'generate', '/', 'm', 'normal', FALSE, 'queued', 1, 1, 1, 1, 1, '{}', '[]')`)
    // Postgres can finish the index only after all transactions that write to the table have ended. The open transaction of this writer makes the
    // migration wait.
    await using writer = await openClient(database.url)
    await writer.query(`BEGIN; LOCK TABLE jobs_${suffixOf(Date.now())} IN ROW EXCLUSIVE MODE`)
    const told: string[] = []
    const start = () => migrate(database.url, (message) => told.push(message), [...loadMigrations('postgres'), LATER])
    const builds = (condition: string) =>
      database.query(`SELECT pid FROM pg_stat_activity WHERE application_name = 'sluice migration' AND state = 'active'
        AND query LIKE '% INDEX CONCURRENTLY %jobs_by_request%' AND ${condition}`)
    const cut = expect(start()).rejects.toMatchObject({ code: 'overloaded' })
    await until(async () => (await builds('TRUE')).length > 0, WITHIN)
    await database.query(`SELECT pg_terminate_backend(${(await builds('TRUE'))[0]?.pid})`)
    await cut
    const starts = Promise.all([start(), start()])
    // The test waits until the build of the index has taken longer than the statement timeout of the store. The build must not be cancelled.
    await until(async () => (await builds("now() - query_start > '6 s'")).length > 0, WITHIN)
    await insert(job.id)
    expect(told).toContain('another process changes the schema of the job store; waiting')
    await writer.query('COMMIT')
    await starts
    const store = await database.open()
    expect(await store.find('key_a', job.id)).toMatchObject({ state: 'queued' })
    const indexes = await database.query(`SELECT relname FROM pg_index JOIN pg_class ON oid = indexrelid
      WHERE relnamespace = current_schema::regnamespace AND NOT indisvalid`)
    expect(indexes).toEqual([])
    const changes = told.filter((message) => message === 'schema of the job store changed')
    expect(changes).toHaveLength(1)
    const fresh = await database.query(`SELECT count(*)::int AS count FROM pg_indexes WHERE schemaname = current_schema
      AND tablename = 'jobs_${suffixOf(Date.now())}' AND indexdef LIKE '%(request_id)%'`)
    expect(fresh).toEqual([{ count: 1 }])
  }, 120_000)
})

describe.skipIf(!postgres)('the store on a Postgres with a full disk', () => {
  it('refuses writes with overloaded, logs the problem once, still reads, and recovers', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const problems: string[] = []
    const store = await open(database.url, { onProblem: (message: string) => void problems.push(message) })
    const job = newJob()
    await store.create(job)
    expect(store.isFull).toBe(false)
    await database.query(`CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$`)
    await database.query('CREATE TRIGGER full_disk BEFORE INSERT ON jobs EXECUTE FUNCTION no_room()')
    for (let i = 0; i < 3; i++) {
      await expect(store.create(newJob())).rejects.toMatchObject({
        ...{ code: 'overloaded', isUndone: true, retryAfterMs: 60_000 },
        message: 'The disk of the job store is full.',
      })
    }
    expect(await store.find('key_a', job.id)).toBeDefined()
    expect([store.isFull, store.isReachable, problems]).toEqual([
      true,
      true,
      ['job store disk is full; writes are refused'],
    ])
    await database.query('DROP TRIGGER full_disk ON jobs')
    await store.create(newJob())
    await store.close()
  }, 60_000)
})

describe.skipIf(!postgres)('the store on a Postgres with a locked table', () => {
  it('fails each call with overloaded after the statement timeout, and recovers when the lock ends', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const problems: string[] = []
    const onProblem = (message: string) => problems.push(message)
    const store = await open(database.url, { statementTimeoutMs: 1_000, connectionsMax: 2, onProblem })
    const job = newJob()
    await store.create(job)
    await database.query('BEGIN')
    await database.query('LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE')
    const calls = [
      ...Array.from({ length: 40 }, () => store.listEvents('key_a', job.id, 0, 10)),
      ...Array.from({ length: 40 }, () => store.create(newJob())),
    ]
    const settled = await Promise.allSettled(calls)
    for (const call of settled) expect(call).toMatchObject({ reason: { code: 'overloaded', isUndone: true } })
    expect([store.isReachable, problems]).toEqual([true, []])
    await database.query('ROLLBACK')
    expect(await store.find('key_a', job.id)).toBeDefined()
    expect((await store.list('key_a', { limit: 100 })).jobs).toHaveLength(1)
    await store.close()
  }, 60_000)

  it('completes all calls if the lock is shorter than the statement timeout', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await open(database.url, { connectionsMax: 2 })
    const job = newJob()
    await store.create(job)
    await using locker = await openClient(database.url)
    await locker.query('BEGIN; LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE')
    const calls = Promise.all(Array.from({ length: 100 }, (_, i) => store.listEvents('key_a', job.id, i, 10)))
    const waiting = `SELECT 1 FROM pg_stat_activity WHERE application_name = 'sluice' AND wait_event_type = 'Lock'
      AND query LIKE '%job_events%' AND now() - query_start > '6 s'`
    await until(async () => (await database.query(waiting)).length > 0, WITHIN)
    await locker.query('ROLLBACK')
    expect(await calls).toHaveLength(100)
    await store.close()
  }, 60_000)
})

describe.skipIf(noLocal !== undefined)('the store during an outage of Postgres', () => {
  it.each(['SIGINT', 'SIGKILL'] as const)(
    'fails calls with overloaded, and then has each acknowledged write exactly once (%s)',
    async (signal) => {
      await using server = await startLocalPostgres()
      const problems: string[] = []
      const store = await open(server.url, { onProblem: (message: string) => problems.push(message) })
      const run = await running(store)
      const accepted: string[] = []
      const traffic = submitSteadily(store, accepted)
      const appended = appendSteadily(store, run)
      await until(() => accepted.length > 20, WITHIN)

      await server.down(signal)
      await until(() => !store.isReachable, WITHIN)
      await expect(store.find('key_a', run.id)).rejects.toMatchObject({ code: 'overloaded', retryAfterMs: 2_000 })
      const before = accepted.length
      await server.resume()
      await until(() => store.isReachable && accepted.length > before + 20, WITHIN)
      await traffic.stop()
      const texts = await appended.stop()

      for (const id of accepted) expect((await store.find('key_a', id))?.state).toBe('queued')
      const events = await store.listEvents('key_a', run.id, 0, 100_000)
      expect(events.map(({ seq }) => seq)).toEqual(events.map((_, i) => i + 1))
      // Each append was repeated until it was acknowledged. The store must contain each one exactly once.
      expect(events.slice(2).map(({ data }) => data)).toEqual(texts)
      expect(problems).toEqual(['job store unreachable; retrying', 'job store reachable again'])
      await store.close()
    },
    120_000,
  )

  it('abandons a suspended server after the statement timeout, and uses the resumed server again', async () => {
    await using server = await startLocalPostgres()
    const store = await open(server.url, { statementTimeoutMs: 500 })
    const given = newJob()
    await store.create(given)
    server.freeze()
    await expect(store.find('key_a', given.id)).rejects.toMatchObject({ code: 'overloaded' })
    expect(store.isReachable).toBe(false)
    server.thaw()
    await until(() => store.isReachable, WITHIN)
    expect(await store.find('key_a', given.id)).toMatchObject({ id: given.id })
    await store.close()
  }, 60_000)

  it('fails to open with overloaded', async () => {
    await expect(open('postgres://sluice@127.0.0.1:1/none')).rejects.toMatchObject({ code: 'overloaded' })
  })
})

/** Opens a connection to the database that does not belong to the store. Disposing the connection releases its locks. */
async function openClient(url: string): Promise<Client & AsyncDisposable> {
  const client = new Client({ connectionString: url })
  await client.connect()
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
}

/** Migration that a future version could add. */
const LATER = {
  name: '002-later.sql',
  hash: 'later',
  sql: `-- online
    CREATE INDEX jobs_by_request ON jobs (request_id) WHERE request_id IS NOT NULL;
    DROP INDEX jobs_lost;`,
}

function suffixOf(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10).replaceAll('-', '')
}

/** Creates jobs sequentially, repeating each until it is acknowledged. */
function submitSteadily(store: Store, accepted: string[]) {
  let isStopped = false
  const submit = async () => {
    while (!isStopped) {
      const given = newJob()
      await untilAnswered(() => store.create(given))
      accepted.push(given.id)
    }
  }
  const ended = submit()
  return {
    async stop() {
      isStopped = true
      await ended
    },
  }
}

/** Appends numbers to a run, repeating each until it is acknowledged. `stop` returns the numbers. */
function appendSteadily(store: Store, run: HeldAttempt) {
  const numbers: number[] = []
  let isStopped = false
  const append = async () => {
    for (let chunk = 0; !isStopped; chunk++) {
      const output = [{ type: 'job.output.delta' as const, data: chunk }]
      expect(await untilAnswered(() => store.append({ ...run, chunk }, output))).toBeDefined()
      numbers.push(chunk)
    }
  }
  const ended = append()
  return {
    async stop() {
      isStopped = true
      await ended
      return numbers
    },
  }
}

async function untilAnswered<T>(call: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await call()
    } catch (error) {
      if ((error as { code?: string }).code !== 'overloaded') throw error
      await delay(20)
    }
  }
}
