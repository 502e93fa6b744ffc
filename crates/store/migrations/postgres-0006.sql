-- Who may enter, as the newest change of each token left it: a projection of the journal. A token is found by its id alone,
-- because whoever brings it is not known before; so its id is one among all tenants.
CREATE TABLE token (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    role text NOT NULL,
    name text NOT NULL,
    hash text NOT NULL,
    expires_ms bigint,
    revoked boolean NOT NULL,
    n bigint NOT NULL,
    seq bigint NOT NULL
);
CREATE INDEX token_of_tenant ON token (tenant, id);

-- Answers for whoever asks the same again under the same key, for a day.
CREATE TABLE kept_answer (
    tenant text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    request_hash text NOT NULL,
    status bigint NOT NULL,
    content_type text NOT NULL,
    body bytea NOT NULL,
    exit bigint NOT NULL,
    at_ms bigint NOT NULL,
    PRIMARY KEY (tenant, token, key)
);
CREATE INDEX kept_answer_by_age ON kept_answer (tenant, at_ms);
