import {
  CANCELLED_STATUS,
  type LogBounds,
  REQUESTS_MAX,
  type RequestBodies,
  type RequestBounds,
  type RequestLog,
  type RequestOutcome,
  type RequestPage,
  type RequestPreview,
  type RequestQuery,
  type RequestRow,
  UNBOUNDED,
} from '#shared/store/requests.ts'
import { namedRow, type Params, type Row, type SqlDatabase, type Write } from './sql.ts'
import type { Statement } from './statements.ts'

/*
 * The request log in SQL.
 *
 * A page reads the rows of one index, newest first: that of the most selective filter of the query. The other filters apply to these rows.
 * At most `SCANNED_MAX` rows are read, because SQLite blocks the event loop during a statement. Example: the list of slow calls of a
 * project reads the newest rows of the project and returns those that took long.
 */

/** Maximum rows that a page reads for filters without an index: about 20 ms in SQLite. */
const SCANNED_MAX = 5_000
const OUTCOMES_MAX = 1_000
const PURGED_MAX = 250
/** Maximum rows per statement. The value is small, because a row may occupy several pages of the database, each of which must be freed. */
const BODIES_PURGED_MAX = 25
const DAY_MS = 86_400_000

type ColumnType = 'text' | 'bigint'

/** Columns of the table, each with its field and type. Every process writes all columns, in this order. */
const COLUMNS = {
  id: ['id', 'text'],
  started_at_ms: ['startedAtMs', 'bigint'],
  ended_at_ms: ['endedAtMs', 'bigint'],
  project: ['project', 'text'],
  key_id: ['keyId', 'text'],
  endpoint: ['endpoint', 'text'],
  kind: ['kind', 'text'],
  model: ['model', 'text'],
  worker: ['worker', 'text'],
  server: ['server', 'text'],
  status: ['status', 'bigint'],
  error_code: ['errorCode', 'text'],
  queue_ms: ['queueMs', 'bigint'],
  first_output_ms: ['firstOutputMs', 'bigint'],
  duration_ms: ['durationMs', 'bigint'],
  input_tokens: ['inputTokens', 'bigint'],
  cached_input_tokens: ['cachedInputTokens', 'bigint'],
  output_tokens: ['outputTokens', 'bigint'],
  cost_nanos: ['costNanos', 'bigint'],
  attempts: ['attempts', 'bigint'],
  job_id: ['jobId', 'text'],
  batch_id: ['batchId', 'text'],
  trace_id: ['traceId', 'text'],
  user_agent: ['userAgent', 'text'],
  error_message: ['errorMessage', 'text'],
  error_param: ['errorParam', 'text'],
} as const satisfies Record<string, readonly [keyof RequestRow, ColumnType]>

const NAMES = Object.keys(COLUMNS) as (keyof typeof COLUMNS)[]
const ALL = NAMES.join(', ')
const FIELDS = Object.fromEntries(NAMES.map((name) => [name, COLUMNS[name][0]])) as Record<string, keyof RequestRow>

/**
 * Values of the columns. Days before yesterday have no partition, so a row that is older than a day is stored as a row
 * of yesterday.
 */
const GIVEN = NAMES.map((name) =>
  name === 'ended_at_ms'
    ? `greatest(least(given.ended_at_ms, now_ms()), now_ms() - ${DAY_MS}) AS ended_at_ms`
    : `given.${name}`,
).join(', ')

/** For writes that also record requests: `requests_given` is a table expression with the rows of a JSON array, and the INSERT adds these rows. */
export const POSTGRES_GIVEN = `requests_given AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:requests AS json))
    AS row(${NAMES.map((name) => `${name} ${COLUMNS[name][1]}`).join(', ')}))`
export const POSTGRES_INSERT = `INSERT INTO requests (${ALL}) SELECT ${GIVEN} FROM requests_given AS given`
export const SQLITE_INSERT = `INSERT INTO requests (${ALL})
  SELECT ${NAMES.map((name) => `value->>'${name}'`).join(', ')} FROM json_each(:requests)`

/**
 * In SQLite, no check for repeated rows is needed. An embedded store never loses a response, so no batch is sent twice.
 */
const ADD: Write = {
  postgres: {
    name: 'requests_add',
    sql: `WITH ${POSTGRES_GIVEN} ${POSTGRES_INSERT} WHERE NOT EXISTS (
            SELECT 1 FROM requests AS known WHERE known.id = given.id AND known.started_at_ms = given.started_at_ms)`,
  },
  sqlite: [`INSERT INTO requests (${ALL}) VALUES (${NAMES.map((name) => `:${name}`).join(', ')})`],
  isTransient: true,
}

