-- The schema on SQLite. Times are Unix milliseconds unless a column says otherwise. JSON is text; booleans are 0 and 1. A change of the schema is
-- a new file (migrations.ts).

CREATE TABLE jobs (
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
  -- Set when the job ends.
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
  -- Processes whose lease on this job expired, each followed by a space. A process that renews its lease later did not crash.
  lost_by text,
  -- Above 0: a child of `parent_id`. At 0, `parent_id` is the job that this one repeats or belongs to.
  depth integer NOT NULL DEFAULT 0,
  -- Number of children and steps so far.
  children integer NOT NULL DEFAULT 0,
  steps integer NOT NULL DEFAULT 0,
  -- In state `waiting`: ids of the awaited children, and the time after which the job runs without them.
  awaits text,
  wake_at_ms integer,
  -- Whether the parent and the children have processed the end of this job.
  is_settled integer NOT NULL DEFAULT FALSE,
  -- Time in which a cancelled job may still write a partial result. NULL: the job ends at once.
  partial_ms integer,
  -- API key of the submission. NULL: the tenant is the key.
  key_id text,
  -- Usage as JSON, if the worker reported usage at the end.
  metered text,
  -- Maximum cost in billionths of a US dollar. Counts against budgets until the ledger has the real cost. NULL: no budget applied.
  reserved_nanos integer,
  -- Size of the request with its blobs.
  request_bytes integer NOT NULL DEFAULT 0,
  -- Size of output and steps. Counted from the end of the job.
  output_bytes integer NOT NULL DEFAULT 0
) STRICT;

-- Queue, timers and leases.
CREATE INDEX jobs_queued ON jobs (pool, published_at_ms) WHERE state = 'queued';
CREATE INDEX jobs_scheduled ON jobs (run_at_ms) WHERE state = 'scheduled';
CREATE INDEX jobs_waiting ON jobs (expires_at_ms) WHERE state IN ('queued', 'scheduled');
CREATE INDEX jobs_running ON jobs (owner) WHERE state = 'in_progress';
CREATE INDEX jobs_purge ON jobs (purge_at_ms) WHERE purge_at_ms IS NOT NULL;

-- Counts of queued and running jobs, by model and priority.
CREATE INDEX jobs_unended ON jobs (pool, model, priority, state, created_at_ms) WHERE purge_at_ms IS NULL;

-- Lists of jobs, in pages. A page is one range of an index per state. Unended jobs have separate indexes, so that a transition updates few of
-- them. Erased jobs are in none.
-- The expressions prevent plans that read all jobs: `id || ''` has another order than the primary key, and each `coalesce` selects one index.
-- The lists repeat them (jobs.ts, operator-statements.ts).
CREATE INDEX jobs_unended_tenant ON jobs (tenant, state, (id || ''), endpoint) WHERE purge_at_ms IS NULL;
CREATE INDEX jobs_ended_tenant ON jobs (tenant, state, (id || '')) WHERE purge_at_ms IS NOT NULL AND erased_at_ms IS NULL;
CREATE INDEX jobs_ended_endpoint ON jobs (tenant, endpoint, state, (id || ''))
  WHERE purge_at_ms IS NOT NULL AND coalesce(erased_at_ms, 0) = 0;
CREATE INDEX jobs_parent_state ON jobs (parent_id, state, (id || ''))
  WHERE parent_id IS NOT NULL AND erased_at_ms IS NULL;
CREATE INDEX jobs_parent_endpoint ON jobs (parent_id, endpoint, state, (id || ''))
  WHERE parent_id IS NOT NULL AND coalesce(erased_at_ms, 0) = 0;

-- Jobs whose crash count is corrected when the former owner renews its lease.
CREATE INDEX jobs_lost ON jobs (lost_by) WHERE lost_by IS NOT NULL AND purge_at_ms IS NULL;

-- Composed jobs: children of a job, waiting parents, and ended jobs whose family has not processed the end.
CREATE INDEX jobs_children ON jobs (parent_id, id) WHERE depth > 0;
CREATE INDEX jobs_parked ON jobs (wake_at_ms) WHERE state = 'waiting';
CREATE INDEX jobs_unsettled ON jobs (finished_at_ms)
  WHERE is_settled = FALSE AND purge_at_ms IS NOT NULL AND (depth > 0 OR children > 0);

-- Fair queue: queued and running jobs of a model by tenant.
CREATE INDEX jobs_queued_turns ON jobs (pool, kind, model, priority, tenant, id) WHERE state = 'queued';
CREATE INDEX jobs_running_turns ON jobs (pool, kind, model, priority, tenant) WHERE state = 'in_progress';

