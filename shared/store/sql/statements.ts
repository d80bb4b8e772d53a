/**
 * Statements of the store other than state transitions, in the SQL that Postgres and SQLite share.
 *
 * Postgres prepares each statement under its `name`, so the names must be unique.
 */

import { EVENTS_BYTES_MAX } from '#shared/store/store.ts'
import { CANCEL_DUE, CANCEL_REQUESTED, SET_BACK_MS } from './transitions.ts'

export interface Statement {
  readonly name: string
  readonly sql: string
  /** True for data that is useless after a restart of SQLite, such as leases. Such a write does not wait for an fsync. */
  readonly isTransient?: boolean
  /**
   * Variant for SQLite that returns large texts as bytes. The caller decodes them, which is four times as fast as SQLite's own conversion to strings.
   */
  readonly sqlite?: string
}

/** Returns a statement that reads columns with large texts, with a variant for SQLite that reads them as bytes. */
function readsTexts(name: string, columns: readonly string[], sqlOf: (columns: string) => string): Statement {
  const bytes = columns.map((column) => `CAST(${column} AS BLOB) AS ${column}`)
  return { name, sql: sqlOf(columns.join(', ')), sqlite: sqlOf(bytes.join(', ')) }
}

/**
 * Condition that a column has one of the texts of a JSON array. Postgres receives an array, which matches an index. A plan that Postgres made while the
 * tables were empty then still uses this index.
 */
export function inList(isShared: boolean, param: string): string {
  return isShared
    ? `= ANY (ARRAY(SELECT json_array_elements_text(CAST(${param} AS json))))`
    : `IN (SELECT value FROM json_each(${param}))`
}

export const JOB_COLUMNS = `id, tenant, parent_id, pool, kind, endpoint, model, priority, stream, state, attempt, tries,
  crashes, owner, chunk, has_output, last_seq, cancel_requested_at_ms, run_at_ms, expires_at_ms, deadline_ms,
  published_at_ms, created_at_ms, started_at_ms, finished_at_ms, retention_ms, purge_at_ms, erased_at_ms, progress, error,
  usage, metadata, webhook_url, webhook_events, request_id, traceparent, depth, children, steps, partial_ms`

/**
 * Conditions that hide jobs after their retention and jobs of other tenants. The expression `coalesce` matches no index, so Postgres finds a job by
 * its id. Postgres plans a statement while the tables are small and then keeps the plan, which could otherwise scan a whole index per job.
 */
const KEPT = 'coalesce(purge_at_ms > now_ms(), TRUE)'
const VISIBLE = `tenant = coalesce(:tenant, tenant) AND ${KEPT}`

export const find = (from: string): Statement => ({
  name: 'find',
  sql: `SELECT ${JOB_COLUMNS} FROM ${from} WHERE id = :id AND ${VISIBLE}`,
})
export const FIND = find('jobs')

export const FIND_PAST: Statement = {
  name: 'find_past',
  sql: `SELECT id FROM jobs WHERE id = :id AND tenant = coalesce(:tenant, tenant) AND erased_at_ms IS NULL
          AND NOT ${KEPT}`,
}

// `coalesce` makes the condition match no index of unerased jobs, so that Postgres finds the job by its id. Otherwise Postgres might keep a
// plan that scans this whole index for each job.
const UNERASED = `FROM jobs WHERE id = :id AND coalesce(erased_at_ms, 0) = 0 AND ${VISIBLE}`
export const FIND_CONTENT = readsTexts('find_content', ['request', 'result'], (texts) => `SELECT ${texts} ${UNERASED}`)
export const FIND_INPUT = readsTexts('find_input', ['request', 'input'], (texts) => `SELECT ${texts} ${UNERASED}`)
export const FIND_RESULT = readsTexts('find_result', ['result'], (text) => `SELECT ${text} ${UNERASED}`)

export const FIND_KEY: Statement = {
  name: 'find_key',
  sql: `SELECT fingerprint, job_id FROM idempotency_keys WHERE tenant = :tenant AND scope = :key_scope AND key = :key`,
}

