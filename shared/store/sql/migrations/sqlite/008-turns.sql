-- Jobs that wait for a model, tenant by tenant, for workers that give each tenant its turn, and how many of each run.
CREATE INDEX jobs_queued_turns ON jobs (pool, kind, model, priority, tenant, id) WHERE state = 'queued';
CREATE INDEX jobs_running_turns ON jobs (pool, kind, model, priority, tenant) WHERE state = 'in_progress';
DROP INDEX jobs_queued_models;
