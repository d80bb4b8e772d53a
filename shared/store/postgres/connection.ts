import { setTimeout as delay } from 'node:timers/promises'
import { Client, type ClientConfig, Pool, type PoolClient, type PoolConfig, types } from 'pg'
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { type Compiled, compile } from '#shared/store/sql/compile.ts'
import type { Row } from '#shared/store/sql/sql.ts'
import type { Statement } from '#shared/store/sql/statements.ts'
import { busy, translate, unreachable } from './errors.ts'
import { rowsOf } from './pooled-query.ts'
import { beginSession, bySetting, isPooled, type Settings } from './session.ts'

/** What a connection is told, and how long anything may take. */
export interface ConnectionOptions {
  readonly url: string
  readonly connectionsMax: number
  readonly statementTimeoutMs: number
  /** Hears of each outage once, and of its end. */
  readonly onProblem: (message: string, fields: Record<string, unknown>) => void
}

const CONNECT_TIMEOUT_MS = 5_000
const IDLE_MS = 60_000
/** Calls that wait for a connection at most; more are refused. */
const WAITING_MAX = 5_000
/** The client gives up later than the server, so that it hears of the server's timeout. */
const ANSWER_MARGIN_MS = 2_000
const PROBE: Backoff = { baseMs: 100, maxMs: 2_000 }
const INT8 = types.builtins.INT8
/**
 * Every statement finds its rows by an index, so one plan serves all parameters. A plan made while a table was empty must do so
 * too, for it is kept. Without an index Postgres counts the plan as very expensive, and would compile it first.
 */
export const PLAN: Settings = {
  enable_seqscan: 'off',
  enable_hashjoin: 'off',
  enable_mergejoin: 'off',
  jit: 'off',
  plan_cache_mode: 'force_generic_plan',
}

/** How long a disk that a write found full counts as full. */
const FULL_MS = 60_000
/** Minimum time between two log lines about failed calls of one class. */
const FAILED_MS = 60_000

/**
 * Connections to Postgres that come back by themselves.
 *
 * A failure of the connection makes it unreachable: every call is refused at once, and one probe asks again, for ever
 * and with bounded delay, until the database takes writes. A wait for a free connection or for a lock is no such failure: it
 * is bounded, and fails its own call alone.
 *
 * A pooler in transaction mode gives each transaction any server, so nothing lasts from one to the next: `session.ts` has what
 * follows from that. Connections to Postgres itself keep named statements and session settings.
 */
export class PostgresConnection {
  readonly #pool: Pool
  readonly #onProblem: ConnectionOptions['onProblem']
  readonly #closed = new AbortController()
  readonly #compiled = new Map<string, Compiled>()
  readonly #settings: Settings
  /** A server did not have a statement that was prepared on this address. */
  #hasLostStatements = false
  #isReachable = true
  /** When a write last met a full disk. */
  #fullAtMs = Number.NEGATIVE_INFINITY
  #closing: Promise<void> | undefined
  /** When a failure of each class was last logged. */
  readonly #failedAtMs = new Map<string, number>()

  constructor(options: ConnectionOptions) {
    this.#onProblem = options.onProblem
    const timeout = String(options.statementTimeoutMs)
    this.#settings = { ...PLAN, statement_timeout: timeout, idle_in_transaction_session_timeout: timeout }
    this.#pool = new Pool(poolConfig(options, this.#settings))
    // A connection that broke while idle; without a listener it would end the process.
    this.#pool.on('error', (error) => this.#lose(translate(error).error))
  }

  get isReachable(): boolean {
    return this.#isReachable
  }

  /** A write of the last minute met a full disk. Reads go on meanwhile, and so do writes that need no new page. */
  get isFull(): boolean {
    return performance.now() - this.#fullAtMs < FULL_MS
  }

  /** Runs one prepared statement. @param bind Gives the values for its names. @throws ServiceError `overloaded` */
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

  /** Does several things in one transaction of a connection of its own. @throws ServiceError `overloaded` */
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

  /** Whether the pooler in front of Postgres gives the connection another server for each transaction. */
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
      // Destroys the connection, and with it the locks and the transaction.
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
      // A slow call fails for itself alone, and its caller may try again.
      if (effect === 'failed' && name !== 'slow') this.#noteFailed(name, error)
      throw error
    }
  }

  /** Once a minute for each class, so that the log has the reason behind the answers of callers. */
  #noteFailed(name: string, error: unknown): void {
    const now = performance.now()
    if (now - (this.#failedAtMs.get(name) ?? Number.NEGATIVE_INFINITY) < FAILED_MS) return
    this.#failedAtMs.set(name, now)
    this.#onProblem('job store failed a call', { err: error })
  }

  /** Told anew when a minute was quiet. */
  #noteFull(error: unknown): void {
    if (!this.isFull) this.#onProblem('job store has no room left on its disk', { err: error })
    this.#fullAtMs = performance.now()
  }

  #lose(error: unknown): void {
    if (!this.#isReachable || this.#closed.signal.aborted) return
    this.#isReachable = false
    this.#onProblem('job store lost; trying again', { err: error })
    // Ends when the store is closed; it fails at nothing else.
    void this.#probe()
  }

  async #probe(): Promise<void> {
    const { signal } = this.#closed
    for (let tries = 1; !signal.aborted; tries++) {
      await delay(backoffMs(Math.min(tries, 10), PROBE, Math.random()), undefined, { signal }).catch(() => {})
      if (signal.aborted || !(await this.#answers())) continue
      this.#isReachable = true
      this.#onProblem('job store is back', { tries })
      return
    }
  }

  /** Whether the database takes writes: after a failover the old address may lead to a standby. */
  async #answers(): Promise<boolean> {
    try {
      const { rows } = await this.#pool.query('SELECT pg_is_in_recovery() AS is_standby')
      return rows[0].is_standby === false
    } catch {
      return false
    }
  }
}

/** The pool has one bound for a new connection and for the wait until one is free; a new one takes no longer than this. */
class PromptClient extends Client {
  constructor(config?: ClientConfig) {
    super({ ...config, connectionTimeoutMillis: CONNECT_TIMEOUT_MS })
    // Emitted next to the failure of the statement under way. Without a listener it would end the process.
    this.on('error', () => undefined)
  }
}

function poolConfig({ url, connectionsMax, statementTimeoutMs }: ConnectionOptions, settings: Settings): PoolConfig {
  return {
    connectionString: url,
    max: connectionsMax,
    Client: PromptClient,
    // As long as a statement may have the connection that is waited for.
    connectionTimeoutMillis: Math.max(statementTimeoutMs, CONNECT_TIMEOUT_MS) + ANSWER_MARGIN_MS,
    idleTimeoutMillis: IDLE_MS,
    query_timeout: statementTimeoutMs + ANSWER_MARGIN_MS,
    keepAlive: true,
    // Awaited by the pool before the connection is used.
    onConnect: async (client) => await beginSession(client, settings),
    application_name: 'sluice',
    // Counts and unix milliseconds stay far below 2^53.
    types: {
      getTypeParser: ((oid: number, format?: 'text') =>
        oid === INT8 ? Number : types.getTypeParser(oid, format)) as typeof types.getTypeParser,
    },
  }
}
