-- online
-- Number and age of the pending webhook deliveries.
CREATE INDEX deliveries_pending ON deliveries (created_at_ms) WHERE state = 'pending';
