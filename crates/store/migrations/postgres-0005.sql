-- Which way of asking a signature is live, as the newest change of each pointer left it: a projection of the journal.
CREATE TABLE pointer (
    tenant text COLLATE "C" NOT NULL,
    signature text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    restores bigint NOT NULL,
    seq bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (tenant, signature)
);
