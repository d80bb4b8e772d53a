-- Files that jobs share, such as the history of chained responses: how many jobs name it.
ALTER TABLE files ADD COLUMN refs integer NOT NULL DEFAULT 0;
