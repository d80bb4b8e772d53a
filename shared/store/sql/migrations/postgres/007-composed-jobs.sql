-- Jobs that have other jobs do work: what they remember of their steps, and how a family holds together.
ALTER TABLE jobs
  -- Above 0: a child of `parent_id`. Otherwise that is only the job it repeats, or was said to belong to.
  ADD COLUMN depth integer NOT NULL DEFAULT 0,
  -- How many children and steps it has had.
  ADD COLUMN children integer NOT NULL DEFAULT 0,
  ADD COLUMN steps integer NOT NULL DEFAULT 0,
  -- While it waits: ids of the children it waits for, and when it waits for them no longer.
  ADD COLUMN awaits text,
  ADD COLUMN wake_at_ms bigint,
  -- Its family knows of its end.
  ADD COLUMN is_settled boolean NOT NULL DEFAULT FALSE;

-- Not looked at again for the rows that are there: each of them was held to a narrower one.
ALTER TABLE jobs DROP CONSTRAINT jobs_state_check;
ALTER TABLE jobs ADD CONSTRAINT jobs_state_check CHECK
  (state IN ('queued', 'scheduled', 'in_progress', 'waiting', 'completed', 'failed', 'cancelled', 'expired')) NOT VALID;

-- What a job has done outside, by a hash of what it asked for. In the partition of the job's day, and dropped with it.
CREATE TABLE job_steps (
  job_id text COLLATE "C" NOT NULL,
  key text NOT NULL,
  kind text NOT NULL,
  output text NOT NULL,
  cost text NOT NULL,
  attempt integer NOT NULL,
  chunk integer NOT NULL,
  at_ms bigint NOT NULL,
  PRIMARY KEY (job_id, key)
) PARTITION BY RANGE (job_id);
