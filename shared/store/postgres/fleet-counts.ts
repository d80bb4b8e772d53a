import { type FleetCounts, type FleetWindow, RUNNING_MS, WINDOW_MS } from '#shared/capacity/fleet-counts.ts'
import { type Compiled, type Params, valuesOf } from '#shared/store/sql/sql.ts'
import type { Statement } from '#shared/store/sql/statements.ts'
import { PostgresConnection } from './connection.ts'

/** Maximum connections: one for each of the two statements below. An ingress runs a statement only after its previous execution has ended. */
const CONNECTIONS_MAX = 2
/** Timeout of a statement in ms, for a database that hangs. The callers in the ingress have shorter timeouts of their own. */
const STATEMENT_TIMEOUT_MS = 2_000

/**
 * Margin in ms of the conditions below that reject a stored time as too far in the future. `now_ms()` returns the start of the statement. If a
 * statement waits for a row lock, then it reads a row that was written after this start. A valid time in the row may be later by up to this margin.
 */
const WAIT_MS = 5_000
/** SQL condition: the window is over, or ends implausibly late because the database clock was set back. */
const IS_OVER = `(held.ends_at_ms <= now_ms() OR held.ends_at_ms > now_ms() + ${WINDOW_MS + WAIT_MS})`
/**
 * Rows are locked in the order of their names. Two writers that lock the same rows in different orders would deadlock.
 */
const ADD: Statement = {
  name: 'limits_add',
  sql: `INSERT INTO rate_windows AS held (name, used, ends_at_ms)
    SELECT name, amount, now_ms() + ${WINDOW_MS}
    FROM json_to_recordset(CAST(:rows AS json)) AS given(name text, amount bigint) ORDER BY name
    ON CONFLICT (name) DO UPDATE SET
      used = greatest(CASE WHEN ${IS_OVER} THEN excluded.used ELSE held.used + excluded.used END, 0),
      ends_at_ms = CASE WHEN ${IS_OVER} THEN excluded.ends_at_ms ELSE held.ends_at_ms END
    RETURNING name, used, ends_at_ms - now_ms() AS left_ms`,
}

const UNTIL = `CAST(said.value->>'until_ms' AS bigint)`
const IS_VALID = `${UNTIL} > now_ms() AND ${UNTIL} <= now_ms() + ${RUNNING_MS + WAIT_MS}`
/** Reports of all processes for one name are stored in one row. Concurrent reports are serialized by the row lock. */
const SET_RUNNING: Statement = {
  name: 'limits_running',
  sql: `INSERT INTO running_calls AS held (name, said)
    SELECT name, jsonb_build_object(CAST(:boot AS text), jsonb_build_object('count', count, 'until_ms', now_ms() + ${RUNNING_MS}))
    FROM json_to_recordset(CAST(:rows AS json)) AS given(name text, count bigint) ORDER BY name
    ON CONFLICT (name) DO UPDATE SET
      said = coalesce((SELECT jsonb_object_agg(said.key, said.value) FROM jsonb_each(held.said) AS said WHERE ${IS_VALID}), '{}')
        || excluded.said
    RETURNING name, (SELECT coalesce(sum(CAST(said.value->>'count' AS bigint)), 0)::bigint FROM jsonb_each(held.said) AS said
                     WHERE said.key <> CAST(:boot AS text) AND ${IS_VALID}) AS elsewhere,
      jobs_beside(name) AS jobs`,
}

/**
 * Opens the counts that all ingresses share: rate limit windows and running calls. The job store's migrations create their tables `rate_windows` and
 * `running_calls`. The counts have connections of their own, so that a busy store does not delay calls.
 *
 * @param url `postgres://user:password@host:port/database`
 * @param onProblem Called once when an outage begins and once when it ends.
 */
export function openPostgresCounts(
  url: string,
  onProblem: (message: string, fields: Record<string, unknown>) => void,
): FleetCounts {
  const options = { url, connectionsMax: CONNECTIONS_MAX, statementTimeoutMs: STATEMENT_TIMEOUT_MS, onProblem }
  return new PostgresCounts(new PostgresConnection(options))
}

class PostgresCounts implements FleetCounts {
  readonly #connection: PostgresConnection

  constructor(connection: PostgresConnection) {
    this.#connection = connection
  }

  get isReachable(): boolean {
    return this.#connection.isReachable
  }

  async add(used: readonly { readonly name: string; readonly amount: number }[]): Promise<FleetWindow[]> {
    const rows = await this.#run(ADD, { rows: JSON.stringify(used) })
    return rows.map(({ name, used, left_ms }) => ({
      name: String(name),
      used: Number(used),
      remainingMs: Number(left_ms),
    }))
  }

  async setRunning(boot: string, running: readonly { readonly name: string; readonly count: number }[]) {
    const rows = await this.#run(SET_RUNNING, { boot, rows: JSON.stringify(running) })
    return rows.map(({ name, elsewhere, jobs }) => ({
      name: String(name),
      elsewhere: Number(elsewhere),
      jobs: Number(jobs),
    }))
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }

  async #run(statement: Statement, params: Params) {
    return await this.#connection.run(statement, (compiled: Compiled) => valuesOf(compiled, params))
  }
}
