-- Which way of asking a signature is live, as the newest change of each pointer left it: a projection of the journal.
CREATE TABLE pointer (
    tenant TEXT NOT NULL,
    signature TEXT NOT NULL,
    n INTEGER NOT NULL,
    restores INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, signature)
);
