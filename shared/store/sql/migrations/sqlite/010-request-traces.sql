-- Requests of one trace.
CREATE INDEX requests_trace ON requests (trace_id, ended_at_ms) WHERE trace_id IS NOT NULL;
