//! The port of runs: questions to the readers, writes to the queue.

use actum_contract::id::Tenant;
use actum_ledger::draft::Submission;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::run::{Claim, Commit, Filter, Held, NewRun, Renewed, Run, RunEvent, RunState, Runs, Settle, Written};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params, params_from_iter};

use super::read::read_only;
use super::{Sqlite, failed};
use crate::change::{DOOMED_MAX, note};
use crate::request::RunRequest;

/// The columns `run_of` reads, in its order, and the run's n. Its texts are looked up for those that are found.
pub(super) const RUN: &str = "tenant, id, submission, item, robot, place, state, attempt, epoch, version, owner,
    lease_until_ms, waits, cancel, created_ms, updated_ms,
    (SELECT metadata FROM run_text t WHERE t.n = run.n), (SELECT outcome FROM run_outcome o WHERE o.n = run.n), run.n";

impl Runs for Sqlite {
    fn submit(&self, runs: Vec<NewRun>, entries: Vec<Submission>) -> Work<'static, Written> {
        self.sender().map_or_else(read_only, |s| s.write(RunRequest::submit(runs, entries)))
    }

    fn claim(&self, claim: Claim) -> Work<'static, Vec<Run>> {
        self.sender().map_or_else(read_only, |s| s.claim(RunRequest::claim(claim)))
    }

    fn commit(&self, commit: Commit) -> Work<'static, Written> {
        self.sender().map_or_else(read_only, |s| s.write(RunRequest::commit(commit)))
    }

    fn settle(&self, settle: Settle) -> Work<'static, Written> {
        self.sender().map_or_else(read_only, |s| s.write(RunRequest::settle(settle)))
    }

    // The epoch says whose a run is; the owner's name adds nothing.
    fn renew(&self, _owner: String, lease_ms: u64, held: Vec<Held>) -> Work<'static, Vec<Renewed>> {
        self.sender().map_or_else(read_only, |s| s.renew(RunRequest::renew(lease_ms, held)))
    }

    fn ask_to_cancel(&self, tenant: &Tenant, run: &str) -> Work<'static, Written> {
        self.sender().map_or_else(read_only, |s| s.write(RunRequest::cancel(tenant, run)))
    }

    fn look_after<'a>(&'a self, held: &'a [Held]) -> Work<'a, Vec<Renewed>> {
        let held = held.to_vec();
        self.ask(move |c| look_after(c, &held).map_err(failed))
    }

    fn runs_named<'a>(&'a self, tenant: &'a Tenant, prefix: &'a str) -> Work<'a, Vec<Run>> {
        let (tenant, prefix) = (tenant.clone(), prefix.to_owned());
        self.ask(move |c| {
            // Those that begin so are the first from there on, if there are any.
            let sql = format!("SELECT {RUN} FROM run WHERE tenant = ?1 AND id >= ?2 ORDER BY id LIMIT 2");
            let mut runs = all(c, &sql, params![tenant.as_str(), prefix], run_of)?;
            runs.retain(|run| run.id.starts_with(&prefix));
            Ok(runs)
        })
    }

    fn runs<'a>(&'a self, tenant: &'a Tenant, filter: Filter) -> Work<'a, Vec<Run>> {
        let tenant = tenant.clone();
        self.ask(move |c| runs(c, &tenant, filter))
    }

    fn counts<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<(RunState, Option<String>, u64)>> {
        let tenant = tenant.clone();
        self.ask(move |c| counts(c, &tenant))
    }

    fn events<'a>(&'a self, tenant: &'a Tenant, run: &'a str, from: u64) -> Work<'a, Vec<RunEvent>> {
        let (tenant, run, from) = (tenant.clone(), run.to_owned(), i64::try_from(from).unwrap_or(i64::MAX));
        let sql = "SELECT n, attempt, at_ms, kind, body FROM run_event
                   WHERE run = (SELECT n FROM run WHERE tenant = ?1 AND id = ?2) AND n >= ?3 ORDER BY n";
        self.ask(move |c| {
            all(c, sql, params![tenant.as_str(), run, from], |row| {
                let (n, attempt) = (get::<i64>(row, 0)? as u64, get::<i64>(row, 1)? as u64);
                Ok(RunEvent { n, attempt, at_ms: get(row, 2)?, kind: get(row, 3)?, body: get(row, 4)? })
            })
        })
    }

    fn dependencies<'a>(&'a self, tenant: &'a Tenant, run: &'a str) -> Work<'a, Vec<(String, RunState)>> {
        let (tenant, run) = (tenant.clone(), run.to_owned());
        let sql = "SELECT r.id, r.state FROM run_dependency d JOIN run r ON r.tenant = d.tenant AND r.id = d.depends_on
                   WHERE d.tenant = ?1 AND d.run = ?2 ORDER BY r.id";
        self.ask(move |c| all(c, sql, params![tenant.as_str(), run], |row| Ok((get(row, 0)?, state_of(row, 1)?))))
    }

    fn doomed<'a>(&'a self, place: &'a str) -> Work<'a, Vec<(Run, String)>> {
        let place = place.to_owned();
        let sql = format!(
            "SELECT * FROM (SELECT {RUN}, (
                 SELECT min(d.depends_on) FROM run_dependency d JOIN run f ON f.tenant = d.tenant AND f.id = d.depends_on
                 WHERE d.tenant = run.tenant AND d.run = run.id AND f.state IN ('failed', 'cancelled')) AS lost
                 FROM run INDEXED BY run_blocked WHERE place = ?1 AND state = 'blocked')
             WHERE lost IS NOT NULL ORDER BY id LIMIT ?2"
        );
        self.ask(move |c| all(c, &sql, params![place, DOOMED_MAX], |row| Ok((run_of(row)?, get(row, 19)?))))
    }

    fn admitted<'a>(&'a self, tenant: &'a Tenant, place: &'a str, capsule: &'a str) -> Work<'a, Option<String>> {
        let (tenant, place, hash) = (tenant.clone(), place.to_owned(), capsule.to_owned());
        let sql = "SELECT run FROM capsule WHERE tenant = ?1 AND place = ?2 AND hash = ?3";
        self.ask(move |c| Ok(all(c, sql, params![tenant.as_str(), place, hash], |row| get(row, 0))?.pop()))
    }
}

