/*
 * Turns of tenants among the jobs that wait, in the SQL that Postgres and SQLite share (docs/design.md, Turns). An index leads
 * from one tenant to the next, so a turn costs as much whether ten tenants have one job each or one has a hundred thousand.
 */

/** Tenants looked at beyond those that are given a turn: the one with the fewest running jobs among them is served first. */
export const TENANTS_AHEAD = 8

/** Jobs that the same slots run, which take turns. */
const LANE = `jobs.pool = :pool AND jobs.kind = :kind AND jobs.model = :model AND jobs.priority = :priority`
const WAITS = `jobs.state = 'queued' AND ${LANE}`
const FIRST = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS})`
const FOLLOWING = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS} AND jobs.tenant > turn.tenant)`
const RUNNING = `(SELECT count(*) FROM jobs WHERE jobs.state = 'in_progress' AND ${LANE} AND jobs.tenant = turn.tenant)`

/**
 * The SELECT of at most `:limit` ids, in turn: of the `:tenants` tenants that come after `:after`, in their order and round
 * once, the `:each` oldest jobs; first those of tenants of whom the fewest jobs run.
 *
 * @param may Which of the jobs may be picked.
 * @param isLocking Whether statements run side by side: then each passes over what another has picked.
 */
export function pickInTurn(may: string, isLocking: boolean): string {
  const own = `SELECT jobs.id FROM jobs WHERE ${WAITS} AND jobs.tenant = fair.tenant AND ${may}
    ORDER BY jobs.id LIMIT CAST(:each AS bigint)`
  // SQLite has no LATERAL, and nobody beside whom it would need a lock. Either joins in the order of `fair`, which only its
  // LIMIT keeps SQLite from forgetting.
  const jobs = isLocking
    ? `CROSS JOIN LATERAL (${own} FOR UPDATE SKIP LOCKED) AS own`
    : `CROSS JOIN jobs AS own ON own.id IN (${own})`
  return `
    WITH RECURSIVE turn (tenant, lap, nth) AS (
      SELECT CAST(:after AS text), 0, 0
      UNION ALL
      SELECT coalesce(${FOLLOWING}, ${FIRST}), CASE WHEN ${FOLLOWING} IS NULL THEN lap + 1 ELSE lap END, nth + 1
      FROM turn WHERE nth < CAST(:tenants AS bigint) AND (lap = 0 OR (lap = 1 AND tenant < :after))
    ),
    fair AS (
      SELECT tenant, ${RUNNING} AS running, nth FROM turn
      WHERE nth > 0 AND (lap = 0 OR (lap = 1 AND tenant <= :after)) ORDER BY running, nth
      LIMIT CAST(:tenants AS bigint)
    )
    SELECT own.id FROM fair ${jobs} LIMIT CAST(:limit AS bigint)`
}
