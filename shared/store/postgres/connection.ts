import { setTimeout as delay } from 'node:timers/promises'
import {
  Client,
  type ClientBase,
  type ClientConfig,
  type Connection,
  Pool,
  type PoolClient,
  type PoolConfig,
  Query,
  types,
} from 'pg'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { type Compiled, compile, type Row } from '#shared/store/sql/sql.ts'
import type { Statement } from '#shared/store/sql/statements.ts'
import { busy, translate, unreachable } from './errors.ts'

export interface ConnectionOptions {
  readonly url: string
  readonly connectionsMax: number
  readonly statementTimeoutMs: number
  readonly onProblem: (message: string, fields: Record<string, unknown>) => void
}

const CONNECT_TIMEOUT_MS = 5_000
const IDLE_MS = 60_000
const WAITING_MAX = 5_000
/** Difference in ms between the client's longer timeout and the server's. The timeout error of the server therefore arrives first. */
const ANSWER_MARGIN_MS = 2_000
const PROBE: Backoff = { baseMs: 100, maxMs: 2_000 }
const INT8 = types.builtins.INT8
/**
 * Planner settings, so that every statement finds its rows by an index and one cached generic plan serves all parameters. A plan may be made while a
 * table is empty, so sequential scans and large joins are disabled. Bitmap scans are disabled, because they would read and sort all rows of a very
 * frequent value. JIT is disabled, because the high estimated cost of disabled scans would trigger it.
 */
export const PLAN: Settings = {
  enable_seqscan: 'off',
  enable_hashjoin: 'off',
  enable_mergejoin: 'off',
  enable_bitmapscan: 'off',
  jit: 'off',
  plan_cache_mode: 'force_generic_plan',
}

const FULL_MS = 60_000
/** Minimum time in ms between two log lines about failed calls of the same failure class (`errors.ts`). */
const FAILED_MS = 60_000

/**
 * A pool of connections to Postgres that recovers from outages.
 *
 * If a connection fails, then the database counts as unreachable, and every call is refused at once. A probe retries with bounded delays until the
 * database accepts writes. A timeout while waiting for a free connection or a lock is no outage, so only that call fails.
 *
 * A pooler in transaction mode may run each transaction on another server, so no session state survives (see {@link beginSession}). Direct
 * connections use named statements and session settings.
 */
export class PostgresConnection {
  readonly #pool: Pool
  readonly #onProblem: ConnectionOptions['onProblem']
  readonly #closed = new AbortController()
  readonly #compiled = new Map<string, Compiled>()
  readonly #settings: Settings
  /**
   * True after a server did not know a statement that was prepared on this connection. A pooler must have changed the server, so statements are not
   * prepared any more.
   */
  #hasLostStatements = false
  #isReachable = true
  #fullAtMs = Number.NEGATIVE_INFINITY
  #closing: Promise<void> | undefined
  readonly #failedAtMs = new Map<string, number>()

  constructor(options: ConnectionOptions) {
    this.#onProblem = options.onProblem
    const timeout = String(options.statementTimeoutMs)
    this.#settings = { ...PLAN, statement_timeout: timeout, idle_in_transaction_session_timeout: timeout }
    this.#pool = new Pool(poolConfig(options, this.#settings))
    // An idle connection emits an error when it breaks. Without a listener, the error would end the process.
    this.#pool.on('error', (error) => this.#lose(translate(error).error))
  }

  get isReachable(): boolean {
    return this.#isReachable
  }

  /** Whether a write within the last minute found the disk full. Reads and most updates still work then. */
  get isFull(): boolean {
    return performance.now() - this.#fullAtMs < FULL_MS
  }

  async run({ name, sql }: Statement, bind: (compiled: Compiled) => unknown[]): Promise<Row[]> {
    let compiled = this.#compiled.get(name)
    if (!compiled) {
      compiled = compile(sql, '$')
      this.#compiled.set(name, compiled)
    }
    const values = bind(compiled)
    return await this.#guard(async () => {
      return await this.#withClient(async (client) => {
        const [text, isAlone] = [compiled.sql, this.#isPooled(client)]
        if (isAlone) return await rowsOf(client, { before: bySetting(this.#settings, 'transaction'), text, values })
        return (await client.query({ name: `sluice_${name}`, text, values })).rows
      })
    })
  }

