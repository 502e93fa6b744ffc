//! The port of runs: questions to the pool, writes to the queue.

use actum_contract::id::Tenant;
use actum_ledger::draft::Submission;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::run::{Claim, Commit, Filter, Held, NewRun, Renewed, Run, RunEvent, RunState, Runs, Settle, Written};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Postgres;
use super::read::closed;
use crate::change::{DOOMED_MAX, note};
use crate::request::RunRequest;

/// The columns `run_of` reads, in its order, with what is wanted of the metadata. The texts are looked up for those that are
/// found.
macro_rules! run {
    ($metadata:literal) => {
        concat!(
            "r.tenant, r.id, r.submission, r.item, r.robot, r.place, r.state, r.attempt, r.epoch, r.version, r.owner,
             r.lease_until_ms, r.waits, r.cancel, r.created_ms, r.updated_ms,
             (SELECT ",
            $metadata,
            " FROM run_text t WHERE t.tenant = r.tenant AND t.id = r.id),
             (SELECT o.outcome FROM run_outcome o WHERE o.tenant = r.tenant AND o.id = r.id)"
        )
    };
}

pub(super) const RUN: &str = run!("t.metadata");
/// With the one field of it that $2 names: a page of fifty is a third of what it is with all.
const RUN_WITH_ONE: &str = run!("json_build_object($2::text, t.metadata::json -> $2)::text");

impl Runs for Postgres {
    fn submit(&self, runs: Vec<NewRun>, entries: Vec<Submission>) -> Work<'static, Written> {
        self.sender.as_ref().map_or_else(closed, |s| s.write(RunRequest::submit(runs, entries)))
    }

    fn claim(&self, claim: Claim) -> Work<'static, Vec<Run>> {
        self.sender.as_ref().map_or_else(closed, |s| s.claim(RunRequest::claim(claim)))
    }

    fn commit(&self, commit: Commit) -> Work<'static, Written> {
        self.sender.as_ref().map_or_else(closed, |s| s.write(RunRequest::commit(commit)))
    }

    fn settle(&self, settle: Settle) -> Work<'static, Written> {
        self.sender.as_ref().map_or_else(closed, |s| s.write(RunRequest::settle(settle)))
    }

    // The epoch says whose a run is; the owner's name adds nothing.
    fn renew(&self, _owner: String, lease_ms: u64, held: Vec<Held>) -> Work<'static, Vec<Renewed>> {
        self.sender.as_ref().map_or_else(closed, |s| s.renew(RunRequest::renew(lease_ms, held)))
    }

    fn ask_to_cancel(&self, tenant: &Tenant, run: &str) -> Work<'static, Written> {
        self.sender.as_ref().map_or_else(closed, |s| s.write(RunRequest::cancel(tenant, run)))
    }

    fn look_after<'a>(&'a self, held: &'a [Held]) -> Work<'a, Vec<Renewed>> {
        Box::pin(async move {
            let sql = "SELECT r.cancel
                FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS k (tenant, id, epoch, i)
                LEFT JOIN run r ON r.tenant = k.tenant AND r.id = k.id AND r.epoch = k.epoch AND r.state = 'running'
                ORDER BY k.i";
            let (tenants, ids): (Vec<_>, Vec<_>) = held.iter().map(|h| (h.tenant.as_str(), h.run.as_str())).unzip();
            let epochs: Vec<_> = held.iter().map(|h| h.epoch as i64).collect();
            let rows = self.query(sql, &[&tenants, &ids, &epochs]).await?;
            Ok(held.iter().zip(&rows).filter_map(|(held, row)| note(&held.run, row.get(0))).collect())
        })
    }

    fn runs_named<'a>(&'a self, tenant: &'a Tenant, prefix: &'a str) -> Work<'a, Vec<Run>> {
        Box::pin(async move {
            // Those that begin so are the first from there on, if there are any.
            let sql = format!("SELECT {RUN} FROM run r WHERE r.tenant = $1 AND r.id >= $2 ORDER BY r.id LIMIT 2");
            let rows = self.query(&sql, &[&tenant.as_str(), &prefix]).await?;
            let mut runs = rows.iter().map(run_of).collect::<Result<Vec<_>, _>>()?;
            runs.retain(|run| run.id.starts_with(prefix));
            Ok(runs)
        })
    }

    fn runs<'a>(&'a self, whose: &'a Tenant, asked: Filter) -> Work<'a, Vec<Run>> {
        Box::pin(async move {
            let Filter { state, submission, place, before, limit, only } = asked.clone();
            let (tenant, state) = (whose.as_str(), state.map(RunState::word));
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut values: Vec<&(dyn ToSql + Sync)> = vec![&tenant];
            values.extend(only.as_ref().map(|only| only as &(dyn ToSql + Sync)));
            let columns = if only.is_some() { RUN_WITH_ONE } else { RUN };
            let mut sql = format!("SELECT {columns} FROM run r WHERE r.tenant = $1");
            // Only the conditions that are asked for: each choice of them has an index, or a plan, of its own.
            let (state, rest) = (state.as_ref().map(|s| s as &(dyn ToSql + Sync)), [&submission, &place, &before]);
            let rest = rest.map(|value| value.as_ref().map(|v| v as &(dyn ToSql + Sync)));
            let conditions = ["r.state =", "r.submission =", "r.place =", "r.id <"];
            for (condition, value) in conditions.into_iter().zip(std::iter::once(state).chain(rest)) {
                if let Some(value) = value {
                    values.push(value);
                    sql += &format!(" AND {condition} ${}", values.len());
                }
            }
            values.push(&limit);
            sql += &format!(" ORDER BY r.id DESC LIMIT ${}", values.len());
            match self.query_of_form(&sql, &values).await? {
                Some(rows) => rows.iter().map(run_of).collect(),
                // One of them holds what the database does not take for JSON: then all of it is given, and shown as far as it can be.
                None if only.is_some() => self.runs(whose, Filter { only: None, ..asked }).await,
                None => Err(JournalError::Damaged("runs hold unknown data".into())),
            }
        })
    }

    fn counts<'a>(&'a self, tenant: &'a Tenant) -> Work<'a, Vec<(RunState, Option<String>, u64)>> {
        Box::pin(async move {
            // State by state, as the index has them.
            let sql = "SELECT r.state, r.error, count(*) FROM unnest($2::text[]) AS k (state)
                       JOIN run r ON r.state = k.state AND r.tenant = $1
                       GROUP BY r.state, r.error ORDER BY r.state, r.error NULLS FIRST";
            let rows = self.query(sql, &[&tenant.as_str(), &RunState::ALL.map(RunState::word).as_slice()]).await?;
            rows.iter().map(|row| Ok((state_of(row, 0)?, row.get(1), row.get::<_, i64>(2) as u64))).collect()
        })
    }

    fn events<'a>(&'a self, tenant: &'a Tenant, run: &'a str, from: u64) -> Work<'a, Vec<RunEvent>> {
        Box::pin(async move {
            let sql = "SELECT n, attempt, at_ms, kind, body FROM run_event
                       WHERE tenant = $1 AND run = $2 AND n >= $3 ORDER BY n";
            let from = i64::try_from(from).unwrap_or(i64::MAX);
            let rows = self.query(sql, &[&tenant.as_str(), &run, &from]).await?;
            let event = |row: &Row| {
                let (n, attempt) = (row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64);
                RunEvent { n, attempt, at_ms: row.get(2), kind: row.get(3), body: row.get(4) }
            };
            Ok(rows.iter().map(event).collect())
        })
    }

    fn dependencies<'a>(&'a self, tenant: &'a Tenant, run: &'a str) -> Work<'a, Vec<(String, RunState)>> {
        Box::pin(async move {
            let sql = "SELECT r.id, r.state FROM run_dependency d
                       JOIN run r ON r.tenant = d.tenant AND r.id = d.depends_on
                       WHERE d.tenant = $1 AND d.run = $2 ORDER BY r.id";
            let rows = self.query(sql, &[&tenant.as_str(), &run]).await?;
            rows.iter().map(|row| Ok((row.get(0), state_of(row, 1)?))).collect()
        })
    }

    fn doomed<'a>(&'a self, place: &'a str) -> Work<'a, Vec<(Run, String)>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT {RUN}, lost.id FROM run r, LATERAL (
                     SELECT min(d.depends_on) AS id FROM run_dependency d
                     JOIN run f ON f.tenant = d.tenant AND f.id = d.depends_on
                     WHERE d.tenant = r.tenant AND d.run = r.id AND f.state IN ('failed', 'cancelled')) lost
                 WHERE r.place = $1 AND r.state = 'blocked' AND lost.id IS NOT NULL ORDER BY r.id LIMIT $2"
            );
            let rows = self.query(&sql, &[&place, &DOOMED_MAX]).await?;
            rows.iter().map(|row| Ok((run_of(row)?, row.get(18)))).collect()
        })
    }

    fn admitted<'a>(&'a self, tenant: &'a Tenant, place: &'a str, capsule: &'a str) -> Work<'a, Option<String>> {
        Box::pin(async move {
            let sql = "SELECT run FROM capsule WHERE tenant = $1 AND place = $2 AND hash = $3";
            Ok(self.query(sql, &[&tenant.as_str(), &place, &capsule]).await?.first().map(|row| row.get(0)))
        })
    }
}

