//! The statements about runs: as few and as wide as those of the journal.

use std::collections::BTreeMap;

use actum_ledger::journal::JournalError;
use actum_ledger::run::{NewEvent, NewRun, Run, RunState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use super::failed;
use super::run_read::{RUN, run_of};
use crate::change::{Ended, Fact};

/// A run by tenant and id.
pub(super) type Key<'a> = (&'a str, &'a str);

/// The database's clock, once for a statement: leases are compared with it on every machine.
pub(super) const NOW: &str = "(SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)";

/// What is to be written about runs, a table's rows together.
#[derive(Debug, Default)]
pub(super) struct RunPlan<'a> {
    /// New runs, their first state and how many others they wait for.
    pub new: Vec<(&'a NewRun, RunState, u64)>,
    pub dependencies: Vec<(Key<'a>, &'a str)>,
    pub changed: BTreeMap<Key<'a>, Changed<'a>>,
    /// Events with their number and attempt.
    pub events: Vec<(Key<'a>, u64, u64, &'a NewEvent)>,
    pub forgotten: Vec<Key<'a>>,
    pub admitted: Vec<(Key<'a>, &'a str)>,
    /// New lengths of leases, in milliseconds.
    pub leases: BTreeMap<Key<'a>, i64>,
    pub claims: Vec<Claims<'a>>,
}

/// A run as it is after the batch, whatever the number of requests about it.
#[derive(Debug)]
pub(super) struct Changed<'a> {
    /// Its state before the batch.
    pub was: RunState,
    pub fact: Fact,
    pub metadata: Option<&'a str>,
    /// The last word on its outcome, if it has left its worker's hands.
    pub ended: Option<Ended<'a>>,
}

/// Claims that differ only in who makes them: one statement, the oldest runs to the first of them.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    pub place: &'a str,
    pub submission: Option<&'a str>,
    pub run: Option<&'a str>,
    pub lease_ms: i64,
    pub dead: &'a [String],
    /// One for each run that may be taken.
    pub owners: Vec<&'a str>,
}

/// The statements, prepared on the writer's connection.
pub(super) struct RunRows {
    facts: Statement,
    new: Statement,
    dependencies: Statement,
    changed: Statement,
    metadata: Statement,
    outcomes: Statement,
    no_outcomes: Statement,
    waits: Statement,
    forgotten: Statement,
    admitted: Statement,
    leases: Statement,
    claim: Statement,
    claim_of: Statement,
    claim_run: Statement,
}