const FIND: Statement = {
  name: 'requests_find',
  sql: `SELECT ${ALL} FROM requests WHERE id = :id AND project = coalesce(:project, project)
        ORDER BY ended_at_ms + 0 DESC, n DESC LIMIT 1`,
}

/**
 * Deletes the oldest rows of a table that are older than `keep_ms` or exceed `rows_max`. Each subquery reads one end of an index.
 *
 * @param time Column with the time of a row
 * @param where Condition of a partial index on this column
 */
const purgeOf = (table: 'requests' | 'request_bodies', time: string, where = 'true'): Statement => ({
  name: `purge_${table}_${time}`,
  sql: `DELETE FROM ${table} WHERE ${where} AND (${time}, n) IN (
          SELECT ${time}, n FROM (SELECT ${time}, n FROM ${table} WHERE ${where} ORDER BY ${time}, n LIMIT :limit) AS oldest
          WHERE ${time} <= now_ms() - CAST(:keep_ms AS bigint)
            OR n <= (SELECT n FROM ${table} WHERE ${where} ORDER BY ${time} DESC, n DESC LIMIT 1)
                    - CAST(:rows_max AS bigint))
        RETURNING n`,
})
export const PURGE_REQUESTS = purgeOf('requests', 'ended_at_ms')
const PURGE_BODIES = purgeOf('request_bodies', 'at_ms', 'expires_at_ms IS NULL')
const PURGE_EXPIRED_BODIES = purgeOf('request_bodies', 'expires_at_ms', 'expires_at_ms IS NOT NULL')

const BODY_FIELDS = {
  id: 'id',
  at_ms: 'atMs',
  expires_at_ms: 'expiresAtMs',
  request: 'request',
  answer: 'answer',
  prompt_preview: 'promptPreview',
  answer_preview: 'answerPreview',
} as const
const BODY_NAMES = Object.keys(BODY_FIELDS).join(', ')
const ADD_BODIES: Write = {
  postgres: {
    name: 'request_bodies_add',
    sql: `INSERT INTO request_bodies (${BODY_NAMES})
          SELECT ${BODY_NAMES} FROM json_to_recordset(CAST(:bodies AS json)) AS given(id text, at_ms bigint,
            expires_at_ms bigint, request text, answer text, prompt_preview text, answer_preview text)`,
  },
  sqlite: [
    `INSERT INTO request_bodies (${BODY_NAMES})
     VALUES (:id, :at_ms, :expires_at_ms, :request, :answer, :prompt_preview, :answer_preview)`,
  ],
  isTransient: true,
}
const FIND_BODIES: Statement = {
  name: 'request_bodies_find',
  sql: `SELECT ${BODY_NAMES} FROM request_bodies WHERE id = :id ORDER BY n LIMIT 1`,
}
const previewsOf = (isShared: boolean): Statement => ({
  name: 'request_previews',
  sql: `SELECT id, prompt_preview, answer_preview FROM request_bodies WHERE id ${
    isShared
      ? '= ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))'
      : 'IN (SELECT value FROM json_each(:ids))'
  }`,
})

export class SqlRequests implements RequestLog {
  readonly #db: SqlDatabase

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  async add(rows: readonly RequestRow[]): Promise<void> {
    if (rows.length > 0) await this.#db.writeRows(ADD, 'requests', rows, FIELDS)
  }

