-- Durable jobs (DESIGN sections 1 to 3). Times are unix milliseconds of this database; JSON is kept as the text it came
-- as, since jsonb refuses strings that JSON allows (NUL, lone surrogates).

CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql STABLE
AS $$ SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;

-- Ids begin with their time and sort like it, so ranges of ids are days. Partitions are made ahead and dropped whole.
CREATE TABLE jobs (
  id text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant text NOT NULL,
  parent_id text,
  pool text NOT NULL,
  kind text NOT NULL,
  endpoint text NOT NULL,
  model text NOT NULL,
  priority text NOT NULL,
  stream boolean NOT NULL,
  state text NOT NULL CHECK
    (state IN ('queued', 'scheduled', 'in_progress', 'completed', 'failed', 'cancelled', 'expired')),
  attempt integer NOT NULL DEFAULT 0,
  tries integer NOT NULL DEFAULT 0,
  crashes integer NOT NULL DEFAULT 0,
  owner text,
  chunk integer NOT NULL DEFAULT 0,
  has_output boolean NOT NULL DEFAULT FALSE,
  last_seq integer NOT NULL DEFAULT 0,
  cancel_requested_at_ms bigint,
  run_at_ms bigint NOT NULL,
  expires_at_ms bigint NOT NULL,
  deadline_ms bigint NOT NULL,
  published_at_ms bigint,
  created_at_ms bigint NOT NULL,
  started_at_ms bigint,
  finished_at_ms bigint,
  retention_ms bigint NOT NULL,
  purge_at_ms bigint,
  erased_at_ms bigint,
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
) PARTITION BY RANGE (id);

CREATE INDEX jobs_tenant ON jobs (tenant, id);
CREATE INDEX jobs_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_queued ON jobs (pool, published_at_ms) WHERE state = 'queued';
CREATE INDEX jobs_scheduled ON jobs (run_at_ms) WHERE state = 'scheduled';
CREATE INDEX jobs_waiting ON jobs (expires_at_ms) WHERE state IN ('queued', 'scheduled');
CREATE INDEX jobs_running ON jobs (owner) WHERE state = 'in_progress';
CREATE INDEX jobs_purge ON jobs (purge_at_ms) WHERE purge_at_ms IS NOT NULL;

-- What happened to each job, numbered without gaps. In the partition of the job's day, and dropped with it.
CREATE TABLE job_events (
  job_id text COLLATE "C" NOT NULL,
  seq integer NOT NULL,
  attempt integer NOT NULL,
  chunk integer,
  type text NOT NULL,
  data text,
  at_ms bigint NOT NULL,
  PRIMARY KEY (job_id, seq)
) PARTITION BY RANGE (job_id);

-- A caller's key and the job it stands for.
CREATE TABLE idempotency_keys (
  tenant text NOT NULL,
  scope text NOT NULL,
  key text NOT NULL,
  fingerprint text NOT NULL,
  job_id text NOT NULL,
  expires_at_ms bigint NOT NULL,
  PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at_ms);

-- One row for each process that may own jobs.
CREATE TABLE processes (
  boot text NOT NULL PRIMARY KEY,
  role text NOT NULL,
  slots integer NOT NULL,
  version text NOT NULL,
  draining boolean NOT NULL,
  lease_ms bigint NOT NULL,
  lease_until_ms bigint NOT NULL
);

-- What only one process does at a time.
CREATE TABLE leases (
  name text NOT NULL PRIMARY KEY,
  holder text NOT NULL,
  since_ms bigint NOT NULL,
  until_ms bigint NOT NULL
);

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
  next_at_ms bigint NOT NULL,
  status integer,
  error text,
  created_at_ms bigint NOT NULL,
  purge_at_ms bigint NOT NULL
);
CREATE INDEX deliveries_job ON deliveries (job_id, seq);
CREATE INDEX deliveries_due ON deliveries (next_at_ms) WHERE state = 'pending';
CREATE INDEX deliveries_purge ON deliveries (purge_at_ms);
