import { setImmediate as nextTurn } from 'node:timers/promises'
import { REFUSED_TEXT } from '#shared/lib/error.ts'
import {
  CANCELLED_STATUS,
  COUNTED_MAX,
  type LogBounds,
  type OutcomePage,
  REQUESTS_MAX,
  type RequestBodies,
  type RequestBounds,
  type RequestCount,
  type RequestLog,
  type RequestOutcome,
  type RequestPage,
  type RequestPreview,
  type RequestQuery,
  type RequestRow,
  UNBOUNDED,
} from '#shared/store/requests.ts'
import { namedRow, type Params, type Row, type SqlDatabase, type Write } from './sql.ts'
import { inList, type Statement } from './statements.ts'

/*
 * The request log in SQL.
 *
 * A page is read newest first from one index, the index of the most selective filter of the query. The other filters are applied to the rows that are
 * read. At most `SCANNED_MAX` rows are read, because SQLite blocks the event loop during a statement. Example: the list of slow calls of a project
 * reads the newest rows of the project and returns those that took long.
 */

/** Maximum rows that a page reads for filters without an index: about 20 ms in SQLite. */
const SCANNED_MAX = 5_000
const PURGED_MAX = 250
/** Maximum rows per statement. The number is small, because each row may occupy several pages of the database file, which the statement must free. */
const BODIES_PURGED_MAX = 25
const DAY_MS = 86_400_000

type ColumnType = 'text' | 'bigint'

/** Columns of the table, with the field of {@link RequestRow} and the SQL type of each column. Every process writes all columns, in this order. */
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
  upstream_message: ['upstreamMessage', 'text'],
  failed_attempts: ['failedAttempts', 'text'],
  sdk_retry: ['sdkRetry', 'bigint'],
  unknown_parameters: ['unknownParameters', 'text'],
  format_ignored: ['formatIgnored', 'text'],
  batch_calls: ['batchCalls', 'bigint'],
  batch_failed: ['batchFailed', 'bigint'],
} as const satisfies Record<string, readonly [keyof RequestRow, ColumnType]>

const NAMES = Object.keys(COLUMNS) as (keyof typeof COLUMNS)[]
const ALL = NAMES.join(', ')
const FIELDS = Object.fromEntries(NAMES.map((name) => [name, COLUMNS[name][0]])) as Record<string, keyof RequestRow>

/**
 * Values of the columns. No partition exists for days before yesterday. If a row is older than a day, then its time is therefore set to a day ago.
 */
const GIVEN = NAMES.map((name) =>
  name === 'ended_at_ms'
    ? `greatest(least(given.ended_at_ms, now_ms()), now_ms() - ${DAY_MS}) AS ended_at_ms`
    : `given.${name}`,
).join(', ')

/**
 * Table expression `requests_given` with the rows of the JSON array `:requests`. Other statements that also add rows to the request log, such as
 * those of `usage.ts`, begin with this text.
 */
export const POSTGRES_GIVEN = `requests_given AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(:requests AS json))
    AS row(${NAMES.map((name) => `${name} ${COLUMNS[name][1]}`).join(', ')}))`
export const POSTGRES_INSERT = `INSERT INTO requests (${ALL}) SELECT ${GIVEN} FROM requests_given AS given`
export const SQLITE_INSERT = `INSERT INTO requests (${ALL})
  SELECT ${NAMES.map((name) => `value->>'${name}'`).join(', ')} FROM json_each(:requests)`

