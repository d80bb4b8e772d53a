/** Opens stores for tests, on Postgres and on SQLite. Tests can advance the clock of the database. */
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { newId } from '#shared/lib/id.ts'
import { newJobId } from '#shared/store/jobs.ts'
import { openPostgresStore } from '#shared/store/postgres/postgres.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { HeldAttempt, NewJob, Store } from '#shared/store/store.ts'

export const HOUR_MS = 3_600_000
export const LEASE_MS = 9_000

/** One database for tests, initially empty, with a clock that tests can advance. */
export interface TestDatabase extends AsyncDisposable {
  /** Closes all stores, deletes all rows and resets the clock. Takes a fraction of the time of a new database. */
  reset(): Promise<void>
  /** Opens the store as another process does. On SQLite there is only one store, which is returned again. */
  open(): Promise<Store>
  /** Advances the clock of the database; process clocks do not change. */
  advance(ms: number): Promise<void>
  /** Runs SQL on the database, without the store. */
  query(sql: string): Promise<Record<string, unknown>[]>
}

/**
 * Deletes all rows. The second pass deletes rows that triggers have written during the first. TRUNCATE would be slower, because it creates new files
 * for the hundreds of tables and indexes of the partitions.
 */
const DELETE_ALL = `DO $$ DECLARE name regclass; BEGIN
  FOR pass IN 1..2 LOOP
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = current_schema::regnamespace AND relkind IN ('r', 'p')
      AND NOT relispartition AND relname NOT IN ('migrations', 'test_clock')
    LOOP EXECUTE 'DELETE FROM ' || name; END LOOP;
  END LOOP;
END $$`

/** Creates a schema on a Postgres server, so that tests are isolated without a new database. */
export async function openPostgresDatabase(server: string): Promise<TestDatabase & { url: string }> {
  const schema = newId('t_', 12).toLowerCase()
  const url = `${server}${server.includes('?') ? '&' : '?'}options=-csearch_path%3D${schema}`
  const admin = new Client({ connectionString: url })
  await admin.connect()
  await admin.query(`CREATE SCHEMA ${schema}`)
  return await testDatabaseOf(url, admin, () => admin.query(`DROP SCHEMA ${schema} CASCADE`))
}

/** Databases with the complete schema, from which new databases are copied. One per pooler; the key is the pooler's URL. */
const TEMPLATES = new Map<string, Promise<string>>()

/**
 * Creates a database that is reached through PgBouncer. A separate schema would not suffice, because PgBouncer before 1.20 rejects connections
 * that set search_path.
 */
export async function openPooledDatabase(server: string, pooler: string): Promise<TestDatabase & { url: string }> {
  const owner = new Client({ connectionString: server })
  await owner.connect()
  let template = TEMPLATES.get(pooler)
  if (!template) {
    template = makeTemplate(owner, pooler)
    TEMPLATES.set(pooler, template)
  }
  const name = newId('t_', 12).toLowerCase()
  await owner.query(`CREATE DATABASE ${name} TEMPLATE ${await template}`)
  const admin = new Client({ connectionString: databaseOf(server, name) })
  await admin.connect()
  return await testDatabaseOf(databaseOf(pooler, name), admin, async () => {
    await admin.end()
    await owner.query(`DROP DATABASE ${name} WITH (FORCE)`)
    await owner.end()
  })
}

/** Creates a database with the complete schema, from which others are copied. Never dropped, because the whole server is deleted after the tests. */
async function makeTemplate(owner: Client, pooler: string): Promise<string> {
  const name = newId('t_', 12).toLowerCase()
  await owner.query(`CREATE DATABASE ${name}`)
  await (await openPostgresStore({ url: databaseOf(pooler, name), onProblem: () => undefined })).close()
  // Closes the connections that the pooler leaves open, because a database with open connections cannot be copied.
  await owner.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS false`)
  await owner.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name])
  return name
}

/** Replaces the name of the database in the URL of a server. */
export function databaseOf(server: string, name: string): string {
  return Object.assign(new URL(server), { pathname: `/${name}` }).href
}

async function testDatabaseOf(
  url: string,
  admin: Client,
  drop: () => Promise<unknown>,
): Promise<TestDatabase & { url: string }> {
  await admin.query('CREATE TABLE test_clock AS SELECT 0::bigint AS offset_ms')
  const opened: Store[] = []
  let hasClock = false
  const close = async () => void (await Promise.all(opened.splice(0).map((store) => store.close())))
  return {
    url,
    async reset() {
      await close()
      await admin.query(DELETE_ALL)
      await admin.query('UPDATE test_clock SET offset_ms = 0')
    },
    async open() {
      const store = await openPostgresStore({ url, connectionsMax: 8, onProblem: () => undefined })
      if (!hasClock) {
        hasClock = true
        await admin.query(`CREATE OR REPLACE FUNCTION now_ms() RETURNS bigint LANGUAGE sql STABLE AS
          $$ SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint + (SELECT offset_ms FROM test_clock) $$`)
      }
      opened.push(store)
      return store
    },
    async advance(ms) {
      await admin.query('UPDATE test_clock SET offset_ms = offset_ms + $1', [ms])
    },
    query: async (sql) => (await admin.query(sql)).rows,
    async [Symbol.asyncDispose]() {
      await close()
      await drop()
      await admin.end()
    },
  }
}

/** Opens a SQLite store, whose file is in a new directory. */
export async function openSqliteDatabase(): Promise<TestDatabase & { directory: string }> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-store-'))
  let offset = 0
  let store: Store | undefined
  return {
    directory,
    async reset() {
      await store?.close()
      store = undefined
      offset = 0
      for (const file of await readdir(directory)) await rm(join(directory, file), { recursive: true })
    },
    async open() {
      store ??= openSqliteStore({ directory, boot: newId('boot_'), now: () => Date.now() + offset })
      return store
    },
    async advance(ms) {
      offset += ms
    },
    async query(sql) {
      await store?.close()
      store = undefined
      const { DatabaseSync } = await import('node:sqlite')
      const db = new DatabaseSync(join(directory, 'store.db'))
      const rows = db.prepare(sql).all()
      db.close()
      return rows
    },
    async [Symbol.asyncDispose]() {
      await store?.close()
      await rm(directory, { recursive: true, force: true })
    },
  }
}

/** A job as a caller submits it. */
export function newJob(changes: Partial<NewJob> = {}): NewJob {
  return {
    id: newJobId(),
    tenant: 'key_a',
    pool: 'inference',
    kind: 'generate',
    endpoint: '/v1/chat/completions',
    model: 'echo-1',
    request: { body: 'hello' },
    deadlineInMs: HOUR_MS,
    retentionMs: 24 * HOUR_MS,
    ...changes,
  }
}

/** Registers a process in the store, or renews its lease. Returns the boot id of the process. */
export async function alive(store: Store, boot = newId('boot_'), leaseMs = LEASE_MS): Promise<string> {
  await store.renew({ boot, role: 'inference', slots: 4, version: 'test', draining: false, leaseMs })
  return boot
}

/** Creates a job, and claims it for a live process. */
export async function running(store: Store, changes: Partial<NewJob> = {}, owner?: string): Promise<HeldAttempt> {
  const job = newJob(changes)
  await store.create(job)
  return await claimed(store, job.id, owner ?? (await alive(store)))
}

/** Claims a job. The claim must succeed. */
export async function claimed(store: Store, id: string, owner: string): Promise<HeldAttempt> {
  const moved = await store.claim(id, owner)
  if (!moved) throw new Error(`${id} could not be claimed`)
  return { id, attempt: moved.job.attempt, boot: owner, chunk: 0 }
}