/** Lists a page of events. The page ends after the event with which the data of the page exceeds {@link EVENTS_BYTES_MAX}. */
export const LIST_EVENTS = readsTexts(
  'list_events',
  ['data'],
  (data) => `SELECT job_id, seq, attempt, type, ${data}, at_ms FROM job_events
        WHERE job_id = :id AND seq > :after AND EXISTS (SELECT 1 FROM jobs WHERE id = :id AND ${VISIBLE})
          AND seq <= (SELECT max(seq) FROM (
            SELECT seq, bytes, sum(bytes) OVER (ORDER BY seq) AS bytes_read FROM (
              SELECT seq, coalesce(octet_length(data), 0) AS bytes FROM job_events
              WHERE job_id = :id AND seq > :after ORDER BY seq LIMIT :limit) AS page
          ) AS sized WHERE bytes_read - bytes <= ${EVENTS_BYTES_MAX})
        ORDER BY seq LIMIT :limit`,
)

/** Finds the events that a numbered write of the holder recorded. Returns no rows if the write was not committed. */
export const FIND_CHUNK: Statement = {
  name: 'find_chunk',
  sql: `SELECT job_id, seq, attempt, type, data, at_ms FROM job_events
        WHERE job_id = :id AND attempt = :attempt AND chunk = :chunk
          AND EXISTS (SELECT 1 FROM jobs WHERE id = :id AND (attempt <> :attempt OR owner = :owner)) ORDER BY seq`,
}

export const FIND_STEP: Statement = {
  name: 'find_step',
  sql: 'SELECT key, kind, output, cost, attempt, chunk, at_ms FROM job_steps WHERE job_id = :id AND key = :key',
}

export const LIST_STEPS: Statement = {
  name: 'list_steps',
  sql: `SELECT key, kind, cost, attempt, at_ms, CASE WHEN output LIKE '{"blob":%' THEN output END AS output FROM job_steps
        WHERE job_id = :id AND EXISTS (SELECT 1 FROM jobs WHERE id = :id AND ${VISIBLE})
        ORDER BY at_ms, attempt, chunk`,
}

export const LIST_RECORDED_STEPS: Statement = {
  name: 'list_recorded_steps',
  sql: `SELECT key, kind, input, output, cost, attempt, at_ms FROM job_steps
        WHERE job_id = :id AND EXISTS (SELECT 1 FROM jobs WHERE id = :id AND ${VISIBLE})
        ORDER BY at_ms, attempt, chunk LIMIT :limit OFFSET :after`,
}

/**
 * Stored requests of several jobs, up to a size. Both databases know the size of a text without reading it, so that a longer request costs no read.
 */
export const findRequests = (isShared: boolean): Statement => ({
  name: 'find_requests',
  sql: `SELECT id, CASE WHEN octet_length(request) <= CAST(:bytes_max AS bigint) THEN request END AS request
        FROM jobs WHERE id ${inList(isShared, ':ids')} AND coalesce(erased_at_ms, 0) = 0 AND ${VISIBLE}`,
})

export const LIST_CHILDREN: Statement = {
  name: 'list_children',
  sql: `SELECT ${JOB_COLUMNS} FROM jobs WHERE parent_id = :id AND depth > 0 AND coalesce(erased_at_ms, 0) = 0 AND ${VISIBLE}
        ORDER BY id`,
}

export const countChildren = (isShared: boolean): Statement => {
  const recent = 'CASE WHEN finished_at_ms >= CAST(:since AS bigint) THEN'
  return {
    name: 'count_children',
    sql: `SELECT parent_id, state, count(*) AS count, count(${recent} 1 END) AS recent,
            coalesce(sum(${recent} finished_at_ms - coalesce(started_at_ms, finished_at_ms) END), 0) AS recent_run_ms,
            coalesce(min(${recent} coalesce(started_at_ms, finished_at_ms) END), 0) AS recent_from_ms
          FROM jobs WHERE parent_id ${inList(isShared, ':parents')} AND depth > 0 AND ${VISIBLE} GROUP BY parent_id, state`,
  }
}

