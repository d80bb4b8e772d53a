import type { PoolClient } from 'pg'
import { firstJobId } from '#shared/store/jobs.ts'
import type { PostgresConnection } from './connection.ts'

const DAY_MS = 24 * 3_600_000
/**
 * Number of days before and after today for which partitions exist. The margin covers clock differences between processes, and days without a
 * scheduler, which creates the partitions.
 */
const DAYS_BEHIND = 1
const DAYS_AHEAD = 3
/** Key of the advisory lock that serializes schema changes across processes. */
export const SCHEMA_LOCK = 0x51_01_ce
/** Maximum wait for a table lock, in ms. The value is short, because later statements queue behind the waiting statement. The change is retried. */
const LOCK_TIMEOUT_MS = 2_000

const TABLES = ['jobs', 'job_events', 'job_steps'] as const
/** Table of the request log, whose partitions are dropped after the retention of the log. */
const REQUESTS = 'requests'

/** SQLSTATEs if another process created the object first: `duplicate_table`, `duplicate_object`, and `unique_violation` in a catalog. */
const CREATED_BY_OTHERS = new Set(['42P07', '42710', '23505'])
const TRIES_MAX = 5

interface Partition {
  readonly table: (typeof TABLES)[number] | typeof REQUESTS
  readonly day: number
}

/** Creates the partitions of the days around a time in Unix milliseconds. Default: the current time of the database. */
export async function addPartitions(connection: PostgresConnection, aroundMs?: number): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await addMissing(connection, aroundMs)
    } catch (error) {
      if (!isMadeElsewhere(error) || tries === TRIES_MAX) throw error
    }
  }
}

async function addMissing(connection: PostgresConnection, aroundMs: number | undefined): Promise<void> {
  await connection.transaction(async (client) => {
    const { rows } = await client.query('SELECT now_ms() AS now')
    const today = dayOf(aroundMs ?? rows[0].now)
    const days = Array.from({ length: DAYS_BEHIND + 1 + DAYS_AHEAD }, (_, i) => today + (i - DAYS_BEHIND) * DAY_MS)
    const all = days.flatMap((day) => [...TABLES, REQUESTS].map((table) => ({ table, day }) as Partition))
    const missing = await missingOf(client, all)
    if (missing.length === 0) return
    await lockSchema(client)
    for (const { table, day } of await missingOf(client, missing)) await addPartition(client, table, day)
  })
}

/** Drops the daily partitions of jobs whose retention has ended, and the partitions of the request log that ended `requestsMs` ago. */
export async function dropPartitions(connection: PostgresConnection, requestsMs: number): Promise<void> {
  for (const suffix of await pastDays(connection, 'jobs', DAYS_BEHIND * DAY_MS))
    await connection.transaction((client) => dropDay(client, suffix))
  for (const suffix of await pastDays(connection, REQUESTS, Math.max(requestsMs, DAYS_BEHIND * DAY_MS)))
    await connection.transaction(async (client) => {
      await lockSchema(client)
      await client.query(`DROP TABLE IF EXISTS ${REQUESTS}_${suffix}`)
    })
}

/**
 * Acquires the lock for schema changes. The extra read makes changes of earlier lock holders visible. Postgres refreshes the cache of to_regclass
 * only at the start of a transaction or with a relation lock.
 */
async function lockSchema(client: PoolClient): Promise<void> {
  await client.query(`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK})`)
  await client.query('SELECT FROM migrations LIMIT 0')
  await client.query(`SET LOCAL lock_timeout = ${LOCK_TIMEOUT_MS}`)
}

/** Whether another process, of any version, created the object first, so that the error can be ignored. */
function isMadeElsewhere(error: unknown): boolean {
  const { code, cause } = error as { code?: string; cause?: { code?: string } }
  return CREATED_BY_OTHERS.has(cause?.code ?? code ?? '')
}

