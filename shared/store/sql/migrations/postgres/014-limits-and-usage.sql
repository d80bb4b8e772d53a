-- What all ingresses count together against limits: worth nothing after a crash, so it is not logged. A name is that of a key
-- or of a project, with what is counted: there are as many rows as limits.
CREATE UNLOGGED TABLE rate_windows (
  name text NOT NULL PRIMARY KEY,
  used bigint NOT NULL,
  ends_at_ms bigint NOT NULL
);
-- By boot id: how many calls run in that ingress, and until when it counts.
CREATE UNLOGGED TABLE running_calls (
  name text NOT NULL PRIMARY KEY,
  said jsonb NOT NULL
);

ALTER TABLE jobs
  -- The key it was submitted with. NULL: submitted before this was kept, when the tenant was the key.
  ADD COLUMN key_id text,
  -- What it used, as JSON, where its owner said so at its end.
  ADD COLUMN metered text;

-- The ledger: what was used, by day of UTC, in units and in billionths of a US dollar.
CREATE TABLE usage_days (
  project text NOT NULL,
  day text COLLATE "C" NOT NULL,
  key_id text NOT NULL,
  model text NOT NULL,
  calls bigint NOT NULL,
  failed bigint NOT NULL,
  input_tokens bigint NOT NULL,
  cached_input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  audio_ms bigint NOT NULL,
  cost_nanos bigint NOT NULL,
  PRIMARY KEY (project, day, key_id, model)
);
CREATE INDEX usage_days_day ON usage_days (day);
CREATE INDEX usage_days_key ON usage_days (key_id, day);

-- The last batch that each process has added, so that one whose answer was lost is not added twice.
CREATE TABLE usage_writers (
  boot text NOT NULL PRIMARY KEY,
  batch bigint NOT NULL,
  at_ms bigint NOT NULL
);

-- Durable jobs that have ended and are not in the ledger yet.
CREATE TABLE usage_ended (
  job_id text COLLATE "C" NOT NULL PRIMARY KEY,
  project text NOT NULL,
  key_id text NOT NULL,
  pool text NOT NULL,
  model text NOT NULL,
  state text NOT NULL,
  metered text,
  ended_at_ms bigint NOT NULL
);

-- Whichever move ends a job, and whichever version makes it: the job is noted in the same commit, once.
CREATE FUNCTION note_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms)
  ON CONFLICT (job_id) DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER note_ended AFTER UPDATE OF purge_at_ms ON jobs FOR EACH ROW
  WHEN (OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL) EXECUTE FUNCTION note_ended();
