import type { PoolClient } from 'pg'
import { BLOBS_LEASE } from '#shared/blobs/fleet-blobs.ts'
import { isPooled, PostgresConnection } from './connection.ts'

const STATEMENT_TIMEOUT_MS = 5_000

export interface PostgresFacts {
  readonly version: string
  readonly major: number
  readonly is_standby: boolean
  readonly is_pooled: boolean
  readonly synchronous_commit: string
  readonly has_migrations: boolean
  readonly can_create: boolean
  /** Id of the blob store that the live processes use (`#shared/blobs/fleet-blobs.ts`). Undefined if no process runs. */
  readonly blobs_id: string | undefined
  readonly applied: ReadonlyMap<string, string>
}

const QUESTIONS = `SELECT current_setting('server_version') AS version,
  current_setting('server_version_num')::int / 10000 AS major,
  pg_is_in_recovery() AS is_standby,
  current_setting('synchronous_commit') AS synchronous_commit,
  to_regclass('migrations') IS NOT NULL AS has_migrations,
  coalesce(has_schema_privilege(current_schema(), 'CREATE'), FALSE) AS can_create`

export async function inspectPostgres(url: string): Promise<PostgresFacts> {
  const connection = new PostgresConnection({
    url,
    connectionsMax: 1,
    statementTimeoutMs: STATEMENT_TIMEOUT_MS,
    onProblem: () => undefined,
  })
  try {
    return await connection.transaction(async (client) => {
      const [facts] = (await client.query(QUESTIONS)).rows
      const { rows } = facts.has_migrations ? await client.query('SELECT name, hash FROM migrations') : { rows: [] }
      return {
        ...facts,
        is_pooled: isPooled(client),
        blobs_id: await blobsIdOf(client, facts.has_migrations),
        applied: new Map<string, string>(rows.map(({ name, hash }) => [name, hash])),
      }
    })
  } finally {
    await connection.close()
  }
}

async function blobsIdOf(client: PoolClient, hasSchema: boolean): Promise<string | undefined> {
  if (!hasSchema) return undefined
  const { rows } = await client.query('SELECT holder FROM leases WHERE name = $1 AND until_ms > now_ms()', [
    BLOBS_LEASE,
  ])
  return rows[0]?.holder
}
