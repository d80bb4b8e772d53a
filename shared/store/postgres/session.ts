import type { ClientBase } from 'pg'

/*
 * Connections to Postgres, and to a pooler in front of it.
 *
 * PgBouncer in transaction mode (pool_mode = transaction) gives a connection a server for one transaction at a time. What a session
 * keeps is then on another server, or seen by another client: named statements (SQLSTATE 26000 and 42P05), SET, session-level
 * advisory locks, LISTEN and temporary tables. PgBouncer also refuses startup parameters that it does not know (08P01). So:
 *
 * - no setting is a startup parameter;
 * - a connection finds out whether a pooler answers it, in the round trip that makes its settings. At the start of a connection
 *   Postgres gives the process id of its server. A pooler gives a number of its own, which differs from pg_backend_pid();
 * - on a pooler each transaction makes its own settings, in the same round trip, and no statement has a name.
 *
 * Session mode is treated alike: nothing tells it apart for sure, and the price is a plan for each statement.
 */

/** Settings of Postgres by name. All of them may be changed by any user. */
export type Settings = Readonly<Record<string, string>>

const POOLED = new WeakSet<object>()

/** The statement that makes settings. It gives no rows. @param condition Without it nothing is set */
export function bySetting(settings: Settings, scope: 'session' | 'transaction', condition = 'TRUE'): string {
  const calls = Object.entries(settings).map(
    ([name, value]) => `set_config('${name}', '${value}', ${scope === 'transaction'})`,
  )
  // CASE fixes the order: of the sides of AND, Postgres may evaluate either first.
  return `SELECT 1 WHERE CASE WHEN ${condition} THEN concat(${calls.join(', ')}) = '' END`
}

/** Makes settings for the whole connection if it leads to Postgres itself, and else notes that it does not. */
export async function beginSession(client: ClientBase, settings: Settings): Promise<void> {
  // Part of the public protocol (BackendKeyData), and missing in the types.
  const { processID } = client as unknown as { processID: number }
  const pid = 'SELECT pg_backend_pid() AS pid'
  const own = bySetting(settings, 'session', `pg_backend_pid() = ${processID}`)
  const results = (await client.query(`${own}; ${pid}`)) as unknown as { rows: { pid?: number }[] }[]
  if (results.at(-1)?.rows[0]?.pid !== processID) POOLED.add(client)
}

/** Whether {@link beginSession} found a pooler. */
export function isPooled(client: ClientBase): boolean {
  return POOLED.has(client)
}
