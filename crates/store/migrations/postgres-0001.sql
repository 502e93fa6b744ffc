-- The name of this store in the origins of its logs, and the version of these tables.
CREATE TABLE store (id text NOT NULL, version bigint NOT NULL);

-- The journal. Everything below it, but for dead letters and checkpoints, can be made anew from this table.
-- Names are compared and ordered byte by byte, as SQLite does, whatever the database's locale.
CREATE TABLE ledger_entry (
    tenant text COLLATE "C" NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 0),
    id text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    created_ns bigint NOT NULL,
    hash bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (tenant, seq)
);
CREATE UNIQUE INDEX ledger_entry_id ON ledger_entry (tenant, id);

-- One row per tenant for writers on many machines to queue at. Says nothing; is only ever locked.
CREATE TABLE ledger_lock (tenant text COLLATE "C" NOT NULL PRIMARY KEY);

-- Projections.
CREATE TABLE ledger_log (
    tenant text COLLATE "C" NOT NULL PRIMARY KEY,
    size bigint NOT NULL,
    head bytea NOT NULL,
    frontier bytea NOT NULL
);
CREATE TABLE ledger_node (
    tenant text COLLATE "C" NOT NULL,
    level bigint NOT NULL,
    idx bigint NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (tenant, level, idx)
);
CREATE TABLE execution (
    tenant text COLLATE "C" NOT NULL,
    robot text COLLATE "C" NOT NULL,
    execution text COLLATE "C" NOT NULL,
    state text NOT NULL,
    attempt bigint NOT NULL,
    last_seq bigint NOT NULL,
    PRIMARY KEY (tenant, robot, execution)
);
CREATE TABLE superseded (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    by_id text COLLATE "C" NOT NULL,
    by_created_ns bigint NOT NULL,
    PRIMARY KEY (tenant, id, by_id)
);

-- Records of their own.
CREATE TABLE dead_letter (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C",
    recorded_ns bigint NOT NULL,
    code text NOT NULL,
    refusal text NOT NULL,
    document bytea NOT NULL
);
CREATE INDEX dead_letter_tenant ON dead_letter (tenant, n);
CREATE TABLE checkpoint (
    tenant text COLLATE "C" NOT NULL,
    size bigint NOT NULL,
    note text NOT NULL,
    PRIMARY KEY (tenant, size)
);
