-- First characters of the prompt and of the answer, for lists. NULL: the body has no text, or was recorded by an older version.
ALTER TABLE request_bodies ADD COLUMN prompt_preview text;
ALTER TABLE request_bodies ADD COLUMN answer_preview text;
