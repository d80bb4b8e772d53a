import { type Compiled, valuesOf } from './compile.ts'
import type { Insert } from './inserts.ts'
import { jobIdTime } from './job-id.ts'
import type { Move } from './moves.ts'
import { PostgresConnection } from './postgres-connection.ts'
import { ERASE, insertStatement, moveStatement } from './postgres-move.ts'
import { addPartitions, dropPartitions, migrate } from './postgres-schema.ts'
import type { MovedRow, Params, Row, SqlDatabase } from './sql.ts'
import { SqlStore } from './sql-store.ts'
import { PURGES, type Statement, takeDeliveries } from './statements.ts'
import type { NewEvent, Store } from './store.ts'

/** `check_violation`: Postgres' word for a row that no partition takes. */
const NO_PARTITION = '23514'

export interface PostgresOptions {
  /** `postgres://user:password@host:port/database`; other settings as its query, such as `sslmode`. */
  readonly url: string
  /** Connections of this process at most. */
  readonly connectionsMax?: number
  /** How long one statement may take before it is given up, and with it the call. */
  readonly statementTimeoutMs?: number
  /** Hears of each outage once, and of its end. */
  readonly onProblem: (message: string, fields: Record<string, unknown>) => void
}

/**
 * The store in Postgres 13 or later, for any number of processes.
 *
 * Brings the schema up to date first. What is resolved is as durable as the server's `synchronous_commit` and its
 * replication make it.
 *
 * @throws ServiceError `overloaded` when it cannot be reached at the start
 */
export async function openPostgresStore(options: PostgresOptions): Promise<Store> {
  const { url, connectionsMax = 10, statementTimeoutMs = 10_000, onProblem } = options
  const connection = new PostgresConnection({ url, connectionsMax, statementTimeoutMs, onProblem })
  try {
    await migrate(connection)
    await addPartitions(connection)
    return new SqlStore(new PostgresDatabase(connection))
  } catch (error) {
    await connection.close()
    throw error
  }
}

class PostgresDatabase implements SqlDatabase {
  readonly name = 'postgres'
  readonly #connection: PostgresConnection

  constructor(connection: PostgresConnection) {
    this.#connection = connection
  }

  get isReachable(): boolean {
    return this.#connection.isReachable
  }

  async run(statement: Statement, params: Params): Promise<Row[]> {
    return await this.#connection.run(statement, (compiled) => valuesOf(compiled, params))
  }

  async move(move: Move, params: Params, output: readonly NewEvent[]): Promise<MovedRow[]> {
    const bind = (compiled: Compiled) => withOutput(compiled, params, output)
    return (await this.#connection.run(moveStatement(move), bind)) as MovedRow[]
  }

  async insert(insert: Insert, params: Params, hasKey: boolean): Promise<MovedRow[]> {
    const statement = insertStatement(insert, hasKey)
    try {
      return (await this.run(statement, params)) as MovedRow[]
    } catch (error) {
      const madeAtMs = jobIdTime(String(params.new_id ?? params.id))
      if ((error as { code?: string }).code !== NO_PARTITION || madeAtMs === undefined) throw error
      // Nobody purged for days, or a clock is far off.
      await addPartitions(this.#connection, madeAtMs)
      return (await this.run(statement, params)) as MovedRow[]
    }
  }

  async erase(params: Params): Promise<boolean> {
    return (await this.run(ERASE, params)).length > 0
  }

  async takeDeliveries(params: Params): Promise<Row[]> {
    return await this.run(takeDeliveries('FOR UPDATE SKIP LOCKED'), params)
  }

  async purge(): Promise<void> {
    await addPartitions(this.#connection)
    for (const statement of PURGES) await this.run(statement, {})
    await dropPartitions(this.#connection)
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }
}

function withOutput(compiled: Compiled, params: Params, output: readonly NewEvent[]): unknown[] {
  const types = output.map(({ type }) => type)
  const datas = output.map(({ data }) => JSON.stringify(data))
  return compiled.names.map((name) => {
    if (name === 'types') return types
    return name === 'datas' ? datas : valuesOf({ ...compiled, names: [name] }, params)[0]
  })
}
