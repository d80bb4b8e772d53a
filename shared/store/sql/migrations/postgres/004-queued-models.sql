-- online: each statement alone, without keeping anybody from writing (postgres-online.ts).
-- The oldest jobs that wait for a model, for the workers that take them when they have room.
CREATE INDEX jobs_queued_models ON jobs (pool, kind, model, priority, id) WHERE state = 'queued';
