-- online: each statement alone, without keeping anybody from writing (postgres-online.ts).
-- Jobs whose crashes a process takes back when it renews its lease.
CREATE INDEX jobs_lost ON jobs (lost_by) WHERE lost_by IS NOT NULL AND purge_at_ms IS NULL;
