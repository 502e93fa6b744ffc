-- Addresses that are told of a tenant's entries, and how far each has come. A record of its own: it holds a secret, which the
-- journal does not. Whoever tells one holds it for a while, so that it is told by one at a time.
CREATE TABLE webhook (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    types text NOT NULL,
    secret text NOT NULL,
    created_ms bigint NOT NULL,
    next_seq bigint NOT NULL,
    failures bigint NOT NULL,
    failing_since_ms bigint,
    next_try_ms bigint NOT NULL,
    last_error text,
    disabled text,
    changes bigint NOT NULL,
    owner text,
    lease_until_ms bigint,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX webhook_by_turn ON webhook (next_try_ms, tenant, id);