-- Lists of the jobs of all projects, for operators.
CREATE INDEX jobs_idle_state ON jobs (state, (id || '')) WHERE state IN ('queued', 'scheduled');
CREATE INDEX jobs_broken_state ON jobs (state, (id || ''))
  WHERE purge_at_ms IS NOT NULL AND erased_at_ms IS NULL AND state <> 'completed';

-- Limit of a key on queued jobs.
CREATE INDEX jobs_idle_key ON jobs (key_id, state) WHERE state IN ('queued', 'scheduled');

-- List of ended jobs without children, such as stored responses next to large batches.
CREATE INDEX jobs_own_endpoint ON jobs (tenant, endpoint, state, (id || ''))
  WHERE depth = 0 AND purge_at_ms IS NOT NULL AND coalesce(erased_at_ms, 0) < 1;

-- Reserved parts of budgets, of projects and of keys.
CREATE INDEX jobs_reserved_project ON jobs (tenant, reserved_nanos) WHERE reserved_nanos > 0 AND purge_at_ms IS NULL;
CREATE INDEX jobs_reserved_key ON jobs (key_id, reserved_nanos) WHERE reserved_nanos > 0 AND purge_at_ms IS NULL;

-- Events of each job, numbered without gaps.
CREATE TABLE job_events (
  job_id text NOT NULL,
  seq integer NOT NULL,
  attempt integer NOT NULL,
  chunk integer,
  type text NOT NULL,
  data text,
  at_ms integer NOT NULL,
  PRIMARY KEY (job_id, seq)
) STRICT, WITHOUT ROWID;

-- Results of the steps of a composed job, by a hash of the input.
CREATE TABLE job_steps (
  job_id text NOT NULL,
  key text NOT NULL,
  kind text NOT NULL,
  output text NOT NULL,
  cost text NOT NULL,
  attempt integer NOT NULL,
  chunk integer NOT NULL,
  at_ms integer NOT NULL,
  input text,
  PRIMARY KEY (job_id, key)
) STRICT, WITHOUT ROWID;

-- Idempotency keys of callers, with the job of each.
CREATE TABLE idempotency_keys (
  tenant text NOT NULL,
  scope text NOT NULL,
  key text NOT NULL,
  fingerprint text NOT NULL,
  job_id text NOT NULL,
  expires_at_ms integer NOT NULL,
  PRIMARY KEY (tenant, scope, key)
) STRICT;
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at_ms);

-- One row for each process that may own jobs.
CREATE TABLE processes (
  boot text NOT NULL PRIMARY KEY,
  role text NOT NULL,
  slots integer NOT NULL,
  version text NOT NULL,
  draining integer NOT NULL,
  lease_ms integer NOT NULL,
  lease_until_ms integer NOT NULL
) STRICT;

-- Leases of tasks that one process at a time runs.
CREATE TABLE leases (
  name text NOT NULL PRIMARY KEY,
  holder text NOT NULL,
  since_ms integer NOT NULL,
  until_ms integer NOT NULL
) STRICT;

-- Webhook messages.
CREATE TABLE deliveries (
  id text NOT NULL PRIMARY KEY,
  job_id text NOT NULL,
  seq integer NOT NULL,
  tenant text NOT NULL,
  url text NOT NULL,
  type text NOT NULL,
  state text NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
  tries integer NOT NULL DEFAULT 0,
  next_at_ms integer NOT NULL,
  status integer,
  error text,
  created_at_ms integer NOT NULL,
  purge_at_ms integer NOT NULL,
  -- The last tries as JSON, oldest first: time, duration and outcome of each.
  history text
) STRICT;
CREATE INDEX deliveries_job ON deliveries (job_id, seq);
CREATE INDEX deliveries_due ON deliveries (next_at_ms) WHERE state = 'pending';
CREATE INDEX deliveries_purge ON deliveries (purge_at_ms);
CREATE INDEX deliveries_undelivered ON deliveries (state, (id || '')) WHERE state <> 'delivered';
CREATE INDEX deliveries_delivered ON deliveries (state, (id || '')) WHERE state = 'delivered';

-- Models and pools that an operator has paused: none of their jobs is started.
CREATE TABLE paused_work (
  what text NOT NULL CHECK (what IN ('model', 'pool')),
  id text NOT NULL,
  -- Id of the key that paused it.
  by_key text NOT NULL,
  since_ms integer NOT NULL,
  PRIMARY KEY (what, id)
) STRICT;

