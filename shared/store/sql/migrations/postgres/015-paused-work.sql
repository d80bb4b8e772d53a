-- Models and pools of which nothing is started for now, because an operator said so.
CREATE TABLE paused_work (
  what text NOT NULL CHECK (what IN ('model', 'pool')),
  id text NOT NULL,
  -- Id of the key that paused it.
  by_key text NOT NULL,
  since_ms bigint NOT NULL,
  PRIMARY KEY (what, id)
);
