/*
 * The SQL that Postgres and SQLite share, and the port `SqlDatabase` for the operations in which both differ.
 *
 * A transition (`transitions.ts`) is a guarded UPDATE of the row of a job, with its events, in one transaction. If the guard fails, then no row
 * changes and no event is written.
 *
 * A claim picks jobs round robin over the tenants with queued jobs (docs/internals/design.md, Fairness). The statement jumps from one tenant to the
 * next by an index, so the cost does not depend on the number of jobs per tenant. Example: if tenant A has 10,000 jobs and tenant B has 1, then a
 * claim of 2 jobs takes one of each.
 */

import type { RunningLimits } from '#shared/store/records.ts'
import type { Insert, Statement } from './statements.ts'
import type { Transition } from './transitions.ts'

export type Params = Record<string, string | number | boolean | null>

/** Output of an attempt as stored. `data` is JSON text. */
export type WrittenOutput = readonly { readonly type: string; readonly data: string }[]

export type Row = Record<string, unknown>

/** Row of a changed job: the columns of the job, its event, and its `request` if the transition returns the request. */
export type TransitionRow = Row & { event_type: string | null; event_data: string | null; event_at_ms: number }

/** A write with separate SQL for each database. All statements for SQLite run in one transaction. */
export interface Write {
  readonly postgres: Statement
  readonly sqlite: readonly string[]
  readonly isTransient?: boolean
}

/**
 * A database with the shared schema. Each call is one transaction.
 *
 * @throws ServiceError `overloaded` if the database is unreachable or full
 */
export interface SqlDatabase {
  readonly name: string
  readonly isReachable: boolean
  readonly isFull: boolean
  /** True if several processes use the database, so that statements run concurrently. */
  readonly isShared: boolean
  readonly isIdle: boolean
  untilWork?(signal: AbortSignal): Promise<void>
  run(statement: Statement, params: Params): Promise<Row[]>
  transition(move: Transition, params: Params, output: WrittenOutput): Promise<TransitionRow[]>
  /** Inserts a job with its event. With `hasKey`, the job is inserted only if its idempotency key is free. */
  insert(insert: Insert, params: Params, hasKey: boolean): Promise<TransitionRow[]>
  erase(params: Params): Promise<boolean>
  write(write: Write, params: Params): Promise<void>
  /**
   * Writes many rows. In Postgres, one statement gets all rows as a JSON array in the parameter `name`. In SQLite, the statements run once per row.
   *
   * @param columns For each column, the field of a row with its value
   */
  writeRows<Field extends string>(
    write: Write,
    name: string,
    rows: readonly Readonly<Record<Field, string | number | null>>[],
    columns: Readonly<Record<string, Field>>,
  ): Promise<void>
  /** Runs a statement that selects and locks rows. Concurrent statements skip locked rows, so each row is selected by only one of them. */
  pick(statement: (lock: string) => Statement, params: Params): Promise<Row[]>
  limitRunning(limits: RunningLimits): void
  /**
   * Creates partitions for the coming days and drops expired partitions. No effect on a database without partitions.
   *
   * @param requestsMs Time after which a row of the request log has expired
   */
  keepDays(requestsMs: number): Promise<void>
  close(): Promise<void>
}

/**
 * An event to insert. `chunk` is the number of the holder's write that contains this event. Null if another process caused the event, such as by a
 * cancel or a sweep.
 */
/**
 * Returns the UPDATE of a transition, without `RETURNING`.
 *
 * @param picked For a sweep: subquery that selects the ids of the jobs.
 * @param from Tables that are joined to the jobs.
 */
export function updateOf(move: Transition, picked: string, from?: string): string {
  const count = [...(move.isOwners ? ['CAST(:count AS int)'] : []), ...(move.event ? ['1'] : [])]
  const numbered = count.length > 0 ? `, last_seq = last_seq + ${count.join(' + ')}` : ''
  const where = isSweep(move) ? `id IN (${picked})` : move.where
  return `UPDATE jobs SET ${move.set}${numbered} ${from ? `FROM ${from}` : ''} WHERE ${where}`
}

export function isSweep({ pick, pickFair: inTurn }: Transition): boolean {
  return pick !== undefined || inTurn !== undefined
}

/**
 * Returns the subquery that selects the jobs of a sweep.
 *
 * @param isLocking Whether statements run concurrently, so that locked rows must be skipped
 */
export function pickOf(move: Transition, isLocking: boolean): string {
  if (move.pickFair !== undefined) return pickFair(move.pickFair, isLocking)
  if (!move.pick) return ''
  const { from, where, order, lock } = move.pick
  const locked = isLocking ? `FOR UPDATE OF ${lock} SKIP LOCKED` : ''
  return `SELECT jobs.id FROM ${from} WHERE ${where} ORDER BY ${order} LIMIT :limit ${locked}`
}

export interface Compiled {
  readonly sql: string
  readonly names: readonly string[]
}

export function compile(sql: string, sign: '$' | '?'): Compiled {
  return replaceNames(sql, (_, index) => sign + (index + 1))
}

/**
 * Replaces each parameter `:name` in a statement by the syntax of the database, such as `$1`.
 *
 * @param replacement Returns the text for a name, given its index among the distinct names, from 0.
 */
export function replaceNames(sql: string, replacement: (name: string, index: number) => string): Compiled {
  const names: string[] = []
  // A cast such as `::text` is not a parameter. A colon in JSON text is followed by a digit, a quote or a bracket, so it is no parameter either.
  const replaced = sql.replaceAll(/(?<!:):([a-z][a-z0-9_]*)/g, (_, name: string) => {
    if (!names.includes(name)) names.push(name)
    return replacement(name, names.indexOf(name))
  })
  return { sql: replaced, names }
}

