/**
 * Inserts of durable jobs, in the SQL that Postgres and SQLite share. See `../transitions.ts` for later changes.
 *
 * The text of an insert ends before `RETURNING`. The adapters add this clause, and store the `job.queued` event in the same transaction.
 */
export interface Insert {
  readonly name: string
  /** @param condition Condition for the insert. @param from Source with one row per job. */
  readonly sql: (condition: string, from?: string) => string
  readonly event: string
  readonly givesRequest?: boolean
}

const COLUMNS = `id, tenant, parent_id, pool, kind, endpoint, model, priority, stream, state, last_seq, run_at_ms,
  expires_at_ms, deadline_ms, published_at_ms, created_at_ms, retention_ms, metadata, webhook_url, webhook_events,
  request_id, traceparent, request, partial_ms, key_id, reserved_nanos, request_bytes`
// An existing id means that a caller repeated the request after a lost response.
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
      :webhook_url, :webhook_events, :request_id, :traceparent, :request, CAST(:partial_ms AS bigint), :key_id,
      CAST(:reserved_nanos AS bigint), CAST(:request_bytes AS bigint)
    FROM ${from ? `${from}, LATERAL` : ''} (
      SELECT CASE WHEN CAST(:run_at_ms AS bigint) > now_ms() THEN CAST(:run_at_ms AS bigint) ELSE now_ms() END AS begin_ms
    ) AS clock
    WHERE ${condition} ${ONCE}`,
}

/** Reserves the idempotency key of a new job. Returns no row if another request holds the key. */
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
      webhook_events, request_id, traceparent, request, partial_ms, key_id, reserved_nanos, request_bytes
    FROM (SELECT jobs.*, deadline_ms - created_at_ms AS deadline_in_ms FROM jobs WHERE id = :id) AS source
    WHERE tenant = coalesce(:tenant, tenant) AND state IN ('failed', 'cancelled', 'expired')
      AND erased_at_ms IS NULL AND purge_at_ms > now_ms() AND ${condition} ${ONCE}`,
}
