/** Tests the store behind PgBouncer in cases that store.test.ts does not cover. store.test.ts also runs with PgBouncer in transaction mode. */
import { Client } from 'pg'
import { afterAll, describe, expect, inject, it } from 'vitest'
import { parseConfig } from '#shared/config/config.ts'
import { runCheck } from '#shared/doctor/check.ts'
import { postgresCheck } from '#shared/doctor/postgres.ts'
import { openPostgresKeys } from '#shared/keys/postgres.ts'
import { openPostgresCounts } from '#shared/store/postgres/fleet-counts.ts'
import { openPostgresStore } from '#shared/store/postgres/postgres.ts'
import { alive, claimed, databaseOf, newJob, openPooledDatabase } from '../../support/jobs/stores.ts'
import { type PoolMode, startPgBouncer, whyNoPgBouncer } from '../../support/processes/pgbouncer.ts'
import { until } from '../../support/stack.ts'

const postgres = inject('postgres')
const missing = postgres ? whyNoPgBouncer() : 'no Postgres'
if (missing && process.env.CI === 'true') throw new Error(`The store behind PgBouncer cannot be tested: ${missing}`)

describe.skipIf(missing)('the store behind PgBouncer', () => {
  const opened: AsyncDisposable[] = []
  afterAll(async () => {
    for (const one of opened) await one[Symbol.asyncDispose]()
  })
  const start = async (mode: PoolMode) => {
    const pooler = await startPgBouncer(postgres ?? '', mode)
    opened.push(pooler)
    return pooler
  }

  it.each(['default', 'session', 'transaction'] as const)(
    'runs jobs with pool_mode %s, and the doctor command reports the pooler',
    async (mode) => {
      const pooler = await start(mode)
      await using database = await openPooledDatabase(postgres ?? '', pooler.url)
      const store = await open(database.url)
      const boot = await alive(store)
      const jobs = Array.from({ length: 50 }, () => newJob())
      await Promise.all(jobs.map((job) => store.create(job)))
      for (const { id } of jobs.slice(0, 10)) await store.complete(await claimed(store, id, boot), { result: 1 })
      const found = await runCheck(postgresCheck, parseConfig({ DATABASE_URL: database.url, KAFKA_BROKERS: 'k:1' }))
      expect(found.map(({ status }) => status)).toEqual(['ok', 'ok'])
      expect(found[0]?.message).toContain('pooler')
      await store.close()
    },
  )

  it('completes 200 concurrent jobs over pooled connections, including keys and limits', async () => {
    const pooler = await start('transaction')
    await using database = await openPooledDatabase(postgres ?? '', pooler.url)
    const stores = await Promise.all([1, 2, 3].map(() => open(database.url)))
    const keys = await openPostgresKeys(database.url)
    const counts = openPostgresCounts(database.url, () => undefined)
    const work = async (nth: number) => {
      const store = stores[nth % stores.length] as (typeof stores)[number]
      const job = newJob()
      await store.create(job)
      const run = await claimed(store, job.id, await alive(store))
      await store.append(run, [{ type: 'job.output.delta', data: { nth } }])
      await store.complete({ ...run, chunk: 1 }, { result: nth })
      await keys.list()
      await counts.add([{ name: `n${nth % 5}`, amount: 1 }])
      return (await store.find('key_a', job.id))?.state
    }
    const states = await Promise.all(Array.from({ length: 200 }, (_, nth) => work(nth)))
    expect(new Set(states)).toEqual(new Set(['completed']))
    for (const one of [...stores, keys, counts]) await one.close()
  })

  it('leaves no settings, locks or named statements on pooled connections', async () => {
    const pooler = await start('transaction')
    await using database = await openPooledDatabase(postgres ?? '', pooler.url)
    const store = await open(database.url)
    await Promise.all(Array.from({ length: 20 }, () => store.create(newJob())))
    await store.purge()
    const client = new Client({ connectionString: database.url })
    await client.connect()
    const { rows } = await client.query(`SELECT current_setting('enable_seqscan') AS seqscan,
      current_setting('statement_timeout') AS timeout, (SELECT count(*)::int FROM pg_prepared_statements) AS statements,
      (SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND database = (
        SELECT oid FROM pg_database WHERE datname = current_database())) AS locks`)
    expect(rows).toEqual([{ seqscan: 'on', timeout: '0', statements: 0, locks: 0 }])
    await client.end()
    await store.close()
  })

  it('is migrated once by concurrent starts, which release the migration lock', async () => {
    const pooler = await start('transaction')
    const name = `t_migrate_${Date.now()}`
    const admin = new Client({ connectionString: postgres ?? '' })
    await admin.connect()
    await admin.query(`CREATE DATABASE ${name}`)
    const url = databaseOf(pooler.url, name)
    const told: string[] = []
    const onProgress = (message: string) => void told.push(message)
    const stores = await Promise.all([1, 2, 3].map(() => open(url, { onProgress })))
    for (const store of stores) await store.close()
    const changes = told.filter((message) => message === 'changing the schema of the job store')
    const changed = told.filter((message) => message === 'schema of the job store changed')
    expect(changes).toHaveLength(changed.length)
    const { rows } = await admin.query(
      `SELECT count(*)::int AS count FROM pg_locks WHERE locktype = 'advisory'
       AND database = (SELECT oid FROM pg_database WHERE datname = $1)`,
      [name],
    )
    expect(rows).toEqual([{ count: 0 }])
    await admin.query(`DROP DATABASE ${name} WITH (FORCE)`)
    await admin.end()
  })

  it('fails with overloaded while PgBouncer is down, and recovers afterwards', async () => {
    const pooler = await start('transaction')
    await using database = await openPooledDatabase(postgres ?? '', pooler.url)
    const store = await open(database.url)
    await store.create(newJob())
    await pooler.down('SIGKILL')
    await expect(store.create(newJob())).rejects.toMatchObject({ code: 'overloaded', isInfrastructure: true })
    await pooler.resume()
    await until(() => store.isReachable, { withinMs: 30_000 })
    await store.create(newJob())
    await store.close()
  })
})

async function open(url: string, options = {}) {
  return await openPostgresStore({ url, onProblem: () => undefined, ...options })
}
