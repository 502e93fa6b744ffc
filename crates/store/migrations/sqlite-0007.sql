-- Which tree each shared workspace is at, as its newest move left it: a projection of the journal.
CREATE TABLE head (
    tenant TEXT NOT NULL,
    workspace TEXT NOT NULL,
    n INTEGER NOT NULL,
    tree BLOB NOT NULL,
    PRIMARY KEY (tenant, workspace)
);
