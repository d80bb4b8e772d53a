-- The ledger with the hour in UTC and the endpoint. Costs are in billionths of a US dollar. The hours of days older than a week are merged into
-- hour 00 of their day. Rows of older versions have no endpoint.
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

INSERT INTO usage_hours
  SELECT project, day || 'T00', key_id, model, '', calls, failed, input_tokens, cached_input_tokens, output_tokens, audio_ms, cost_nanos
  FROM usage_days;
DROP TABLE usage_days;

-- The endpoint of an ended job, for the ledger.
ALTER TABLE usage_ended ADD COLUMN endpoint text NOT NULL DEFAULT '';
DROP TRIGGER note_ended;
CREATE TRIGGER note_ended AFTER UPDATE OF purge_at_ms ON jobs
  WHEN OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms, reserved_nanos, endpoint)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms,
    NEW.reserved_nanos, NEW.endpoint)
  ON CONFLICT (job_id) DO NOTHING;
END;
