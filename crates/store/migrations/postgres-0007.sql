-- Which tree each shared workspace is at, as its newest move left it: a projection of the journal.
CREATE TABLE head (
    tenant text COLLATE "C" NOT NULL,
    workspace text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    tree bytea NOT NULL,
    PRIMARY KEY (tenant, workspace)
);
