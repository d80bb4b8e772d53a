-- Processes that a job was taken from, each followed by a space: those that renew their leases after all did not die of it.
ALTER TABLE jobs ADD COLUMN lost_by text;
CREATE INDEX jobs_lost ON jobs (lost_by) WHERE lost_by IS NOT NULL AND purge_at_ms IS NULL;
