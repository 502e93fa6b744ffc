-- What is registered, as the newest change of each item left it: a projection of the journal.
CREATE TABLE registry (
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    item TEXT NOT NULL,
    n INTEGER NOT NULL,
    version TEXT NOT NULL,
    hash TEXT NOT NULL,
    status TEXT NOT NULL,
    approved INTEGER NOT NULL,
    name TEXT NOT NULL,
    tool TEXT NOT NULL,
    form TEXT NOT NULL,
    summary TEXT NOT NULL,
    PRIMARY KEY (tenant, kind, item)
);
-- All that the list of everything shows, so that it reads no summaries.
CREATE INDEX registry_head ON registry (tenant, kind, item, status, name, tool, form);
