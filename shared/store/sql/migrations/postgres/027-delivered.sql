-- online: each statement alone, without keeping anybody from writing (postgres-online.ts).
-- Messages to webhooks that were received, for operators; deliveries_undelivered (015-operator-lists.sql) has the others.
CREATE INDEX deliveries_delivered ON deliveries (state, (id || '')) WHERE state = 'delivered';
