-- Durable jobs (DESIGN sections 1 to 3). Times are unix milliseconds; JSON is text; booleans are 0 and 1.

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
    (state IN ('queued', 'scheduled', 'in_progress', 'completed', 'failed', 'cancelled', 'expired')),
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
  result text
) STRICT;

CREATE INDEX jobs_tenant ON jobs (tenant, id);
CREATE INDEX jobs_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_queued ON jobs (pool, published_at_ms) WHERE state = 'queued';
CREATE INDEX jobs_scheduled ON jobs (run_at_ms) WHERE state = 'scheduled';
CREATE INDEX jobs_waiting ON jobs (expires_at_ms) WHERE state IN ('queued', 'scheduled');
CREATE INDEX jobs_running ON jobs (owner) WHERE state = 'in_progress';
CREATE INDEX jobs_purge ON jobs (purge_at_ms) WHERE purge_at_ms IS NOT NULL;

-- What happened to each job, numbered without gaps.
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

-- A caller's key and the job it stands for.
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

-- What only one process does at a time.
CREATE TABLE leases (
  name text NOT NULL PRIMARY KEY,
  holder text NOT NULL,
  since_ms integer NOT NULL,
  until_ms integer NOT NULL
) STRICT;

-- Messages to webhooks.
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
  purge_at_ms integer NOT NULL
) STRICT;
CREATE INDEX deliveries_job ON deliveries (job_id, seq);
CREATE INDEX deliveries_due ON deliveries (next_at_ms) WHERE state = 'pending';
CREATE INDEX deliveries_purge ON deliveries (purge_at_ms);
