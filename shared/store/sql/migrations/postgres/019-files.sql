-- Files of projects: their bytes are blobs of the same name. Ids sort as bytes, as those of jobs do.
CREATE TABLE files (
  id text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant text NOT NULL,
  purpose text NOT NULL,
  filename text NOT NULL,
  bytes bigint NOT NULL,
  created_at_ms bigint NOT NULL,
  expires_at_ms bigint NOT NULL
);
CREATE INDEX files_tenant ON files (tenant, id, bytes);
CREATE INDEX files_purpose ON files (tenant, purpose, id);
CREATE INDEX files_expiry ON files (expires_at_ms);
