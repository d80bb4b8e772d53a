-- Who jobs belong to, with what each may use; a key that names no project is one of its own, with no row here.
CREATE TABLE projects (
  id text PRIMARY KEY,
  name text,
  -- Unix seconds.
  created_at bigint NOT NULL,
  -- A JSON object.
  limits text NOT NULL
);
ALTER TABLE api_keys
  ADD COLUMN project text,
  -- Unix seconds; NULL: never.
  ADD COLUMN expires_at bigint,
  -- A JSON array; NULL: calls.
  ADD COLUMN scopes text,
  -- A JSON object.
  ADD COLUMN limits text;
-- Secrets that sign webhooks, as they are: a hash signs nothing. The one without a project is where defaults come from.
CREATE TABLE webhook_secrets (
  id text PRIMARY KEY,
  project text,
  secret text NOT NULL,
  created_at bigint NOT NULL
);
CREATE INDEX webhook_secrets_of_project ON webhook_secrets (project);
-- Every change of a key, a project or a webhook secret, by whom. The service never deletes a row.
CREATE TABLE audit (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- Unix seconds.
  at bigint NOT NULL,
  author text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  project text,
  -- A JSON object; never a secret.
  change text NOT NULL
);