export const LIST_UNSETTLED: Statement = {
  name: 'list_unsettled',
  sql: `SELECT ${JOB_COLUMNS} FROM jobs
        WHERE is_settled = FALSE AND purge_at_ms IS NOT NULL AND (depth > 0 OR children > 0)
        ORDER BY finished_at_ms LIMIT :limit`,
}

export const DEPTH: Statement = {
  name: 'depth',
  sql: `SELECT pool, model, priority, state, count(*) AS count, min(created_at_ms) AS oldest_at_ms FROM jobs
        WHERE purge_at_ms IS NULL GROUP BY pool, model, priority, state ORDER BY pool, model, priority, state`,
}

/**
 * True if a sweep would find no work. All jobs have ended and are settled, no webhook message is pending, and the usage ledger is complete.
 */
export const IS_IDLE = `
  SELECT NOT (
    EXISTS (SELECT 1 FROM jobs WHERE purge_at_ms IS NULL)
    OR EXISTS (SELECT 1 FROM jobs
      WHERE is_settled = FALSE AND purge_at_ms IS NOT NULL AND (depth > 0 OR children > 0))
    OR EXISTS (SELECT 1 FROM deliveries WHERE state = 'pending')
    OR EXISTS (SELECT 1 FROM usage_ended)) AS is_idle`

export const QUEUED_MODELS: Statement = {
  name: 'queued_models',
  sql: `SELECT pool, kind, model, priority, count(*) AS count FROM jobs
        WHERE state = 'queued' GROUP BY pool, kind, model, priority`,
}

/**
 * SQL condition: the job has ended. The concatenation with '' matches no index of states, so that Postgres finds jobs by their ids.
 * Otherwise Postgres might keep a plan that scans a whole index of states for each job.
 */
const ENDED = `jobs.state || '' IN ('completed', 'failed', 'cancelled', 'expired')`

export const SET_METADATA: Statement = {
  name: 'set_metadata',
  sql: `UPDATE jobs SET metadata = :metadata WHERE id = :id AND tenant = :tenant AND coalesce(erased_at_ms, 0) = 0 AND ${KEPT}
        RETURNING id`,
}

/** Erases the content of a job. Ids, states, times and counts remain. */
export const ERASE_JOB = `
  UPDATE jobs SET erased_at_ms = now_ms(), request = NULL, input = NULL, result = NULL, progress = NULL, error = NULL, metadata = '{}',
    request_bytes = 0, output_bytes = 0,
    webhook_url = NULL, webhook_events = '[]'
  WHERE id = :id AND tenant = coalesce(:tenant, tenant) AND ${ENDED}
  RETURNING id`
export const ERASE_EVENTS = 'DELETE FROM job_events WHERE job_id = :id'
export const ERASE_STEPS = 'DELETE FROM job_steps WHERE job_id = :id'
/**
 * Erases the addresses of a job's webhook messages, because an address may contain a secret. Pending messages are not
 * sent afterwards.
 */
export const ERASE_DELIVERIES = `UPDATE deliveries SET url = '', error = NULL, history = NULL WHERE job_id = :id`

export const ERASE_FIRST_EVENTS: Statement = {
  name: 'erase_first_events',
  sql: `DELETE FROM job_events WHERE job_id = :id AND seq <= :up_to AND EXISTS (
          SELECT 1 FROM jobs WHERE id = :id AND tenant = coalesce(:tenant, tenant) AND ${ENDED})`,
}

export const RENEW: Statement = {
  name: 'renew',
  isTransient: true,
  sql: `INSERT INTO processes (boot, role, slots, version, draining, lease_ms, lease_until_ms)
        VALUES (:boot, :role, :slots, :version, :draining, CAST(:lease_ms AS bigint),
          now_ms() + CAST(:lease_ms AS bigint))
        ON CONFLICT (boot) DO UPDATE SET slots = excluded.slots, draining = excluded.draining,
          lease_ms = excluded.lease_ms, lease_until_ms = excluded.lease_until_ms`,
}

