-- online: each statement alone, without keeping anybody from writing (postgres-online.ts).
-- A family: the children of a job, those who wait, and those whose end is to be told.
CREATE INDEX jobs_children ON jobs (parent_id, id) WHERE depth > 0;
CREATE INDEX jobs_parked ON jobs (wake_at_ms) WHERE state = 'waiting';
CREATE INDEX jobs_unsettled ON jobs (finished_at_ms)
  WHERE is_settled = FALSE AND purge_at_ms IS NOT NULL AND (depth > 0 OR children > 0);
