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
