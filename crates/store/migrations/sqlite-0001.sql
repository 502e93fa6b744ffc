-- The name of this store in the origins of its logs.
CREATE TABLE store (id TEXT NOT NULL);

-- The journal. Everything below it, but for dead letters and checkpoints, can be made anew from this table.
CREATE TABLE ledger_entry (
    n INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    hash BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX ledger_entry_seq ON ledger_entry (tenant, seq);
CREATE UNIQUE INDEX ledger_entry_id ON ledger_entry (tenant, id);

-- Projections.
CREATE TABLE ledger_log (
    tenant TEXT NOT NULL PRIMARY KEY,
    size INTEGER NOT NULL,
    head BLOB NOT NULL,
    frontier BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE ledger_node (
    tenant TEXT NOT NULL,
    level INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (tenant, level, idx)
) WITHOUT ROWID;
CREATE TABLE execution (
    tenant TEXT NOT NULL,
    robot TEXT NOT NULL,
    execution TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    PRIMARY KEY (tenant, robot, execution)
) WITHOUT ROWID;
CREATE TABLE superseded (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    by_id TEXT NOT NULL,
    by_created_ns INTEGER NOT NULL,
    PRIMARY KEY (tenant, id, by_id)
) WITHOUT ROWID;

-- Records of their own.
CREATE TABLE dead_letter (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT,
    recorded_ns INTEGER NOT NULL,
    code TEXT NOT NULL,
    refusal TEXT NOT NULL,
    document BLOB NOT NULL
);
CREATE INDEX dead_letter_tenant ON dead_letter (tenant, n);
CREATE TABLE checkpoint (
    tenant TEXT NOT NULL,
    size INTEGER NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (tenant, size)
) WITHOUT ROWID;
