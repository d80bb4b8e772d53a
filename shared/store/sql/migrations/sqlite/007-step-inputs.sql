-- What a step was asked for, beside its hash. NULL: done before this was kept.
ALTER TABLE job_steps ADD COLUMN input text;
