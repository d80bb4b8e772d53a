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
  -- The request as its caller sent it, or the beginning of it (shared/jobs/body.ts). NULL: another job submitted this job.
  input text,
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

-- Lists of jobs without the child jobs of batches and composed jobs, which may be 50,000 in a row.
CREATE INDEX jobs_own_unended ON jobs (tenant, state, (id || ''), endpoint)
  WHERE depth = 0 AND coalesce(purge_at_ms, 0) < 1;
CREATE INDEX jobs_own_ended ON jobs (tenant, state, (id || ''))
  WHERE depth = 0 AND purge_at_ms IS NOT NULL AND coalesce(erased_at_ms, -1) < 0;
CREATE INDEX jobs_own ON jobs ((id || '')) WHERE depth = 0;

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
  history text,
  -- Data of a webhook message that belongs to no job, as JSON. NULL: the message reports an event of its job.
  data text
) STRICT;
CREATE INDEX deliveries_job ON deliveries (job_id, seq);
CREATE INDEX deliveries_due ON deliveries (next_at_ms) WHERE state = 'pending';
-- Number and age of the pending deliveries.
CREATE INDEX deliveries_pending ON deliveries (created_at_ms) WHERE state = 'pending';
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

-- The ledger: usage per hour in UTC, with costs in billionths of a US dollar. The hours of days older than a week are merged into hour 00 of
-- their day.
CREATE TABLE usage_hours (
  project text NOT NULL,
  -- Such as 2030-01-31T08.
  hour text NOT NULL,
  key_id text NOT NULL,
  model text NOT NULL,
  endpoint text NOT NULL,
  calls integer NOT NULL,
  failed integer NOT NULL,
  input_tokens integer NOT NULL,
  cached_input_tokens integer NOT NULL,
  output_tokens integer NOT NULL,
  audio_ms integer NOT NULL,
  cost_nanos integer NOT NULL,
  PRIMARY KEY (project, hour, key_id, model, endpoint)
) STRICT;
CREATE INDEX usage_hours_hour ON usage_hours (hour);
CREATE INDEX usage_hours_key ON usage_hours (key_id, hour);
CREATE INDEX usage_hours_unmerged ON usage_hours (hour) WHERE substr(hour, 12) <> '00';

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
  reserved_nanos integer,
  endpoint text NOT NULL
) STRICT;

-- Records each ended job for the ledger, in the commit that ends it and for every transition.
CREATE TRIGGER note_ended AFTER UPDATE OF purge_at_ms ON jobs
  WHEN OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms, reserved_nanos, endpoint)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms,
    NEW.reserved_nanos, NEW.endpoint)
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

