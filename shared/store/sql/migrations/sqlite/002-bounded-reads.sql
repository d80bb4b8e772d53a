-- However many jobs are kept, these find the few that are asked for. Those that have not ended have indexes of their own, so
-- that a job is entered in few of them whenever it moves. What is erased is in none.

-- The count of what waits and runs.
CREATE INDEX jobs_unended ON jobs (pool, model, priority, state, created_at_ms) WHERE purge_at_ms IS NULL;

-- Pages of jobs, newest or oldest first: one range of an index for each state. A planner may not choose: the primary key has
-- the same order, and leads through all that is not asked for. So these order ids by an expression that it does not have, and
-- those with an endpoint say in other words what is not erased; so do the lists that are to use them.
CREATE INDEX jobs_unended_tenant ON jobs (tenant, state, (id || ''), endpoint) WHERE purge_at_ms IS NULL;
CREATE INDEX jobs_ended_tenant ON jobs (tenant, state, (id || '')) WHERE purge_at_ms IS NOT NULL AND erased_at_ms IS NULL;
CREATE INDEX jobs_ended_endpoint ON jobs (tenant, endpoint, state, (id || ''))
  WHERE purge_at_ms IS NOT NULL AND coalesce(erased_at_ms, 0) = 0;
CREATE INDEX jobs_parent_state ON jobs (parent_id, state, (id || ''))
  WHERE parent_id IS NOT NULL AND erased_at_ms IS NULL;
CREATE INDEX jobs_parent_endpoint ON jobs (parent_id, endpoint, state, (id || ''))
  WHERE parent_id IS NOT NULL AND coalesce(erased_at_ms, 0) = 0;

-- The new ones serve what these did.
DROP INDEX jobs_tenant;
DROP INDEX jobs_parent;
