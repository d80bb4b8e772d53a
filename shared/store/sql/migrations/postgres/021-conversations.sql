-- Conversations that responses go on in: each is one row, whose items are JSON.
CREATE TABLE conversations (
  id text NOT NULL PRIMARY KEY,
  tenant text NOT NULL,
  metadata text NOT NULL,
  items text NOT NULL,
  job_id text,
  pending text NOT NULL,
  version bigint NOT NULL,
  created_at_ms bigint NOT NULL,
  expires_at_ms bigint NOT NULL
);
CREATE INDEX conversations_tenant ON conversations (tenant);
CREATE INDEX conversations_expiry ON conversations (expires_at_ms);