const LEFT = `replace(lost_by, CAST(:boot AS text) || ' ', '')`

/**
 * Subtracts the crashes that the reaper counted for a process. The process has renewed its lease since, so it was not dead. Ended jobs are unchanged.
 */
export const SUBTRACT_CRASHES: Statement = {
  name: 'spare',
  sql: `UPDATE jobs SET lost_by = ${LEFT},
          crashes = crashes - (length(lost_by) - length(${LEFT})) / (length(CAST(:boot AS text)) + 1)
        WHERE lost_by IS NOT NULL AND purge_at_ms IS NULL AND lost_by <> ${LEFT}`,
}

export const OWNED: Statement = {
  name: 'owned',
  sql: `SELECT id, attempt, ${CANCEL_REQUESTED} AS is_cancelled, ${CANCEL_DUE} AS is_cancel_due FROM jobs
        WHERE state = 'in_progress' AND owner = :boot`,
}

export const DEREGISTER: Statement = {
  name: 'goodbye',
  sql: `UPDATE processes SET lease_ms = 0, lease_until_ms = now_ms() WHERE boot = :boot`,
}

/** Latest plausible end of a lease. A lease with a later end was taken before the clock was set back. */
const LAST_UNTIL = `now_ms() + CAST(:lease_ms AS bigint) + ${SET_BACK_MS}`

/**
 * Takes or renews a named lease. Returns no row if another process holds the lease. `since_ms` is the time since which this process has held the
 * lease without a gap. After the clock was set back, a gap cannot be excluded, so `since_ms` becomes the present time.
 */
export const HOLD_LEASE: Statement = {
  name: 'hold_lease',
  isTransient: true,
  sql: `INSERT INTO leases AS held (name, holder, since_ms, until_ms)
        VALUES (:name, :holder, now_ms(), now_ms() + CAST(:lease_ms AS bigint))
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms,
          since_ms = CASE WHEN held.holder = excluded.holder AND held.until_ms > now_ms()
                            AND held.until_ms <= ${LAST_UNTIL} AND held.since_ms <= now_ms() THEN held.since_ms
                          ELSE excluded.since_ms END
        WHERE held.holder = excluded.holder OR held.until_ms <= now_ms() OR held.until_ms > ${LAST_UNTIL}
        RETURNING name`,
}

export const RELEASE_LEASE: Statement = {
  name: 'release_lease',
  sql: `DELETE FROM leases WHERE name = :name AND holder = :holder`,
}

export const DELIVERY_COLUMNS =
  'id, job_id, tenant, url, type, state, tries, next_at_ms, status, error, created_at_ms, history, data'

/**
 * SQL condition for pending messages that are found by id or job. The concatenation with '' matches no index of states. Otherwise Postgres would scan
 * the whole index of pending messages.
 */
const IS_PENDING = (message: string) => `${message}.state || '' = 'pending'`

/**
 * Takes due webhook messages, the messages of a job in the order of its events. Reads only the `:look` messages that have been due for the longest
 * time.
 *
 * A message that waits for an earlier message of its job is postponed by {@link putOffDeliveries}.
 *
 * @param lock Lock clause for the selected rows. Empty if the database needs none.
 */
export const takeDeliveries = (lock: string): Statement => ({
  name: 'take_deliveries',
  sql: `WITH due AS MATERIALIZED (${dueDeliveries(lock)}), picked AS MATERIALIZED (
          SELECT id FROM due WHERE NOT EXISTS (
            SELECT 1 FROM deliveries AS earlier
            WHERE earlier.job_id = due.job_id AND earlier.seq < due.seq AND ${IS_PENDING('earlier')})
          ORDER BY next_at_ms LIMIT :limit)
        UPDATE deliveries SET next_at_ms = now_ms() + CAST(:lease_ms AS bigint)
        WHERE id IN (SELECT id FROM picked)
        RETURNING ${DELIVERY_COLUMNS}`,
})

