-- Bodies of a key or project with its own retention. NULL: the retention is the setting REQUEST_BODIES_MS.
ALTER TABLE request_bodies ADD COLUMN expires_at_ms bigint;
DROP INDEX request_bodies_time;
CREATE INDEX request_bodies_time ON request_bodies (at_ms, n) WHERE expires_at_ms IS NULL;
CREATE INDEX request_bodies_expiry ON request_bodies (expires_at_ms, n) WHERE expires_at_ms IS NOT NULL;
