-- Last message of the upstream server, and all failed attempts as a JSON array. NULL: no attempt failed.
ALTER TABLE requests ADD COLUMN upstream_message text;
ALTER TABLE requests ADD COLUMN failed_attempts text;
-- Number of the retry by the SDK of the caller. NULL: the first request of the call, or unknown.
ALTER TABLE requests ADD COLUMN sdk_retry bigint;
