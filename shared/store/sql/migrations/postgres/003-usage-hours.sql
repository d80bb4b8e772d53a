-- The ledger with the hour in UTC and the endpoint. Costs are in billionths of a US dollar. The hours of days older than a week are merged into
-- hour 00 of their day. Rows of older versions have no endpoint.
CREATE TABLE usage_hours (
  project text NOT NULL,
  -- Such as 2030-01-31T08.
  hour text COLLATE "C" NOT NULL,
  key_id text NOT NULL,
  model text NOT NULL,
  endpoint text NOT NULL,
  calls bigint NOT NULL,
  failed bigint NOT NULL,
  input_tokens bigint NOT NULL,
  cached_input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  audio_ms bigint NOT NULL,
  cost_nanos bigint NOT NULL,
  PRIMARY KEY (project, hour, key_id, model, endpoint)
);
CREATE INDEX usage_hours_hour ON usage_hours (hour);
CREATE INDEX usage_hours_key ON usage_hours (key_id, hour);
CREATE INDEX usage_hours_unmerged ON usage_hours (hour) WHERE substr(hour, 12) <> '00';

-- During a rolling upgrade, processes of the previous version read and write usage_days. Their amounts are added to usage_hours, too.
CREATE FUNCTION add_usage_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO usage_hours AS held
  VALUES (NEW.project, NEW.day || 'T00', NEW.key_id, NEW.model, '', NEW.calls - coalesce(OLD.calls, 0), NEW.failed - coalesce(OLD.failed, 0),
    NEW.input_tokens - coalesce(OLD.input_tokens, 0), NEW.cached_input_tokens - coalesce(OLD.cached_input_tokens, 0),
    NEW.output_tokens - coalesce(OLD.output_tokens, 0), NEW.audio_ms - coalesce(OLD.audio_ms, 0), NEW.cost_nanos - coalesce(OLD.cost_nanos, 0))
  ON CONFLICT (project, hour, key_id, model, endpoint) DO UPDATE SET calls = held.calls + excluded.calls,
    failed = held.failed + excluded.failed, input_tokens = held.input_tokens + excluded.input_tokens,
    cached_input_tokens = held.cached_input_tokens + excluded.cached_input_tokens, output_tokens = held.output_tokens + excluded.output_tokens,
    audio_ms = held.audio_ms + excluded.audio_ms, cost_nanos = held.cost_nanos + excluded.cost_nanos;
  RETURN NULL;
END $$;
LOCK TABLE usage_days IN SHARE ROW EXCLUSIVE MODE;
CREATE TRIGGER add_usage_day AFTER INSERT OR UPDATE ON usage_days FOR EACH ROW EXECUTE FUNCTION add_usage_day();
INSERT INTO usage_hours
  SELECT project, day || 'T00', key_id, model, '', calls, failed, input_tokens, cached_input_tokens, output_tokens, audio_ms, cost_nanos
  FROM usage_days;

-- The endpoint of an ended job, for the ledger.
ALTER TABLE usage_ended ADD COLUMN endpoint text NOT NULL DEFAULT '';
CREATE OR REPLACE FUNCTION note_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms, reserved_nanos, endpoint)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms,
    NEW.reserved_nanos, NEW.endpoint)
  ON CONFLICT (job_id) DO NOTHING;
  RETURN NULL;
END $$;