  async transaction<T>(work: (client: PoolClient) => Promise<T>): Promise<T> {
    return await this.#guard(async () => {
      return await this.#withClient(async (client) => {
        const settings = this.#isPooled(client) ? `; ${bySetting(this.#settings, 'transaction')}` : ''
        await client.query(`BEGIN${settings}`)
        const result = await work(client)
        await client.query('COMMIT')
        return result
      })
    })
  }

  async close(): Promise<void> {
    this.#closed.abort()
    this.#closing ??= this.#pool.end()
    await this.#closing
  }

  /** Whether the connection leads to a pooler, which may run each transaction on another server. */
  #isPooled(client: PoolClient): boolean {
    return this.#hasLostStatements || isPooled(client)
  }

  async #withClient<T>(work: (client: PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#pool.connect()
    try {
      const result = await work(client)
      client.release()
      return result
    } catch (error) {
      // The argument `true` closes the connection instead of returning it to the pool, which also ends its locks and its transaction.
      client.release(true)
      throw error
    }
  }

  async #guard<T>(work: () => Promise<T>): Promise<T> {
    if (!this.#isReachable || this.#closed.signal.aborted) throw unreachable(undefined, true)
    if (this.#pool.waitingCount >= WAITING_MAX) throw busy()
    try {
      return await work()
    } catch (thrown) {
      const { effect, name, error } = translate(thrown)
      if (effect === 'gone') this.#lose(error)
      if (effect === 'full') this.#noteFull(error)
      if (name === 'statements_lost') this.#hasLostStatements = true
      // A timeout is not logged, because only this call fails and its caller may retry.
      if (effect === 'failed' && name !== 'slow') this.#noteFailed(name, error)
      throw error
    }
  }

  /** Logs a failed call, at most once per minute and failure class. Operators then find the reason of an error that callers report. */
  #noteFailed(name: string, error: unknown): void {
    const now = performance.now()
    if (now - (this.#failedAtMs.get(name) ?? Number.NEGATIVE_INFINITY) < FAILED_MS) return
    this.#failedAtMs.set(name, now)
    this.#onProblem('job store call failed; its caller received the error', { err: error })
  }

  #noteFull(error: unknown): void {
    if (!this.isFull) this.#onProblem('job store disk is full; writes are refused', { err: error })
    this.#fullAtMs = performance.now()
  }

  #lose(error: unknown): void {
    if (!this.#isReachable || this.#closed.signal.aborted) return
    this.#isReachable = false
    this.#onProblem('job store unreachable; retrying', { err: error })
    // The probe runs in the background until the database accepts writes or the store is closed. The promise never rejects.
    void this.#probe()
  }

  async #probe(): Promise<void> {
    const { signal } = this.#closed
    for (let tries = 1; !signal.aborted; tries++) {
      await delay(backoffMs(Math.min(tries, 10), PROBE, Math.random()), undefined, { signal }).catch(() => {})
      if (signal.aborted || !(await this.#answers())) continue
      this.#isReachable = true
      this.#onProblem('job store reachable again', { tries })
      return
    }
  }

  /** Whether the database accepts writes. After a failover, the old address may lead to a read-only standby. */
  async #answers(): Promise<boolean> {
    try {
      const { rows } = await this.#pool.query('SELECT pg_is_in_recovery() AS is_standby')
      return rows[0].is_standby === false
    } catch {
      return false
    }
  }
}

/** Client with a separate timeout for opening a connection. The timeout of the pool also includes the wait for a free connection. */
class PromptClient extends Client {
  constructor(config?: ClientConfig) {
    super({ ...config, connectionTimeoutMillis: CONNECT_TIMEOUT_MS })
    // The client emits this event in addition to the error of the running statement. Without a listener, the event would end the process.
    this.on('error', () => undefined)
  }
}

function poolConfig({ url, connectionsMax, statementTimeoutMs }: ConnectionOptions, settings: Settings): PoolConfig {
  return {
    connectionString: url,
    max: connectionsMax,
    Client: PromptClient,
    // The wait for a free connection may last as long as a statement, because every busy connection is free after its statement has timed out.
    connectionTimeoutMillis: Math.max(statementTimeoutMs, CONNECT_TIMEOUT_MS) + ANSWER_MARGIN_MS,
    idleTimeoutMillis: IDLE_MS,
    query_timeout: statementTimeoutMs + ANSWER_MARGIN_MS,
    keepAlive: true,
    onConnect: async (client) => await beginSession(client, settings),
    application_name: 'sluice',
    // 64-bit integers are parsed as numbers, because counts and Unix milliseconds stay far below 2^53.
    types: {
      getTypeParser: ((oid: number, format?: 'text') =>
        oid === INT8 ? Number : types.getTypeParser(oid, format)) as typeof types.getTypeParser,
    },
  }
}

