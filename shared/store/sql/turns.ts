/*
 * Turns of tenants among the jobs that wait, in the SQL that Postgres and SQLite share (docs/design.md, Turns). An index leads
 * from one tenant to the next, so a turn costs as much whether ten tenants have one job each or one has a hundred thousand.
 */

/** Tenants looked at beyond those that are given a turn: the one with the fewest running jobs among them is served first. */
export const TENANTS_AHEAD = 8

/** Tenants looked at in one statement, those included that may run no more now: a claim goes on behind them in another. */
export const LOOKED_MAX = 1_000

/** Jobs that the same slots run, which take turns. */
const LANE = `jobs.pool = :pool AND jobs.kind = :kind AND jobs.model = :model AND jobs.priority = :priority`
const WAITS = `jobs.state = 'queued' AND ${LANE}`
const FIRST = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS})`
const FOLLOWING = `(SELECT min(jobs.tenant) FROM jobs WHERE ${WAITS} AND jobs.tenant > turn.tenant)`
const RUNNING = `(SELECT count(*) FROM jobs WHERE jobs.state = 'in_progress' AND ${LANE} AND jobs.tenant = turn.tenant)`

/** How many more jobs of a tenant may run now, beside its calls; null: any number. As it looks to the statement: others may be adding to it. */
const room = (tenant: string, isLocking: boolean) =>
  isLocking
    ? `running_room(${tenant}, FALSE)`
    : `(CASE WHEN running_most(${tenant}) IS NULL THEN NULL ELSE running_most(${tenant}) - ${runningOf(tenant)} END)`
const runningOf = (tenant: string) =>
  `(SELECT count(*) FROM jobs WHERE jobs.tenant = ${tenant} AND jobs.state = 'in_progress' AND jobs.purge_at_ms IS NULL)`

/**
 * The way through at most `:tenants` tenants that come after `:after` and may run jobs, in their order and round once: `nth`
 * counts those, `step` all that are looked at.
 */
const way = (isLocking: boolean) => `
    RECURSIVE turn (tenant, lap, nth, step) AS (
      SELECT CAST(:after AS text), 0, 0, 0
      UNION ALL
      SELECT coalesce(${FOLLOWING}, ${FIRST}), CASE WHEN ${FOLLOWING} IS NULL THEN lap + 1 ELSE lap END,
        CASE WHEN step = 0 OR coalesce(${room('turn.tenant', isLocking)}, 1) > 0 THEN nth + 1 ELSE nth END, step + 1
      FROM turn
      WHERE nth <= CAST(:tenants AS bigint) AND step < ${LOOKED_MAX} AND (lap = 0 OR (lap = 1 AND tenant < :after))
    )`

/** As many jobs of each tenant that is given turns as all of them may have, and `:each` at least. */
const eachOf = (greatest: string) =>
  `${greatest}(CAST(:each AS bigint), CAST(:limit AS bigint) / (SELECT count(*) FROM fair))`

/**
 * The SELECT of at most `:limit` ids, in turn: of the `:tenants` tenants that come after `:after`, in their order and round
 * once, the oldest jobs, as many of each ({@link eachOf}); first those of tenants of whom the fewest jobs run. Who runs as much
 * as it may is passed over. Where statements run side by side it gives beside each id how many there could be of its tenant.
 *
 * @param may Which of the jobs may be picked.
 * @param isLocking Whether statements run side by side: then each passes over what another has picked, and over tenants with a
 * limit of running jobs of which another is picking some.
 */
export function pickInTurn(may: string, isLocking: boolean): string {
  const own = `SELECT jobs.id FROM jobs WHERE ${WAITS} AND jobs.tenant = fair.tenant AND ${may} ORDER BY jobs.id`
  // SQLite has no LATERAL, and nobody beside whom it would need a lock. Either joins in the order of `fair`, which only its
  // LIMIT keeps SQLite from forgetting.
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

/** The SELECT of the last tenant that the same way leads to, and how many it has looked at. */
export function lastLooked(isLocking: boolean): string {
  return `WITH ${way(isLocking)} SELECT tenant, step FROM turn ORDER BY step DESC LIMIT 1`
}
