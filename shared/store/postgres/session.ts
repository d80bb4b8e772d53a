import type { ClientBase } from 'pg'

/*
 * Sessions on Postgres, directly or through a pooler.
 *
 * PgBouncer in transaction mode (pool_mode = transaction) assigns a server to a connection for one transaction at a time. So session state may be on
 * another server, or visible to another client. Examples are named statements (SQLSTATE 26000 and 42P05), SET, session-level advisory locks, LISTEN
 * and temporary tables. PgBouncer also refuses unknown startup parameters (08P01). Therefore:
 *
 * 1. No setting is a startup parameter.
 *
 * 2. Each new connection detects a pooler, in the round trip that applies its settings. Postgres sends the process id of its server at the start of a
 *    connection. A pooler sends its own number, which differs from pg_backend_pid().
 *
 * 3. Behind a pooler, each transaction applies its own settings, in the same round trip, and statements have no names.
 *
 * Session mode is treated alike, because it cannot be distinguished reliably. The price is one query plan per statement.
 */

/** Settings of Postgres, by name. Any database user may change these settings. */
export type Settings = Readonly<Record<string, string>>

const POOLED = new WeakSet<object>()

/** A statement that applies settings and returns no rows. @param condition If false, then nothing is applied. */
export function bySetting(settings: Settings, scope: 'session' | 'transaction', condition = 'TRUE'): string {
  const calls = Object.entries(settings).map(
    ([name, value]) => `set_config('${name}', '${value}', ${scope === 'transaction'})`,
  )
  // CASE fixes the order: Postgres may evaluate the operands of AND in any order.
  return `SELECT 1 WHERE CASE WHEN ${condition} THEN concat(${calls.join(', ')}) = '' END`
}

/** Applies settings to the whole connection if it leads to Postgres itself; otherwise records that it is pooled. */
export async function beginSession(client: ClientBase, settings: Settings): Promise<void> {
  // `processID` is part of the public protocol (BackendKeyData), but missing in the types of pg.
  const { processID } = client as unknown as { processID: number }
  const pid = 'SELECT pg_backend_pid() AS pid'
  const own = bySetting(settings, 'session', `pg_backend_pid() = ${processID}`)
  const results = (await client.query(`${own}; ${pid}`)) as unknown as { rows: { pid?: number }[] }[]
  if (results.at(-1)?.rows[0]?.pid !== processID) POOLED.add(client)
}

export function isPooled(client: ClientBase): boolean {
  return POOLED.has(client)
}