  async list(query: RequestQuery): Promise<RequestPage> {
    const limit = Math.min(query.limit, REQUESTS_MAX)
    const list = requestsToScan(query, this.#db.isShared)
    const found = await this.#db.run(list.page, { ...list.params, limit: limit + 1 })
    const rows = found.slice(0, limit)
    if (found.length > limit) return { rows: rows.map(rowOf), next: cursorOf(rows.at(-1)) }
    const [last] = list.end ? await this.#db.run(list.end, list.params) : []
    return { rows: rows.map(rowOf), next: cursorOf(last) }
  }

  async find(id: string, project?: string): Promise<RequestRow | undefined> {
    const [row] = await this.#db.run(FIND, { id, project: project ?? null })
    return row && rowOf(row)
  }

  async outcomes(sinceMs: number, project?: string): Promise<RequestOutcome[]> {
    const { page, params } = outcomesOf(sinceMs, project, this.#db.isShared)
    const rows = await this.#db.run(page, params)
    return rows.map((row) => ({
      project: String(row.project),
      model: row.model === null ? null : String(row.model),
      status: Number(row.status),
      errorCode: row.error_code === null ? null : String(row.error_code),
      calls: Number(row.calls),
    }))
  }

  async addBodies(rows: readonly RequestBodies[]): Promise<void> {
    if (rows.length > 0) await this.#db.writeRows(ADD_BODIES, 'bodies', rows, BODY_FIELDS)
  }

  async findBodies(id: string): Promise<RequestBodies | undefined> {
    const [row] = await this.#db.run(FIND_BODIES, { id })
    if (!row) return undefined
    const { at_ms, expires_at_ms, request, answer } = row
    return {
      ...previewOf(row),
      ...{ atMs: Number(at_ms), expiresAtMs: expires_at_ms === null ? null : Number(expires_at_ms) },
      ...{ request: String(request), answer: answer === null ? null : String(answer) },
    }
  }

  async previews(ids: readonly string[]): Promise<RequestPreview[]> {
    if (ids.length === 0) return []
    return (await this.#db.run(previewsOf(this.#db.isShared), { ids: JSON.stringify(ids) })).map(previewOf)
  }

  /** @returns Whether further rows may have to be deleted */
  async purge({ bodies = UNBOUNDED, ...requests }: LogBounds): Promise<boolean> {
    const isFull = [
      await this.#purge(PURGE_REQUESTS, requests, PURGED_MAX),
      await this.#purge(PURGE_BODIES, bodies, BODIES_PURGED_MAX),
      await this.#purge(PURGE_EXPIRED_BODIES, { ...bodies, keepMs: 0 }, BODIES_PURGED_MAX),
    ]
    return isFull.includes(true)
  }

  async #purge(statement: Statement, { keepMs, rowsMax }: RequestBounds, limit: number): Promise<boolean> {
    return (await this.#db.run(statement, { keep_ms: keepMs, rows_max: rowsMax, limit })).length === limit
  }
}

function previewOf({ id, prompt_preview, answer_preview }: Row): RequestPreview {
  return {
    id: String(id),
    promptPreview: prompt_preview === null ? null : String(prompt_preview),
    answerPreview: answer_preview === null ? null : String(answer_preview),
  }
}

interface Condition {
  readonly name: string
  readonly sql: string
  readonly params: Params
}

/**
 * Returns the filters of a query, most selective first. Each filter in `indexed` has an index that begins with its column.
 *
 * In Postgres, the indexes and the order of the list use the expression `ended_at_ms + 0`, which the primary key does not match. With the plain
 * column, the planner may choose the primary key and read many rows that the filter excludes.
 */
function conditionsOf(query: RequestQuery): { indexed: Condition[]; others: Condition[] } {
  const { project, keyId, model, endpoint, server, statuses, errorCode, jobId, batchId, traceId, durationMsMin } = query
  const equal = (column: string, value: string | undefined): Condition[] =>
    value === undefined ? [] : [{ name: column, sql: `${column} = :${column}`, params: { [column]: value } }]
  const isFailed = errorCode !== undefined || (statuses !== undefined && statuses[0] >= 400)
  const failed: Condition[] = isFailed ? [{ name: 'failed', sql: 'status >= 400', params: {} }] : []
  const indexed = [
    ...equal('job_id', jobId),
    ...equal('batch_id', batchId),
    ...equal('trace_id', traceId),
    ...failed,
    ...equal('project', project),
    ...equal('model', model),
  ]
  const [from = 0, to = 0] = statuses ?? []
  const others = [
    ...equal('key_id', keyId),
    ...equal('endpoint', endpoint),
    ...equal('server', server),
    ...equal('error_code', errorCode),
    ...(statuses
      ? [
          {
            name: 'status',
            sql: `status >= :status_from AND status <= :status_to AND status <> CAST(:status_not AS bigint)`,
            params: { status_from: from, status_to: to, status_not: from === CANCELLED_STATUS ? 0 : CANCELLED_STATUS },
          },
        ]
      : []),
    ...(durationMsMin === undefined
      ? []
      : [{ name: 'duration', sql: 'duration_ms >= :duration_ms', params: { duration_ms: durationMsMin } }]),
  ]
  return { indexed, others }
}

/**
 * The statements of a page: the page itself, and the end of its scan if some filters have no index.
 *
 * @param isShared Whether the database is Postgres
 */
export function requestsToScan(query: RequestQuery, isShared: boolean) {
  const { indexed, others } = conditionsOf(query)
  // The filters `project` and `failed` together have an index of their own. For any other filters, the first one selects the index, and the
  // others are checked row by row.
  const taken =
    indexed[0]?.name === 'failed'
      ? indexed.filter(({ name }) => name === 'failed' || name === 'project')
      : indexed.slice(0, 1)
  const rest = [...indexed.filter((condition) => !taken.includes(condition)), ...others]
  const at = isShared && taken.length > 0 ? '(ended_at_ms + 0)' : 'ended_at_ms'
  const { sinceMs, untilMs, after } = query
  const bounds: Condition[] = [
    ...(sinceMs === undefined ? [] : [{ name: 'since', sql: `${at} >= :since`, params: { since: sinceMs } }]),
    ...(untilMs === undefined ? [] : [{ name: 'until', sql: `${at} < :until`, params: { until: untilMs } }]),
    ...(after === undefined
      ? []
      : [
          {
            name: 'after',
            sql: `(${at}, n) < (:after_ms, :after_n)`,
            params: { after_ms: after.endedAtMs, after_n: after.n },
          },
        ]),
  ]
  const where = [...taken, ...bounds].map(({ sql }) => sql).join(' AND ') || 'TRUE'
  const order = `ORDER BY ${at} DESC, n DESC`
  const scan = (columns: string) => `SELECT ${columns} FROM requests WHERE ${where} ${order}`
  // The name contains two letters of each condition, because Postgres uses only the first 63 characters of a statement
  // name.
  const name = ['requests', ...[...taken, ...rest, ...bounds].map((condition) => condition.name.slice(0, 2))].join('_')
  const params: Params = Object.assign({}, ...[...taken, ...rest, ...bounds].map((condition) => condition.params))
  // Limits of scans are written as literals. For a parameter, Postgres would plan as if the limit were a tenth of all
  // rows.
  const page = (
    rows: number,
    filters: string,
  ) => `SELECT * FROM (${scan(`n, ${ALL}`)} LIMIT ${rows}) AS scanned WHERE ${filters}
    ORDER BY ended_at_ms DESC, n DESC LIMIT :limit`
  if (rest.length === 0) return { params, page: { name, sql: page(REQUESTS_MAX + 1, 'TRUE') }, end: undefined }
  const filters = rest.map(({ sql }) => sql).join(' AND ')
  return {
    params,
    page: { name, sql: page(SCANNED_MAX, filters) },
    end: { name: `${name}_end`, sql: `${scan('ended_at_ms, n')} LIMIT 1 OFFSET ${SCANNED_MAX - 1}` },
  }
}

/** @param isShared Whether the database is Postgres */
export function outcomesOf(sinceMs: number, project: string | undefined, isShared: boolean) {
  const at = isShared && project !== undefined ? '(ended_at_ms + 0)' : 'ended_at_ms'
  const ofProject = project === undefined ? '' : 'project = :project AND '
  const groups = 'project, model, status, error_code'
  const sql = `SELECT ${groups}, count(*) AS calls FROM (
      SELECT ${groups} FROM requests WHERE ${ofProject}${at} >= :since ORDER BY ${at} DESC, n DESC LIMIT ${SCANNED_MAX}) AS recent
    GROUP BY ${groups} ORDER BY calls DESC LIMIT ${OUTCOMES_MAX}`
  const name = project === undefined ? 'requests_outcomes' : 'requests_outcomes_of'
  return { page: { name, sql }, params: { since: sinceMs, ...(project !== undefined && { project }) } }
}

function cursorOf(row: Row | undefined) {
  return row ? { endedAtMs: Number(row.ended_at_ms), n: Number(row.n) } : null
}

/** The row in the form of {@link POSTGRES_GIVEN} and {@link SQLITE_INSERT}. */
export function paramsOf(row: RequestRow): Params {
  return namedRow(row, FIELDS)
}

function rowOf(row: Row): RequestRow {
  const values = NAMES.map((name) => {
    const [field, type] = COLUMNS[name]
    const value = row[name]
    return [field, value === null || type === 'text' ? value : Number(value)]
  })
  return Object.fromEntries(values) as unknown as RequestRow
}
