-- Bytes that each project stores: files, bodies and results of jobs with their blobs, and conversations. Kept by triggers, so that whatever
-- writes, moves or deletes a row counts it in the same commit. `shard` is 0 here: one process writes.
CREATE TABLE stored_bytes (tenant text NOT NULL, shard integer NOT NULL, bytes integer NOT NULL, PRIMARY KEY (tenant, shard)) STRICT;

-- Of the request of a job, with its blobs; and of what it has put out and remembers. The latter counts from its end on.
ALTER TABLE jobs ADD COLUMN request_bytes integer NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN output_bytes integer NOT NULL DEFAULT 0;

CREATE TRIGGER stored_job_added AFTER INSERT ON jobs WHEN NEW.request_bytes > 0 BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.request_bytes WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_job_ended AFTER UPDATE OF purge_at_ms ON jobs
  WHEN OLD.purge_at_ms IS NULL AND NEW.purge_at_ms IS NOT NULL AND NEW.output_bytes > 0 BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.output_bytes WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_job_erased AFTER UPDATE OF erased_at_ms ON jobs
  WHEN OLD.request_bytes + OLD.output_bytes <> NEW.request_bytes + NEW.output_bytes BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.request_bytes - OLD.output_bytes + NEW.request_bytes + NEW.output_bytes
  WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_job_deleted AFTER DELETE ON jobs WHEN OLD.request_bytes + OLD.output_bytes > 0 BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.request_bytes - OLD.output_bytes WHERE tenant = OLD.tenant AND shard = 0;
END;

CREATE TRIGGER stored_file_added AFTER INSERT ON files BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.bytes WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_file_deleted AFTER DELETE ON files BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant AND shard = 0;
END;

CREATE TRIGGER stored_conversation_added AFTER INSERT ON conversations BEGIN
  INSERT INTO stored_bytes SELECT NEW.tenant, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_bytes WHERE tenant = NEW.tenant AND shard = 0);
  UPDATE stored_bytes SET bytes = bytes + NEW.chars WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_conversation_changed AFTER UPDATE OF chars ON conversations BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.chars + NEW.chars WHERE tenant = NEW.tenant AND shard = 0;
END;
CREATE TRIGGER stored_conversation_deleted AFTER DELETE ON conversations BEGIN
  UPDATE stored_bytes SET bytes = bytes - OLD.chars WHERE tenant = OLD.tenant AND shard = 0;
END;

INSERT INTO stored_bytes SELECT tenant, 0, sum(bytes) FROM (
  SELECT tenant, bytes FROM files UNION ALL SELECT tenant, chars FROM conversations) GROUP BY tenant;
