//! The port of runs. Not yet.

use actum_contract::id::Tenant;
use actum_ledger::draft::Submission;
use actum_ledger::journal::{JournalError, Work};
use actum_ledger::run::{Claim, Commit, Filter, Held, NewRun, Renewed, Run, RunEvent, RunState, Runs, Settle, Written};

use super::Postgres;

fn not_yet<T>() -> Work<'static, T> {
    Box::pin(async { Err(JournalError::Unusable("not yet".into())) })
}

impl Runs for Postgres {
    fn submit(&self, _: Vec<NewRun>, _: Vec<Submission>) -> Work<'static, Written> {
        not_yet()
    }

    fn claim(&self, _: Claim) -> Work<'static, Vec<Run>> {
        not_yet()
    }

    fn commit(&self, _: Commit) -> Work<'static, Written> {
        not_yet()
    }

    fn settle(&self, _: Settle) -> Work<'static, Written> {
        not_yet()
    }

    fn renew(&self, _: String, _: u64, _: Vec<Held>) -> Work<'static, Vec<Renewed>> {
        not_yet()
    }

    fn ask_to_cancel(&self, _: &Tenant, _: &str) -> Work<'static, Written> {
        not_yet()
    }

    fn look_after<'a>(&'a self, _: &'a [Held]) -> Work<'a, Vec<Renewed>> {
        not_yet()
    }

    fn runs_named<'a>(&'a self, _: &'a Tenant, _: &'a str) -> Work<'a, Vec<Run>> {
        not_yet()
    }

    fn runs<'a>(&'a self, _: &'a Tenant, _: Filter) -> Work<'a, Vec<Run>> {
        not_yet()
    }

    fn counts<'a>(&'a self, _: &'a Tenant) -> Work<'a, Vec<(RunState, Option<String>, u64)>> {
        not_yet()
    }

    fn events<'a>(&'a self, _: &'a Tenant, _: &'a str, _: u64) -> Work<'a, Vec<RunEvent>> {
        not_yet()
    }

    fn dependencies<'a>(&'a self, _: &'a Tenant, _: &'a str) -> Work<'a, Vec<(String, RunState)>> {
        not_yet()
    }

    fn doomed<'a>(&'a self, _: &'a str) -> Work<'a, Vec<(Run, String)>> {
        not_yet()
    }

    fn admitted<'a>(&'a self, _: &'a Tenant, _: &'a str, _: &'a str) -> Work<'a, Option<String>> {
        not_yet()
    }
}
