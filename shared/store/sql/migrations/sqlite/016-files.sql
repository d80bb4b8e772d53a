-- Files of projects: their bytes are blobs of the same name.
CREATE TABLE files (
  id text NOT NULL PRIMARY KEY,
  tenant text NOT NULL,
  purpose text NOT NULL,
  filename text NOT NULL,
  bytes integer NOT NULL,
  created_at_ms integer NOT NULL,
  expires_at_ms integer NOT NULL
) STRICT;
CREATE INDEX files_tenant ON files (tenant, id, bytes);
CREATE INDEX files_purpose ON files (tenant, purpose, id);
CREATE INDEX files_expiry ON files (expires_at_ms);
