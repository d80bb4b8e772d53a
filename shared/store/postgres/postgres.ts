import { ServiceError } from '#shared/lib/error.ts'
import { jobIdTime } from '#shared/store/jobs.ts'
import {
  type Compiled,
  isSweep,
  namedRow,
  type Params,
  parameterOf,
  type Row,
  type SqlDatabase,
  type TransitionRow,
  valuesOf,
  type Write,
  type WrittenOutput,
} from '#shared/store/sql/sql.ts'
import { SqlStore } from '#shared/store/sql/sql-store.ts'
import { CREATE, FIND, type Insert, type Statement } from '#shared/store/sql/statements.ts'
import type { Transition } from '#shared/store/sql/transitions.ts'
import type { Store } from '#shared/store/store.ts'
import { PostgresConnection } from './connection.ts'
import { Groups, type Item } from './groups.ts'
import { migrate, type OnProgress } from './migrate.ts'
import { addPartitions, dropPartitions } from './schema.ts'
import {
  ERASE,
  findStatement,
  insertOneStatement,
  insertStatement,
  sweepStatement,
  transitionStatement,
} from './transition.ts'

/** SQLSTATE `check_violation` of an insert for which no partition exists. */
const NO_PARTITION = '23514'

export interface PostgresOptions {
  /**
   * Connection URL: `postgres://user:password@host:port/database`, with further settings such as `sslmode` in its
   * query.
   */
  readonly url: string
  readonly connectionsMax?: number
  readonly statementTimeoutMs?: number
  readonly onProblem: (message: string, fields: Record<string, unknown>) => void
  /** Called after each schema change, before the store opens. */
  readonly onProgress?: OnProgress
}

/**
 * Opens the store in Postgres 13 or later, for any number of processes. Updates the schema first.
 *
 * Durability depends on the server's `synchronous_commit` and replication.
 *
 * @throws ServiceError `overloaded` if Postgres is unreachable at the start
 */
export async function openPostgresStore(options: PostgresOptions): Promise<Store> {
  const { url, connectionsMax = 10, statementTimeoutMs = 10_000, onProblem, onProgress } = options
  await migrate(url, onProgress)
  const connection = new PostgresConnection({ url, connectionsMax, statementTimeoutMs, onProblem })
  try {
    await addPartitions(connection)
    return new SqlStore(new PostgresDatabase(connection))
  } catch (error) {
    await connection.close()
    throw error
  }
}

class PostgresDatabase implements SqlDatabase {
  readonly name = 'postgres'
  readonly isShared = true
  readonly #connection: PostgresConnection
  readonly #groups = new Map<object, Groups>()

  constructor(connection: PostgresConnection) {
    this.#connection = connection
  }

  /** Always false. Another process may write to this database at any time, so an idle check would be outdated at once. */
  get isIdle(): boolean {
    return false
  }

  get isReachable(): boolean {
    return this.#connection.isReachable
  }

  get isFull(): boolean {
    return this.#connection.isFull
  }

  async run(statement: Statement, params: Params): Promise<Row[]> {
    if (statement === FIND)
      return await this.#groupsOf(FIND, findStatement).add({ id: String(params.id), params, output: [] })
    return await this.#connection.run(statement, (compiled) => valuesOf(compiled, params))
  }

  async transition(move: Transition, params: Params, output: WrittenOutput): Promise<TransitionRow[]> {
    if (isSweep(move)) return (await this.run(sweepStatement(move), params)) as TransitionRow[]
    return await this.#groupsOf(move, transitionStatement).add({ id: String(params.id), params, output })
  }

  async insert(insert: Insert, params: Params, hasKey: boolean): Promise<TransitionRow[]> {
    try {
      return await this.#insert(insert, params, hasKey)
    } catch (error) {
      const madeAtMs = jobIdTime(String(params.new_id ?? params.id))
      if ((error as { code?: string }).code !== NO_PARTITION || madeAtMs === undefined) throw error
      // The daily partition of the job is missing, because no purge ran for days or a clock differs by days. The partition is created, and the insert
      // is repeated.
      await addPartitions(this.#connection, madeAtMs)
      return await this.#insert(insert, params, hasKey)
    }
  }

  async erase(params: Params): Promise<boolean> {
    return (await this.run(ERASE, params)).length > 0
  }

  async write({ postgres }: Write, params: Params): Promise<void> {
    try {
      await this.run(postgres, params)
    } catch (error) {
      if ((error as { code?: string }).code !== NO_PARTITION) throw error
      await addPartitions(this.#connection)
      await this.run(postgres, params)
    }
  }

  async writeRows<Field extends string>(
    write: Write,
    name: string,
    rows: readonly Readonly<Record<Field, string | number | null>>[],
    columns: Readonly<Record<string, Field>>,
  ): Promise<void> {
    await this.write(write, { [name]: JSON.stringify(rows.map((row) => namedRow(row, columns))) })
  }

  async pick(statement: (lock: string) => Statement, params: Params): Promise<Row[]> {
    return await this.run(statement('FOR UPDATE SKIP LOCKED'), params)
  }

  limitRunning(): void {
    // Claims read the limits and the running calls from tables of the database, so this adapter stores no limits.
  }

  async keepDays(requestsMs: number): Promise<void> {
    await addPartitions(this.#connection)
    await dropPartitions(this.#connection, requestsMs).catch((error: unknown) => {
      // While a long read of the day's partition runs, such as a backup, the partition cannot be dropped. The error is ignored. The purge deletes the
      // rows one by one, and a later purge drops the partition.
      if (!ServiceError.from(error).isUndone) throw error
    })
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }

  async #insert(insert: Insert, params: Params, hasKey: boolean): Promise<TransitionRow[]> {
    if (insert !== CREATE || hasKey)
      return (await this.run(insertOneStatement(insert, hasKey), params)) as TransitionRow[]
    return await this.#groupsOf(insert, insertStatement).add({ id: String(params.id), params, output: [] })
  }

  #groupsOf<T extends object>(what: T, statementOf: (what: T) => Statement): Groups {
    let groups = this.#groups.get(what)
    if (!groups) {
      const statement = statementOf(what)
      const run = async (items: readonly Item[]) =>
        (await this.#connection.run(statement, (compiled) => arraysOf(compiled, items))) as TransitionRow[]
      groups = new Groups(run, () => this.isReachable)
      this.#groups.set(what, groups)
    }
    return groups
  }
}

function arraysOf({ names }: Compiled, items: readonly Item[]): unknown[] {
  const output = items.flatMap(({ id, output }) => output.map(({ type, data }, index) => ({ id, index, type, data })))
  const arrays: Record<string, unknown[]> = {
    output_ids: output.map(({ id }) => id),
    output_nths: output.map(({ index }) => index + 1),
    output_types: output.map(({ type }) => type),
    output_datas: output.map(({ data }) => data),
  }
  return names.map((name) => arrays[name] ?? items.map(({ params }) => parameterOf(params, name)))
}
