-- How large what was said in a conversation is, in characters of JSON: those of a project are bounded together.
ALTER TABLE conversations ADD COLUMN chars bigint NOT NULL DEFAULT 0;
UPDATE conversations SET chars = length(items) + length(pending);
CREATE INDEX conversations_chars ON conversations (tenant, chars);
DROP INDEX conversations_tenant;
