-- Processes that a job was taken from, each followed by a space: those that renew their leases after all did not die of it.
ALTER TABLE jobs ADD COLUMN lost_by text;