-- The request log: one row per ended call. `n` counts the rows, so the difference of two rows approximates the number of rows between them.
CREATE TABLE requests (
  n integer PRIMARY KEY,
  -- Request id of the call, `req_…`. For a child job, such as a line of a batch: its job id.
  id text NOT NULL,
  started_at_ms integer NOT NULL,
  ended_at_ms integer NOT NULL,
  project text NOT NULL,
  key_id text NOT NULL,
  -- Path of the route, such as /v1/chat/completions.
  endpoint text NOT NULL,
  -- NULL: the call was refused before its kind and model were known, or has none, such as the upload of a file.
  kind text,
  model text,
  -- Boot id of the process that ran the last attempt.
  worker text,
  -- HTTP status. 499: the caller left or cancelled before the end.
  status integer NOT NULL,
  error_code text,
  -- Times in ms. NULL: the job was not started, or has no output. `first_output_ms` counts from acceptance, and is NULL for durable jobs.
  queue_ms integer,
  first_output_ms integer,
  duration_ms integer NOT NULL,
  -- Tokens and costs are those of the ledger: a composed job has none, because its children have rows of their own.
  input_tokens integer NOT NULL,
  cached_input_tokens integer NOT NULL,
  output_tokens integer NOT NULL,
  -- Billionths of a US dollar.
  cost_nanos integer NOT NULL,
  attempts integer NOT NULL,
  -- Id of a durable job; NULL for attached calls.
  job_id text,
  -- Id of the batch that the line belongs to, as a job id.
  batch_id text,
  trace_id text,
  user_agent text,
  -- Upstream server of the last attempt: its index in base_urls of the model, after `model/` if a fallback ran the call.
  server text,
  -- Message and field of the error that the caller received, in bounded length. NULL: the request did not fail.
  error_message text,
  error_param text,
  -- Last message of the upstream server, and all failed attempts as a JSON array. NULL: no attempt failed.
  upstream_message text,
  failed_attempts text,
  -- Number of the retry by the SDK of the caller. NULL: the first request of the call, or unknown.
  sdk_retry integer,
  -- Names of body fields that the API does not define, separated by commas. NULL: none, or a durable job.
  unknown_parameters text,
  -- `json` or `tool_call`: the requested format that the answer does not have. NULL: the answer has the format, or was not checked.
  format_ignored text,
  -- For the row of a batch: number of its calls, and of those without a result. NULL: the row is not a batch.
  batch_calls integer,
  batch_failed integer
) STRICT;
CREATE INDEX requests_time ON requests (ended_at_ms);
CREATE INDEX requests_id ON requests (id);
CREATE INDEX requests_project ON requests (project, ended_at_ms);
CREATE INDEX requests_model ON requests (model, ended_at_ms);
CREATE INDEX requests_failed ON requests (ended_at_ms) WHERE status >= 400;
CREATE INDEX requests_failed_project ON requests (project, ended_at_ms) WHERE status >= 400;
CREATE INDEX requests_job ON requests (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX requests_batch ON requests (batch_id, ended_at_ms) WHERE batch_id IS NOT NULL;
CREATE INDEX requests_trace ON requests (trace_id, ended_at_ms) WHERE trace_id IS NOT NULL;
-- Retries of requests by the SDKs of callers, and lists without the lines of batches.
CREATE INDEX requests_retries ON requests (project, sdk_retry, ended_at_ms) WHERE sdk_retry IS NOT NULL;
CREATE INDEX requests_own ON requests (ended_at_ms) WHERE batch_id IS NULL;
CREATE INDEX requests_own_project ON requests (project, ended_at_ms) WHERE batch_id IS NULL;

-- Figures of the service over time: one row per project and 15 s, after a day per 5 minutes. The rows of the whole service have an empty
-- project. Times are Unix seconds, costs billionths of a US dollar.
CREATE TABLE history_samples (
  project text NOT NULL,
  at_s integer NOT NULL,
  calls integer NOT NULL,
  failed integer NOT NULL,
  input_tokens integer NOT NULL,
  output_tokens integer NOT NULL,
  cost_nanos integer NOT NULL,
  queue_calls integer NOT NULL,
  queue_ms integer NOT NULL,
  first_calls integer NOT NULL,
  first_ms integer NOT NULL,
  queue_ms_max integer NOT NULL,
  first_ms_max integer NOT NULL,
  jobs_running integer NOT NULL,
  jobs_waiting integer NOT NULL,
  running integer NOT NULL,
  waiting integer NOT NULL,
  PRIMARY KEY (project, at_s)
) STRICT;
CREATE INDEX history_samples_at ON history_samples (at_s);
CREATE INDEX history_samples_fine ON history_samples (at_s) WHERE at_s % 300 <> 0;

-- Bodies of attached calls, if REQUEST_BODIES_MS is set. `n` counts the rows, as in the table requests.
CREATE TABLE request_bodies (
  n integer PRIMARY KEY,
  -- Request id of the call.
  id text NOT NULL,
  at_ms integer NOT NULL,
  -- JSON, truncated to REQUEST_BODY_BYTES_MAX. NULL: the call failed, or its answer was too large to record.
  request text NOT NULL,
  answer text,
  -- End of the retention of a key or project. NULL: the retention is the setting REQUEST_BODIES_MS.
  expires_at_ms integer,
  -- First characters of the prompt and of the answer, for lists. NULL: the body has no text.
  prompt_preview text,
  answer_preview text
) STRICT;
CREATE INDEX request_bodies_id ON request_bodies (id);
CREATE INDEX request_bodies_time ON request_bodies (at_ms, n) WHERE expires_at_ms IS NULL;
CREATE INDEX request_bodies_expiry ON request_bodies (expires_at_ms, n) WHERE expires_at_ms IS NOT NULL;