/**
 * A message is blocked while an earlier message of its job is pending. If the earlier message is due in more than `SOON_MS`, then the blocked message
 * becomes due at the same time. Otherwise the blocked message is checked again after `RETRY_DELAY_MS`.
 */
const SOON_MS = 30_000
const RETRY_DELAY_MS = 2_000

/**
 * Postpones blocked messages until the earlier message of their job is due. If a receiver is down, then its blocked messages would otherwise fill
 * every statement of {@link takeDeliveries}. After a delivery, {@link RELEASE_DELIVERY} makes the next message due at once.
 */
export const putOffDeliveries = (lock: string): Statement => ({
  name: 'put_off_deliveries',
  sql: `WITH due AS MATERIALIZED (${dueDeliveries(lock)}), blocked AS MATERIALIZED (
          SELECT id AS blocked_id, (
            SELECT max(earlier.next_at_ms) FROM deliveries AS earlier
            WHERE earlier.job_id = due.job_id AND earlier.seq < due.seq AND ${IS_PENDING('earlier')}) AS until_ms
          FROM due)
        UPDATE deliveries SET next_at_ms =
          CASE WHEN until_ms > now_ms() + ${SOON_MS} THEN until_ms ELSE now_ms() + ${RETRY_DELAY_MS} END
        FROM blocked WHERE id = blocked_id AND until_ms IS NOT NULL
        RETURNING id`,
})

function dueDeliveries(lock: string): string {
  return `SELECT id, job_id, seq, next_at_ms FROM deliveries WHERE state = 'pending' AND next_at_ms <= now_ms()
          ORDER BY next_at_ms LIMIT :look ${lock}`
}

/**
 * Records the outcome of a delivery, unless another process has taken the message since. The fencing token is `next_at_ms`, the end of the lease. If
 * another process takes the message, then this time moves forward. A retry by an operator sets an earlier end, so the outcome of a running delivery
 * is still recorded.
 */
export const RECORD_DELIVERY: Statement = {
  name: 'record_delivery',
  sql: `UPDATE deliveries SET state = :state, history = coalesce(CAST(:history AS text), history),
          tries = CASE WHEN CAST(:history AS text) IS NULL THEN tries ELSE tries + 1 END,
          status = CASE WHEN CAST(:history AS text) IS NULL THEN status ELSE CAST(:status AS integer) END,
          error = CASE WHEN CAST(:history AS text) IS NULL THEN coalesce(CAST(:error AS text), error) ELSE CAST(:error AS text) END,
          next_at_ms = now_ms() + CAST(:retry_in_ms AS bigint)
        WHERE id = :id AND next_at_ms <= CAST(:taken_until_ms AS bigint) AND ${IS_PENDING('deliveries')} RETURNING job_id`,
}

/**
 * Makes the next message of a job due at once, after the previous message was delivered or has failed for good. If the next message was already
 * tried, then its own retry time is unchanged.
 */
export const RELEASE_DELIVERY: Statement = {
  name: 'release_delivery',
  sql: `UPDATE deliveries SET next_at_ms = now_ms() WHERE tries = 0 AND next_at_ms > now_ms() AND id = (
          SELECT id FROM deliveries AS first WHERE job_id = :job_id AND ${IS_PENDING('first')} ORDER BY seq LIMIT 1)`,
}

export const LIST_DELIVERIES: Statement = {
  name: 'list_deliveries',
  sql: `SELECT ${DELIVERY_COLUMNS} FROM deliveries WHERE job_id = :id ORDER BY seq`,
}

export const PENDING_DELIVERIES: Statement = {
  name: 'pending_deliveries',
  sql: `SELECT count(*) AS count, min(created_at_ms) AS oldest_at_ms FROM (
          SELECT created_at_ms FROM deliveries WHERE state = 'pending' AND created_at_ms > 0 ORDER BY created_at_ms LIMIT 4000) AS oldest`,
}

/**
 * An insert of durable jobs, in the SQL that Postgres and SQLite share. Later changes of a job are in `transitions.ts`.
 *
 * The adapters append the `RETURNING` clause to the text of an insert, and store the event `job.queued` in the same transaction.
 */
