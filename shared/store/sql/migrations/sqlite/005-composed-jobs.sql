-- Jobs that have other jobs do work: what they remember of their steps, and how a family holds together. SQLite changes no
-- check in place, so the table is made anew.

CREATE TABLE composed_jobs (
  id text NOT NULL PRIMARY KEY,
  tenant text NOT NULL,
  parent_id text,
  pool text NOT NULL,
  kind text NOT NULL,
  endpoint text NOT NULL,
  model text NOT NULL,
  priority text NOT NULL,
  stream integer NOT NULL,
  state text NOT NULL CHECK
    (state IN ('queued', 'scheduled', 'in_progress', 'waiting', 'completed', 'failed', 'cancelled', 'expired')),
  attempt integer NOT NULL DEFAULT 0,
  tries integer NOT NULL DEFAULT 0,
  crashes integer NOT NULL DEFAULT 0,
  owner text,
  chunk integer NOT NULL DEFAULT 0,
  has_output integer NOT NULL DEFAULT FALSE,
  last_seq integer NOT NULL DEFAULT 0,
  cancel_requested_at_ms integer,
  run_at_ms integer NOT NULL,
  expires_at_ms integer NOT NULL,
  deadline_ms integer NOT NULL,
  published_at_ms integer,
  created_at_ms integer NOT NULL,
  started_at_ms integer,
  finished_at_ms integer,
  retention_ms integer NOT NULL,
  purge_at_ms integer,
  erased_at_ms integer,
  progress text,
  error text,
  usage text,
  metadata text NOT NULL,
  webhook_url text,
  webhook_events text NOT NULL,
  request_id text,
  traceparent text,
  request text,
  result text,
  lost_by text,
  -- Above 0: a child of `parent_id`. Otherwise that is only the job it repeats, or was said to belong to.
  depth integer NOT NULL DEFAULT 0,
  -- How many children and steps it has had.
  children integer NOT NULL DEFAULT 0,
  steps integer NOT NULL DEFAULT 0,
  -- While it waits: ids of the children it waits for, and when it waits for them no longer.
  awaits text,
  wake_at_ms integer,
  -- Its family knows of its end.
  is_settled integer NOT NULL DEFAULT FALSE
) STRICT;
INSERT INTO composed_jobs SELECT id, tenant, parent_id, pool, kind, endpoint, model, priority, stream, state, attempt, tries,
  crashes, owner, chunk, has_output, last_seq, cancel_requested_at_ms, run_at_ms, expires_at_ms, deadline_ms, published_at_ms,
  created_at_ms, started_at_ms, finished_at_ms, retention_ms, purge_at_ms, erased_at_ms, progress, error, usage, metadata,
  webhook_url, webhook_events, request_id, traceparent, request, result, lost_by, 0, 0, 0, NULL, NULL, FALSE FROM jobs;
DROP TABLE jobs;
ALTER TABLE composed_jobs RENAME TO jobs;

CREATE INDEX jobs_queued ON jobs (pool, published_at_ms) WHERE state = 'queued';
CREATE INDEX jobs_scheduled ON jobs (run_at_ms) WHERE state = 'scheduled';
CREATE INDEX jobs_waiting ON jobs (expires_at_ms) WHERE state IN ('queued', 'scheduled');
CREATE INDEX jobs_running ON jobs (owner) WHERE state = 'in_progress';
CREATE INDEX jobs_purge ON jobs (purge_at_ms) WHERE purge_at_ms IS NOT NULL;
CREATE INDEX jobs_unended ON jobs (pool, model, priority, state, created_at_ms) WHERE purge_at_ms IS NULL;
CREATE INDEX jobs_unended_tenant ON jobs (tenant, state, (id || ''), endpoint) WHERE purge_at_ms IS NULL;
CREATE INDEX jobs_ended_tenant ON jobs (tenant, state, (id || '')) WHERE purge_at_ms IS NOT NULL AND erased_at_ms IS NULL;
CREATE INDEX jobs_ended_endpoint ON jobs (tenant, endpoint, state, (id || ''))
  WHERE purge_at_ms IS NOT NULL AND coalesce(erased_at_ms, 0) = 0;
CREATE INDEX jobs_parent_state ON jobs (parent_id, state, (id || ''))
  WHERE parent_id IS NOT NULL AND erased_at_ms IS NULL;
CREATE INDEX jobs_parent_endpoint ON jobs (parent_id, endpoint, state, (id || ''))
  WHERE parent_id IS NOT NULL AND coalesce(erased_at_ms, 0) = 0;
CREATE INDEX jobs_queued_models ON jobs (pool, kind, model, priority, id) WHERE state = 'queued';
CREATE INDEX jobs_lost ON jobs (lost_by) WHERE lost_by IS NOT NULL AND purge_at_ms IS NULL;

-- A family: the children of a job, those who wait, and those whose end is to be told.
CREATE INDEX jobs_children ON jobs (parent_id, id) WHERE depth > 0;
CREATE INDEX jobs_parked ON jobs (wake_at_ms) WHERE state = 'waiting';
CREATE INDEX jobs_unsettled ON jobs (finished_at_ms)
  WHERE is_settled = FALSE AND purge_at_ms IS NOT NULL AND (depth > 0 OR children > 0);

-- What a job has done outside, by a hash of what it asked for.
CREATE TABLE job_steps (
  job_id text NOT NULL,
  key text NOT NULL,
  kind text NOT NULL,
  output text NOT NULL,
  cost text NOT NULL,
  attempt integer NOT NULL,
  chunk integer NOT NULL,
  at_ms integer NOT NULL,
  PRIMARY KEY (job_id, key)
) STRICT, WITHOUT ROWID;