pub(super) fn state_of(row: &Row, column: usize) -> Result<RunState, JournalError> {
    let word: &str = row.get(column);
    RunState::named(word).ok_or_else(|| JournalError::Damaged(format!("a run has the unknown state {word:?}")))
}

/// A row that is damaged, by an unknown state or a lost text, is a failed run without metadata: it is shown as damaged, and
/// does not hide the others.
pub(super) fn run_of(row: &Row) -> Result<Run, JournalError> {
    let number = |column: usize| row.get::<_, i64>(column) as u64;
    let state = RunState::named(row.get(6));
    let metadata = row.get::<_, Option<String>>(16).filter(|_| state.is_some());
    Ok(Run {
        tenant: Tenant::new(row.get::<_, String>(0))
            .map_err(|e| JournalError::Damaged(format!("a tenant's name {e}")))?,
        id: row.get(1),
        submission: row.get(2),
        item: row.get(3),
        robot: row.get(4),
        place: row.get(5),
        state: state.unwrap_or(RunState::Failed),
        attempt: number(7),
        epoch: number(8),
        version: number(9),
        owner: row.get(10),
        lease_until_ms: row.get(11),
        waits: number(12),
        cancel: row.get(13),
        created_ms: row.get(14),
        updated_ms: row.get(15),
        metadata: metadata.unwrap_or_default(),
        outcome: row.get(17),
    })
}