-- Files of projects. Their bytes are blobs with the same name.
CREATE TABLE files (
  id text NOT NULL PRIMARY KEY,
  tenant text NOT NULL,
  purpose text NOT NULL,
  filename text NOT NULL,
  bytes integer NOT NULL,
  created_at_ms integer NOT NULL,
  expires_at_ms integer NOT NULL,
  -- Number of jobs that refer to a shared file, such as the history of chained responses.
  refs integer NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX files_tenant ON files (tenant, id, bytes);
CREATE INDEX files_purpose ON files (tenant, purpose, id);
CREATE INDEX files_expiry ON files (expires_at_ms);

-- Conversations that responses continue. Each is one row, with its items as JSON.
CREATE TABLE conversations (
  id text NOT NULL PRIMARY KEY,
  tenant text NOT NULL,
  metadata text NOT NULL,
  items text NOT NULL,
  job_id text,
  pending text NOT NULL,
  version integer NOT NULL,
  created_at_ms integer NOT NULL,
  expires_at_ms integer NOT NULL,
  -- Size of `items` and `pending` in characters.
  chars integer NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX conversations_expiry ON conversations (expires_at_ms);
CREATE INDEX conversations_chars ON conversations (tenant, chars);

-- The ledger: usage per day in UTC, with costs in billionths of a US dollar.
CREATE TABLE usage_days (
  project text NOT NULL,
  day text NOT NULL,
  key_id text NOT NULL,
  model text NOT NULL,
  calls integer NOT NULL,
  failed integer NOT NULL,
  input_tokens integer NOT NULL,
  cached_input_tokens integer NOT NULL,
  output_tokens integer NOT NULL,
  audio_ms integer NOT NULL,
  cost_nanos integer NOT NULL,
  PRIMARY KEY (project, day, key_id, model)
) STRICT;
CREATE INDEX usage_days_day ON usage_days (day);
CREATE INDEX usage_days_key ON usage_days (key_id, day);

-- The last batch that each process has added. A batch whose answer was lost is not added twice.
CREATE TABLE usage_writers (
  boot text NOT NULL PRIMARY KEY,
  batch integer NOT NULL,
  at_ms integer NOT NULL
) STRICT;

-- Ended durable jobs that are not in the ledger yet.
CREATE TABLE usage_ended (
  job_id text NOT NULL PRIMARY KEY,
  project text NOT NULL,
  key_id text NOT NULL,
  pool text NOT NULL,
  model text NOT NULL,
  state text NOT NULL,
  metered text,
  ended_at_ms integer NOT NULL,
  reserved_nanos integer
) STRICT;

-- Records each ended job for the ledger, in the commit that ends it and for every transition.
CREATE TRIGGER note_ended AFTER UPDATE OF purge_at_ms ON jobs
  WHEN OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms, reserved_nanos)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms,
    NEW.reserved_nanos)
  ON CONFLICT (job_id) DO NOTHING;
END;

-- Stored bytes of each project: files, bodies and results of jobs with their blobs, and conversations. Triggers count each change in the commit
-- that makes it. `shard` is 0, because one process writes.
CREATE TABLE stored_bytes (tenant text NOT NULL, shard integer NOT NULL, bytes integer NOT NULL, PRIMARY KEY (tenant, shard)) STRICT;

CREATE TRIGGER stored_job_added AFTER INSERT ON jobs WHEN NEW.request_bytes > 0 BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.request_bytes WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_job_ended AFTER UPDATE OF purge_at_ms ON jobs
  WHEN OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL AND NEW.output_bytes > 0 BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.output_bytes WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_job_erased AFTER UPDATE OF erased_at_ms ON jobs
  WHEN OLD.request_bytes + OLD.output_bytes <> NEW.request_bytes + NEW.output_bytes BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.request_bytes - OLD.output_bytes + NEW.request_bytes + NEW.output_bytes
  WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_job_deleted AFTER DELETE ON jobs WHEN OLD.request_bytes + OLD.output_bytes > 0 BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.request_bytes - OLD.output_bytes WHERE tenant = OLD.tenant AND shard = 0;
END;

CREATE TRIGGER stored_file_added AFTER INSERT ON files BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.bytes WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_file_deleted AFTER DELETE ON files BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant AND shard = 0;
END;

CREATE TRIGGER stored_conversation_added AFTER INSERT ON conversations BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.chars WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_conversation_changed AFTER UPDATE OF chars ON conversations BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.chars + NEW.chars WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_conversation_deleted AFTER DELETE ON conversations BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.chars WHERE tenant = OLD.tenant AND shard = 0;
END;
