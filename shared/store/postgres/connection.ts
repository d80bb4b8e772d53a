import { setTimeout as delay } from 'node:timers/promises'
import { Client, type ClientConfig, Pool, type PoolClient, type PoolConfig, types } from 'pg'
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { type Compiled, compile } from '#shared/store/sql/compile.ts'
import type { Row } from '#shared/store/sql/sql.ts'
import type { Statement } from '#shared/store/sql/statements.ts'
import { busy, translate, unreachable } from './errors.ts'

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
 * Every statement finds its rows by an index, whatever it is asked for: so it is planned once. A plan made while a table was empty must do so too, for it is kept. Where there
 * is no index after all, Postgres counts the plan as very expensive, and would compile it first.
 */
export const PLAN =
  'SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan'

/** How long a disk that a write found full counts as full. */
const FULL_MS = 60_000

/**
 * Connections to Postgres that come back by themselves.
 *
 * A failure of the connection makes it unreachable: every call is refused at once, and one probe asks again, for ever
 * and with bounded delay, until the database takes writes. A wait for a free connection or for a lock is no such failure: it
 * is bounded, and fails its own call alone.
 */
export class PostgresConnection {
  readonly #pool: Pool
  readonly #onProblem: ConnectionOptions['onProblem']
  readonly #closed = new AbortController()
  readonly #compiled = new Map<string, Compiled>()
  #isReachable = true
  /** When a write last met a full disk. */
  #fullAtMs = Number.NEGATIVE_INFINITY
  #closing: Promise<void> | undefined

  constructor(options: ConnectionOptions) {
    this.#onProblem = options.onProblem
    this.#pool = new Pool(poolConfig(options))
    // A connection that broke while idle; without a listener it would end the process.
    this.#pool.on('error', (error) => this.#lose(error))
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
    const query = { name: `sluice_${name}`, text: compiled.sql, values: bind(compiled) }
    return await this.#guard(async () => (await this.#pool.query(query)).rows)
  }

  /** Does several things in one transaction of a connection of its own. @throws ServiceError `overloaded` */
  async transaction<T>(work: (client: PoolClient) => Promise<T>): Promise<T> {
    return await this.#guard(async () => {
      const client = await this.#pool.connect()
      try {
        await client.query('BEGIN')
        const result = await work(client)
        await client.query('COMMIT')
        client.release()
        return result
      } catch (error) {
        // Destroys the connection, and with it whatever the transaction held.
        client.release(true)
        throw error
      }
    })
  }

  async close(): Promise<void> {
    this.#closed.abort()
    this.#closing ??= this.#pool.end()
    await this.#closing
  }

  async #guard<T>(work: () => Promise<T>): Promise<T> {
    if (!this.#isReachable || this.#closed.signal.aborted) throw unreachable(undefined, true)
    if (this.#pool.waitingCount >= WAITING_MAX) throw busy()
    try {
      return await work()
    } catch (thrown) {
      const { isGone, isFull, error } = translate(thrown)
      if (isGone) this.#lose(thrown)
      if (isFull) this.#noteFull(thrown)
      throw error
    }
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
  }
}

function poolConfig({ url, connectionsMax, statementTimeoutMs }: ConnectionOptions): PoolConfig {
  return {
    connectionString: url,
    max: connectionsMax,
    Client: PromptClient,
    // As long as a statement may have the connection that is waited for.
    connectionTimeoutMillis: Math.max(statementTimeoutMs, CONNECT_TIMEOUT_MS) + ANSWER_MARGIN_MS,
    idleTimeoutMillis: IDLE_MS,
    statement_timeout: statementTimeoutMs,
    idle_in_transaction_session_timeout: statementTimeoutMs,
    query_timeout: statementTimeoutMs + ANSWER_MARGIN_MS,
    keepAlive: true,
    // Awaited by the pool before the connection is used.
    onConnect: async (client) => void (await client.query(PLAN)),
    application_name: 'sluice',
    // Counts and unix milliseconds stay far below 2^53.
    types: {
      getTypeParser: ((oid: number, format?: 'text') =>
        oid === INT8 ? Number : types.getTypeParser(oid, format)) as typeof types.getTypeParser,
    },
  }
}
