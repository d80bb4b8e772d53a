-- For the row of a batch: number of its calls, and of those without a result. NULL: the row is not a batch.
ALTER TABLE requests ADD COLUMN batch_calls bigint;
ALTER TABLE requests ADD COLUMN batch_failed bigint;
