-- online: each statement alone, without keeping anybody from writing (postgres-online.ts).
-- Pages of the jobs of all projects, for operators: those that wait to be started, and those that ended badly. They are ordered by
-- an expression that the primary key does not have, as the pages of one project are.
CREATE INDEX jobs_idle_state ON jobs (state, (id || '')) WHERE state IN ('queued', 'scheduled');
CREATE INDEX jobs_broken_state ON jobs (state, (id || ''))
  WHERE purge_at_ms IS NOT NULL AND erased_at_ms IS NULL AND state <> 'completed';
-- Messages to webhooks that nobody has received.
CREATE INDEX deliveries_undelivered ON deliveries (state, (id || '')) WHERE state <> 'delivered';
