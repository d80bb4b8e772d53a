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
  user_agent text
) STRICT;
CREATE INDEX requests_time ON requests (ended_at_ms);
CREATE INDEX requests_id ON requests (id);
CREATE INDEX requests_project ON requests (project, ended_at_ms);
CREATE INDEX requests_model ON requests (model, ended_at_ms);
CREATE INDEX requests_failed ON requests (ended_at_ms) WHERE status >= 400;
CREATE INDEX requests_failed_project ON requests (project, ended_at_ms) WHERE status >= 400;
CREATE INDEX requests_job ON requests (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX requests_batch ON requests (batch_id, ended_at_ms) WHERE batch_id IS NOT NULL;
