-- What an unended job may cost, in billionths of a US dollar: it counts against budgets until the ledger has the real cost. NULL: no budget
-- held it when it was submitted.
ALTER TABLE jobs ADD COLUMN reserved_nanos bigint;
ALTER TABLE usage_ended ADD COLUMN reserved_nanos bigint;

CREATE OR REPLACE FUNCTION note_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO usage_ended (job_id, project, key_id, pool, model, state, metered, ended_at_ms, reserved_nanos)
  VALUES (NEW.id, NEW.tenant, coalesce(NEW.key_id, NEW.tenant), NEW.pool, NEW.model, NEW.state, NEW.metered, NEW.finished_at_ms,
    NEW.reserved_nanos)
  ON CONFLICT (job_id) DO NOTHING;
  RETURN NULL;
END $$;
