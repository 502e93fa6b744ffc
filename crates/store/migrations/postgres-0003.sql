-- What is registered, as the newest change of each item left it: a projection of the journal.
-- The key holds all that the list of everything shows, so that it reads no summaries.
CREATE TABLE registry (
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    item text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    version text NOT NULL,
    hash text NOT NULL,
    status text COLLATE "C" NOT NULL,
    approved boolean NOT NULL,
    name text NOT NULL,
    tool text COLLATE "C" NOT NULL,
    form text COLLATE "C" NOT NULL,
    summary text NOT NULL,
    PRIMARY KEY (tenant, kind, item) INCLUDE (status, name, tool, form)
);
