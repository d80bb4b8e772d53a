-- Data of a webhook message that belongs to no job, as JSON. NULL: the message reports an event of its job.
ALTER TABLE deliveries ADD COLUMN data text;
