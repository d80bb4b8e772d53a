import { DurableState } from '#schemas/durable-job.ts'
import { AHEAD_MAX, firstJobId, type OperatorDeliveries, type OperatorJobs } from '#shared/store/jobs.ts'
import type { Params } from './sql.ts'
import { DELIVERY_COLUMNS, JOB_COLUMNS, type Statement } from './statements.ts'

/** Text that sorts after every job id. */
const BEYOND_ALL = 'job_~'

/**
 * Bounds of a scan. Conditions on `id` select the daily partitions. The index is on the expression `id || ''`, so conditions on it limit
 * the range.
 */
const DAYS = 'id < :after AND id >= :since'
const BROKEN = "purge_at_ms IS NOT NULL AND erased_at_ms IS NULL AND state <> 'completed'"
const IDLE = "state IN ('queued', 'scheduled')"

/**
 * Conditions that find the jobs of a state over all projects.
 *
 * Each condition repeats the expression of an index (migrations/postgres/001-tables.sql). Each of these indexes is sorted by id, or contains only
 * jobs of that state. With the plain column `id`, the planner would read all ended jobs by the primary key, or would sort every job of the state. The
 * conditions therefore never use this column.
 *
 * Completed jobs are found by scanning all jobs, because nearly all jobs are completed.
 */
const IN_ALL_PROJECTS: Readonly<Record<Exclude<DurableState, 'completed'>, string>> = {
  queued: IDLE,
  scheduled: IDLE,
  in_progress: 'owner IS NOT NULL',
  waiting: 'wake_at_ms IS NOT NULL',
  failed: BROKEN,
  cancelled: BROKEN,
  expired: BROKEN,
}
const ENDED: ReadonlySet<DurableState> = new Set(['completed', 'failed', 'cancelled', 'expired'])

/** Returns the statement that reads the next `look` jobs of a query, newest first. The caller then applies the filters that have no index. */
export function jobsToScan(query: OperatorJobs, look: number): { statement: Statement; params: Params } {
  const { tenant, after = BEYOND_ALL, sinceMs = 0 } = query
  const bounds: Params = { after, since: firstJobId(Math.max(0, sinceMs)), look }
  if (tenant !== undefined) {
    const states = query.states?.length ? query.states : DurableState.options
    return { statement: byState('operator_project', states, ofProject), params: { ...bounds, tenant } }
  }
  const states = (query.states ?? []).filter((state) => state !== 'completed')
  if (states.length === 0 || states.length !== query.states?.length) {
    return { statement: query.isOwn ? OWN_BY_ID : BY_ID, params: bounds }
  }
  return { statement: byState('operator_all', states, (state) => IN_ALL_PROJECTS[state]), params: bounds }
}

export const BY_ID: Statement = {
  name: 'operator_by_id',
  sql: `SELECT ${JOB_COLUMNS} FROM jobs WHERE id < :after AND id >= :since ORDER BY id DESC LIMIT :look`,
}

export const OWN_BY_ID: Statement = {
  name: 'operator_own_by_id',
  sql: `SELECT ${JOB_COLUMNS} FROM jobs WHERE depth = 0 AND id || '' < :after AND id || '' >= :since
        ORDER BY id || '' DESC LIMIT :look`,
}

function ofProject(state: DurableState): string {
  const kept = ENDED.has(state) ? 'purge_at_ms > now_ms() AND erased_at_ms IS NULL' : 'purge_at_ms IS NULL'
  return `tenant = :tenant AND ${kept} AND ${DAYS}`
}

/**
 * Returns a statement that reads one page per state and merges the pages. Each state is a literal in the SQL, because the planner cannot match a
 * parameter to the index of a state.
 */
function byState<State extends DurableState>(
  name: string,
  asked: readonly State[],
  conditionOf: (state: State) => string,
): Statement {
  const states = [...new Set(asked)].toSorted()
  const pages = states.map(
    (state) => `SELECT * FROM (SELECT ${JOB_COLUMNS} FROM jobs WHERE ${conditionOf(state)} AND state = '${state}'
      AND id || '' < :after AND id || '' >= :since
      ORDER BY id || '' DESC LIMIT :look) AS of_${state}`,
  )
  return {
    // The name lists the numbers of the states instead of their names, because Postgres uses only the first 63 characters of a statement name.
    name: `${name}_${states.map((state) => DurableState.options.indexOf(state)).join('')}`,
    sql: `${pages.join(' UNION ALL ')} ORDER BY id DESC LIMIT :look`,
  }
}

export const COUNT_AHEAD: Statement = {
  name: 'operator_count_ahead',
  sql: `SELECT count(*) AS count FROM (SELECT 1 AS one FROM jobs WHERE state = 'queued' AND pool = :pool AND kind = :kind
          AND model = :model AND priority = :priority AND id < :id LIMIT ${AHEAD_MAX}) AS ahead`,
}

/**
 * Returns the statement that reads the next `look` messages of a state, or all undelivered messages, newest first. Delivered and undelivered messages
 * have separate indexes.
 */
export function deliveriesToScan(
  { after, state }: OperatorDeliveries,
  look: number,
): { statement: Statement; params: Params } {
  const undelivered = ['failed', 'pending'] as const
  const states = state === undefined ? undelivered : state === 'all' ? [...undelivered, 'delivered'] : [state]
  const beyond = after === undefined ? '' : `AND id || '' < :after`
  const pages = states.map(
    (one) => `SELECT * FROM (SELECT ${DELIVERY_COLUMNS} FROM deliveries
      WHERE ${one === 'delivered' ? '' : "state <> 'delivered' AND"} state = '${one}'
      ${beyond} ORDER BY id || '' DESC LIMIT :look) AS of_${one}`,
  )
  const name = ['operator_deliveries', ...states, ...(after === undefined ? [] : ['after'])].join('_')
  const sql = `${pages.join(' UNION ALL ')} ORDER BY id DESC LIMIT :look`
  return { statement: { name, sql }, params: { look, ...(after !== undefined && { after }) } }
}

export const RETRY_DELIVERY: Statement = {
  name: 'operator_retry_delivery',
  sql: `UPDATE deliveries SET next_at_ms = now_ms(), tries = CASE WHEN state = 'failed' THEN 0 ELSE tries END,
          state = 'pending'
        WHERE id = :id AND state <> 'delivered' AND url <> '' RETURNING ${DELIVERY_COLUMNS}`,
}

export const LIST_PAUSES: Statement = {
  name: 'operator_list_pauses',
  sql: 'SELECT what, id, by_key, since_ms FROM paused_work ORDER BY since_ms, what, id',
}

export const PAUSE: Statement = {
  name: 'operator_pause',
  sql: `INSERT INTO paused_work (what, id, by_key, since_ms) VALUES (:what, :id, :by_key, now_ms())
        ON CONFLICT (what, id) DO NOTHING`,
}

export const RESUME: Statement = {
  name: 'operator_resume',
  sql: 'DELETE FROM paused_work WHERE what = :what AND id = :id',
}
