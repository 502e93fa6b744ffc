-- Runs: what is to be done, by whom, and how far it has come. Records of their own, not made from the journal.
CREATE TABLE run (
    n INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    submission TEXT NOT NULL,
    item TEXT NOT NULL,
    robot TEXT NOT NULL,
    place TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    owner TEXT,
    lease_until_ms INTEGER,
    waits INTEGER NOT NULL CHECK (waits >= 0),
    cancel INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    -- The code of the error in the outcome, for those who count.
    error TEXT
);
CREATE UNIQUE INDEX run_id ON run (tenant, id);
CREATE INDEX run_submission ON run (tenant, submission, id);
CREATE INDEX run_state ON run (tenant, state, id, error);
-- What can be taken, by whom soever: these hold only what waits or is under way, however much is done already.
CREATE INDEX run_ready ON run (place, id) WHERE state = 'queued';
CREATE INDEX run_ready_of ON run (place, submission, id) WHERE state = 'queued';
CREATE INDEX run_lease ON run (place, lease_until_ms) WHERE state = 'running';
CREATE INDEX run_blocked ON run (place, id) WHERE state = 'blocked';

-- The long texts of a run, by its n. Apart from it, so that a step, which changes the row, does not write them anew.
CREATE TABLE run_text (n INTEGER PRIMARY KEY, metadata TEXT NOT NULL);
CREATE TABLE run_outcome (n INTEGER PRIMARY KEY, outcome TEXT NOT NULL);

-- The journals of runs, by the run's n; n counts from 0 without a gap. In the order of writing, so that the steps of
-- many runs that are committed together stand together: with each run's events side by side every one of them would
-- write a page of its own.
CREATE TABLE run_event (
    run INTEGER NOT NULL,
    n INTEGER NOT NULL CHECK (n >= 0),
    attempt INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX run_event_n ON run_event (run, n);
CREATE TABLE run_dependency (
    tenant TEXT NOT NULL,
    run TEXT NOT NULL,
    depends_on TEXT NOT NULL,
    PRIMARY KEY (tenant, run, depends_on)
) WITHOUT ROWID;
CREATE INDEX run_dependant ON run_dependency (tenant, depends_on);

-- With which run a capsule was admitted in a place.
CREATE TABLE capsule (
    tenant TEXT NOT NULL,
    place TEXT NOT NULL,
    hash TEXT NOT NULL,
    run TEXT NOT NULL,
    PRIMARY KEY (tenant, place, hash)
) WITHOUT ROWID;
CREATE INDEX capsule_run ON capsule (tenant, run);
