import { PostgresConnection } from '#shared/store/postgres/connection.ts'
import { migrate } from '#shared/store/postgres/migrate.ts'
import { type Compiled, valuesOf } from '#shared/store/sql/compile.ts'
import type { Params, Row } from '#shared/store/sql/sql.ts'
import type { Statement } from '#shared/store/sql/statements.ts'
import { ApiKey, KEYS_MAX, type KeyStore } from './keys.ts'

/** One that reads, one that writes: keys are few and change seldom. */
const CONNECTIONS_MAX = 2
/** Longer than any of these statements takes; an ingress goes on with the keys it knows meanwhile. */
const STATEMENT_TIMEOUT_MS = 5_000

const COLUMNS = 'id, hash, hint, name, created_at, revoked, endpoints, models'
const VALUES = ':id, :hash, :hint, :name, :created_at, FALSE, :endpoints, :models'

/** A number that changes with any key: far cheaper each second than the keys themselves. */
const STATE: Statement = {
  name: 'keys_state',
  sql: 'SELECT count(*) AS count, sum(hashtextextended(api_keys::text, 0)::numeric)::text AS hash FROM api_keys',
}
const LIST: Statement = { name: 'keys_list', sql: `SELECT ${COLUMNS} FROM api_keys ORDER BY created_at, id` }
const CREATE: Statement = {
  name: 'keys_create',
  sql: `INSERT INTO api_keys (${COLUMNS}) SELECT ${VALUES} WHERE (SELECT count(*) FROM api_keys) < ${KEYS_MAX} RETURNING id`,
}
/** Every first key has the same id, so that of two at once one meets the other's row. */
const CREATE_FIRST: Statement = {
  name: 'keys_create_first',
  sql: `INSERT INTO api_keys (${COLUMNS}) SELECT ${VALUES} WHERE NOT EXISTS (SELECT FROM api_keys)
    ON CONFLICT (id) DO NOTHING RETURNING id`,
}
const REVOKE: Statement = {
  name: 'keys_revoke',
  sql: `UPDATE api_keys SET revoked = TRUE WHERE id = :id RETURNING ${COLUMNS}`,
}

/**
 * The keys in the table `api_keys` of Postgres, for any number of processes. Brings the schema up to date first.
 *
 * @param url `postgres://user:password@host:port/database`
 * @throws ServiceError `overloaded` when it cannot be reached at the start
 */
export async function openPostgresKeys(url: string): Promise<KeyStore> {
  await migrate(url)
  const connection = new PostgresConnection({
    url,
    connectionsMax: CONNECTIONS_MAX,
    statementTimeoutMs: STATEMENT_TIMEOUT_MS,
    // Whoever lists the keys meets the outage, and says so.
    onProblem: () => undefined,
  })
  return new PostgresKeys(connection)
}

class PostgresKeys implements KeyStore {
  readonly name = 'postgres'
  readonly #connection: PostgresConnection
  #keys: readonly ApiKey[] = []
  /** The state of the table when it was last read, or before that. */
  #seen: string | undefined

  constructor(connection: PostgresConnection) {
    this.#connection = connection
  }

  async list(): Promise<readonly ApiKey[]> {
    const [row] = await this.#run(STATE, {})
    const state = `${row?.count} ${row?.hash}`
    if (state === this.#seen) return this.#keys
    this.#keys = (await this.#run(LIST, {})).map(keyOfRow)
    this.#seen = state
    return this.#keys
  }

  async create(key: ApiKey): Promise<void> {
    const made = await this.#run(CREATE, paramsOf(key))
    if (made.length === 0) throw new Error(`The database holds ${KEYS_MAX} keys, which is the most.`)
  }

  async createFirst(key: ApiKey): Promise<boolean> {
    return (await this.#run(CREATE_FIRST, paramsOf(key))).length > 0
  }

  async revoke(id: string): Promise<ApiKey | undefined> {
    return (await this.#run(REVOKE, { id })).map(keyOfRow)[0]
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }

  async #run(statement: Statement, params: Params): Promise<Row[]> {
    return await this.#connection.run(statement, (compiled: Compiled) => valuesOf(compiled, params))
  }
}

function paramsOf({ id, hash, hint, name, created_at, endpoints, models }: ApiKey): Params {
  const json = (list: string[] | undefined) => (list ? JSON.stringify(list) : null)
  return { id, hash, hint, name: name ?? null, created_at, endpoints: json(endpoints), models: json(models) }
}

function keyOfRow(row: Row): ApiKey {
  const { name, endpoints, models, ...rest } = row
  return ApiKey.parse({
    ...rest,
    ...(name !== null && { name }),
    ...(endpoints !== null && { endpoints: JSON.parse(String(endpoints)) }),
    ...(models !== null && { models: JSON.parse(String(models)) }),
  })
}
