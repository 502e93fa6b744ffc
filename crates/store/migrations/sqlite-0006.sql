-- Who may enter, as the newest change of each token left it: a projection of the journal. A token is found by its id alone,
-- because whoever brings it is not known before; so its id is one among all tenants.
CREATE TABLE token (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    role TEXT NOT NULL,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    expires_ms INTEGER,
    revoked INTEGER NOT NULL,
    n INTEGER NOT NULL,
    seq INTEGER NOT NULL
);
CREATE INDEX token_of_tenant ON token (tenant, id);

-- Answers for whoever asks the same again under the same key, for a day.
CREATE TABLE kept_answer (
    tenant TEXT NOT NULL,
    token TEXT NOT NULL,
    key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    status INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL,
    exit INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, token, key)
);
CREATE INDEX kept_answer_by_age ON kept_answer (tenant, at_ms);
