import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { loadMigrations, type Migration, missingMigrations } from '#shared/store/sql/migrations.ts'
import { beginSession, bySetting } from './connection.ts'
import { translate } from './errors.ts'
import { SCHEMA_LOCK } from './schema.ts'

/** Called while a starting process waits for the migration lock, and after each migration with its duration. */
export type OnProgress = (message: string, fields: Record<string, unknown>) => void

/** Key of the advisory lock for schema changes. Each Postgres schema of a database has its own lock. */
const MIGRATION_LOCK = `${0x51_01_cf}, hashtext(current_schema)`
const CONNECT_TIMEOUT_MS = 5_000
const ANSWER_MS = 30_000
/**
 * Poll interval and maximum wait for the migration lock, in ms. The maximum is long, because another process may be creating an index on the largest
 * table.
 */
const LOCK_POLL_MS = 500
const WAIT_MS_MAX = 6 * 3_600_000
const LOCK_TRIES_MAX = 300
/**
 * SQLSTATEs `lock_not_available` and `deadlock_detected`. A retry may succeed after the other transaction has ended.
 */
const LOCK_CONFLICTS = new Set(['55P03', '40P01'])

/**
 * Updates the database schema. If several processes call this function, then one makes the changes, and the others wait and log. Processes of the
 * previous version continue to work.
 *
 * One connection makes the changes, without time limits. A second connection holds the lock in an otherwise idle transaction. The first connection
 * cannot hold the lock in a transaction, because online index creation is not allowed there. A session lock would remain on a pooler's server after
 * the end of this process. An idle transaction has no snapshot, so no index creation waits for it.
 *
 * @throws ServiceError `overloaded` if the database is unreachable
 * @throws SchemaError if an older version created the schema. The database stays unchanged
 */
