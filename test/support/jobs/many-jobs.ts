/**
 * Fills a store with as many rows as a busy deployment has. The rows that queries look for are few and old, behind many erased, blocked and ended
 * rows. A query that lacks an index must therefore scan most of a table, which the tests detect.
 */

/** Number of rows of each type, and values that the rows contain. */
export interface Layout {
  readonly jobs: number
  /** Number of webhook deliveries that are due, but must wait for an earlier delivery of the same job. */
  readonly blocked: number
  readonly keys: number
  readonly nowMs: number
  /** Prefix of every job id. The prefix is the {@link firstJobId} of a day, so that ids sort by time. */
  readonly prefix: string
}

/** The tenant of nearly all jobs. */
export const MANY_TENANT = 'key_a'
/** Number of jobs that have a rare state (failed) and a rare endpoint (embeddings). These jobs are also the oldest. */
export const RARE = 20
export const PARENT = 'job_parent'
/** Number of jobs in each of the four states before the end: in_progress, scheduled, queued and waiting. */
export const WAITING = 300
const PAST = 3_000
const HOUR_MS = 3_600_000

/** The id of the nth job, from 1. */
export function manyId({ prefix }: Pick<Layout, 'prefix'>, n: number): string {
  return `${prefix}000000000000${1_000_000_000 + n}`
}

/**
 * Returns the SQL statements that fill the tables.
 * @param numbers Returns the SQL of a table with the column `i`, which counts from 1 to a given maximum
 * @param tables Names of the tables of jobs and events
 */
export function fillStatements(
  layout: Layout,
  numbers: (count: number) => string,
  tables = { jobs: 'jobs', events: 'job_events' },
): string[] {
  const { jobs, blocked, keys, nowMs } = layout
  const id = (n: string) => `'${layout.prefix}000000000000' || CAST(1000000000 + ${n} AS text)`
  const waiting = jobs - 4 * WAITING
  const state = `CASE WHEN i <= ${RARE} THEN 'failed' WHEN i > ${waiting + 3 * WAITING} THEN 'waiting'
    WHEN i > ${waiting + 2 * WAITING} THEN 'queued'
    WHEN i > ${waiting + WAITING} THEN 'scheduled' WHEN i > ${waiting} THEN 'in_progress' ELSE 'completed' END`
  const ended = (value: string) => `CASE WHEN i <= ${waiting} THEN ${value} END`
  const purgeAt = `CASE WHEN i BETWEEN ${RARE + 1} AND ${RARE + PAST} THEN ${nowMs - 60_000} ELSE ${nowMs + 12 * HOUR_MS} END`
  // The newest fifth of the jobs is erased. The next older fifth are children of one parent, `job_parent`.
  const erased = `CASE WHEN i > ${Math.floor(jobs * 0.8)} THEN ${nowMs} END`
  // The third fifth are ended children, a hundred per ended parent. The children of the first parent are already due for deletion. The ends
  // of some children are not yet marked as reported to their parent.
  const [eldest, youngest] = [Math.floor(jobs * 0.4), Math.floor(jobs * 0.6) - 1]
  const isChild = `i BETWEEN ${eldest} AND ${youngest}`
  const parent = `CASE WHEN i <= ${RARE} OR i BETWEEN ${Math.floor(jobs * 0.6)} AND ${Math.floor(jobs * 0.8)} THEN '${PARENT}'
    WHEN ${isChild} THEN ${id(`(${RARE} + 2 + (i - ${eldest}) / 100)`)} END`
  const family = `CASE WHEN ${isChild} THEN 1 ELSE 0 END, CASE WHEN i BETWEEN ${RARE + 1} AND ${RARE + 300} THEN 100 ELSE 0 END,
    CASE WHEN i > ${waiting + 3 * WAITING} THEN ${nowMs + HOUR_MS} END, CAST(i <= ${youngest - RARE} AS boolean)`
  return [
    `INSERT INTO ${tables.jobs} (id, tenant, parent_id, pool, kind, endpoint, model, priority, stream, state, attempt, owner,
       last_seq, run_at_ms, expires_at_ms, deadline_ms, published_at_ms, created_at_ms, finished_at_ms, retention_ms,
       purge_at_ms, erased_at_ms, metadata, webhook_events, depth, children, wake_at_ms, is_settled, request)
     SELECT ${id('i')}, CASE WHEN i % 1000 = 0 THEN 'key_b' ELSE '${MANY_TENANT}' END, ${parent}, 'inference', 'generate',
       CASE WHEN i <= ${RARE} THEN '/v1/embeddings' ELSE '/v1/chat/completions' END, 'echo-1', 'normal', CAST(0 = 1 AS boolean),
       ${state}, 1, CASE WHEN i > ${waiting} AND i <= ${waiting + WAITING} THEN 'boot_' || CAST(i % 10 AS text) END, 1,
       ${nowMs} + i - ${jobs}, ${nowMs + HOUR_MS}, ${nowMs + HOUR_MS}, ${nowMs}, ${nowMs} + i - ${jobs}, ${ended(String(nowMs))},
       ${24 * HOUR_MS}, ${ended(purgeAt)}, ${ended(erased)}, '{}', '[]', ${family}, '{"body":{"text":"hello"}}'
     FROM ${numbers(jobs)}`,
    `INSERT INTO ${tables.events} (job_id, seq, attempt, type, at_ms)
     SELECT ${id('i')}, 1, 0, 'job.queued', ${nowMs} FROM ${numbers(jobs)} WHERE i <= ${RARE + PAST} OR i > ${Math.floor(jobs / 2)}`,
    // Two deliveries per job: the first waits for its retry, the second is due and blocked by the first.
    `INSERT INTO deliveries (id, job_id, seq, tenant, url, type, state, next_at_ms, created_at_ms, purge_at_ms)
     SELECT 'evt_' || CAST(i AS text), ${id('(i / 2)')}, i % 2, '${MANY_TENANT}', 'https://example.com', 'job.started', 'pending',
       CASE WHEN i % 2 = 0 THEN ${nowMs + HOUR_MS} ELSE ${nowMs - HOUR_MS} END, ${nowMs},
       CASE WHEN i <= 500 THEN ${nowMs} ELSE ${nowMs + 24 * HOUR_MS} END FROM ${numbers(2 * blocked)}`,
    `INSERT INTO job_steps (job_id, key, kind, output, cost, attempt, chunk, at_ms)
     SELECT ${id('(i / 10)')}, CAST(i AS text), 'search', '{"value":1}', '{}', 1, i % 10, ${nowMs} FROM ${numbers(keys)}`,
    `INSERT INTO idempotency_keys (tenant, scope, key, fingerprint, job_id, expires_at_ms)
     SELECT '${MANY_TENANT}', 'POST /v1/jobs', CAST(i AS text), 'f', ${id('i')},
       CASE WHEN i <= 3000 THEN ${nowMs} ELSE ${nowMs + 24 * HOUR_MS} END FROM ${numbers(keys)}`,
    `INSERT INTO processes (boot, role, slots, version, draining, lease_ms, lease_until_ms)
     SELECT 'boot_' || CAST(i AS text), 'inference', 4, 'test', CAST(0 = 1 AS boolean), 9000, ${nowMs + HOUR_MS} FROM ${numbers(10)}`,
  ]
}
