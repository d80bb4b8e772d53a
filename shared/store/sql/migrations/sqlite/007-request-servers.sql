-- Upstream server of the last attempt: its index in base_urls of the model, after `model/` if a fallback ran the call.
ALTER TABLE requests ADD COLUMN server text;
