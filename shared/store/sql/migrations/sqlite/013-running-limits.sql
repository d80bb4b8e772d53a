-- Jobs that wait, by the key they were submitted with, for the limits of that key.
CREATE INDEX jobs_idle_key ON jobs (key_id, state) WHERE state IN ('queued', 'scheduled');
