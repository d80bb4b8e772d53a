-- How long a cancelled job may still write what there is. NULL: it may not, and ends at once.
ALTER TABLE jobs ADD COLUMN partial_ms bigint;
