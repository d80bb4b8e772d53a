/*
 * Round robin over tenants with queued jobs, in the SQL that Postgres and SQLite share (docs/internals/design.md, Fairness). An index leads from one tenant to the
 * next. So the cost does not depend on the number of jobs per tenant.
 */

/**
 * Number of tenants that are read in addition to those that can be served, so that tenants with the fewest running jobs are
 * served first.
 */
export const TENANTS_AHEAD = 8

/** Maximum tenants read per statement, including those at their limits; the claim continues after them in another statement. */
export const SCANNED_MAX = 1_000

const LANE = `jobs.pool = :pool AND jobs.kind = :kind AND jobs.model = :model AND jobs.priority = :priority`
const WAITS = `jobs.state = 'queued' AND ${LANE}`
const FIRST = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS})`
const FOLLOWING = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS} AND jobs.tenant > turn.tenant)`
const RUNNING = `(SELECT count(*) FROM jobs WHERE jobs.state = 'in_progress' AND ${LANE} AND jobs.tenant = turn.tenant)`

/**
 * Number of durable jobs that a tenant may still start in addition to its running calls; null: unlimited. Only a snapshot,
 * because concurrent claims may change the number.
 */
const room = (tenant: string, isLocking: boolean) =>
  isLocking
    ? `running_room(${tenant}, FALSE)`
    : `(CASE WHEN running_most(${tenant}) IS NULL THEN NULL ELSE running_most(${tenant}) - ${runningOf(tenant)} END)`
const runningOf = (tenant: string) =>
  `(SELECT count(*) FROM jobs WHERE jobs.tenant = ${tenant} AND jobs.state = 'in_progress' AND jobs.purge_at_ms IS NULL)`

/**
 * Walks at most `:tenants` tenants below their limits, once around, beginning after `:after`. `nth` numbers these tenants, `step`
 * all tenants that were read.
 */
const way = (isLocking: boolean) => `
    RECURSIVE turn (tenant, lap, nth, step) AS (
      SELECT CAST(:after AS text), 0, 0, 0
      UNION ALL
      SELECT coalesce(${FOLLOWING}, ${FIRST}), CASE WHEN ${FOLLOWING} IS NULL THEN lap + 1 ELSE lap END,
        CASE WHEN step = 0 OR coalesce(${room('turn.tenant', isLocking)}, 1) > 0 THEN nth + 1 ELSE nth END, step + 1
      FROM turn
      WHERE nth <= CAST(:tenants AS bigint) AND step < ${SCANNED_MAX} AND (lap = 0 OR (lap = 1 AND tenant < :after))
    )`

const eachOf = (greatest: string) =>
  `${greatest}(CAST(:each AS bigint), CAST(:limit AS bigint) / (SELECT count(*) FROM fair))`

/**
 * Selects at most `:limit` job ids, round robin over the next `:tenants` tenants after `:after`. The oldest jobs of each come first, as many per
 * tenant as {@link eachOf}. Tenants with the fewest running jobs come first; tenants at their limit are skipped. With concurrent statements, each row
 * also has the maximum number per tenant.
 *
 * @param may Condition for jobs that may be picked.
 * @param isLocking Whether statements run concurrently: then each skips locked rows, and tenants with a limit for which another statement is picking.
 */
export function pickFair(may: string, isLocking: boolean): string {
  const own = `SELECT jobs.id FROM jobs WHERE ${WAITS} AND jobs.tenant = fair.tenant AND ${may} ORDER BY jobs.id`
  // SQLite has no LATERAL, and needs no locks. Both variants join in the order of `fair`; only the LIMIT makes SQLite preserve that order.
  const jobs = isLocking
    ? `CROSS JOIN (SELECT ${eachOf('greatest')} AS each) AS share CROSS JOIN LATERAL (${own}
      LIMIT least(share.each, running_room(fair.tenant, TRUE)) FOR UPDATE SKIP LOCKED) AS own`
    : `CROSS JOIN jobs AS own ON own.id IN (
      SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS nth FROM (${own} LIMIT ${eachOf('max')}))
      WHERE nth <= coalesce(fair.room, nth))`
  return `
    WITH ${way(isLocking)},
    looked AS (SELECT tenant, nth, lap, ${room('turn.tenant', isLocking)} AS room FROM turn WHERE step > 0),
    fair AS (
      SELECT tenant, room, ${RUNNING} AS running, nth FROM looked AS turn
      WHERE coalesce(room, 1) > 0 AND nth <= CAST(:tenants AS bigint) AND (lap = 0 OR (lap = 1 AND tenant <= :after)) ORDER BY running, nth
      LIMIT CAST(:tenants AS bigint)
    )
    SELECT own.id${isLocking ? ', share.each' : ''} FROM fair ${jobs} LIMIT CAST(:limit AS bigint)`
}

export function lastScanned(isLocking: boolean): string {
  return `WITH ${way(isLocking)} SELECT tenant, step FROM turn ORDER BY step DESC LIMIT 1`
}
