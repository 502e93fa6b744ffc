//! Writing about runs: one request after the other within the transaction of the batch. Nothing of a request is
//! written before all of it is decided.

use std::collections::HashSet;

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

/// An answer; or a refusal for which the whole batch has to be decided again.
type Answer = Result<Result<Done, Refusal>, JournalError>;

impl Writing<'_> {
    pub(super) fn run(&mut self, request: &RunRequest) -> Answer {
        match request {
            RunRequest::Submit { runs, entries } => self.submit(runs, entries),
            RunRequest::Claim(claim) => self.claim(claim).map(|runs| Ok(Done::Claimed(runs))),
            RunRequest::Commit(commit, code) => {
                let Held { tenant, run, .. } = &commit.held;
                let fact = self.fact(tenant, run)?;
                let change = fact.and_then(|fact| change::commit(fact, commit, code));
                self.change(tenant, run, change, &commit.entries)
            }
            RunRequest::Settle(settle, code) => {
                let fact = self.fact(&settle.tenant, &settle.run)?;
                let change = fact.and_then(|fact| change::settle(fact, settle, code));
                self.change(&settle.tenant, &settle.run, change, &settle.entries)
            }
            RunRequest::Renew { lease_ms, held } => self.renew(*lease_ms, held).map(|all| Ok(Done::Renewed(all))),
            RunRequest::Cancel { tenant, run } => {
                let running = self.fact(tenant, run)?.and_then(change::cancel).is_some();
                if running {
                    let sql = "UPDATE run SET cancel = 1, updated_ms = ?3 WHERE tenant = ?1 AND id = ?2";
                    self.execute(sql, params![tenant.as_str(), run, self.now_ms]).map_err(failed)?;
                }
                Ok(Ok(Done::Written(if running { Written::Done } else { Written::Lost })))
            }
        }
    }

    fn execute(&self, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<usize> {
        self.tx.prepare_cached(sql)?.execute(values)
    }

    fn fact(&self, tenant: &Tenant, run: &str) -> Result<Option<Fact>, JournalError> {
        let sql = "SELECT state, attempt, epoch, version, waits, cancel FROM run WHERE tenant = ?1 AND id = ?2";
        let mut statement = self.tx.prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query(params![tenant.as_str(), run]).map_err(failed)?;
        let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
        let number = |column: usize| row.get::<_, i64>(column).map(|n| n as u64).map_err(failed);
        Ok(Some(Fact {
            state: state_of(row, 0)?,
            attempt: number(1)?,
            epoch: number(2)?,
            version: number(3)?,
            waits: number(4)?,
            cancel: row.get(5).map_err(failed)?,
        }))
    }

    /// Decides the entries, and writes them and what belongs to them if they are taken.
    fn with_entries(
        &mut self,
        submissions: &[Submission],
        write: impl FnOnce(&Self) -> rusqlite::Result<()>,
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
                   cancel, created_ms, updated_ms, metadata) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, 0, 0, ?8, 0, ?9, ?9, ?10)";
        let NewRun { id, submission, item, robot, place, metadata, .. } = run;
        let values = params![tenant, id, submission, item, robot, place, state, waits, self.now_ms, metadata];
        self.execute(sql, values).map(|_| ())
    }

    /// Several plain statements, because a single one needs tables of its own to sort and to return what it changed,
    /// and each of these costs more than all the rest.
    fn claim(&self, claim: &Claim) -> Result<Vec<Run>, JournalError> {
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
        let (index, of) = match claim.submission {
            None => ("run_ready", ""),
            Some(_) => ("run_ready_of", "AND submission = ?3"),
        };
        let sql = format!(
            "SELECT {RUN}, n FROM run INDEXED BY {index} WHERE place = ?1 AND state = 'queued' {of} ORDER BY id LIMIT ?2"
        );
        let mut statement = self.tx.prepare_cached(&sql).map_err(failed)?;
        let runs_max = claim.runs_max as i64;
        let mut rows = match &claim.submission {
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
            "SELECT {RUN}, n FROM run INDEXED BY run_lease
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
            if (over || dead) && claim.submission.as_ref().is_none_or(|of| *of == run.submission) {
                found.push((row.get(18).map_err(failed)?, run));
            }
        }
        Ok(found)
    }

    fn change(&mut self, tenant: &Tenant, run: &str, change: Option<Change<'_>>, entries: &[Submission]) -> Answer {
        match change {
            None => Ok(Ok(Done::Written(Written::Lost))),
            Some(change) => self.with_entries(entries, |this| this.put(tenant.as_str(), run, &change), "run.committed"),
        }
    }

    fn put(&self, tenant: &str, run: &str, change: &Change<'_>) -> rusqlite::Result<()> {
        let Change { before, after, events, metadata, ended } = change;
        for (event, n) in events.iter().zip(before.version..) {
            let sql = "INSERT INTO run_event (tenant, run, n, attempt, at_ms, kind, body)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let (n, attempt) = (n as i64, after.attempt as i64);
            self.execute(sql, params![tenant, run, n, attempt, self.now_ms, event.kind, event.body])?;
        }
        let (version, attempt) = (after.version as i64, after.attempt as i64);
        let Some(Ended { replaces_outcome, outcome, error, capsule, forget_capsule }) = ended else {
            // No column of an index: SQLite would write the index anew whether the value changes or not.
            let sql = "UPDATE run SET version = ?3, updated_ms = ?4, metadata = coalesce(?5, metadata)
                       WHERE tenant = ?1 AND id = ?2";
            return self.execute(sql, params![tenant, run, version, self.now_ms, metadata]).map(|_| ());
        };
        let sql = "UPDATE run SET version = ?3, updated_ms = ?4, metadata = coalesce(?5, metadata), state = ?6,
                   attempt = ?7, cancel = ?8, owner = NULL, lease_until_ms = NULL,
                   outcome = CASE WHEN ?9 THEN ?10 ELSE outcome END, error = CASE WHEN ?9 THEN ?11 ELSE error END
                   WHERE tenant = ?1 AND id = ?2";
        let (state, cancel) = (after.state.word(), after.cancel);
        let values = params![
            tenant,
            run,
            version,
            self.now_ms,
            metadata,
            state,
            attempt,
            cancel,
            replaces_outcome,
            outcome,
            error
        ];
        self.execute(sql, values)?;
        self.tell_dependants(tenant, run, change.waits_for_it())?;
        if *forget_capsule {
            self.execute("DELETE FROM capsule WHERE tenant = ?1 AND run = ?2", params![tenant, run])?;
        }
        if let Some(hash) = capsule {
            let sql = "INSERT INTO capsule (tenant, place, hash, run)
                       SELECT tenant, place, ?3, id FROM run WHERE tenant = ?1 AND id = ?2 ON CONFLICT DO NOTHING";
            self.execute(sql, params![tenant, run, hash])?;
        }
        Ok(())
    }

    fn tell_dependants(&self, tenant: &str, run: &str, waits: i64) -> rusqlite::Result<()> {
        if waits == 0 {
            return Ok(());
        }
        let sql = "SELECT run FROM run_dependency WHERE tenant = ?1 AND depends_on = ?2";
        let mut statement = self.tx.prepare_cached(sql)?;
        let dependants = statement.query_map(params![tenant, run], |row| row.get::<_, String>(0))?;
        for dependant in dependants {
            let sql = "UPDATE run SET waits = waits + ?3, updated_ms = ?4, state = CASE
                           WHEN state = 'blocked' AND waits + ?3 = 0 THEN 'queued'
                           WHEN state = 'queued' AND waits + ?3 > 0 THEN 'blocked' ELSE state END
                       WHERE tenant = ?1 AND id = ?2";
            self.execute(sql, params![tenant, dependant?, waits, self.now_ms])?;
        }
        Ok(())
    }

    fn renew(&self, lease_ms: i64, held: &[Held]) -> Result<Vec<Renewed>, JournalError> {
        let until = self.now_ms + lease_ms;
        let mut all = Vec::with_capacity(held.len());
        for Held { tenant, run, epoch } in held {
            let fact = self.fact(tenant, run)?.filter(|fact| fact.is_held(*epoch));
            if fact.is_some() {
                let sql = "UPDATE run SET lease_until_ms = ?3 WHERE tenant = ?1 AND id = ?2";
                self.execute(sql, params![tenant.as_str(), run, until]).map_err(failed)?;
            }
            all.push(change::renewed(run, fact));
        }
        Ok(all)
    }
}