/**
 * Postgres ignores rows that are already stored, because a batch is sent again after a lost response. SQLite runs in this process, where no response
 * is lost, so its statement needs no such check.
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

const OLDEST: Statement = {
  name: 'requests_oldest',
  sql: 'SELECT ended_at_ms FROM requests ORDER BY ended_at_ms, n LIMIT 1',
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
  sql: `SELECT id, prompt_preview, answer_preview FROM request_bodies WHERE id ${inList(isShared, ':ids')}`,
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
    const [last] = list.isFiltered ? await this.#db.run(list.end, list.params) : []
    return { rows: rows.map(rowOf), next: cursorOf(last) }
  }

  async find(id: string, project?: string): Promise<RequestRow | undefined> {
    const [row] = await this.#db.run(FIND, { id, project: project ?? null })
    return row && rowOf(row)
  }

  async outcomes(query: Omit<RequestQuery, 'limit'>, hasUpstreamMessages = false): Promise<OutcomePage> {
    const { outcomes, end, params } = requestsToScan({ ...query, limit: 0 }, this.#db.isShared, hasUpstreamMessages)
    const rows = await this.#db.run(outcomes, params)
    const [last] = await this.#db.run(end, params)
    const textOf = (value: unknown) => (value === null ? null : String(value))
    return {
      next: cursorOf(last),
      outcomes: rows.map((row) => ({
        ...{
          project: String(row.project),
          keyId: String(row.key_id),
          model: textOf(row.model),
          status: Number(row.status),
        },
        ...{ errorCode: textOf(row.error_code), isRun: Number(row.is_run) === 1 },
        ...{ calls: Number(row.calls), notSent: Number(row.not_sent) },
        ...{ firstEndedAtMs: Number(row.first_ended_at_ms), lastEndedAtMs: Number(row.last_ended_at_ms) },
        ...messageOf(String(row.frequent)),
      })),
    }
  }

  async count(query: Omit<RequestQuery, 'limit'>): Promise<RequestCount> {
    let [count, scanned, after] = [0, 0, query.after]
    while (scanned < COUNTED_MAX) {
      const { counts, end, params } = requestsToScan({ ...query, after, limit: 0 }, this.#db.isShared)
      const [row] = await this.#db.run(counts, params)
      count += Number(row?.count)
      scanned += Number(row?.scanned)
      const [last] = await this.#db.run(end, params)
      after = cursorOf(last) ?? undefined
      if (!after) return { count, isLowerBound: false }
      // SQLite reads on the event loop, so other work may run between two reads.
      await nextTurn()
    }
    return { count, isLowerBound: true }
  }

  async startsAtMs(): Promise<number | undefined> {
    const [row] = await this.#db.run(OLDEST, {})
    return row && Number(row.ended_at_ms)
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

  /** @returns True if further rows may have to be deleted */
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

/** Parses the value of the SQL expression {@link FREQUENT}. Returns the most frequent message, the number of its requests, and the id of the newest. */
function messageOf(text: string): Pick<RequestOutcome, 'message' | 'messageCalls' | 'newestId'> {
  const [, calls, id = '', message] = /^(\d+) \d+ (\S+) (.*)$/s.exec(text) ?? []
  return { message: message || null, messageCalls: Number(calls) - COUNT_OFFSET, newestId: id }
}

function previewOf({ id, prompt_preview, answer_preview }: Row): RequestPreview {
  return {
    id: String(id),
    promptPreview: prompt_preview === null ? null : String(prompt_preview),
    answerPreview: answer_preview === null ? null : String(answer_preview),
  }
}

/** The definition of `isFailedStatus` in SQL. Calls without a valid key have no project. The rows of batches are left out by `isWithoutBatches`. */
const FAILED = `status >= 400 AND status <> ${CANCELLED_STATUS} AND project <> ''`
/**
 * Whether the error code of a row is in the list `:codes`. The commas prevent matches of a part of a code. `LIKE` reads `_` in a code as any character,
 * which is harmless, because no two codes differ only in such a character.
 */
const ANY_CODE = `',' || CAST(:codes AS text) || ',' LIKE '%,' || error_code || ',%'`

interface Condition {
  readonly name: string
  readonly sql: string
  readonly params: Params
}

/**
 * Returns the filters of a query, most selective first. Each filter in `indexed` has an index that begins with its column.
 *
 * In Postgres, the indexes and the order of the list use the expression `ended_at_ms + 0`, which the primary key with its plain column does
 * not match. With the plain column, the planner might choose the primary key and read many rows that the filter excludes.
 */
