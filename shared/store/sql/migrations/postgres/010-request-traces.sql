-- online
-- Requests of one trace.
CREATE INDEX requests_trace ON requests (trace_id, (ended_at_ms + 0), n) WHERE trace_id IS NOT NULL;
