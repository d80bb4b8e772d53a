import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { loadMigrations, type Migration, missingMigrations } from '#shared/store/sql/migrations.ts'
import { translate } from './errors.ts'
import { inTransaction, isOnline, runOnline } from './online.ts'
import { SCHEMA_LOCK } from './schema.ts'
import { beginSession, bySetting } from './session.ts'

/** Called while a starting process waits for the migration lock, and after each migration with its duration. */
export type OnProgress = (message: string, fields: Record<string, unknown>) => void

/** Advisory lock of the process that changes the schema. Other schemas of the same database have their own locks. */
const MIGRATION_LOCK = `${0x51_01_cf}, hashtext(current_schema)`
const CONNECT_TIMEOUT_MS = 5_000
const ANSWER_MS = 30_000
/** Poll interval and maximum wait for the migration lock. The maximum exceeds the time to create an index on the largest table. */
const LOCK_POLL_MS = 500
const WAIT_MS_MAX = 6 * 3_600_000
const LOCK_TRIES_MAX = 300
/** `lock_not_available` and `deadlock_detected`: the other transaction proceeds, so a retry may succeed. */
const LOCK_CONFLICTS = new Set(['55P03', '40P01'])

/**
 * Updates the schema. Any number of processes may call this at once: one makes the changes, the others wait and log. Processes of the previous
 * version keep working.
 *
 * One connection makes the changes, without time limits. A second one holds the lock in an otherwise idle transaction. The lock cannot be part of the
 * first connection: online index creation is not allowed in a transaction. A session lock would stay with a pooler's server after the end of this
 * process. An idle transaction has no snapshot, so no index creation waits for it.
 *
 * @throws ServiceError `overloaded` if the database is unreachable
 */
export async function migrate(url: string, onProgress: OnProgress = () => {}): Promise<void> {
  const client = clientOf(url)
  try {
    await client.connect()
    if ((await missing(client)).length > 0) await migrateAlone(url, client, onProgress)
  } catch (error) {
    throw translate(error).error
  } finally {
    await end(client)
  }
}

function clientOf(url: string): Client {
  const client = new Client({
    connectionString: url,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    application_name: 'sluice migration',
  })
  // The event is ignored, because the running statement fails with the same error. Without a listener, the event would end the process.
  client.on('error', () => {})
  return client
}

async function end(client: Client): Promise<void> {
  await Promise.race([client.end().catch(() => {}), delay(CONNECT_TIMEOUT_MS, undefined, { ref: false })])
}

async function migrateAlone(url: string, client: Client, onProgress: OnProgress): Promise<void> {
  const holder = clientOf(url)
  const stop = () => void client.end().catch(() => {})
  try {
    await holder.connect()
    await waitForLock(holder, onProgress)
    // If the connection with the lock ends, then the migration stops. Otherwise another process could change the schema at the same time.
    holder.once('end', stop)
    // Time limits are switched off, because the server may be configured to end long statements.
    await beginSession(client, { statement_timeout: '0', lock_timeout: '0' })
    await client.query('CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, hash text NOT NULL)')
    for (const migration of await missing(client)) {
      const startedAt = performance.now()
      onProgress('changing the schema of the job store', { migration: migration.name })
      await apply(client, migration)
      const duration_ms = Math.round(performance.now() - startedAt)
      onProgress('schema of the job store changed', { migration: migration.name, duration_ms })
    }
  } finally {
    holder.off('end', stop)
    await end(holder)
  }
}

/** Polls for the lock instead of waiting in a statement, because online index creation waits for every running statement. */
async function waitForLock(holder: Client, onProgress: OnProgress): Promise<void> {
  const giveUpAt = performance.now() + WAIT_MS_MAX
  for (let tries = 0; !(await tryLock(holder)); tries++) {
    if (performance.now() > giveUpAt)
      throw new Error(
        'Another process holds the migration lock for too long. Wait for its migration or stop it, then restart this process.',
      )
    if (tries === 0) onProgress('another process changes the schema of the job store; waiting', {})
    await delay(LOCK_POLL_MS)
  }
}

async function tryLock(holder: Client): Promise<boolean> {
  await quickly(holder, `BEGIN; ${bySetting({ idle_in_transaction_session_timeout: '0' }, 'transaction')}`)
  const [row] = (
    await quickly(holder, `SELECT current_schema AS schema, pg_try_advisory_xact_lock(${MIGRATION_LOCK}) AS is_mine`)
  ).rows
  if (row?.is_mine !== true) await quickly(holder, 'ROLLBACK')
  if (row?.schema === null) throw noSchema()
  return row?.is_mine === true
}

/** The error that Postgres would report later, at the first CREATE TABLE. */
function noSchema(): Error {
  return Object.assign(new Error('no schema of the search_path exists'), { code: '3F000' })
}

async function quickly(client: Client, text: string) {
  return await client.query({ text, query_timeout: ANSWER_MS } as { text: string })
}

async function missing(client: Client): Promise<Migration[]> {
  const { rows } = await quickly(client, "SELECT to_regclass('migrations') IS NOT NULL AS is_there")
  const applied = rows[0].is_there ? (await quickly(client, 'SELECT name, hash FROM migrations')).rows : []
  const hashes = new Map<string, string>(applied.map(({ name, hash }) => [name, hash]))
  return missingMigrations(loadMigrations('postgres'), hashes)
}

async function apply(client: Client, { name, sql, hash }: Migration): Promise<void> {
  const retry = async <T>(change: () => Promise<T>) => await retryOnConflict(change)
  const note = () => client.query('INSERT INTO migrations (name, hash) VALUES ($1, $2)', [name, hash])
  if (isOnline(sql)) {
    await runOnline(client, sql, retry)
    await note()
    return
  }
  await retry(() =>
    inTransaction(client, async () => {
      // Processes of the previous version hold this lock too while they change the schema.
      await client.query(`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK})`)
      if (!(await missing(client)).some((migration) => migration.name === name)) return
      await client.query(sql)
      await note()
    }),
  )
}

/** Retries a change after a pause in which queued statements proceed. */
async function retryOnConflict<T>(change: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await change()
    } catch (error) {
      if (!LOCK_CONFLICTS.has((error as { code?: string }).code ?? '') || tries === LOCK_TRIES_MAX) throw error
      await delay(LOCK_POLL_MS * (1 + Math.random()))
    }
  }
}
