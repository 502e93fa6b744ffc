//! Writing about runs: one request after the other within the transaction of the batch. Nothing of a request is
//! written before all of it is decided.
//!
//! What is known of a run is kept for the rest of the batch, and of its row only what is so at the end of it is written:
//! the beginning of a run and its first step often travel together.

use std::collections::{HashMap, HashSet};

use actum_contract::id::Tenant;
use actum_ledger::draft::Submission;
use actum_ledger::journal::JournalError;
use actum_ledger::refusal::Refusal;
use actum_ledger::run::{Claim, Held, NewRun, Renewed, Run, RunState, Written};
use rusqlite::params;

use super::failed;
use super::run_read::{RUN, run_of, state_of};
use super::write::Writing;
use crate::batch::NotTaken;
use crate::change::{self, Change, Ended, Fact};
use crate::crash;
use crate::queue::Done;
use crate::request::RunRequest;

/// Runs that were looked up in this batch, by tenant and id.
pub(super) type Seen<'r> = HashMap<(&'r str, &'r str), Row>;

/// A run as it is after all that was decided so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    n: i64,
    fact: Fact,
    /// Its row does not have the new version yet.
    behind: bool,
}

/// An answer; or a refusal for which the whole batch has to be decided again.
pub(super) type Answer = Result<Result<Done, Refusal>, JournalError>;

