-- online: the indexes of each partition are created without blocking writes (migrate.ts).
-- Lists of jobs without the child jobs of batches and composed jobs, which may be 50,000 in a row. Each expression selects one index, as in
-- 001-schema.sql.
CREATE INDEX jobs_own_unended ON jobs (tenant, state, (id || ''), endpoint)
  WHERE depth = 0 AND coalesce(purge_at_ms, 0) < 1;
CREATE INDEX jobs_own_ended ON jobs (tenant, state, (id || ''))
  WHERE depth = 0 AND purge_at_ms IS NOT NULL AND coalesce(erased_at_ms, -1) < 0;
CREATE INDEX jobs_own ON jobs ((id || '')) WHERE depth = 0;
