-- Message and field of the error that the caller received, in bounded length. NULL: the request did not fail.
ALTER TABLE requests ADD COLUMN error_message text;
ALTER TABLE requests ADD COLUMN error_param text;
