import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { loadMigrations, type Migration, missingMigrations } from '#shared/store/sql/migrations.ts'
import { translate } from './errors.ts'
import { inTransaction, isOnline, runOnline } from './online.ts'
import { SCHEMA_LOCK } from './schema.ts'
import { beginSession, bySetting } from './session.ts'

/** Hears what a start waits for, and how long a change took. */
export type OnProgress = (message: string, fields: Record<string, unknown>) => void

/** Taken by the process that changes the schema, for as long as that takes. Other schemas of the same database have their own. */
const MIGRATION_LOCK = `${0x51_01_cf}, hashtext(current_schema)`
const CONNECT_TIMEOUT_MS = 5_000
/** Maximum time of a statement that reads or takes the lock. */
const ANSWER_MS = 30_000
/** How often a process asks that waits for another, and for how long: longer than an index on the largest table takes. */
const ASK_MS = 500
const WAIT_MS_MAX = 6 * 3_600_000
/** How often a change tries to get its lock. */
const LOCK_TRIES_MAX = 300
/** `lock_not_available`, and `deadlock_detected`: whoever it meets goes on, so it may try again. */
const IN_THE_WAY = new Set(['55P03', '40P01'])

/**
 * Brings the schema up to date. Any number of processes may do so at once: one changes it, and the others wait and log that.
 * Processes of the version before go on working meanwhile and afterwards.
 *
 * One connection makes the changes, and its statements may take as long as they take. A second one holds the lock in a transaction
 * that does nothing else: an index that is made online cannot be part of a transaction, and behind a pooler a lock of the session
 * would stay with a server when this process is gone. Such a transaction has no snapshot, so no index waits for it.
 *
 * @throws ServiceError `overloaded` when the database cannot be reached
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
  // A connection that breaks also fails the statement under way.
  client.on('error', () => {})
  return client
}

/** A server that does not answer must not hold up the end. */
async function end(client: Client): Promise<void> {
  await Promise.race([client.end().catch(() => {}), delay(CONNECT_TIMEOUT_MS, undefined, { ref: false })])
}

async function migrateAlone(url: string, client: Client, onProgress: OnProgress): Promise<void> {
  const holder = clientOf(url)
  const stop = () => void client.end().catch(() => {})
  try {
    await holder.connect()
    await takeTurn(holder, onProgress)
    // Without the lock another process may begin.
    holder.once('end', stop)
    // A server may be set to end statements that take long.
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

/**
 * Asks again and again, rather than wait in a statement: an index that is made without locking waits for every statement
 * that is under way.
 */
async function takeTurn(holder: Client, onProgress: OnProgress): Promise<void> {
  const giveUpAt = performance.now() + WAIT_MS_MAX
  for (let tries = 0; !(await isMyTurn(holder)); tries++) {
    if (performance.now() > giveUpAt) throw new Error('Another process has been changing the schema for too long.')
    if (tries === 0) onProgress('another process changes the schema of the job store; waiting', {})
    await delay(ASK_MS)
  }
}

/** Whether the lock is taken, by the transaction that is open then. */
async function isMyTurn(holder: Client): Promise<boolean> {
  await quickly(holder, `BEGIN; ${bySetting({ idle_in_transaction_session_timeout: '0' }, 'transaction')}`)
  const [row] = (
    await quickly(holder, `SELECT current_schema AS schema, pg_try_advisory_xact_lock(${MIGRATION_LOCK}) AS is_mine`)
  ).rows
  if (row?.is_mine !== true) await quickly(holder, 'ROLLBACK')
  if (row?.schema === null) throw noSchema()
  return row?.is_mine === true
}

/** Shaped as an error of Postgres, which would name it at the first CREATE TABLE only. */
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
  const retry = async <T>(change: () => Promise<T>) => await whenNobodyIsInTheWay(change)
  const note = () => client.query('INSERT INTO migrations (name, hash) VALUES ($1, $2)', [name, hash])
  if (isOnline(sql)) {
    await runOnline(client, sql, retry)
    await note()
    return
  }
  await retry(() =>
    inTransaction(client, async () => {
      // Also held by processes of the version before while they change the schema.
      await client.query(`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK})`)
      if (!(await missing(client)).some((migration) => migration.name === name)) return
      await client.query(sql)
      await note()
    }),
  )
}

/** Lets those who wait behind a change go first, and tries again. */
async function whenNobodyIsInTheWay<T>(change: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await change()
    } catch (error) {
      if (!IN_THE_WAY.has((error as { code?: string }).code ?? '') || tries === LOCK_TRIES_MAX) throw error
      await delay(ASK_MS * (1 + Math.random()))
    }
  }
}
