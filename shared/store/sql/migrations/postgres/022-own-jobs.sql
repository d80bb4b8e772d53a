-- online: each statement alone, without keeping anybody from writing (postgres-online.ts).
-- Those jobs of an endpoint that have ended and that no other job has made: what a caller stored is found among the calls of large
-- batches. It says in words of its own what is not erased, as the lists do that are to use it (list-jobs.ts).
CREATE INDEX jobs_own_endpoint ON jobs (tenant, endpoint, state, (id || ''))
  WHERE depth = 0 AND purge_at_ms IS NOT NULL AND coalesce(erased_at_ms, 0) < 1;
