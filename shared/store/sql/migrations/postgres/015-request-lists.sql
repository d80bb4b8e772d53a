-- online
-- Retries of requests by the SDKs of callers, and lists without the lines of batches.
CREATE INDEX requests_retries ON requests (project, sdk_retry, (ended_at_ms + 0), n) WHERE sdk_retry IS NOT NULL;
CREATE INDEX requests_own ON requests ((ended_at_ms + 0), n) WHERE batch_id IS NULL;
CREATE INDEX requests_own_project ON requests (project, (ended_at_ms + 0), n) WHERE batch_id IS NULL;
