import type { Client } from 'pg'

/**
 * Migrations that make indexes while everybody goes on reading and writing: files whose first line begins with `-- online`,
 * of `CREATE INDEX name ON table …;` and `DROP INDEX name;` only.
 *
 * Each statement is done alone, and again when it was cut short, for `CREATE INDEX CONCURRENTLY` cannot be part of a
 * transaction. Postgres makes no index of a partitioned table that way, so it is made of one for each partition, attached to
 * an index of the whole that holds nothing itself. A partition that comes meanwhile brings its own.
 */
const ONLINE = /^-- online\b/
const CREATE = /^CREATE INDEX (\w+) ON (\w+) (.+)$/s
const DROP = /^DROP INDEX (\w+)$/

/** How long a change that locks a table may wait for that lock, with everybody behind it waiting too. */
export const LOCK_TIMEOUT_MS = 2_000

type Retry = <T>(change: () => Promise<T>) => Promise<T>

interface Index {
  readonly name: string
  readonly table: string
  /** Columns and condition. */
  readonly definition: string
}

/** Whether a migration says of itself that it runs online, beside writers. */
export function isOnline(sql: string): boolean {
  return ONLINE.test(sql)
}

/**
 * Runs an online migration, statement by statement.
 *
 * @param retry Makes a change again whose lock was not to be had in time.
 * @throws Error for a statement that is neither the making nor the dropping of an index
 */
export async function runOnline(client: Client, sql: string, retry: Retry): Promise<void> {
  for (const statement of statementsOf(sql)) {
    const [, name = '', table = '', definition = ''] = CREATE.exec(statement) ?? []
    const [, dropped] = DROP.exec(statement) ?? []
    if (dropped !== undefined) await retry(() => client.query(`DROP INDEX IF EXISTS ${dropped}`))
    else if (table !== '') await create(client, { name, table, definition }, retry)
    else throw new Error(`An online migration cannot run: ${statement}`)
  }
}

function statementsOf(sql: string): string[] {
  const code = sql.replaceAll(/^--.*$/gm, '')
  return code.split(';').flatMap((statement) => statement.trim() || [])
}

async function create(client: Client, index: Index, retry: Retry): Promise<void> {
  const { name, table, definition } = index
  if (!(await isPartitioned(client, table))) return await createConcurrently(client, index, retry)
  await retry(() => client.query(`CREATE INDEX IF NOT EXISTS ${name} ON ONLY ${table} ${definition}`))
  for (let partition = await partitionWithout(client, index); partition; ) {
    const child = `${partition}_${name}`
    await createConcurrently(client, { name: child, table: partition, definition }, retry)
    await retry(() => client.query(`ALTER INDEX ${name} ATTACH PARTITION ${child}`))
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

/** A partition that has no part of an index yet. */
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
 * One that was cut short is there and invalid: nobody uses it, and it is made anew. It waits for every transaction that is
 * older, such as a backup, for as long as that takes: nobody waits behind it.
 */
async function createConcurrently(client: Client, { name, table, definition }: Index, retry: Retry): Promise<void> {
  await retry(async () => {
    const { rows } = await client.query('SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)', [name])
    await client.query('SET lock_timeout = 0')
    try {
      if (rows[0]?.indisvalid === false) await client.query(`DROP INDEX CONCURRENTLY ${name}`)
      await client.query(`CREATE INDEX CONCURRENTLY IF NOT EXISTS ${name} ON ${table} ${definition}`)
    } finally {
      await client.query(`SET lock_timeout = ${LOCK_TIMEOUT_MS}`)
    }
  })
}
