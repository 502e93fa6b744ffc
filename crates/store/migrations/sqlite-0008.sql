-- Addresses that are told of a tenant's entries, and how far each has come. A record of its own: it holds a secret, which the
-- journal does not. Whoever tells one holds it for a while, so that it is told by one at a time.
CREATE TABLE webhook (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    types TEXT NOT NULL,
    secret TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    next_seq INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    failing_since_ms INTEGER,
    next_try_ms INTEGER NOT NULL,
    last_error TEXT,
    disabled TEXT,
    changes INTEGER NOT NULL,
    owner TEXT,
    lease_until_ms INTEGER,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX webhook_by_turn ON webhook (next_try_ms, tenant, id);