export async function migrate(
  url: string,
  onProgress: OnProgress = () => {},
  all: readonly Migration[] = loadMigrations('postgres'),
): Promise<void> {
  const client = clientOf(url)
  try {
    await client.connect()
    const missing = () => findMissing(client, all)
    if ((await missing()).length > 0) await migrateAlone(url, client, missing, onProgress)
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
  // A broken connection also fails the running statement, which reports the error. Without this listener, the event would end the process.
  client.on('error', () => {})
  return client
}

async function end(client: Client): Promise<void> {
  await Promise.race([client.end().catch(() => {}), delay(CONNECT_TIMEOUT_MS, undefined, { ref: false })])
}

async function migrateAlone(
  url: string,
  client: Client,
  missing: () => Promise<Migration[]>,
  onProgress: OnProgress,
): Promise<void> {
  const holder = clientOf(url)
  const stop = () => void client.end().catch(() => {})
  try {
    await holder.connect()
    await waitForLock(holder, onProgress)
    // If the connection with the lock ends, then the migration stops. Otherwise another process could change the schema at the same time.
    holder.once('end', stop)
    // The migration runs without time limits, because the server may be configured to abort long statements.
    await beginSession(client, { statement_timeout: '0', lock_timeout: '0' })
    await client.query('CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, hash text NOT NULL)')
    for (const migration of await missing()) {
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

/** Polls for the lock. A statement that waits for the lock would block online index creation, which waits for every running statement. */
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

/**
 * Error for a `search_path` without an existing schema, with the SQLSTATE that Postgres would report at the first CREATE TABLE. The problem
 * is reported before anything is changed.
 */
function noSchema(): Error {
  return Object.assign(new Error('no schema of the search_path exists'), { code: '3F000' })
}

async function quickly(client: Client, text: string) {
  return await client.query({ text, query_timeout: ANSWER_MS } as { text: string })
}

async function findMissing(client: Client, all: readonly Migration[]): Promise<Migration[]> {
  const { rows } = await quickly(client, "SELECT to_regclass('migrations') IS NOT NULL AS is_there")
  const applied = rows[0].is_there ? (await quickly(client, 'SELECT name, hash FROM migrations')).rows : []
  const hashes = new Map<string, string>(applied.map(({ name, hash }) => [name, hash]))
  return missingMigrations('postgres', hashes, all)
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
      // While this transaction holds the lock, no process can create partitions, so the migration finds all of them.
      await client.query(`SELECT pg_advisory_xact_lock(${SCHEMA_LOCK})`)
      await client.query(sql)
      await note()
    }),
  )
}

/** Runs a change again if it conflicted with other transactions. The pause between two tries lets these transactions proceed. */
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

/**
 * Migrations that create indexes without blocking reads and writes. The first line of such a migration begins with `-- online`. Only `CREATE INDEX
 * name ON table …;` and `DROP INDEX name;` are allowed.
 *
 * `CREATE INDEX CONCURRENTLY` cannot be part of a transaction, so each statement runs alone, and is repeated after an interruption. Postgres cannot
 * create an index on a partitioned table in this way. Each partition therefore gets its own index, which is attached to an empty index of the whole
 * table. A partition that is created in the meantime gets its index automatically.
 */
const ONLINE = /^-- online\b/
const CREATE = /^CREATE INDEX (\w+) ON (\w+) (.+)$/s
const DROP = /^DROP INDEX (\w+)$/

/** Maximum wait for a table lock, in ms. The value is short, because all later statements on the table queue behind the waiting statement. */
const LOCK_TIMEOUT_MS = 2_000

type Retry = <T>(change: () => Promise<T>) => Promise<T>

interface Index {
  readonly name: string
  readonly table: string
  readonly definition: string
}

function isOnline(sql: string): boolean {
  return ONLINE.test(sql)
}

/**
 * Runs an online migration, statement by statement.
 *
 * @param retry Repeats a change that did not get its table lock in time.
 * @throws Error for any statement other than the creation or removal of an index
 */
async function runOnline(client: Client, sql: string, retry: Retry): Promise<void> {
  for (const statement of statementsOf(sql)) {
    const [, name = '', table = '', definition = ''] = CREATE.exec(statement) ?? []
    const [, dropped] = DROP.exec(statement) ?? []
    if (dropped !== undefined) await retry(() => alone(client, `DROP INDEX IF EXISTS ${dropped}`))
    else if (table !== '') await create(client, { name, table, definition }, retry)
    else
      throw new Error(
        `Unsupported statement in an online migration: ${statement}. Only CREATE INDEX and DROP INDEX are allowed.`,
      )
  }
}

function statementsOf(sql: string): string[] {
  const code = sql.replaceAll(/^--.*$/gm, '')
  return code.split(';').flatMap((statement) => statement.trim() || [])
}

async function create(client: Client, index: Index, retry: Retry): Promise<void> {
  const { name, table, definition } = index
  if (!(await isPartitioned(client, table))) return await createConcurrently(client, index, retry)
  await retry(() => alone(client, `CREATE INDEX IF NOT EXISTS ${name} ON ONLY ${table} ${definition}`))
  for (let partition = await partitionWithout(client, index); partition; ) {
    const child = `${partition}_${name}`
    await createConcurrently(client, { name: child, table: partition, definition }, retry)
    await retry(() => alone(client, `ALTER INDEX ${name} ATTACH PARTITION ${child}`))
    partition = await partitionWithout(client, index)
  }
}

async function isPartitioned(client: Client, table: string): Promise<boolean> {
  const { rows } = await client.query(
    "SELECT relkind = 'p' AS is_partitioned FROM pg_class WHERE oid = to_regclass($1)",
    [table],
  )
  return rows[0]?.is_partitioned === true
}

async function partitionWithout(client: Client, { name, table }: Index): Promise<string | undefined> {
  const { rows } = await client.query(
    `SELECT relname AS name FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
     WHERE inhparent = to_regclass($1) AND NOT EXISTS (
       SELECT 1 FROM pg_index JOIN pg_inherits AS part ON part.inhrelid = indexrelid
       WHERE indrelid = pg_class.oid AND part.inhparent = to_regclass($2))
     ORDER BY relname LIMIT 1`,
    [table, name],
  )
  return rows[0]?.name
}

/**
 * Creates an index without blocking writes. An interrupted creation leaves an invalid index, which is dropped first. The creation waits for the end
 * of all older transactions, such as a backup.
 */
async function createConcurrently(client: Client, { name, table, definition }: Index, retry: Retry): Promise<void> {
  await retry(async () => {
    const { rows } = await client.query('SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)', [name])
    if (rows[0]?.indisvalid === false) await client.query(`DROP INDEX CONCURRENTLY ${name}`)
    await client.query(`CREATE INDEX CONCURRENTLY IF NOT EXISTS ${name} ON ${table} ${definition}`)
  })
}

async function alone(client: Client, statement: string): Promise<void> {
  await inTransaction(client, async () => void (await client.query(statement)))
}

/** Runs a transaction without a time limit. Only each wait for a lock is limited, by {@link LOCK_TIMEOUT_MS}. */
async function inTransaction(client: Client, work: () => Promise<void>): Promise<void> {
  const settings = {
    statement_timeout: '0',
    idle_in_transaction_session_timeout: '0',
    lock_timeout: String(LOCK_TIMEOUT_MS),
  }
  await client.query(`BEGIN; ${bySetting(settings, 'transaction')}`)
  try {
    await work()
    await client.query('COMMIT')
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  }
}
