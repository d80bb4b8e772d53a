/**
 * Tests that each statement of the store reads few rows, however many jobs are stored.
 *
 * The test calls every method of the store with very many jobs in the tables, and records the SQL statements. The database then explains the plan
 * of each one. The test also checks that every statement in the code was recorded.
 */
import { performance } from 'node:perf_hooks'
import { DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite'
import { Client, escapeLiteral } from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, inject, it, vi } from 'vitest'
import { firstJobId } from '#shared/store/jobs.ts'
import { bySetting, PLAN } from '#shared/store/postgres/connection.ts'
import * as familyMoves from '#shared/store/sql/family.ts'
import * as operators from '#shared/store/sql/operator-statements.ts'
import * as purges from '#shared/store/sql/purge.ts'
import * as inserts from '#shared/store/sql/statements.ts'
import * as statements from '#shared/store/sql/statements.ts'
import * as tenants from '#shared/store/sql/tenants.ts'
import * as moves from '#shared/store/sql/transitions.ts'
import { fillStatements, type Layout } from '../../support/jobs/many-jobs.ts'
import { openPostgresDatabase, openSqliteDatabase } from '../../support/jobs/stores.ts'
import { useStore } from '../../support/jobs/use-store.ts'

const postgres = inject('postgres')
const DAY_MS = 24 * 3_600_000
/**
 * Maximum rows and pages that a statement may read. The maximum is high, because the largest sweep reads its rows several times, and may also read
 * ended jobs.
 */
const ROWS_MAX = 5_000
const PAGES_MAX = 10_000
/** Maximum time in ms for which a statement may block the event loop. The fastest of its runs counts, because other work may delay the others. */
const HOLD_MS_MAX = 50

afterEach(() => vi.restoreAllMocks())

const layoutOf = (jobs: number, blocked: number, atMs: number): Layout => {
  return { jobs, blocked, keys: 20_000, nowMs: Date.now(), prefix: firstJobId(atMs) }
}

const isClass = (value: object) => String(value).startsWith('class ')

/** Returns the names of all SQL statements in the code of the store. */
function namesInCode(): string[] {
  const named = (value: unknown): string[] => {
    if (Array.isArray(value)) return value.flatMap(named)
    // A function with one parameter builds a statement. The argument is the name of a table or a lock.
    if (typeof value === 'function') return value.length === 1 && !isClass(value) ? named(value('jobs')) : []
    return typeof value === 'object' && value !== null && 'name' in value ? [String(value.name)] : []
  }
  const modules = [moves, familyMoves, statements, tenants, purges, inserts]
  const whole = Object.values(operators).filter((value) => typeof value !== 'function')
  return [...modules.flatMap((module) => Object.values(module)), ...whole].flatMap(named)
}