impl<'r> Writing<'_, 'r> {
    pub(super) fn run(&mut self, request: &'r RunRequest) -> Answer {
        match request {
            RunRequest::Submit { runs, entries } => self.submit(runs, entries),
            RunRequest::Claim(claim) => self.claim(claim).map(|runs| Ok(Done::Claimed(runs))),
            RunRequest::Commit(commit, code) => {
                let Held { tenant, run, .. } = &commit.held;
                let row = self.row(tenant, run)?;
                let change = row.and_then(|row| Some((row.n, change::commit(row.fact, commit, code)?)));
                self.change(tenant, run, change, &commit.entries)
            }
            RunRequest::Settle(settle, code) => {
                let row = self.row(&settle.tenant, &settle.run)?;
                let change = row.and_then(|row| Some((row.n, change::settle(row.fact, settle, code)?)));
                self.change(&settle.tenant, &settle.run, change, &settle.entries)
            }
            RunRequest::Renew { lease_ms, held } => self.renew(*lease_ms, held).map(|all| Ok(Done::Renewed(all))),
            RunRequest::Cancel { tenant, run } => {
                let row = self.row(tenant, run)?;
                let Some((row, fact)) = row.and_then(|row| Some((row, change::cancel(row.fact)?))) else {
                    return Ok(Ok(Done::Written(Written::Lost)));
                };
                let sql = "UPDATE run SET cancel = 1, updated_ms = ?2 WHERE n = ?1";
                self.execute(sql, params![row.n, self.now_ms]).map_err(failed)?;
                self.seen.insert((tenant.as_str(), run), Row { fact, ..row });
                Ok(Ok(Done::Written(Written::Done)))
            }
        }
    }

    pub(super) fn execute(&self, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<usize> {
        self.tx.prepare_cached(sql)?.execute(values)
    }

    fn row(&mut self, tenant: &'r Tenant, run: &'r str) -> Result<Option<Row>, JournalError> {
        if let Some(row) = self.seen.get(&(tenant.as_str(), run)) {
            return Ok(Some(*row));
        }
        let row = self.stored(tenant, run)?;
        self.seen.extend(row.map(|row| ((tenant.as_str(), run), row)));
        Ok(row)
    }

    fn stored(&self, tenant: &Tenant, run: &str) -> Result<Option<Row>, JournalError> {
        let sql = "SELECT state, attempt, epoch, version, waits, cancel, n FROM run WHERE tenant = ?1 AND id = ?2";
        let mut statement = self.tx.prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query(params![tenant.as_str(), run]).map_err(failed)?;
        let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
        let number = |column: usize| row.get::<_, i64>(column).map(|n| n as u64).map_err(failed);
        let fact = Fact {
            state: state_of(row, 0)?,
            attempt: number(1)?,
            epoch: number(2)?,
            version: number(3)?,
            waits: number(4)?,
            cancel: row.get(5).map_err(failed)?,
        };
        Ok(Some(Row { n: row.get(6).map_err(failed)?, fact, behind: false }))
    }

    /// Brings rows up to date, and forgets what was known of them: at the end, and before other statements change them.
    pub(super) fn settle_rows(&mut self) -> rusqlite::Result<()> {
        // No column of an index: SQLite would write the index anew whether the value changes or not.
        let sql = "UPDATE run SET version = ?2, updated_ms = ?3 WHERE n = ?1";
        for row in std::mem::take(&mut self.seen).into_values().filter(|row| row.behind) {
            self.execute(sql, params![row.n, row.fact.version as i64, self.now_ms])?;
        }
        Ok(())
    }

    /// Decides the entries, and writes them and what belongs to them if they are taken.
    fn with_entries(
        &mut self,
        submissions: &[Submission],
        write: impl FnOnce(&mut Self) -> rusqlite::Result<()>,
        point: &str,
    ) -> Answer {
        let entries = match self.decide_all(submissions)? {
            Ok(entries) => entries,
            Err(NotTaken { refusal, spoiled: true }) => return Ok(Err(refusal)),
            Err(NotTaken { refusal, spoiled: false }) => return Ok(Ok(Done::Written(Written::Refused(refusal)))),
        };
        for entry in entries {
            self.put_entry(entry).map_err(failed)?;
        }
        write(self).map_err(failed)?;
        crash::point(point);
        Ok(Ok(Done::Written(Written::Done)))
    }

    fn submit(&mut self, runs: &[NewRun], entries: &[Submission]) -> Answer {
        let mut ids = HashSet::with_capacity(runs.len());
        for NewRun { tenant, id, .. } in runs {
            let sql = "SELECT 1 FROM run WHERE tenant = ?1 AND id = ?2";
            let found = self.tx.prepare_cached(sql).and_then(|mut s| s.exists(params![tenant.as_str(), id]));
            if found.map_err(failed)? || !ids.insert((tenant, id)) {
                return Ok(Ok(Done::Written(Written::Lost)));
            }
        }
        self.with_entries(entries, |this| runs.iter().try_for_each(|run| this.insert_run(run)), "run.submitted")
    }

    fn insert_run(&self, run: &NewRun) -> rusqlite::Result<()> {
        let tenant = run.tenant.as_str();
        let mut depends_on: Vec<_> = run.depends_on.iter().collect();
        depends_on.sort_unstable();
        depends_on.dedup();
        let mut waits = 0;
        for id in depends_on {
            let sql = "INSERT INTO run_dependency (tenant, run, depends_on) VALUES (?1, ?2, ?3)";
            self.execute(sql, params![tenant, run.id, id])?;
            // One that does not exist, or not yet, has not succeeded either.
            let sql = "SELECT 1 FROM run WHERE tenant = ?1 AND id = ?2 AND state = 'succeeded'";
            waits += i64::from(!self.tx.prepare_cached(sql)?.exists(params![tenant, id])?);
        }
        let state = change::first_state(run, waits as u64).word();
        let sql = "INSERT INTO run (tenant, id, submission, item, robot, place, state, attempt, epoch, version, waits,
                   cancel, created_ms, updated_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, 0, 0, ?8, 0, ?9, ?9)";
        let NewRun { id, submission, item, robot, place, metadata, .. } = run;
        self.execute(sql, params![tenant, id, submission, item, robot, place, state, waits, self.now_ms])?;
        let n = self.tx.last_insert_rowid();
        self.execute("INSERT INTO run_text (n, metadata) VALUES (?1, ?2)", params![n, metadata]).map(|_| ())
    }

    /// Several plain statements, because a single one needs tables of its own to sort and to return what it changed,
    /// and each of these costs more than all the rest.
    fn claim(&mut self, claim: &Claim) -> Result<Vec<Run>, JournalError> {
        self.settle_rows().map_err(failed)?;
        let mut found = self.ready(claim)?;
        found.extend(self.left_behind(claim)?);
        found.sort_unstable_by(|(_, a), (_, b)| (&a.id, &a.tenant).cmp(&(&b.id, &b.tenant)));
        found.truncate(claim.runs_max);
        let sql = "UPDATE run SET state = 'running', owner = ?2, lease_until_ms = ?3, epoch = ?4, updated_ms = ?5
                   WHERE n = ?1";
        let mut statement = self.tx.prepare_cached(sql).map_err(failed)?;
        let until = self.now_ms + claim.lease_ms as i64;
        let mut runs = Vec::with_capacity(found.len());
        for (n, mut run) in found {
            run.epoch += 1;
            statement.execute(params![n, claim.owner, until, run.epoch as i64, self.now_ms]).map_err(failed)?;
            (run.state, run.owner) = (RunState::Running, Some(claim.owner.clone()));
            (run.lease_until_ms, run.updated_ms) = (Some(until), self.now_ms);
            runs.push(run);
        }
        crash::point("run.claimed");
        Ok(runs)
    }

    /// The oldest that are queued. The index is named because it is what makes a claim cost the same however many wait.
    fn ready(&self, claim: &Claim) -> Result<Vec<(i64, Run)>, JournalError> {
        let (index, of) = match (&claim.run, &claim.submission) {
            (Some(_), _) => ("run_ready", "AND id = ?3"),
            (None, Some(_)) => ("run_ready_of", "AND submission = ?3"),
            (None, None) => ("run_ready", ""),
        };
        let sql = format!(
            "SELECT {RUN} FROM run INDEXED BY {index} WHERE place = ?1 AND state = 'queued' {of} ORDER BY id LIMIT ?2"
        );
        let mut statement = self.tx.prepare_cached(&sql).map_err(failed)?;
        let runs_max = claim.runs_max as i64;
        let mut rows = match claim.run.as_ref().or(claim.submission.as_ref()) {
            None => statement.query(params![claim.place, runs_max]),
            Some(of) => statement.query(params![claim.place, runs_max, of]),
        }
        .map_err(failed)?;
        let mut found = Vec::with_capacity(claim.runs_max);
        while let Some(row) = rows.next().map_err(failed)? {
            found.push((row.get(18).map_err(failed)?, run_of(row)?));
        }
        Ok(found)
    }

    /// Those whose worker's lease is over, or whose worker is dead.
    fn left_behind(&self, claim: &Claim) -> Result<Vec<(i64, Run)>, JournalError> {
        let sql = format!(
            "SELECT {RUN} FROM run INDEXED BY run_lease
             WHERE place = ?1 AND state = 'running' AND lease_until_ms <= ?2"
        );
        // Only for the sake of dead owners are leases looked at that are not over.
        let until = if claim.dead.is_empty() { self.now_ms } else { i64::MAX };
        let mut statement = self.tx.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query(params![claim.place, until]).map_err(failed)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let run = run_of(row)?;
            let over = run.lease_until_ms.is_none_or(|until| until <= self.now_ms);
            let dead = run.owner.as_ref().is_some_and(|owner| claim.dead.contains(owner));
            let is_meant = claim.submission.as_ref().is_none_or(|of| *of == run.submission)
                && claim.run.as_ref().is_none_or(|only| *only == run.id);
            if (over || dead) && is_meant {
                found.push((row.get(18).map_err(failed)?, run));
            }
        }
        Ok(found)
    }

    fn change(
        &mut self,
        tenant: &'r Tenant,
        run: &'r str,
        change: Option<(i64, Change<'_>)>,
        entries: &[Submission],
    ) -> Answer {
        match change {
            None => Ok(Ok(Done::Written(Written::Lost))),
            Some((n, change)) => {
                self.with_entries(entries, |this| this.put((tenant.as_str(), run), n, &change), "run.committed")
            }
        }
    }

    fn put(&mut self, (tenant, run): (&'r str, &'r str), row: i64, change: &Change<'_>) -> rusqlite::Result<()> {
        let Change { before, after, events, metadata, ended } = change;
        for (event, n) in events.iter().zip(before.version..) {
            let sql = "INSERT INTO run_event (run, n, attempt, at_ms, kind, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let (n, attempt) = (n as i64, after.attempt as i64);
            self.execute(sql, params![row, n, attempt, self.now_ms, event.kind, event.body])?;
        }
        if let Some(metadata) = metadata {
            self.execute("UPDATE run_text SET metadata = ?2 WHERE n = ?1", params![row, metadata])?;
        }
        let behind = ended.is_none();
        self.seen.insert((tenant, run), Row { n: row, fact: *after, behind });
        let Some(Ended { replaces_outcome, outcome, error, capsule, forget_capsule }) = ended else { return Ok(()) };
        let sql = "UPDATE run SET version = ?2, updated_ms = ?3, state = ?4, attempt = ?5, cancel = ?6, owner = NULL,
                   lease_until_ms = NULL, error = CASE WHEN ?7 THEN ?8 ELSE error END WHERE n = ?1";
        let (version, attempt) = (after.version as i64, after.attempt as i64);
        let (state, cancel) = (after.state.word(), after.cancel);
        let values = params![row, version, self.now_ms, state, attempt, cancel, replaces_outcome, error];
        self.execute(sql, values)?;
        match outcome {
            Some(outcome) => {
                let sql = "INSERT INTO run_outcome (n, outcome) VALUES (?1, ?2)
                           ON CONFLICT (n) DO UPDATE SET outcome = excluded.outcome";
                self.execute(sql, params![row, outcome])?;
            }
            None if *replaces_outcome => {
                self.execute("DELETE FROM run_outcome WHERE n = ?1", params![row])?;
            }
            None => {}
        }
        self.tell_dependants(tenant, run, change.waits_for_it())?;
        if *forget_capsule {
            self.execute("DELETE FROM capsule WHERE tenant = ?1 AND run = ?2", params![tenant, run])?;
        }
        if let Some(hash) = capsule {
            let sql = "INSERT INTO capsule (tenant, place, hash, run)
                       SELECT tenant, place, ?2, id FROM run WHERE n = ?1 ON CONFLICT DO NOTHING";
            self.execute(sql, params![row, hash])?;
        }
        Ok(())
    }

    fn tell_dependants(&mut self, tenant: &str, run: &str, waits: i64) -> rusqlite::Result<()> {
        if waits == 0 {
            return Ok(());
        }
        let sql = "SELECT run FROM run_dependency WHERE tenant = ?1 AND depends_on = ?2";
        let mut statement = self.tx.prepare_cached(sql)?;
        let dependants = statement.query_map(params![tenant, run], |row| row.get::<_, String>(0))?;
        for (i, dependant) in dependants.enumerate() {
            if i == 0 {
                self.settle_rows()?;
            }
            let sql = "UPDATE run SET waits = waits + ?3, updated_ms = ?4, state = CASE
                           WHEN state = 'blocked' AND waits + ?3 = 0 THEN 'queued'
                           WHEN state = 'queued' AND waits + ?3 > 0 THEN 'blocked' ELSE state END
                       WHERE tenant = ?1 AND id = ?2";
            self.execute(sql, params![tenant, dependant?, waits, self.now_ms])?;
        }
        Ok(())
    }

    fn renew(&mut self, lease_ms: i64, held: &'r [Held]) -> Result<Vec<Renewed>, JournalError> {
        let until = self.now_ms + lease_ms;
        let mut all = Vec::with_capacity(held.len());
        for Held { tenant, run, epoch } in held {
            let row = self.row(tenant, run)?.filter(|row| row.fact.is_held(*epoch));
            if let Some(Row { n, .. }) = row {
                let sql = "UPDATE run SET lease_until_ms = max(coalesce(lease_until_ms, 0), ?2) WHERE n = ?1";
                self.execute(sql, params![n, until]).map_err(failed)?;
            }
            all.push(change::renewed(run, row.map(|row| row.fact)));
        }
        Ok(all)
    }
}
