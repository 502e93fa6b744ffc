-- Money: who may spend how much, and what is held or was spent. Records of their own, not made from the journal.
-- A scope that is not narrowed has an empty name there, so that an index finds it.
CREATE TABLE spend_authorization (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    autopilot TEXT NOT NULL,
    thread TEXT NOT NULL,
    run TEXT NOT NULL,
    mode TEXT NOT NULL,
    currency TEXT NOT NULL,
    max_total INTEGER,
    max_per_call INTEGER,
    max_per_day INTEGER,
    threshold INTEGER,
    within TEXT,
    issued_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER,
    spent INTEGER NOT NULL CHECK (spent >= 0),
    reserved INTEGER NOT NULL CHECK (reserved >= 0),
    day INTEGER NOT NULL,
    day_held INTEGER NOT NULL CHECK (day_held >= 0),
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX spend_scope ON spend_authorization (tenant, owner, currency, run, thread, autopilot, issued_ms);

-- In the order of writing, so that what is reserved together stands together.
CREATE TABLE spend_reservation (
    n INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    authorization_id TEXT NOT NULL,
    run TEXT NOT NULL,
    call TEXT NOT NULL,
    amount INTEGER NOT NULL CHECK (amount >= 0),
    currency TEXT NOT NULL,
    state TEXT NOT NULL,
    retry TEXT NOT NULL,
    idempotency_key TEXT,
    correlation TEXT,
    committed INTEGER CHECK (committed >= 0),
    reason TEXT,
    approval TEXT,
    day INTEGER NOT NULL,
    reserved_ms INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL,
    settled_ms INTEGER,
    reconciled INTEGER NOT NULL
);
-- By run first, because that is what is asked for by itself.
CREATE UNIQUE INDEX spend_reservation_call ON spend_reservation (tenant, run, call, authorization_id);
CREATE INDEX spend_reservation_of ON spend_reservation (tenant, authorization_id);
-- These hold only what is not settled, however much is.
CREATE INDEX spend_reservation_open ON spend_reservation (tenant, deadline_ms) WHERE state = 'reserved';
CREATE INDEX spend_reservation_waiting ON spend_reservation (tenant) WHERE state = 'reconcile_required';
