import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { loadMigrations, type Migration, missingMigrations } from '#shared/store/sql/migrations.ts'
import { translate } from './errors.ts'
import { isOnline, LOCK_TIMEOUT_MS, runOnline } from './online.ts'
import { SCHEMA_LOCK } from './schema.ts'

/** Hears what a start waits for, and how long a change took. */
export type OnProgress = (message: string, fields: Record<string, unknown>) => void

/** Held by whoever changes the schema, for as long as it takes. Others of the same database are no concern of its. */
const MIGRATION_LOCK = `${0x51_01_cf}, hashtext(current_schema)`
const CONNECT_TIMEOUT_MS = 5_000
/** How often a process asks that waits for another, and for how long: longer than an index on the largest table takes. */
const ASK_MS = 500
const WAIT_MS_MAX = 6 * 3_600_000
/** How often a change tries to get its lock. */
const LOCK_TRIES_MAX = 300
/** `lock_not_available`, and `deadlock_detected`: whoever it meets goes on, so it may try again. */
const IN_THE_WAY = new Set(['55P03', '40P01'])

/**
 * Brings the schema up to date. Any number of processes may do so at once: one changes it, and the others wait and say so.
 * Processes of the version before go on working meanwhile and afterwards.
 *
 * It has a connection of its own, on which a statement may take as long as it takes: what reads whole tables ends all the same.
 *
 * @throws ServiceError `overloaded` when the database cannot be reached
 */
export async function migrate(url: string, onProgress: OnProgress = () => {}): Promise<void> {
  const client = new Client({
    connectionString: url,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    application_name: 'sluice migration',
  })
  // A connection that breaks fails the statement under way, which tells it.
  client.on('error', () => {})
  try {
    await client.connect()
    if ((await missing(client)).length > 0) await migrateAlone(client, onProgress)
  } catch (error) {
    throw translate(error).error
  } finally {
    await client.end().catch(() => {})
  }
}

async function migrateAlone(client: Client, onProgress: OnProgress): Promise<void> {
  // A server may be set to end statements that take long; waiting for a lock holds up others.
  await client.query(`SET statement_timeout = 0; SET lock_timeout = ${LOCK_TIMEOUT_MS}`)
  await takeTurn(client, onProgress)
  await client.query('CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, hash text NOT NULL)')
  for (const migration of await missing(client)) {
    const startedAt = performance.now()
    onProgress('changing the schema of the job store', { migration: migration.name })
    await apply(client, migration)
    const duration_ms = Math.round(performance.now() - startedAt)
    onProgress('schema of the job store changed', { migration: migration.name, duration_ms })
  }
}

/**
 * Asks again and again, rather than wait in a statement: an index that is made without locking waits for every statement
 * that is under way.
 */
async function takeTurn(client: Client, onProgress: OnProgress): Promise<void> {
  const giveUpAt = performance.now() + WAIT_MS_MAX
  for (let tries = 0; !(await isMyTurn(client)); tries++) {
    if (performance.now() > giveUpAt) throw new Error('Another process has been changing the schema for too long.')
    if (tries === 0) onProgress('another process changes the schema of the job store; waiting', {})
    await delay(ASK_MS)
  }
}

async function isMyTurn(client: Client): Promise<boolean> {
  const { rows } = await client.query(`SELECT pg_try_advisory_lock(${MIGRATION_LOCK}) AS is_mine`)
  return rows[0].is_mine
}

async function missing(client: Client): Promise<Migration[]> {
  const { rows } = await client.query("SELECT to_regclass('migrations') IS NOT NULL AS is_there")
  const applied = rows[0].is_there ? (await client.query('SELECT name, hash FROM migrations')).rows : []
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
  await retry(async () => {
    await client.query('BEGIN')
    try {
      // Also held by processes of the version before while they change the schema.
      await client.query(`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK})`)
      if ((await missing(client)).some((migration) => migration.name === name)) {
        await client.query(sql)
        await note()
      }
      await client.query('COMMIT')
    } catch (error) {
      await client.query('ROLLBACK')
      throw error
    }
  })
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
