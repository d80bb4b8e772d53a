/**
 * What the store reads and keeps beside the moves of jobs, in the SQL that Postgres and SQLite share.
 *
 * Names of statements are unique; they name prepared statements.
 */
import type { Params } from './sql.ts'
import type { ListQuery } from './store.ts'

export interface Statement {
  readonly name: string
  readonly sql: string
}

/** Columns of `DurableJob`, in its order. */
export const JOB_COLUMNS = `id, tenant, parent_id, pool, kind, endpoint, model, priority, stream, state, attempt, tries,
  crashes, owner, chunk, has_output, last_seq, cancel_requested_at_ms, run_at_ms, expires_at_ms, deadline_ms,
  published_at_ms, created_at_ms, started_at_ms, finished_at_ms, retention_ms, purge_at_ms, erased_at_ms, progress, error,
  usage, metadata, webhook_url, webhook_events, request_id, traceparent`

/** Another tenant's job does not exist, nor does one whose time to be kept is over. */
const KEPT = '(purge_at_ms IS NULL OR purge_at_ms > now_ms())'
const VISIBLE = `tenant = coalesce(:tenant, tenant) AND ${KEPT}`

/** @param from The jobs, and what they are joined with. */
export const find = (from: string): Statement => ({
  name: 'find',
  sql: `SELECT ${JOB_COLUMNS} FROM ${from} WHERE id = :id AND ${VISIBLE}`,
})
export const FIND = find('jobs')

/** Its time to be kept is over, and it is not purged yet. */
export const FIND_PAST: Statement = {
  name: 'find_past',
  sql: `SELECT id FROM jobs WHERE id = :id AND tenant = coalesce(:tenant, tenant) AND erased_at_ms IS NULL
          AND purge_at_ms <= now_ms()`,
}

export const FIND_CONTENT: Statement = {
  name: 'find_content',
  sql: `SELECT request, result FROM jobs WHERE id = :id AND erased_at_ms IS NULL AND ${VISIBLE}`,
}

/** The job that holds an idempotency key; its id alone when the job is gone. */
export const FIND_KEY: Statement = {
  name: 'find_key',
  sql: `SELECT fingerprint, job_id FROM idempotency_keys WHERE tenant = :tenant AND scope = :key_scope AND key = :key`,
}

export const LIST_EVENTS: Statement = {
  name: 'list_events',
  sql: `SELECT job_id, seq, attempt, type, data, at_ms FROM job_events
        WHERE job_id = :id AND seq > :after AND EXISTS (SELECT 1 FROM jobs WHERE id = :id AND ${VISIBLE})
        ORDER BY seq LIMIT :limit`,
}

/** What the owner's write of that number recorded, if it was made. */
export const FIND_CHUNK: Statement = {
  name: 'find_chunk',
  sql: `SELECT job_id, seq, attempt, type, data, at_ms FROM job_events
        WHERE job_id = :id AND attempt = :attempt AND chunk = :chunk
          AND EXISTS (SELECT 1 FROM jobs WHERE id = :id AND (attempt <> :attempt OR owner = :owner)) ORDER BY seq`,
}

/** A page of jobs and one more, which says whether there is another page. */
export function listJobs(tenant: string | null, query: ListQuery): { statement: Statement; params: Params } {
  const params: Params = { limit: query.limit + 1 }
  const states = (query.states ?? []).map((state, i) => {
    params[`state${i}`] = state
    return `:state${i}`
  })
  const order = query.order ?? 'desc'
  const filters: [condition: string, name: string, value: string | null | undefined][] = [
    ['tenant = :tenant', 'tenant', tenant],
    [`id ${order === 'desc' ? '<' : '>'} :after`, 'after', query.after],
    ['endpoint = :endpoint', 'endpoint', query.endpoint],
    ['parent_id = :parent_id', 'parent_id', query.parentId],
  ]
  const given = filters.filter(([, , value]) => value !== undefined && value !== null)
  for (const [, name, value] of given) params[name] = value as string
  const conditions = ['erased_at_ms IS NULL', KEPT, ...given.map(([condition]) => condition)]
  if (states.length > 0) conditions.push(`state IN (${states.join(', ')})`)
  return {
    statement: {
      name: ['list', order, states.length, ...given.map(([, name]) => name)].join('_'),
      sql: `SELECT ${JOB_COLUMNS} FROM jobs WHERE ${conditions.join(' AND ')} ORDER BY id ${order} LIMIT :limit`,
    },
    params,
  }
}

export const DEPTH: Statement = {
  name: 'depth',
  sql: `SELECT pool, priority, state, count(*) AS count, min(created_at_ms) AS oldest_at_ms FROM jobs
        WHERE state IN ('queued', 'scheduled', 'in_progress') GROUP BY pool, priority, state ORDER BY 1, 2, 3`,
}

export const QUEUED_MODELS: Statement = {
  name: 'queued_models',
  sql: `SELECT pool, kind, model, priority, count(*) AS count FROM jobs
        WHERE state = 'queued' GROUP BY pool, kind, model, priority`,
}