describe.skipIf(!postgres)('the queries on a million jobs in Postgres', () => {
  let sent: Query[]
  let database: Awaited<ReturnType<typeof openPostgresDatabase>>

  beforeAll(async () => {
    database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const layout = await fillPostgres(database.url)
    sent = recordQueries()
    await useStore(store, layout)
    vi.restoreAllMocks()
  }, 300_000)
  afterAll(async () => await database[Symbol.asyncDispose]())

  it('read a bounded number of rows by an index', { timeout: 300_000 }, async () => {
    await using client = await connect(database.url)
    const plans = new Map<string, Touched>()
    for (const query of sent) {
      for (const mode of MODES) plans.set(`${mode} ${query.name} ${query.values}`, await touchedBy(client, query, mode))
    }
    const asked = sent.map(({ name }) => name.replace(/^sluice_/, '').replace(/_one(_with_key)?$/, ''))
    expect(namesInCode().filter((name) => !asked.includes(name))).toEqual([])
    expect(asked.filter((name) => name.startsWith('list_asc_')).length).toBeGreaterThan(15)
    const wrong = [...plans].filter(
      ([, { scans, rows, pages }]) => scans.length > 0 || rows > ROWS_MAX || pages > PAGES_MAX,
    )
    expect(Object.fromEntries(wrong)).toEqual({})
  })

  it('read a bounded number of rows even with a plan that was made for empty tables', {
    timeout: 300_000,
  }, async () => {
    await using young = await openPostgresDatabase(postgres ?? '')
    await young.open()
    await using client = await connect(young.url)
    await client.query(bySetting(PLAN, 'session'))
    for (const [nth, { text }] of sent.entries()) await client.query(`PREPARE planned_${nth} AS ${text}`)
    const explain = async (options: string, nth: number, { values }: Query) => {
      await client.query('BEGIN')
      const { rows } = await client.query(`EXPLAIN (${options} FORMAT JSON) EXECUTE planned_${nth}${given(values)}`)
      await client.query('ROLLBACK')
      return touched(rows[0]['QUERY PLAN'][0].Plan)
    }
    for (const [nth, query] of sent.entries()) await explain('', nth, query)
    // From here on, autovacuum should not analyse the tables. If it does, then Postgres makes new plans; the test then proves less, but does not
    // fail.
    const numbers = (count: number) => `generate_series(1, ${count}) AS i`
    const day = Math.floor(Date.now() / DAY_MS - 1) * DAY_MS
    for (const sql of fillStatements(layoutOf(YOUNG_JOBS, 5_000, day), numbers)) await client.query(sql)
    const wrong = new Map<string, number>()
    for (const [nth, query] of sent.entries()) {
      const { rows } = await explain('ANALYZE, TIMING OFF,', nth, query)
      if (rows > ROWS_MAX) wrong.set(`${query.name} ${query.values}`, rows)
    }
    expect(Object.fromEntries(wrong)).toEqual({})
  })
})

/** Number of jobs of a new installation whose tables have not been analysed yet. */
const YOUNG_JOBS = 30_000

/** Formats the parameters of a prepared statement as SQL. */
function given(values: readonly unknown[]): string {
  return values.length > 0 ? `(${values.map(literal).join(', ')})` : ''
}

async function connect(url: string): Promise<Client & AsyncDisposable> {
  const client = new Client({ connectionString: url })
  await client.connect()
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
}

describe.skipIf(!postgres)('the write of ledger entries for 1,000 ended jobs in Postgres', () => {
  it('reads a number of rows proportional to the number of jobs', { timeout: 60_000 }, async () => {
    const jobs = 1_000
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const sent = recordQueries()
    const entry = {
      project: 'p',
      keyId: 'k',
      model: 'm',
      endpoint: '/v1/chat/completions',
      hour: '2030-01-31T08',
      calls: 1,
      failed: 0,
      inputTokens: 1,
    }
    const amounts = { cachedInputTokens: 0, outputTokens: 1, audioMs: 0, costNanos: 1 }
    const ids = Array.from({ length: jobs }, (_, i) => `${firstJobId(0)}${i}`)
    await store.usage.enter(ids.map((jobId) => ({ ...entry, ...amounts, jobId })))
    const [enter] = sent.filter(({ name }) => name.includes('usage_enter'))
    if (!enter) throw new Error('the store wrote no ledger entry')
    await database.query(`INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, ended_at_ms, endpoint)
      SELECT '${firstJobId(0)}' || i, 'p', 'k', 'inference', 'm', 'completed', 0, '/' FROM generate_series(0, ${jobs - 1}) AS i`)
    await using client = await connect(database.url)
    for (const mode of MODES) expect((await touchedBy(client, enter, mode)).met).toBeLessThan(20 * jobs)
  })
})

/** Postgres makes a plan for the values of each early execution of a prepared statement, and later one generic plan. Both types are tested. */
const MODES = ['force_custom_plan', 'force_generic_plan'] as const

interface Query {
  readonly name: string
  readonly text: string
  readonly values: readonly unknown[]
}

