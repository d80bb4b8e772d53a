-- The last tries of a message, as JSON, oldest first: when, how long, and what came of each. NULL: none since this is kept.
ALTER TABLE deliveries ADD COLUMN history text;