/** Skeleton of an erased job: ids, states, times and counts. */
export const ERASE_JOB = `
  UPDATE jobs SET erased_at_ms = now_ms(), request = NULL, result = NULL, progress = NULL, error = NULL, metadata = '{}',
    webhook_url = NULL, webhook_events = '[]'
  WHERE id = :id AND tenant = coalesce(:tenant, tenant) AND state IN ('completed', 'failed', 'cancelled', 'expired')
  RETURNING id`
export const ERASE_EVENTS = 'DELETE FROM job_events WHERE job_id = :id'

export const RENEW: Statement = {
  name: 'renew',
  sql: `INSERT INTO processes (boot, role, slots, version, draining, lease_ms, lease_until_ms)
        VALUES (:boot, :role, :slots, :version, :draining, CAST(:lease_ms AS bigint),
          now_ms() + CAST(:lease_ms AS bigint))
        ON CONFLICT (boot) DO UPDATE SET slots = excluded.slots, draining = excluded.draining,
          lease_ms = excluded.lease_ms, lease_until_ms = excluded.lease_until_ms`,
}

const LEFT = `replace(lost_by, CAST(:boot AS text) || ' ', '')`

/** A process that renews its lease is not dead: what was taken from it did not end it. Terminal rows stay as they are. */
export const SPARE: Statement = {
  name: 'spare',
  sql: `UPDATE jobs SET lost_by = ${LEFT},
          crashes = crashes - (length(lost_by) - length(${LEFT})) / (length(CAST(:boot AS text)) + 1)
        WHERE lost_by IS NOT NULL AND lost_by <> ${LEFT} AND state IN ('queued', 'scheduled', 'in_progress')`,
}

export const OWNED: Statement = {
  name: 'owned',
  sql: `SELECT id, attempt, cancel_requested_at_ms FROM jobs WHERE state = 'in_progress' AND owner = :boot`,
}

/** A process that said goodbye is known to be gone: the reaper need not wait out its lease. */
export const GOODBYE: Statement = {
  name: 'goodbye',
  sql: `UPDATE processes SET lease_ms = 0, lease_until_ms = now_ms() WHERE boot = :boot`,
}

/** `since_ms` tells how long the lease was held without a gap. */
export const HOLD_LEASE: Statement = {
  name: 'hold_lease',
  sql: `INSERT INTO leases AS held (name, holder, since_ms, until_ms)
        VALUES (:name, :holder, now_ms(), now_ms() + CAST(:lease_ms AS bigint))
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms,
          since_ms = CASE WHEN held.holder = excluded.holder AND held.until_ms > now_ms() THEN held.since_ms
                          ELSE excluded.since_ms END
        WHERE held.holder = excluded.holder OR held.until_ms <= now_ms()
        RETURNING name`,
}

export const RELEASE_LEASE: Statement = {
  name: 'release_lease',
  sql: `DELETE FROM leases WHERE name = :name AND holder = :holder`,
}

const DELIVERY_COLUMNS = 'id, job_id, tenant, url, type, state, tries, next_at_ms, status, error, created_at_ms'

/** Messages of one job go out in the order of its events. @param lock Locks what it picks, where that is needed. */
export const takeDeliveries = (lock: string): Statement => ({
  name: 'take_deliveries',
  sql: `WITH picked AS MATERIALIZED (
          SELECT id FROM deliveries AS due WHERE state = 'pending' AND next_at_ms <= now_ms() AND NOT EXISTS (
            SELECT 1 FROM deliveries AS earlier
            WHERE earlier.job_id = due.job_id AND earlier.seq < due.seq AND earlier.state = 'pending')
          ORDER BY next_at_ms LIMIT :limit ${lock})
        UPDATE deliveries SET tries = tries + 1, next_at_ms = now_ms() + CAST(:lease_ms AS bigint)
        WHERE id IN (SELECT id FROM picked)
        RETURNING ${DELIVERY_COLUMNS}`,
})

/** Guard: nobody has taken it since, which `tries` would show. */
export const RECORD_DELIVERY: Statement = {
  name: 'record_delivery',
  sql: `UPDATE deliveries SET state = :state, status = :status, error = :error,
          next_at_ms = now_ms() + CAST(:retry_in_ms AS bigint)
        WHERE id = :id AND tries = :tries AND state = 'pending' RETURNING id`,
}

export const LIST_DELIVERIES: Statement = {
  name: 'list_deliveries',
  sql: `SELECT ${DELIVERY_COLUMNS} FROM deliveries WHERE job_id = :id ORDER BY seq`,
}

/** Small tables, purged row by row. A process is forgotten when nothing it owned is left and it cannot come back. */
export const PURGES: readonly Statement[] = [
  { name: 'purge_keys', sql: 'DELETE FROM idempotency_keys WHERE expires_at_ms <= now_ms()' },
  { name: 'purge_deliveries', sql: 'DELETE FROM deliveries WHERE purge_at_ms <= now_ms()' },
  {
    name: 'purge_processes',
    sql: `DELETE FROM processes WHERE lease_until_ms <= now_ms() - 3600000
          AND NOT EXISTS (SELECT 1 FROM jobs WHERE state = 'in_progress' AND owner = processes.boot)`,
  },
]
