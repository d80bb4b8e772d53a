-- API keys of a fleet; without Postgres they are in keys.json. Only hashes of secrets are kept. A key is never deleted,
-- only revoked: what it submitted still names it.
CREATE TABLE api_keys (
  id text PRIMARY KEY,
  hash text NOT NULL UNIQUE,
  hint text NOT NULL,
  name text,
  -- Unix seconds.
  created_at bigint NOT NULL,
  revoked boolean NOT NULL,
  -- JSON arrays; NULL: all.
  endpoints text,
  models text
);