export interface Insert {
  readonly name: string
  /**
   * @param condition SQL condition of the insert.
   * @param from Source with one row per job.
   */
  readonly sql: (condition: string, from?: string) => string
  readonly event: string
  readonly givesRequest?: boolean
}

const COLUMNS = `id, tenant, parent_id, pool, kind, endpoint, model, priority, stream, state, last_seq, run_at_ms,
  expires_at_ms, deadline_ms, published_at_ms, created_at_ms, retention_ms, metadata, webhook_url, webhook_events,
  request_id, traceparent, request, input, partial_ms, key_id, reserved_nanos, request_bytes`
// Conflict clause of inserts. If the id exists, then the caller has repeated its request after a lost response, so nothing is inserted.
const ONCE = 'ON CONFLICT (id) DO NOTHING'
const QUEUED = `'job.queued'`

/** State transition `create`, by an ingress. Guard: the idempotency key is unused. */
export const CREATE: Insert = {
  name: 'create',
  event: QUEUED,
  sql: (condition, from) => `
    INSERT INTO jobs (${COLUMNS})
    SELECT :id, :tenant, :parent_id, :pool, :kind, :endpoint, :model, :priority, CAST(:stream AS boolean),
      CASE WHEN begin_ms > now_ms() THEN 'scheduled' ELSE 'queued' END, 1, begin_ms,
      begin_ms + CAST(:start_in_ms AS bigint), begin_ms + CAST(:deadline_in_ms AS bigint),
      CASE WHEN begin_ms > now_ms() THEN NULL ELSE now_ms() END, now_ms(), CAST(:retention_ms AS bigint), :metadata,
      :webhook_url, :webhook_events, :request_id, :traceparent, :request, :input, CAST(:partial_ms AS bigint), :key_id,
      CAST(:reserved_nanos AS bigint), CAST(:request_bytes AS bigint)
    FROM ${from ? `${from}, LATERAL` : ''} (
      SELECT CASE WHEN CAST(:run_at_ms AS bigint) > now_ms() THEN CAST(:run_at_ms AS bigint) ELSE now_ms() END AS begin_ms
    ) AS clock
    WHERE ${condition} ${ONCE}`,
}

/** Reserves the idempotency key of a new job. Returns no row if another request has reserved the key. */
export const CREATE_KEY = `
  INSERT INTO idempotency_keys AS held (tenant, scope, key, fingerprint, job_id, expires_at_ms)
  VALUES (:tenant, :key_scope, :key, :fingerprint, :id, now_ms() + CAST(:key_keep_ms AS bigint))
  ON CONFLICT (tenant, scope, key) DO UPDATE
  SET fingerprint = excluded.fingerprint, job_id = excluded.job_id, expires_at_ms = excluded.expires_at_ms
  WHERE held.expires_at_ms <= now_ms() OR held.job_id = :replaces
  RETURNING job_id`

/** State transition `redrive`: creates a new job that names the old one in `parent_id`, because the row of an ended job never changes. */
export const REDRIVE: Insert = {
  name: 'redrive',
  event: QUEUED,
  givesRequest: true,
  sql: (condition) => `
    INSERT INTO jobs (${COLUMNS})
    SELECT :new_id, tenant, id, pool, kind, endpoint, model, priority, stream, 'queued', 1, now_ms(),
      now_ms() + deadline_in_ms, now_ms() + deadline_in_ms, now_ms(), now_ms(), retention_ms, metadata, webhook_url,
      webhook_events, request_id, traceparent, request, input, partial_ms, key_id, reserved_nanos, request_bytes
    FROM (SELECT jobs.*, deadline_ms - created_at_ms AS deadline_in_ms FROM jobs WHERE id = :id) AS source
    WHERE tenant = coalesce(:tenant, tenant) AND state IN ('failed', 'cancelled', 'expired')
      AND erased_at_ms IS NULL AND purge_at_ms > now_ms() AND ${condition} ${ONCE}`,
}
