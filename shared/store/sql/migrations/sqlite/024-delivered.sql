-- Messages to webhooks that were received, for operators; deliveries_undelivered (012-operator.sql) has the others.
CREATE INDEX deliveries_delivered ON deliveries (state, (id || '')) WHERE state = 'delivered';