/** Amount of data that a statement reads from large tables. */
interface Touched {
  readonly scans: string[]
  readonly rows: number
  /** Number of rows that the steps of the plan read, including rows that they discard. */
  readonly met: number
  readonly pages: number
}

/** Records each query of the store once. Queries are identified by their name; unnamed queries and lists by their text. */
function recordQueries(): Query[] {
  const sent: Query[] = []
  const note = (query: Query) => {
    const isList = /^sluice_(list|operator)_/.test(query.name)
    const isSame = ({ name, values }: Query) =>
      name === query.name && (!isList || String(values) === String(query.values))
    if (!sent.some(isSame)) sent.push(query)
  }
  const query = Client.prototype.query as (...args: unknown[]) => unknown
  vi.spyOn(Client.prototype, 'query').mockImplementation(function (this: Client, ...args: unknown[]) {
    const [first, second] = args as [string | { name?: string; text: string; values?: unknown[] }, unknown[]?]
    const text = typeof first === 'string' ? first : first.text
    const values = (typeof first === 'string' ? (Array.isArray(second) ? second : []) : first.values) ?? []
    const name = (typeof first === 'string' ? undefined : first.name) ?? text
    if (/^\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b/.test(text)) note({ name, text, values })
    return query.apply(this, args)
  } as typeof Client.prototype.query)
  return sent
}

/** Runs the statement with EXPLAIN, under the plan settings that the store uses, and rolls it back. */
async function touchedBy(client: Client, { text, values }: Query, mode: (typeof MODES)[number]): Promise<Touched> {
  await client.query(`BEGIN; ${bySetting(PLAN, 'transaction')}; SET LOCAL plan_cache_mode = ${mode}`)
  try {
    await client.query(`PREPARE explained AS ${text}`)
    const { rows } = await client.query(
      `EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE explained${given(values)}`,
    )
    return touched(rows[0]['QUERY PLAN'][0].Plan)
  } finally {
    await client.query('ROLLBACK; DEALLOCATE ALL')
  }
}

function literal(value: unknown): string {
  if (value === null || value === undefined) return 'NULL'
  if (Array.isArray(value)) return escapeLiteral(`{${value.map(element).join(',')}}`)
  return escapeLiteral(String(value))
}

function element(value: unknown): string {
  return value === null ? 'NULL' : `"${String(value).replaceAll(/["\\]/g, '\\$&')}"`
}

type PlanNode = Record<string, unknown> & { Plans?: PlanNode[] }
const LARGE = /^(jobs|job_events|job_steps)_\d{8}$|^(deliveries|idempotency_keys)$/

function touched(node: PlanNode): Touched {
  const below = (node.Plans ?? []).map(touched)
  const number = (name: string) => Number(node[name] ?? 0)
  const read = number('Actual Rows') + number('Rows Removed by Filter') + number('Rows Removed by Index Recheck')
  const isRead =
    String(node['Node Type']).includes('Scan') && LARGE.test(String(node['Relation Name'] ?? node['Index Name']))
  const isWhole = node['Node Type'] === 'Seq Scan' && isRead && number('Actual Loops') > 0
  return {
    scans: [...(isWhole ? [String(node['Relation Name'])] : []), ...below.flatMap(({ scans }) => scans)],
    rows: below.reduce((sum, { rows }) => sum + rows, isRead ? read * number('Actual Loops') : 0),
    met: below.reduce(
      (sum, { met }) => sum + met,
      (read + number('Rows Removed by Join Filter')) * number('Actual Loops'),
    ),
    // The page counts of a plan node already include those of its child nodes.
    pages: number('Shared Hit Blocks') + number('Shared Read Blocks'),
  }
}

/**
 * Fills the tables. The partition of yesterday is filled before its indexes are created, which takes a third of the time of an insertion into an
 * indexed partition.
 */
