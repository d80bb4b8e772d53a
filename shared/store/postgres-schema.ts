import type { PoolClient } from 'pg'
import { firstJobId } from './job-id.ts'
import { loadMigrations, missingMigrations } from './migrations.ts'
import type { PostgresConnection } from './postgres-connection.ts'

const DAY_MS = 24 * 3_600_000
/** Days before and after today that have partitions: clocks of processes differ, and the scheduler may be away. */
const DAYS_BEHIND = 1
const DAYS_AHEAD = 3
/** Changes of the schema come one after another, whichever process makes them. */
const LOCK_KEY = 0x51_01_ce
/** A change that waits for a lock makes everybody behind it wait: rather try again later. */
const LOCK_TIMEOUT_MS = 2_000
const MIGRATION_TIMEOUT_MS = 600_000

/** Brings the schema up to date. Any number of processes may do so at once; each waits for the one before it. */
export async function migrate(connection: PostgresConnection): Promise<void> {
  await connection.transaction(async (client) => {
    await client.query(`SET LOCAL statement_timeout = ${MIGRATION_TIMEOUT_MS}`)
    await client.query(`SELECT pg_advisory_xact_lock(${LOCK_KEY})`)
    await client.query('CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, hash text NOT NULL)')
    const { rows } = await client.query('SELECT name, hash FROM migrations')
    const applied = new Map<string, string>(rows.map(({ name, hash }) => [name, hash]))
    for (const { name, sql, hash } of missingMigrations(loadMigrations('postgres'), applied)) {
      await client.query(sql)
      await client.query('INSERT INTO migrations (name, hash) VALUES ($1, $2)', [name, hash])
    }
  })
}

/** Makes the partitions of the days around a moment, in unix milliseconds; default: the database's now. */
export async function addPartitions(connection: PostgresConnection, aroundMs?: number): Promise<void> {
  await connection.transaction(async (client) => {
    const { rows } = await client.query('SELECT now_ms() AS now')
    const today = dayOf(aroundMs ?? rows[0].now)
    const days = Array.from({ length: DAYS_BEHIND + 1 + DAYS_AHEAD }, (_, i) => today + (i - DAYS_BEHIND) * DAY_MS)
    const missing = await missingDays(client, days)
    if (missing.length === 0) return
    await client.query(`SELECT pg_advisory_xact_lock(${LOCK_KEY})`)
    await client.query(`SET LOCAL lock_timeout = ${LOCK_TIMEOUT_MS}`)
    for (const day of await missingDays(client, missing)) {
      for (const table of ['jobs', 'job_events']) await addPartition(client, table, day)
    }
  })
}

/** Drops the partitions of days of which no job is kept any longer, with their events. */
export async function dropPartitions(connection: PostgresConnection): Promise<void> {
  for (const suffix of await pastDays(connection)) {
    await connection.transaction((client) => dropDay(client, suffix))
  }
}

async function missingDays(client: PoolClient, days: readonly number[]): Promise<number[]> {
  const { rows } = await client.query(
    'SELECT to_regclass(name) IS NULL AS is_missing FROM unnest($1::text[]) AS name',
    [days.map((day) => `job_events_${suffixOf(day)}`)],
  )
  return days.filter((_, i) => rows[i].is_missing)
}

/** Attached rather than made in place: that would lock out every reader and writer of the whole table. */
async function addPartition(client: PoolClient, table: string, day: number): Promise<void> {
  const name = `${table}_${suffixOf(day)}`
  // Rows are rewritten several times in their life; room on the page keeps that out of the indexes.
  const storage = table === 'jobs' ? 'WITH (fillfactor = 80)' : ''
  await client.query(`CREATE TABLE ${name} (LIKE ${table} INCLUDING ALL) ${storage}`)
  const [from, to] = [firstJobId(day), firstJobId(day + DAY_MS)]
  await client.query(`ALTER TABLE ${table} ATTACH PARTITION ${name} FOR VALUES FROM ('${from}') TO ('${to}')`)
}

/** Days before yesterday that have a partition, such as `20260131`. */
async function pastDays(connection: PostgresConnection): Promise<string[]> {
  return await connection.transaction(async (client) => {
    const { rows } = await client.query(
      `SELECT relname AS name, now_ms() AS now FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
       WHERE inhparent = to_regclass('jobs') ORDER BY relname`,
    )
    const suffixes = rows.map(({ name }) => String(name).slice('jobs_'.length))
    return suffixes.filter((suffix) => suffix < suffixOf(dayOf(rows[0].now) - DAYS_BEHIND * DAY_MS))
  })
}

async function dropDay(client: PoolClient, suffix: string): Promise<void> {
  await client.query(`SET LOCAL lock_timeout = ${LOCK_TIMEOUT_MS}`)
  const isKept = `SELECT 1 FROM jobs_${suffix} WHERE purge_at_ms IS NULL OR purge_at_ms > now_ms()`
  const { rows } = await client.query(`SELECT EXISTS (${isKept}) AS is_kept`)
  // What is terminal stays so, and no job is made in a day that has passed but the child of one that still runs.
  if (rows[0].is_kept) return
  await client.query(`DROP TABLE jobs_${suffix}, job_events_${suffix}`)
}

/** Midnight, UTC. */
function dayOf(ms: number): number {
  return Math.floor(ms / DAY_MS) * DAY_MS
}

function suffixOf(day: number): string {
  return new Date(day).toISOString().slice(0, 10).replaceAll('-', '')
}
