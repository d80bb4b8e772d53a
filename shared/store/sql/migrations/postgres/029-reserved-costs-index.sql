-- online: each statement alone, without keeping anybody from writing (postgres-online.ts).
-- Unended jobs that hold a part of a budget, for the sums of a project and of a key.
CREATE INDEX jobs_reserved_project ON jobs (tenant, reserved_nanos) WHERE reserved_nanos > 0 AND purge_at_ms IS NULL;
CREATE INDEX jobs_reserved_key ON jobs (key_id, reserved_nanos) WHERE reserved_nanos > 0 AND purge_at_ms IS NULL;