impl RunRows {
    pub(super) async fn prepare(client: &Client) -> Result<Self, Error> {
        // Locked until the end, so that what is decided about them stays true: whoever claims passes over them.
        let facts = "SELECT k.i, r.state, r.attempt, r.epoch, r.version, r.waits, r.cancel
            FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (tenant, id, i)
            JOIN run r ON r.tenant = k.tenant AND r.id = k.id FOR NO KEY UPDATE OF r";
        let new = format!(
            "WITH texts AS (INSERT INTO run_text (tenant, id, metadata)
                SELECT * FROM unnest($1::text[], $2::text[], $9::text[]))
            INSERT INTO run (tenant, id, submission, item, robot, place, state, attempt, epoch, version, waits, cancel,
                created_ms, updated_ms)
            SELECT k.tenant, k.id, k.submission, k.item, k.robot, k.place, k.state, 1, 0, 0, k.waits, false, {NOW}, {NOW}
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[])
                AS k (tenant, id, submission, item, robot, place, state, waits)"
        );
        let dependencies = "INSERT INTO run_dependency (tenant, run, depends_on)
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[])";
        // The events with the run they belong to: every step of a run is one of each.
        let changed = format!(
            "WITH events AS (INSERT INTO run_event (tenant, run, n, attempt, at_ms, kind, body)
                SELECT k.tenant, k.run, k.n, k.attempt, {NOW}, k.kind, k.body
                FROM unnest($10::text[], $11::text[], $12::bigint[], $13::bigint[], $14::text[], $15::text[])
                    AS k (tenant, run, n, attempt, kind, body))
            UPDATE run r SET state = k.state, attempt = k.attempt, version = k.version, cancel = k.cancel,
                updated_ms = {NOW},
                owner = CASE WHEN k.ended THEN NULL ELSE r.owner END,
                lease_until_ms = CASE WHEN k.ended THEN NULL ELSE r.lease_until_ms END,
                error = CASE WHEN k.replaces THEN k.error ELSE r.error END
            FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bool[], $7::bool[], $8::bool[],
                $9::text[])
                AS k (tenant, id, state, attempt, version, cancel, ended, replaces, error)
            WHERE r.tenant = k.tenant AND r.id = k.id"
        );
        let metadata = "UPDATE run_text t SET metadata = k.metadata
            FROM unnest($1::text[], $2::text[], $3::text[]) AS k (tenant, id, metadata)
            WHERE t.tenant = k.tenant AND t.id = k.id";
        let outcomes = "INSERT INTO run_outcome (tenant, id, outcome)
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
            ON CONFLICT (tenant, id) DO UPDATE SET outcome = excluded.outcome";
        let no_outcomes = "DELETE FROM run_outcome o USING unnest($1::text[], $2::text[]) AS k (tenant, id)
            WHERE o.tenant = k.tenant AND o.id = k.id";
        let waits = format!(
            "UPDATE run r SET waits = r.waits + k.n, updated_ms = {NOW}, state = CASE
                WHEN r.state = 'blocked' AND r.waits + k.n = 0 THEN 'queued'
                WHEN r.state = 'queued' AND r.waits + k.n > 0 THEN 'blocked' ELSE r.state END
            FROM (SELECT d.tenant, d.run, sum(s.n)::bigint AS n
                FROM unnest($1::text[], $2::text[], $3::bigint[]) AS s (tenant, id, n)
                JOIN run_dependency d ON d.tenant = s.tenant AND d.depends_on = s.id GROUP BY d.tenant, d.run) k
            WHERE r.tenant = k.tenant AND r.id = k.run"
        );
        let forgotten = "DELETE FROM capsule c USING unnest($1::text[], $2::text[]) AS k (tenant, run)
            WHERE c.tenant = k.tenant AND c.run = k.run";
        let admitted = "INSERT INTO capsule (tenant, place, hash, run)
            SELECT r.tenant, r.place, k.hash, r.id
            FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (tenant, id, hash, i)
            JOIN run r ON r.tenant = k.tenant AND r.id = k.id ORDER BY k.i ON CONFLICT DO NOTHING";
        let leases = format!(
            "UPDATE run r SET lease_until_ms = greatest(r.lease_until_ms, {NOW} + k.ms)
            FROM unnest($1::text[], $2::text[], $3::bigint[]) AS k (tenant, id, ms)
            WHERE r.tenant = k.tenant AND r.id = k.id AND r.state = 'running'"
        );
        let (claim, claim_of, claim_run) = (claim_sql(""), claim_sql("AND submission = $6"), claim_sql("AND id = $6"));
        let (metadata, outcomes, no_outcomes) =
            tokio::try_join!(client.prepare(metadata), client.prepare(outcomes), client.prepare(no_outcomes))?;
        let (facts, new, dependencies, changed, waits, forgotten, admitted, leases, claim, claim_of, claim_run) = tokio::try_join!(
            client.prepare(facts),
            client.prepare(&new),
            client.prepare(dependencies),
            client.prepare(&changed),
            client.prepare(&waits),
            client.prepare(forgotten),
            client.prepare(admitted),
            client.prepare(&leases),
            client.prepare(&claim),
            client.prepare(&claim_of),
            client.prepare(&claim_run),
        )?;
        Ok(Self {
            facts,
            new,
            dependencies,
            changed,
            metadata,
            outcomes,
            no_outcomes,
            waits,
            forgotten,
            admitted,
            leases,
            claim,
            claim_of,
            claim_run,
        })
    }

    /// Locks the runs and reads what stands about them, each with the place of its key.
    pub(super) async fn read(&self, client: &Client, keys: &[Key<'_>]) -> Result<Vec<Row>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (tenants, ids) = split(keys.iter().copied());
        client.query(&self.facts, &[&tenants, &ids]).await
    }

    /// Everything but the claims. All statements are on their way before the first is answered.
    pub(super) async fn write(&self, client: &Client, plan: &RunPlan<'_>) -> Result<(), Error> {
        tokio::try_join!(
            biased;
            self.insert_new(client, &plan.new),
            self.insert_dependencies(client, &plan.dependencies),
            self.update_changed(client, &plan.changed, &plan.events),
            self.update_texts(client, &plan.changed),
            self.update_waits(client, &plan.changed),
            self.delete_forgotten(client, &plan.forgotten),
            self.insert_admitted(client, &plan.admitted),
            self.update_leases(client, &plan.leases),
        )
        .map(|_| ())
    }

    async fn insert_new(&self, client: &Client, all: &[(&NewRun, RunState, u64)]) -> Result<(), Error> {
        let text = |of: fn(&NewRun) -> &str| all.iter().map(|(run, ..)| of(run)).collect::<Vec<_>>();
        let (tenants, ids) = (text(|r| r.tenant.as_str()), text(|r| &r.id));
        let (submissions, items) = (text(|r| &r.submission), text(|r| &r.item));
        let (robots, places, metadata) = (text(|r| &r.robot), text(|r| &r.place), text(|r| &r.metadata));
        let states: Vec<_> = all.iter().map(|(_, state, _)| state.word()).collect();
        let waits: Vec<_> = all.iter().map(|(.., waits)| *waits as i64).collect();
        let values: [&(dyn ToSql + Sync); 9] =
            [&tenants, &ids, &submissions, &items, &robots, &places, &states, &waits, &metadata];
        execute(client, &self.new, all.len(), &values).await
    }

    async fn insert_dependencies(&self, client: &Client, all: &[(Key<'_>, &str)]) -> Result<(), Error> {
        let (tenants, ids) = split(all.iter().map(|(key, _)| *key));
        let others: Vec<_> = all.iter().map(|(_, other)| *other).collect();
        execute(client, &self.dependencies, all.len(), &[&tenants, &ids, &others]).await
    }

    async fn update_changed(
        &self,
        client: &Client,
        all: &BTreeMap<Key<'_>, Changed<'_>>,
        events: &[(Key<'_>, u64, u64, &NewEvent)],
    ) -> Result<(), Error> {
        let (tenants, ids) = split(all.keys().copied());
        let states: Vec<_> = all.values().map(|c| c.fact.state.word()).collect();
        let attempts: Vec<_> = all.values().map(|c| c.fact.attempt as i64).collect();
        let versions: Vec<_> = all.values().map(|c| c.fact.version as i64).collect();
        let cancels: Vec<_> = all.values().map(|c| c.fact.cancel).collect();
        let ended: Vec<_> = all.values().map(|c| c.ended.is_some()).collect();
        let replaces: Vec<_> = all.values().map(|c| c.ended.is_some_and(|e| e.replaces_outcome)).collect();
        let errors: Vec<_> = all.values().map(|c| c.ended.and_then(|e| e.error)).collect();
        let (whose, runs) = split(events.iter().map(|(key, ..)| *key));
        let numbers: Vec<_> = events.iter().map(|(_, n, ..)| *n as i64).collect();
        let during: Vec<_> = events.iter().map(|(_, _, attempt, _)| *attempt as i64).collect();
        let (kinds, bodies): (Vec<_>, Vec<_>) = events.iter().map(|(.., e)| (e.kind.as_str(), e.body.as_str())).unzip();
        let values: [&(dyn ToSql + Sync); 15] = [
            &tenants, &ids, &states, &attempts, &versions, &cancels, &ended, &replaces, &errors, &whose, &runs,
            &numbers, &during, &kinds, &bodies,
        ];
        execute(client, &self.changed, all.len(), &values).await
    }

    /// What was agreed, where it is another now, and what became of those that ended.
    async fn update_texts(&self, client: &Client, all: &BTreeMap<Key<'_>, Changed<'_>>) -> Result<(), Error> {
        let metadata: Vec<_> = all.iter().filter_map(|(key, c)| Some((*key, c.metadata?))).collect();
        let (mut outcomes, mut none) = (Vec::new(), Vec::new());
        for (key, ended) in all.iter().filter_map(|(key, c)| Some((*key, c.ended.filter(|e| e.replaces_outcome)?))) {
            match ended.outcome {
                Some(outcome) => outcomes.push((key, outcome)),
                None => none.push(key),
            }
        }
        tokio::try_join!(
            biased;
            put_texts(client, &self.metadata, &metadata),
            put_texts(client, &self.outcomes, &outcomes),
            self.delete_outcomes(client, &none),
        )
        .map(|_| ())
    }

    async fn delete_outcomes(&self, client: &Client, all: &[Key<'_>]) -> Result<(), Error> {
        let (tenants, ids) = split(all.iter().copied());
        execute(client, &self.no_outcomes, all.len(), &[&tenants, &ids]).await
    }

    /// Tells the dependants of those that have succeeded, or no longer have.
    async fn update_waits(&self, client: &Client, all: &BTreeMap<Key<'_>, Changed<'_>>) -> Result<(), Error> {
        let succeeded = |state| i64::from(state == RunState::Succeeded);
        let waits = |c: &Changed<'_>| succeeded(c.was) - succeeded(c.fact.state);
        let others: Vec<_> = all.iter().map(|(key, c)| (*key, waits(c))).filter(|(_, n)| *n != 0).collect();
        let (tenants, ids) = split(others.iter().map(|(key, _)| *key));
        let waits: Vec<_> = others.iter().map(|(_, n)| *n).collect();
        execute(client, &self.waits, others.len(), &[&tenants, &ids, &waits]).await
    }

    async fn delete_forgotten(&self, client: &Client, all: &[Key<'_>]) -> Result<(), Error> {
        let (tenants, ids) = split(all.iter().copied());
        execute(client, &self.forgotten, all.len(), &[&tenants, &ids]).await
    }

    async fn insert_admitted(&self, client: &Client, all: &[(Key<'_>, &str)]) -> Result<(), Error> {
        let (tenants, ids) = split(all.iter().map(|(key, _)| *key));
        let hashes: Vec<_> = all.iter().map(|(_, hash)| *hash).collect();
        execute(client, &self.admitted, all.len(), &[&tenants, &ids, &hashes]).await
    }

    async fn update_leases(&self, client: &Client, all: &BTreeMap<Key<'_>, i64>) -> Result<(), Error> {
        let (tenants, ids) = split(all.keys().copied());
        let lengths: Vec<_> = all.values().copied().collect();
        execute(client, &self.leases, all.len(), &[&tenants, &ids, &lengths]).await
    }

    /// The runs taken, oldest first: as many as there are, and at most one for each owner named.
    pub(super) async fn claim(&self, client: &Client, claims: &Claims<'_>) -> Result<Vec<Run>, JournalError> {
        let Claims { place, submission, run, lease_ms, dead, owners } = claims;
        let runs_max = owners.len() as i64;
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![place, &runs_max, owners, lease_ms, dead];
        let statement = match (run, submission) {
            (Some(run), _) => {
                values.push(run);
                &self.claim_run
            }
            (None, Some(of)) => {
                values.push(of);
                &self.claim_of
            }
            (None, None) => &self.claim,
        };
        let rows = client.query(statement, &values).await.map_err(failed)?;
        let runs = rows.iter().map(|row| Ok((row.get::<_, i64>(18), run_of(row)?)));
        let mut runs = runs.collect::<Result<Vec<_>, JournalError>>()?;
        runs.sort_unstable_by_key(|(n, _)| *n);
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }
}

fn claim_sql(of: &str) -> String {
    // What is queued comes from one index, in order; what was left behind from another, which holds only what runs. Of
    // the latter, leases that are not over are looked at only for the sake of dead owners. Rows in other hands are
    // passed over, not waited for.
    format!(
        "WITH t AS MATERIALIZED (SELECT {NOW} AS now),
        ready AS MATERIALIZED (
            SELECT tenant, id FROM run WHERE place = $1 AND state = 'queued' {of}
            ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED),
        left_behind AS MATERIALIZED (
            SELECT tenant, id FROM run WHERE place = $1 AND state = 'running' {of}
            AND lease_until_ms <= (SELECT CASE WHEN cardinality($5::text[]) = 0 THEN now ELSE 9223372036854775807 END FROM t)
            AND (lease_until_ms <= (SELECT now FROM t) OR owner = ANY($5::text[]))
            ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED),
        taken AS MATERIALIZED (
            SELECT tenant, id, row_number() OVER (ORDER BY id, tenant) AS n
            FROM (SELECT * FROM ready UNION ALL SELECT * FROM left_behind) x ORDER BY n LIMIT $2)
        UPDATE run r SET state = 'running', owner = ($3::text[])[k.n], lease_until_ms = t.now + $4,
            epoch = r.epoch + 1, updated_ms = t.now
        FROM taken k, t WHERE r.tenant = k.tenant AND r.id = k.id
        RETURNING {RUN}, k.n"
    )
}

fn split<'a>(keys: impl Iterator<Item = Key<'a>>) -> (Vec<&'a str>, Vec<&'a str>) {
    keys.unzip()
}

async fn put_texts(client: &Client, statement: &Statement, all: &[(Key<'_>, &str)]) -> Result<(), Error> {
    let (tenants, ids) = split(all.iter().map(|(key, _)| *key));
    let texts: Vec<_> = all.iter().map(|(_, text)| *text).collect();
    execute(client, statement, all.len(), &[&tenants, &ids, &texts]).await
}

/// Nothing is sent for nothing.
pub(super) async fn execute(
    client: &Client,
    statement: &Statement,
    rows: usize,
    values: &[&(dyn ToSql + Sync)],
) -> Result<(), Error> {
    match rows {
        0 => Ok(()),
        _ => client.execute(statement, values).await.map(|_| ()),
    }
}
