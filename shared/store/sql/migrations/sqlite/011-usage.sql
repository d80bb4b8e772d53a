-- The key it was submitted with; NULL: submitted before this was kept, when the tenant was the key.
ALTER TABLE jobs ADD COLUMN key_id text;
-- What it used, as JSON, where its owner said so at its end.
ALTER TABLE jobs ADD COLUMN metered text;

-- The ledger: what was used, by day of UTC, in units and in billionths of a US dollar.
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

-- The last batch that each process has added, so that one whose answer was lost is not added twice.
CREATE TABLE usage_writers (
  boot text NOT NULL PRIMARY KEY,
  batch integer NOT NULL,
  at_ms integer NOT NULL
) STRICT;

-- Durable jobs that have ended and are not in the ledger yet.
CREATE TABLE usage_ended (
  job_id text NOT NULL PRIMARY KEY,
  project text NOT NULL,
  key_id text NOT NULL,
  pool text NOT NULL,
  model text NOT NULL,
  state text NOT NULL,
  metered text,
  ended_at_ms integer NOT NULL
) STRICT;

-- Whichever move ends a job: it is noted in the same commit, once.
CREATE TRIGGER note_ended AFTER UPDATE OF purge_at_ms ON jobs
  WHEN OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms)
  ON CONFLICT (job_id) DO NOTHING;
END;
