-- Figures of the service over time: one row per project and 15 s, after a day per 5 minutes. The rows of the whole service have an empty
-- project. Times are Unix seconds, costs billionths of a US dollar.
CREATE TABLE history_samples (
  project text NOT NULL,
  at_s bigint NOT NULL,
  calls bigint NOT NULL,
  failed bigint NOT NULL,
  input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  cost_nanos bigint NOT NULL,
  queue_calls bigint NOT NULL,
  queue_ms bigint NOT NULL,
  first_calls bigint NOT NULL,
  first_ms bigint NOT NULL,
  queue_ms_max bigint NOT NULL,
  first_ms_max bigint NOT NULL,
  jobs_running bigint NOT NULL,
  jobs_waiting bigint NOT NULL,
  running bigint NOT NULL,
  waiting bigint NOT NULL,
  PRIMARY KEY (project, at_s)
);
CREATE INDEX history_samples_at ON history_samples (at_s);
CREATE INDEX history_samples_fine ON history_samples (at_s) WHERE at_s % 300 <> 0;
