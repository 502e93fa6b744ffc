//! What has happened, in its order: the entries of a tenant's ledger, or the journal of one of its runs. Read for `actum events`
//! and for whoever listens to a server. It keeps nothing and waits for nothing.

use actum_api::error;
use actum_contract::id::Tenant;
use actum_engine::Waiter;
use actum_ledger::journal::Range;
use actum_ledger::run::{Run, RunEvent};
use actum_server::api::{Event, Reached, Source};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::failure::Failure;

/// Events that are read at once, and how large they may be together; the first is read whatever its size.
const EVENTS_MAX: usize = 64;
const STRETCH_BYTES_MAX: usize = 64 << 10;

/// How far a source has come.
pub(crate) fn reached(waiter: &Waiter, source: &Source) -> Result<Reached, Failure> {
    let tenant = tenant_of(source)?;
    let Some(run) = &source.run else {
        let size = waiter.wait(waiter.journal.log(&tenant))?.frontier.size();
        return Ok(Reached { last: size.checked_sub(1), end: None });
    };
    let run = run_of(waiter, &tenant, run)?;
    let end = run.state.is_over().then(|| json!({"run_id": run.id, "state": run.state.word()}).to_string());
    Ok(Reached { last: run.version.checked_sub(1), end })
}

/// The events behind that one, some of them: at least one if there is any.
pub(crate) fn stretch(waiter: &Waiter, source: &Source, after: Option<u64>) -> Result<Vec<Event>, Failure> {
    let tenant = tenant_of(source)?;
    let from = after.map_or(0, |after| after.saturating_add(1));
    let all: Vec<Event> = match &source.run {
        None => {
            let rows = waiter.wait(waiter.journal.rows(&tenant, Range::forwards(from, EVENTS_MAX)))?;
            let event = |row: actum_ledger::verify::Row| {
                let data = String::from_utf8_lossy(&row.body).into_owned();
                Event { id: row.seq, kind: row.kind, data }
            };
            rows.into_iter().map(event).collect()
        }
        Some(run) => {
            let events = waiter.wait(waiter.runs.events(&tenant, run, from))?;
            events.into_iter().take(EVENTS_MAX).map(of_run).collect()
        }
    };
    // Whoever hears of an event goes on from its place later: it has to be there then.
    if !all.is_empty() {
        waiter.wait(waiter.journal.settled())?;
    }
    let mut bytes = 0;
    let fits = |event: &Event| {
        let is_first = bytes == 0;
        bytes += event.data.len() + event.kind.len();
        is_first || bytes <= STRETCH_BYTES_MAX
    };
    Ok(all.into_iter().take_while(fits).collect())
}

/// That nobody goes on from a place which is not there: whoever came from another store would wait for ever.
pub(crate) fn check_after(waiter: &Waiter, source: &Source, after: Option<u64>) -> Result<(), Failure> {
    let last = reached(waiter, source)?.last;
    match after {
        Some(after) if Some(after) > last => {
            let failure = Failure::new(error::USAGE, format!("there is no event {after} yet to go on from"));
            let last = last.map_or_else(|| "there is none yet".to_owned(), |last| format!("the last one is {last}"));
            Err(failure.hint(last))
        }
        _ => Ok(()),
    }
}

fn of_run(event: RunEvent) -> Event {
    let RunEvent { n, attempt, at_ms, kind, body } = event;
    let at = Timestamp::from_millisecond(at_ms).map(|at| at.to_string()).ok();
    let body: Value = serde_json::from_str(&body).unwrap_or(Value::String(body));
    let data = json!({"n": n, "attempt": attempt, "at": at, "type": kind, "data": body});
    Event { id: n, kind, data: data.to_string() }
}

fn tenant_of(source: &Source) -> Result<Tenant, Failure> {
    Tenant::new(source.tenant.as_str()).map_err(|e| Failure::new(error::INTERNAL, e.to_string()))
}

fn run_of(waiter: &Waiter, tenant: &Tenant, id: &str) -> Result<Run, Failure> {
    let found = waiter.wait(waiter.runs.runs_named(tenant, id))?.into_iter().find(|run| run.id == id);
    found.ok_or_else(|| Failure::new(error::NOT_FOUND, format!("there is no run {id:?}")))
}
