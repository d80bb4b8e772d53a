import type { Client } from 'pg'
import { bySetting } from './session.ts'

/**
 * Migrations that create indexes without blocking reads and writes. The first line of such a migration begins with `-- online`.
 * Only `CREATE INDEX name ON table …;` and `DROP INDEX name;` are allowed.
 *
 * `CREATE INDEX CONCURRENTLY` cannot be part of a transaction, so each statement runs alone, and again after an interruption.
 * Postgres cannot create an index of a partitioned table that way. So each partition gets an index, which is attached to an empty
 * index of the whole table. A partition that is created meanwhile gets its index automatically.
 */
const ONLINE = /^-- online\b/
const CREATE = /^CREATE INDEX (\w+) ON (\w+) (.+)$/s
const DROP = /^DROP INDEX (\w+)$/

/** Maximum wait for a table lock. Kept short, because all later statements on the table queue behind the waiting one. */
const LOCK_TIMEOUT_MS = 2_000

type Retry = <T>(change: () => Promise<T>) => Promise<T>

interface Index {
  readonly name: string
  readonly table: string
  readonly definition: string
}

export function isOnline(sql: string): boolean {
  return ONLINE.test(sql)
}

/**
 * Runs an online migration, statement by statement.
 *
 * @param retry Repeats a change that did not get its lock in time.
 * @throws Error for any statement other than the creation or removal of an index
 */
export async function runOnline(client: Client, sql: string, retry: Retry): Promise<void> {
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
 * Creates an index. An interrupted creation leaves an invalid index, which is dropped first. The creation waits for all older transactions, such as a
 * backup, without blocking others.
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

/** Runs a transaction without a time limit, except that each wait for a lock ends after {@link LOCK_TIMEOUT_MS}. */
export async function inTransaction(client: Client, work: () => Promise<void>): Promise<void> {
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