async function missingOf(client: PoolClient, partitions: readonly Partition[]): Promise<Partition[]> {
  const { rows } = await client.query(
    'SELECT to_regclass(name) IS NULL AS is_missing FROM unnest($1::text[]) AS name',
    [partitions.map(({ table, day }) => `${table}_${suffixOf(day)}`)],
  )
  return partitions.filter((_, i) => rows[i].is_missing)
}

/**
 * Creates a partition as a separate table and attaches it. `CREATE TABLE … PARTITION OF` would block all reads and writes of the
 * whole table.
 */
async function addPartition(client: PoolClient, table: string, day: number): Promise<void> {
  const name = `${table}_${suffixOf(day)}`
  // Rows are updated several times, so pages keep free space, which avoids index updates. Deleted rows are vacuumed
  // early, because deleted user data must not stay on disk for a day.
  const vacuum = 'autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_scale_factor = 0.02'
  const storage = `WITH (${table === 'jobs' ? 'fillfactor = 80, ' : ''}${vacuum})`
  await client.query(`CREATE TABLE ${name} (LIKE ${table} INCLUDING ALL) ${storage}`)
  const [from, to] = [day, day + DAY_MS].map((ms) => (table === REQUESTS ? ms : `'${firstJobId(ms)}'`))
  await client.query(`ALTER TABLE ${table} ATTACH PARTITION ${name} FOR VALUES FROM (${from}) TO (${to})`)
}

/** Returns the days whose partition ended more than `keepMs` ago, as texts such as `20260131`. */
async function pastDays(connection: PostgresConnection, table: string, keepMs: number): Promise<string[]> {
  return await connection.transaction(async (client) => {
    const { rows } = await client.query(
      `SELECT relname AS name, now_ms() AS now FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
       WHERE inhparent = to_regclass($1) ORDER BY relname`,
      [table],
    )
    const suffixes = rows.map(({ name }) => String(name).slice(`${table}_`.length))
    return suffixes.filter((suffix) => suffix < suffixOf(dayOf(rows[0].now - Math.min(keepMs, rows[0].now))))
  })
}

async function dropDay(client: PoolClient, suffix: string): Promise<void> {
  await lockSchema(client)
  const { rows } = await client.query(
    'SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NOT NULL',
    [TABLES.map((table) => `${table}_${suffix}`)],
  )
  if (!rows.some(({ name }) => name === `jobs_${suffix}`)) return
  if (await isDayKept(client, suffix)) return
  const days = rows.map(({ name }) => String(name)).join(', ')
  const wholes = TABLES.map((table) => `ONLY ${table}`).join(', ')
  await client.query(`LOCK TABLE ${wholes}, ${days} IN ACCESS EXCLUSIVE MODE`)
  // The check is repeated under the lock. A running job may have added a child to the day after the first check.
  if (await isDayKept(client, suffix)) return
  // Dropping a table fires no triggers, so the bytes of its jobs are subtracted here.
  const sums = `SELECT tenant, -sum(request_bytes + output_bytes)::bigint AS bytes FROM jobs_${suffix} GROUP BY tenant`
  await client.query(`SELECT count_stored(tenant, bytes) FROM (${sums}) AS gone`)
  await client.query(`DROP TABLE ${days}`)
}

/** True if a job of the day has not ended or is still retained. Each of the two conditions uses an index. */
async function isDayKept(client: PoolClient, suffix: string): Promise<boolean> {
  const unended = `SELECT 1 FROM jobs_${suffix} WHERE purge_at_ms IS NULL`
  const kept = `SELECT 1 FROM jobs_${suffix} WHERE purge_at_ms > now_ms()`
  const { rows } = await client.query(`SELECT EXISTS (${unended}) OR EXISTS (${kept}) AS is_kept`)
  return rows[0].is_kept
}

function dayOf(ms: number): number {
  return Math.floor(ms / DAY_MS) * DAY_MS
}

function suffixOf(day: number): string {
  return new Date(day).toISOString().slice(0, 10).replaceAll('-', '')
}
