import type { Purged } from '#shared/store/store.ts'
import { jsonOf } from './rows.ts'
import type { Params, Row, SqlDatabase } from './sql.ts'
import { ERASE_FIRST_EVENTS, type Statement } from './statements.ts'

/** Deletes jobs after their retention in small steps, in the SQL that Postgres and SQLite share. */

/**
 * Maximum rows per statement, because SQLite blocks the event loop during a statement. For events the maximum is higher: the events of a job are
 * stored next to each other, so they are deleted faster.
 */
const ROWS_MAX = 250
const EVENTS_MAX = 2_000

export async function purgeSome(db: SqlDatabase, jobsMax: number): Promise<Purged> {
  const past = { jobs: jobsMax, limit: ROWS_MAX }
  const events = await db.run(PURGE_EVENTS, { ...past, limit: EVENTS_MAX })
  const steps = await db.run(PURGE_STEPS, past)
  const { children, childless } = await purgeChildren(db, jobsMax)
  const isFirst = events.length < EVENTS_MAX && steps.length < ROWS_MAX && children === 0
  const jobs = isFirst ? await db.run(PURGE_JOBS, { jobs: jobsMax, childless: childless.join(' ') }) : []
  // If all children of a parent were deleted now, then the next purge can delete the parent. There may therefore be more to do.
  let hasMore = !isFirst || jobs.length === jobsMax || jobs.some(({ depth }) => Number(depth) > 0)
  for (const statement of PURGES)
    hasMore = (await db.run(statement, { limit: ROWS_MAX })).length === ROWS_MAX || hasMore
  return { requests: [...valuesOf(jobs, 'request'), ...valuesOf(steps, 'output')], hasMore }
}

/**
 * Erases the content of a job. Most events are deleted beforehand, in several statements, so that no statement deletes all events of a long run.
 *
 * The job counts as erased only after the last statement, so an interrupted erasure is repeated.
 */
export async function eraseJob(db: SqlDatabase, params: Params, lastSeq: number): Promise<boolean> {
  for (let upTo = EVENTS_MAX; upTo < lastSeq; upTo += EVENTS_MAX)
    await db.run(ERASE_FIRST_EVENTS, { ...params, up_to: upTo })
  return await db.erase(params)
}

export async function forgetSome(db: SqlDatabase, id: string): Promise<number> {
  return (await db.run(PURGE_CHILDREN, { id, limit: ROWS_MAX })).length
}

async function purgeChildren(db: SqlDatabase, jobs: number) {
  let children = 0
  const childless: string[] = []
  for (const { id } of await db.run(PAST_PARENTS, { jobs })) {
    if (children >= ROWS_MAX) break
    const forgotten = await forgetSome(db, String(id))
    children += forgotten
    if (forgotten === 0 && (await db.run(FIND_CHILD, { id: String(id) })).length === 0) childless.push(String(id))
  }
  return { children, childless }
}

function valuesOf(rows: readonly Row[], column: string): unknown[] {
  return rows.flatMap((row) => jsonOf(row[column]) ?? [])
}

/** Selects jobs whose retention has ended, in a fixed order, so that all statements of a purge select the same jobs. */
const PAST = 'SELECT id FROM jobs WHERE purge_at_ms <= now_ms() ORDER BY purge_at_ms, id LIMIT :jobs'

export const PURGE_EVENTS: Statement = {
  name: 'purge_events',
  sql: `DELETE FROM job_events WHERE (job_id, seq) IN (
          SELECT job_id, seq FROM (${PAST}) AS past JOIN job_events ON job_id = past.id LIMIT :limit)
        RETURNING seq`,
}

/** Deletes some steps of jobs whose retention has ended. Returns the outputs that are stored as blobs. */
export const PURGE_STEPS: Statement = {
  name: 'purge_steps',
  sql: `DELETE FROM job_steps WHERE (job_id, key) IN (
          SELECT job_id, key FROM (${PAST}) AS past JOIN job_steps ON job_id = past.id LIMIT :limit)
        RETURNING CASE WHEN output LIKE '{"blob":%' THEN output END AS output`,
}

export const PAST_PARENTS: Statement = {
  name: 'past_parents',
  sql: `SELECT id FROM (SELECT id, children FROM jobs WHERE purge_at_ms <= now_ms()
          ORDER BY purge_at_ms, id LIMIT :jobs) AS past WHERE children > 0`,
}

/**
 * Marks the children of an expired job as expired, so that the next purges delete them before their parent. If the parent were deleted
 * first, then its children would not be found.
 *
 * Purges delete jobs in order of expiry. The expiry time is therefore set to the negative depth, so that the deepest children, which have
 * no children themselves, are deleted first.
 *
 * The condition `coalesce(purge_at_ms, 0)` matches no index. Otherwise Postgres might scan the whole index of expired rows.
 */
export const PURGE_CHILDREN: Statement = {
  name: 'purge_children',
  sql: `UPDATE jobs SET purge_at_ms = -depth WHERE id IN (
          SELECT id FROM jobs WHERE parent_id = :id AND depth > 0 AND coalesce(purge_at_ms, 0) > now_ms() LIMIT :limit)
        RETURNING id`,
}

export const FIND_CHILD: Statement = {
  name: 'find_child',
  sql: 'SELECT 1 AS one FROM jobs WHERE parent_id = :id AND depth > 0 LIMIT 1',
}

/**
 * Deletes expired jobs that have no events, steps or children left. `:childless` lists the parents whose children were all deleted. Returns the
 * requests that are stored as blobs, for their deletion.
 */
export const PURGE_JOBS: Statement = {
  name: 'purge_jobs',
  sql: `DELETE FROM jobs WHERE id IN (${PAST}) AND NOT EXISTS (SELECT 1 FROM job_events WHERE job_id = jobs.id)
          AND NOT EXISTS (SELECT 1 FROM job_steps WHERE job_id = jobs.id)
          AND (children = 0 OR CAST(:childless AS text) LIKE '%' || jobs.id || '%')
        RETURNING CASE WHEN request LIKE '{"blob":%' OR request LIKE '%"attachments":[%' THEN request END AS request,
          depth`,
}

/** Statements that purge the small tables. The row of a dead process is deleted only if the process holds no job. */
export const PURGES: readonly Statement[] = [
  {
    name: 'purge_keys',
    sql: `DELETE FROM idempotency_keys WHERE (tenant, scope, key) IN (
            SELECT tenant, scope, key FROM idempotency_keys WHERE expires_at_ms <= now_ms()
            ORDER BY expires_at_ms LIMIT :limit)
          RETURNING job_id`,
  },
  {
    name: 'purge_deliveries',
    sql: `DELETE FROM deliveries WHERE id IN (
            SELECT id FROM deliveries WHERE purge_at_ms <= now_ms() ORDER BY purge_at_ms LIMIT :limit)
          RETURNING id`,
  },
  {
    name: 'purge_processes',
    sql: `DELETE FROM processes WHERE boot IN (
            SELECT boot FROM processes WHERE lease_until_ms <= now_ms() - 3600000 AND NOT EXISTS (
              SELECT 1 FROM jobs WHERE state = 'in_progress' AND owner = processes.boot) LIMIT :limit)
          RETURNING boot`,
  },
]
