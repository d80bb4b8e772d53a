-- The request log: one row per ended call, in partitions by day. `n` counts the rows, so the difference of two rows
-- approximates the number of rows between them.
CREATE SEQUENCE requests_n;
CREATE TABLE requests (
  n bigint NOT NULL DEFAULT nextval('requests_n'),
  -- Request id of the call, `req_…`. For a child job, such as a line of a batch: its job id.
  id text NOT NULL,
  started_at_ms bigint NOT NULL,
  ended_at_ms bigint NOT NULL,
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
  queue_ms bigint,
  first_output_ms bigint,
  duration_ms bigint NOT NULL,
  -- Tokens and costs are those of the ledger: a composed job has none, because its children have rows of their own.
  input_tokens bigint NOT NULL,
  cached_input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  -- Billionths of a US dollar.
  cost_nanos bigint NOT NULL,
  attempts integer NOT NULL,
  -- Id of a durable job; NULL for attached calls.
  job_id text,
  -- Id of the batch that the line belongs to, as a job id.
  batch_id text,
  trace_id text,
  user_agent text,
  PRIMARY KEY (ended_at_ms, n)
) PARTITION BY RANGE (ended_at_ms);
-- The sum selects the index: the primary key cannot serve a list in the order of `ended_at_ms + 0`.
CREATE INDEX requests_id ON requests (id);
CREATE INDEX requests_project ON requests (project, (ended_at_ms + 0), n);
CREATE INDEX requests_model ON requests (model, (ended_at_ms + 0), n);
CREATE INDEX requests_failed ON requests ((ended_at_ms + 0), n) WHERE status >= 400;
CREATE INDEX requests_failed_project ON requests (project, (ended_at_ms + 0), n) WHERE status >= 400;
CREATE INDEX requests_job ON requests (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX requests_batch ON requests (batch_id, (ended_at_ms + 0), n) WHERE batch_id IS NOT NULL;