interface Texts {
  /** A statement without parameters and result rows, such as the settings. Runs before `text`, in the same transaction. */
  readonly before: string
  readonly text: string
  readonly values: readonly unknown[]
}

interface Wire {
  parse(statement: { text: string }): void
  bind(portal: object): void
  execute(portal: object): void
}

/**
 * Runs `before` and then an unnamed statement, with a single Sync message of the extended protocol. Postgres runs both as one transaction (its
 * manual, chapter "Pipelining"), so they need one round trip and one server of a pooler.
 */
function rowsOf(client: ClientBase, { before, text, values }: Texts): Promise<Record<string, unknown>[]> {
  return new Promise((resolve, reject) => {
    const query = new PairQuery(before, { text, values: [...values], queryMode: 'extended' }, (error, results) => {
      if (error) reject(error)
      else resolve((results as unknown as { rows: Record<string, unknown>[] }[]).at(-1)?.rows ?? [])
    })
    client.query(query)
  })
}

class PairQuery extends Query {
  readonly #before: string

  constructor(before: string, config: object, done: (error: Error | undefined, results: unknown) => void) {
    super(config as ConstructorParameters<typeof Query>[0], undefined, done)
    this.#before = before
  }

  prepare(connection: Connection): void {
    const wire = connection as unknown as Wire
    wire.parse({ text: this.#before })
    wire.bind({})
    wire.execute({})
    ;(Query.prototype as unknown as { prepare(connection: Connection): void }).prepare.call(this, connection)
  }
}

/*
 * Sessions on Postgres, directly or through a pooler.
 *
 * PgBouncer in transaction mode (pool_mode = transaction) assigns a server to a connection for one transaction at a time. Session state may therefore
 * be missing on the next server, or visible to another client. Examples are named statements (SQLSTATE 26000 and 42P05), SET, session-level advisory
 * locks, LISTEN and temporary tables. PgBouncer also refuses unknown startup parameters (08P01). Therefore:
 *
 * 1. No setting is a startup parameter.
 *
 * 2. Each new connection detects a pooler, in the round trip that applies its settings. Postgres sends the process id of its server at the start of a
 *    connection. A pooler sends its own number, which differs from pg_backend_pid().
 *
 * 3. Behind a pooler, each transaction applies its own settings, in the same round trip, and statements have no names.
 *
 * A pooler in session mode cannot be distinguished reliably, so it is treated in the same way. The price is a new query plan for each statement.
 */

/** Settings of Postgres, by name. Only settings that any database user may change. */
type Settings = Readonly<Record<string, string>>

const POOLED = new WeakSet<object>()

/**
 * Returns a statement that applies settings and returns no rows.
 *
 * @param condition SQL condition. If false, then no setting is applied.
 */
export function bySetting(settings: Settings, scope: 'session' | 'transaction', condition = 'TRUE'): string {
  const calls = Object.entries(settings).map(
    ([name, value]) => `set_config('${name}', '${value}', ${scope === 'transaction'})`,
  )
  // The CASE expression ensures that nothing is set if the condition is false. With AND, Postgres could evaluate the calls before the condition.
  return `SELECT 1 WHERE CASE WHEN ${condition} THEN concat(${calls.join(', ')}) = '' END`
}

/**
 * Applies settings to a direct connection. If the connection leads to a pooler, then only this fact is stored, because each transaction applies its
 * own settings.
 */
export async function beginSession(client: ClientBase, settings: Settings): Promise<void> {
  // The type omits `processID`, which pg sets from the message BackendKeyData at the start of a connection.
  const { processID } = client as unknown as { processID: number }
  const pid = 'SELECT pg_backend_pid() AS pid'
  const own = bySetting(settings, 'session', `pg_backend_pid() = ${processID}`)
  const results = (await client.query(`${own}; ${pid}`)) as unknown as { rows: { pid?: number }[] }[]
  if (results.at(-1)?.rows[0]?.pid !== processID) POOLED.add(client)
}

export function isPooled(client: ClientBase): boolean {
  return POOLED.has(client)
}
