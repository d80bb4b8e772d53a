-- Bytes that each project stores: files, bodies and results of jobs with their blobs, and conversations. Kept by triggers, so that whatever
-- writes, moves or deletes a row counts it in the same commit. Each backend has a row of its own, `shard`, so that no two transactions wait
-- for each other; the scheduler adds them to shard 0.
CREATE TABLE stored_bytes (
  tenant text NOT NULL,
  shard integer NOT NULL,
  bytes bigint NOT NULL,
  PRIMARY KEY (tenant, shard)
) WITH (fillfactor = 50);

-- What processes are about to store: worth nothing after a crash. A reservation ends by itself unless its process renews it.
CREATE UNLOGGED TABLE reserved_bytes (
  tenant text NOT NULL,
  boot text NOT NULL,
  bytes bigint NOT NULL,
  until_ms bigint NOT NULL,
  PRIMARY KEY (tenant, boot)
);

ALTER TABLE jobs
  -- Of the request, with its blobs.
  ADD COLUMN request_bytes bigint NOT NULL DEFAULT 0,
  -- Of what it has put out and remembers: counted from its end on.
  ADD COLUMN output_bytes bigint NOT NULL DEFAULT 0;

CREATE FUNCTION count_stored(whose text, amount bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
  INSERT INTO stored_bytes AS held (tenant, shard, bytes) VALUES (whose, pg_backend_pid(), amount)
  ON CONFLICT (tenant, shard) DO UPDATE SET bytes = held.bytes + excluded.bytes
$$;

CREATE FUNCTION stored_jobs_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM count_stored(tenant, sum(request_bytes)::bigint) FROM added WHERE request_bytes > 0 GROUP BY tenant;
  RETURN NULL;
END $$;
CREATE TRIGGER stored_jobs_added AFTER INSERT ON jobs REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION stored_jobs_added();

CREATE FUNCTION stored_job_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    PERFORM count_stored(OLD.tenant, -OLD.request_bytes - OLD.output_bytes);
  ELSIF OLD.purge_at_ms IS NULL THEN
    PERFORM count_stored(NEW.tenant, NEW.output_bytes);
  ELSE
    PERFORM count_stored(NEW.tenant, NEW.request_bytes + NEW.output_bytes - OLD.request_bytes - OLD.output_bytes);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER stored_job_ended AFTER UPDATE OF purge_at_ms ON jobs FOR EACH ROW
  WHEN (OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL AND NEW.output_bytes > 0) EXECUTE FUNCTION stored_job_changed();
CREATE TRIGGER stored_job_erased AFTER UPDATE OF erased_at_ms ON jobs FOR EACH ROW
  WHEN (OLD.request_bytes + OLD.output_bytes <> NEW.request_bytes + NEW.output_bytes) EXECUTE FUNCTION stored_job_changed();
CREATE TRIGGER stored_job_deleted AFTER DELETE ON jobs FOR EACH ROW
  WHEN (OLD.request_bytes + OLD.output_bytes > 0) EXECUTE FUNCTION stored_job_changed();

CREATE FUNCTION stored_file_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    PERFORM count_stored(OLD.tenant, -OLD.bytes);
  ELSE
    PERFORM count_stored(NEW.tenant, NEW.bytes);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER stored_file_changed AFTER INSERT OR DELETE ON files FOR EACH ROW EXECUTE FUNCTION stored_file_changed();

CREATE FUNCTION stored_conversation_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    PERFORM count_stored(OLD.tenant, -OLD.chars);
  ELSIF TG_OP = 'INSERT' THEN
    PERFORM count_stored(NEW.tenant, NEW.chars);
  ELSIF NEW.chars <> OLD.chars THEN
    PERFORM count_stored(NEW.tenant, NEW.chars - OLD.chars);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER stored_conversation_changed AFTER INSERT OR UPDATE OF chars OR DELETE ON conversations
  FOR EACH ROW EXECUTE FUNCTION stored_conversation_changed();

INSERT INTO stored_bytes SELECT tenant, 0, sum(bytes) FROM (
  SELECT tenant, bytes FROM files UNION ALL SELECT tenant, chars FROM conversations) AS kept GROUP BY tenant;

-- Sets what a process reserves of a project, unless the project would then store more than it may: less is always granted. Of several
-- that ask at once each sees the reservations before it. Gives what the project stores, with the reservations of other processes.
CREATE FUNCTION hold_bytes(whose text, holder text, wanted bigint, most bigint, keep_ms bigint)
RETURNS TABLE (is_granted boolean, used bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  before bigint;
  stored bigint;
  granted boolean;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' stored ' || whose, 0));
  SELECT coalesce(sum(bytes), 0) INTO stored FROM stored_bytes WHERE tenant = whose;
  SELECT stored + coalesce(sum(bytes) FILTER (WHERE boot <> holder), 0), coalesce(sum(bytes) FILTER (WHERE boot = holder), 0)
    INTO stored, before FROM reserved_bytes
    WHERE tenant = whose AND until_ms > now_ms() AND until_ms <= now_ms() + 2 * keep_ms;
  granted := wanted <= before OR stored + wanted <= most;
  IF granted AND wanted > 0 THEN
    INSERT INTO reserved_bytes AS held (tenant, boot, bytes, until_ms) VALUES (whose, holder, wanted, now_ms() + keep_ms)
    ON CONFLICT (tenant, boot) DO UPDATE SET bytes = excluded.bytes, until_ms = excluded.until_ms;
  ELSIF granted THEN
    DELETE FROM reserved_bytes WHERE tenant = whose AND boot = holder;
  END IF;
  RETURN QUERY SELECT granted, stored;
END $$;
