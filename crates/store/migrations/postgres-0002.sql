-- Runs: what is to be done, by whom, and how far it has come. Records of their own, not made from the journal.
-- A page keeps room for the next version of a row, so that a step touches no index.
CREATE TABLE run (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    submission text COLLATE "C" NOT NULL,
    item text NOT NULL,
    robot text NOT NULL,
    place text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    epoch bigint NOT NULL,
    version bigint NOT NULL,
    owner text COLLATE "C",
    lease_until_ms bigint,
    waits bigint NOT NULL CHECK (waits >= 0),
    cancel boolean NOT NULL,
    created_ms bigint NOT NULL,
    updated_ms bigint NOT NULL,
    -- The code of the error in the outcome, for those who count.
    error text COLLATE "C",
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 70);
-- None of these begins with the tenant: to a planner without statistics one that does looks as good as the key.
CREATE INDEX run_submission ON run (submission, tenant, id);
CREATE INDEX run_state ON run (state, tenant, id) INCLUDE (error);
-- What can be taken, by whom soever: these hold only what waits or is under way, however much is done already.
CREATE INDEX run_ready ON run (place, id) WHERE state = 'queued';
CREATE INDEX run_ready_of ON run (place, submission, id) WHERE state = 'queued';
CREATE INDEX run_lease ON run (place, lease_until_ms) WHERE state = 'running';
CREATE INDEX run_blocked ON run (place, id) WHERE state = 'blocked';

-- The long texts of a run. Apart from it, so that a step, which makes a new version of the row, does not write them
-- anew; in the page up to its size, because squeezing them costs more than the room.
CREATE TABLE run_text (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    metadata text NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (toast_tuple_target = 8160);
CREATE TABLE run_outcome (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    outcome text NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (toast_tuple_target = 8160);

-- The journal of a run; n counts from 0 without a gap.
CREATE TABLE run_event (
    tenant text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    n bigint NOT NULL CHECK (n >= 0),
    attempt bigint NOT NULL,
    at_ms bigint NOT NULL,
    kind text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (tenant, run, n)
);
CREATE TABLE run_dependency (
    tenant text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    depends_on text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, depends_on, run)
);
CREATE INDEX run_dependency_run ON run_dependency (run, tenant);

-- With which run a capsule was admitted in a place.
CREATE TABLE capsule (
    tenant text COLLATE "C" NOT NULL,
    place text COLLATE "C" NOT NULL,
    hash text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, place, hash)
);
CREATE INDEX capsule_run ON capsule (run, tenant);