export function valuesOf({ names }: Compiled, params: Params): Params[string][] {
  return names.map((name) => parameterOf(params, name))
}

/** Returns the fields of a row under the names of their columns. */
export function namedRow<Field extends string>(
  row: Readonly<Record<Field, string | number | null>>,
  columns: Readonly<Record<string, Field>>,
): Params {
  return Object.fromEntries(Object.entries(columns).map(([column, field]) => [column, row[field]]))
}

export function parameterOf(params: Params, name: string): Params[string] {
  const value = params[name]
  if (value === undefined) throw new Error(`no value for :${name}`)
  return value
}

/**
 * Number of additional tenants that a claim reads, besides those that it can serve. Among all tenants read, the claim prefers those with few running
 * jobs.
 */
export const TENANTS_AHEAD = 8

/**
 * Maximum tenants read per statement, including tenants at their limits. If none of them is below its limit, then the claim continues after them with
 * another statement.
 */
export const SCANNED_MAX = 1_000

const LANE = `jobs.pool = :pool AND jobs.kind = :kind AND jobs.model = :model AND jobs.priority = :priority`
const WAITS = `jobs.state = 'queued' AND ${LANE}`
const FIRST = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS})`
const FOLLOWING = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS} AND jobs.tenant > turn.tenant)`
const RUNNING = `(SELECT count(*) FROM jobs WHERE jobs.state = 'in_progress' AND ${LANE} AND jobs.tenant = turn.tenant)`

/**
 * SQL expression: number of durable jobs that a tenant may still start below its limit of running calls and jobs. Null if the tenant has no limit. A
 * concurrent claim may change the number at any time.
 */
const startable = (tenant: string, isLocking: boolean) =>
  isLocking
    ? `running_room(${tenant}, FALSE)`
    : `(CASE WHEN running_most(${tenant}) IS NULL THEN NULL ELSE running_most(${tenant}) - ${runningOf(tenant)} END)`
const runningOf = (tenant: string) =>
  `(SELECT count(*) FROM jobs WHERE jobs.tenant = ${tenant} AND jobs.state = 'in_progress' AND jobs.purge_at_ms IS NULL)`

/**
 * Table expression that reads tenants with queued jobs in alphabetical order. The scan starts after the tenant `:after`, and continues from the
 * beginning of the alphabet to `:after`. The scan ends when it has found `:tenants` tenants below their limits. `nth` numbers these tenants, `step`
 * all tenants that were read, and `lap` is 1 after the last tenant in the alphabet.
 */
const tenantScan = (isLocking: boolean) => `
    RECURSIVE turn (tenant, lap, nth, step) AS (
      SELECT CAST(:after AS text), 0, 0, 0
      UNION ALL
      SELECT coalesce(${FOLLOWING}, ${FIRST}), CASE WHEN ${FOLLOWING} IS NULL THEN lap + 1 ELSE lap END,
        CASE WHEN step = 0 OR coalesce(${startable('turn.tenant', isLocking)}, 1) > 0 THEN nth + 1 ELSE nth END, step + 1
      FROM turn
      WHERE nth <= CAST(:tenants AS bigint) AND step < ${SCANNED_MAX} AND (lap = 0 OR (lap = 1 AND tenant < :after))
    )`

const eachOf = (greatest: string) =>
  `${greatest}(CAST(:each AS bigint), CAST(:limit AS bigint) / (SELECT count(*) FROM fair))`

/**
 * Selects at most `:limit` job ids of the next `:tenants` tenants after `:after`. Tenants with the fewest running jobs come first, and tenants at
 * their limit are skipped. Each tenant contributes its oldest jobs, at most {@link eachOf}. If `isLocking`, then each row also has the value of
 * {@link eachOf}.
 *
 * @param may SQL condition for jobs that may be selected.
 * @param isLocking True if statements run concurrently. Locked rows are then skipped. A tenant with a limit is also skipped while another statement
 * selects its jobs.
 */
function pickFair(may: string, isLocking: boolean): string {
  const own = `SELECT jobs.id FROM jobs WHERE ${WAITS} AND jobs.tenant = fair.tenant AND ${may} ORDER BY jobs.id`
  // SQLite has no LATERAL and needs no locks. The result must follow the order of `fair` in both databases. SQLite preserves this order only because
  // `fair` has a LIMIT.
  const jobs = isLocking
    ? `CROSS JOIN (SELECT ${eachOf('greatest')} AS each) AS share CROSS JOIN LATERAL (${own}
      LIMIT least(share.each, running_room(fair.tenant, TRUE)) FOR UPDATE SKIP LOCKED) AS own`
    : `CROSS JOIN jobs AS own ON own.id IN (
      SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS nth FROM (${own} LIMIT ${eachOf('max')}))
      WHERE nth <= coalesce(fair.room, nth))`
  return `
    WITH ${tenantScan(isLocking)},
    looked AS (SELECT tenant, nth, lap, ${startable('turn.tenant', isLocking)} AS room FROM turn WHERE step > 0),
    fair AS (
      SELECT tenant, room, ${RUNNING} AS running, nth FROM looked AS turn
      WHERE coalesce(room, 1) > 0 AND nth <= CAST(:tenants AS bigint) AND (lap = 0 OR (lap = 1 AND tenant <= :after)) ORDER BY running, nth
      LIMIT CAST(:tenants AS bigint)
    )
    SELECT own.id${isLocking ? ', share.each' : ''} FROM fair ${jobs} LIMIT CAST(:limit AS bigint)`
}

export function lastScanned(isLocking: boolean): string {
  return `WITH ${tenantScan(isLocking)} SELECT tenant, step FROM turn ORDER BY step DESC LIMIT 1`
}