async function fillPostgres(url: string): Promise<Layout> {
  const client = new Client({ connectionString: url })
  await client.connect()
  await client.query("SET maintenance_work_mem = '256MB'")
  const day = Math.floor(Date.now() / DAY_MS - 1) * DAY_MS
  const suffix = new Date(day).toISOString().slice(0, 10).replaceAll('-', '')
  const layout = layoutOf(1_000_000, 50_000, day)
  const tables = { jobs: `jobs_${suffix}`, events: `job_events_${suffix}` }
  for (const [table, name] of [
    ['jobs', tables.jobs],
    ['job_events', tables.events],
  ]) {
    await client.query(
      `DROP TABLE ${name}; CREATE UNLOGGED TABLE ${name} (LIKE ${table} INCLUDING CONSTRAINTS INCLUDING DEFAULTS)`,
    )
  }
  const numbers = (count: number) => `generate_series(1, ${count}) AS i`
  for (const sql of fillStatements(layout, numbers, tables)) await client.query(sql)
  for (const [table, name] of [
    ['jobs', tables.jobs],
    ['job_events', tables.events],
  ]) {
    const range = `FROM ('${firstJobId(day)}') TO ('${firstJobId(day + DAY_MS)}')`
    await client.query(`ALTER TABLE ${table} ATTACH PARTITION ${name} FOR VALUES ${range}`)
  }
  await client.query('ANALYZE jobs; ANALYZE job_events; ANALYZE deliveries; ANALYZE idempotency_keys')
  await client.end()
  return layout
}

describe('the queries on 200,000 jobs in SQLite', () => {
  it('use an index, and block the event loop for a bounded time', {
    timeout: 300_000,
  }, async () => {
    await using database = await openSqliteDatabase()
    await database.open()
    const layout = layoutOf(150_000, 50_000, Date.now() - 3_600_000)
    const numbers = (count: number) =>
      `(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count}) SELECT i FROM n) AS numbers`
    for (const sql of fillStatements(layout, numbers)) await database.query(sql)
    const { plans, holds } = recordStatements()
    const store = await database.open()
    // The statements run twice, and the shorter time of each counts. In the second run all pages are in memory.
    for (let times = 0; times < 2; times++) await useStore(store, layout)
    const scans = [...plans].filter(([, plan]) => plan.some(isWhole))
    expect(Object.fromEntries(scans)).toEqual({})
    const long = [...holds].filter(([, ms]) => Math.min(...ms) > HOLD_MS_MAX)
    expect(Object.fromEntries(long)).toEqual({})
    expect(plans.size).toBeGreaterThan(60)
  })
})

/** Whether a step of a plan scans a whole large table or index. */
function isWhole(step: string): boolean {
  return (
    /^SCAN (jobs|children|job_events|job_steps|deliveries|idempotency_keys|earlier)\b/.test(step) &&
    !/jobs_(unended|unended_tenant|running|queued_turns|unsettled)\b/.test(step)
  )
}

/** Records the plan of each statement, and the duration of each run. */
function recordStatements() {
  const plans = new Map<string, string[]>()
  const holds = new Map<string, number[]>()
  const prepare = DatabaseSync.prototype.prepare
  vi.spyOn(DatabaseSync.prototype, 'prepare').mockImplementation(function (
    this: DatabaseSync,
    sql: string,
  ): StatementSync {
    const statement = prepare.call(this, sql)
    const all = statement.all.bind(statement) as (...values: SQLInputValue[]) => ReturnType<StatementSync['all']>
    const key = sql.replaceAll(/\s+/g, ' ')
    const record = (...values: SQLInputValue[]) => {
      if (!plans.has(key))
        plans.set(
          key,
          prepare
            .call(this, `EXPLAIN QUERY PLAN ${sql}`)
            .all()
            .map(({ detail }) => String(detail)),
        )
      const startedAt = performance.now()
      const rows = all(...values)
      holds.set(key, [...(holds.get(key) ?? []), performance.now() - startedAt])
      return rows
    }
    return Object.assign(statement, { all: record })
  })
  return { plans, holds }
}