fn get<T: rusqlite::types::FromSql>(row: &Row<'_>, column: usize) -> Result<T, JournalError> {
    row.get(column).map_err(failed)
}

fn all<T>(
    c: &Connection,
    sql: &str,
    values: impl Params,
    of: impl Fn(&Row<'_>) -> Result<T, JournalError>,
) -> Result<Vec<T>, JournalError> {
    let mut statement = c.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query(values).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        found.push(of(row)?);
    }
    Ok(found)
}

pub(super) fn state_of(row: &Row<'_>, column: usize) -> Result<RunState, JournalError> {
    let word: String = get(row, column)?;
    RunState::named(&word).ok_or_else(|| JournalError::Damaged(format!("a run has the unknown state {word:?}")))
}

/// A row that is damaged, by an unknown state or a lost text, is a failed run without metadata: it is shown as damaged, and
/// does not hide the others.
pub(super) fn run_of(row: &Row<'_>) -> Result<Run, JournalError> {
    let number = |column: usize| get::<i64>(row, column).map(|n| n as u64);
    let state = RunState::named(&get::<String>(row, 6)?);
    let metadata = get::<Option<String>>(row, 16)?.filter(|_| state.is_some());
    Ok(Run {
        tenant: Tenant::new(get::<String>(row, 0)?)
            .map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))?,
        id: get(row, 1)?,
        submission: get(row, 2)?,
        item: get(row, 3)?,
        robot: get(row, 4)?,
        place: get(row, 5)?,
        state: state.unwrap_or(RunState::Failed),
        attempt: number(7)?,
        epoch: number(8)?,
        version: number(9)?,
        owner: get(row, 10)?,
        lease_until_ms: get(row, 11)?,
        waits: number(12)?,
        cancel: get(row, 13)?,
        created_ms: get(row, 14)?,
        updated_ms: get(row, 15)?,
        metadata: metadata.unwrap_or_default(),
        outcome: get(row, 17)?,
    })
}

fn look_after(c: &Connection, held: &[Held]) -> rusqlite::Result<Vec<Renewed>> {
    let sql = "SELECT cancel FROM run WHERE tenant = ?1 AND id = ?2 AND epoch = ?3 AND state = 'running'";
    let mut statement = c.prepare_cached(sql)?;
    let mut noted = Vec::new();
    for Held { tenant, run, epoch } in held {
        let values = params![tenant.as_str(), run, *epoch as i64];
        let cancel: Option<bool> = statement.query_row(values, |row| row.get(0)).optional()?;
        noted.extend(note(run, cancel));
    }
    Ok(noted)
}

/// In the order of the index, and the codes only of those states that have some: to group all of them by both, a million runs
/// would be sorted.
fn counts(c: &Connection, tenant: &Tenant) -> Result<Vec<(RunState, Option<String>, u64)>, JournalError> {
    let sql = "SELECT state, count(*), count(error) FROM run WHERE tenant = ?1 GROUP BY state ORDER BY state";
    let states = all(c, sql, params![tenant.as_str()], |row| {
        Ok((RunState::named(&get::<String>(row, 0)?), get::<i64>(row, 1)? as u64, get::<i64>(row, 2)? as u64))
    })?;
    // `store check` counts rows whose state is unknown.
    let states: Vec<_> = states.into_iter().filter_map(|(state, all, failed)| Some((state?, all, failed))).collect();
    let sql = "SELECT error, count(*) FROM run WHERE tenant = ?1 AND state = ?2 AND error IS NOT NULL
               GROUP BY error ORDER BY error";
    let mut found = Vec::new();
    for (state, number, coded) in states {
        if number > coded {
            found.push((state, None, number - coded));
        }
        if coded > 0 {
            let codes = all(c, sql, params![tenant.as_str(), state.word()], |row| {
                Ok((state, Some(get(row, 0)?), get::<i64>(row, 1)? as u64))
            })?;
            found.extend(codes);
        }
    }
    Ok(found)
}

fn runs(c: &Connection, tenant: &Tenant, filter: Filter) -> Result<Vec<Run>, JournalError> {
    // Nothing is sent here: to take a field out of the metadata would cost more than to give all of it.
    let Filter { state, submission, place, before, limit, only: _ } = filter;
    let mut sql = format!("SELECT {RUN} FROM run WHERE tenant = ?1");
    let mut values = vec![Value::from(tenant.as_str().to_owned())];
    let state = state.map(|state| state.word().to_owned());
    // Only the conditions that are asked for: each choice of them has an index, or a plan, of its own.
    for (condition, value) in [("state =", state), ("submission =", submission), ("place =", place), ("id <", before)] {
        if let Some(value) = value {
            values.push(Value::from(value));
            sql += &format!(" AND {condition} ?{}", values.len());
        }
    }
    values.push(Value::from(i64::try_from(limit).unwrap_or(i64::MAX)));
    sql += &format!(" ORDER BY id DESC LIMIT ?{}", values.len());
    all(c, &sql, params_from_iter(values), run_of)
}
