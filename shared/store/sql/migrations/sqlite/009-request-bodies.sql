-- Bodies of attached calls, if REQUEST_BODIES_MS is set. `n` counts the rows, as in the table requests.
CREATE TABLE request_bodies (
  n integer PRIMARY KEY,
  -- Request id of the call.
  id text NOT NULL,
  at_ms integer NOT NULL,
  -- JSON, truncated to REQUEST_BODY_BYTES_MAX. NULL: the call failed, or its answer was too large to record.
  request text NOT NULL,
  answer text
) STRICT;
CREATE INDEX request_bodies_id ON request_bodies (id);
CREATE INDEX request_bodies_time ON request_bodies (at_ms, n);
