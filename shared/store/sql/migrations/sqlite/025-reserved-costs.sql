-- What an unended job may cost, in billionths of a US dollar: it counts against budgets until the ledger has the real cost. NULL: no budget
-- held it when it was submitted.
ALTER TABLE jobs ADD COLUMN reserved_nanos integer;
ALTER TABLE usage_ended ADD COLUMN reserved_nanos integer;
CREATE INDEX jobs_reserved_project ON jobs (tenant, reserved_nanos) WHERE reserved_nanos > 0 AND purge_at_ms IS NULL;
CREATE INDEX jobs_reserved_key ON jobs (key_id, reserved_nanos) WHERE reserved_nanos > 0 AND purge_at_ms IS NULL;

DROP TRIGGER note_ended;
CREATE TRIGGER note_ended AFTER UPDATE OF purge_at_ms ON jobs
  WHEN OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms, reserved_nanos)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms,
    NEW.reserved_nanos)
  ON CONFLICT (job_id) DO NOTHING;
END;