function conditionsOf(query: RequestQuery): { indexed: Condition[]; others: Condition[] } {
  const { project, keyId, model, endpoint, server, statuses, errorCode, jobId, batchId, traceId, sdkRetry } = query
  const { durationMsMin, isWithoutLines, isFailed = false } = query
  const equal = (column: string, value: string | number | undefined): Condition[] =>
    value === undefined ? [] : [{ name: column, sql: `${column} = :${column}`, params: { [column]: value } }]
  const hasFailed = isFailed || errorCode !== undefined || (statuses !== undefined && statuses[0] >= 400)
  const failed: Condition[] = hasFailed ? [{ name: 'failed', sql: 'status >= 400', params: {} }] : []
  const own: Condition[] = isWithoutLines ? [{ name: 'own', sql: 'batch_id IS NULL', params: {} }] : []
  // The index by model is more selective than the index of all rows that are not lines.
  const isOwnIndexed = model === undefined || project !== undefined
  const indexed = [
    ...equal('job_id', jobId),
    ...equal('batch_id', batchId),
    ...equal('trace_id', traceId),
    ...equal('sdk_retry', sdkRetry),
    ...failed,
    ...(isOwnIndexed ? own : []),
    ...equal('project', project),
    ...equal('model', model),
  ]
  const [from = 0, to = 0] = statuses ?? []
  const others = [
    ...(isOwnIndexed ? [] : own),
    ...equal('key_id', keyId),
    ...equal('endpoint', endpoint),
    ...equal('server', server),
    ...(errorCode?.includes(',')
      ? [{ name: 'codes', sql: ANY_CODE, params: { codes: errorCode } }]
      : equal('error_code', errorCode)),
    ...(isFailed ? [{ name: 'is_failed', sql: FAILED, params: {} }] : []),
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

/** Filters that have a common index with the filter `project`. */
const PAIRED: ReadonlySet<string> = new Set(['failed', 'own', 'sdk_retry'])

/** 1 if a circuit breaker refused all attempts of the call, otherwise 0. */
const NOT_SENT = `CASE WHEN server IS NULL AND error_message LIKE '%${REFUSED_TEXT}%'
  AND coalesce(failed_attempts, '') NOT LIKE '%"server":"%' THEN 1 ELSE 0 END`

/**
 * Returns the statements of a query. `page` reads the rows of a page. `outcomes` counts the outcomes of the matching rows among the scanned
 * rows, and `counts` counts both. `end` finds the last scanned row, and is needed only if a filter of the query has no index (`isFiltered`).
 *
 * @param isShared True for Postgres
 * @param hasUpstreamMessages Whether the counts have the messages of upstream servers
 */
export function requestsToScan(query: RequestQuery, isShared: boolean, hasUpstreamMessages = false) {
  const { indexed, others } = conditionsOf(query)
  // Each filter in `PAIRED` has a common index with `project`. In all other cases, only the index of the first filter is used, and the other filters
  // are checked row by row.
  const [first] = indexed
  const taken = indexed.filter((one) => one === first || (one.name === 'project' && PAIRED.has(first?.name ?? '')))
  const rest = [...indexed.filter((condition) => !taken.includes(condition)), ...others]
  const at = isShared && taken.length > 0 ? '(ended_at_ms + 0)' : 'ended_at_ms'
  const { sinceMs, untilMs, after, isOldestFirst = false, isWithoutBatches = false } = query
  const bounds: Condition[] = [
    // Few rows are batches, so the scan checks this condition row by row without reading many rows in vain.
    ...(isWithoutBatches ? [{ name: 'no_batches', sql: 'batch_calls IS NULL', params: {} }] : []),
    ...(sinceMs === undefined ? [] : [{ name: 'since', sql: `${at} >= :since`, params: { since: sinceMs } }]),
    ...(untilMs === undefined ? [] : [{ name: 'until', sql: `${at} < :until`, params: { until: untilMs } }]),
    ...(after === undefined
      ? []
      : [
          {
            name: 'after',
            sql: `(${at}, n) ${isOldestFirst ? '>' : '<'} (:after_ms, :after_n)`,
            params: { after_ms: after.endedAtMs, after_n: after.n },
          },
        ]),
  ]
  const where = [...taken, ...bounds].map(({ sql }) => sql).join(' AND ') || 'TRUE'
  const direction = isOldestFirst ? 'ASC' : 'DESC'
  const order = `ORDER BY ${at} ${direction}, n ${direction}`
  const scan = (columns: string) => `SELECT ${columns} FROM requests WHERE ${where} ${order}`
  // The name has two letters per condition, because Postgres uses only the first 63 characters of a statement name.
  const list = isOldestFirst ? 'oldest_requests' : 'requests'
  const name = [list, ...[...taken, ...rest, ...bounds].map((condition) => condition.name.slice(0, 2))].join('_')
  const params: Params = Object.assign({}, ...[...taken, ...rest, ...bounds].map((condition) => condition.params))
  // The maximum of scanned rows is written into the SQL. If it were a parameter, then Postgres would plan for a tenth of all rows.
  const page = (
    rows: number,
    filters: string,
  ) => `SELECT * FROM (${scan(`n, ${ALL}`)} LIMIT ${rows}) AS scanned WHERE ${filters}
    ORDER BY ended_at_ms ${direction}, n ${direction} LIMIT :limit`
  const filters = rest.map(({ sql }) => sql).join(' AND ') || 'TRUE'
  const isFiltered = rest.length > 0
  const message = hasUpstreamMessages ? 'upstream_message, error_message' : 'error_message'
  const outcomes = `SELECT ${GROUPS}, sum(calls) AS calls, sum(not_sent) AS not_sent, min(first_ended_at_ms) AS first_ended_at_ms,
      max(last_ended_at_ms) AS last_ended_at_ms, max(${FREQUENT}) AS frequent
    FROM (SELECT ${GROUPS}, message, count(*) AS calls, sum(${NOT_SENT}) AS not_sent, min(ended_at_ms) AS first_ended_at_ms,
        max(ended_at_ms) AS last_ended_at_ms, max(CAST(ended_at_ms AS text) || ' ' || id) AS newest
      FROM (SELECT *, CASE WHEN worker IS NULL THEN 0 ELSE 1 END AS is_run, coalesce(${message}, '') AS message
        FROM (${scan(ALL)} LIMIT ${SCANNED_MAX}) AS scanned WHERE ${filters}) AS matching
      GROUP BY ${GROUPS}, message) AS messages
    GROUP BY ${GROUPS} ORDER BY calls DESC`
  return {
    params,
    isFiltered,
    page: { name, sql: page(isFiltered ? SCANNED_MAX : REQUESTS_MAX + 1, filters) },
    outcomes: { name: name.replace('requests', hasUpstreamMessages ? 'upstream' : 'outcomes'), sql: outcomes },
    counts: {
      name: `${name}_count`,
      sql: `SELECT count(*) AS scanned, coalesce(sum(CASE WHEN ${filters} THEN 1 ELSE 0 END), 0) AS count
        FROM (${scan(isFiltered ? ALL : 'n')} LIMIT ${SCANNED_MAX}) AS scanned`,
    },
    end: { name: `${name}_end`, sql: `${scan('ended_at_ms, n')} LIMIT 1 OFFSET ${SCANNED_MAX - 1}` },
  }
}

const GROUPS = 'project, key_id, model, status, error_code, is_run'
/** Added to a count, so that all counts have the same number of digits and are ordered as texts. */
const COUNT_OFFSET = 1_000_000
/**
 * Text with four values: the number of requests with an error message, time and id of the newest of them, and the message. The maximum of
 * these texts therefore contains the most frequent message.
 */
const FREQUENT = `CAST(${COUNT_OFFSET} + calls AS text) || ' ' || newest || ' ' || message`

function cursorOf(row: Row | undefined) {
  return row ? { endedAtMs: Number(row.ended_at_ms), n: Number(row.n) } : null
}

/** Returns the fields of a row under the names of their columns, as {@link POSTGRES_GIVEN} and {@link SQLITE_INSERT} expect. */
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
