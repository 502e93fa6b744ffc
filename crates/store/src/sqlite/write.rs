//! The writing thread: takes whatever waits, decides it against the stored facts, commits it together.

use std::collections::BTreeSet;
use std::sync::Arc;

use actum_contract::id::Tenant;
use actum_ledger::append::{Appended, Book, Known};
use actum_ledger::draft::{Draft, Submission};
use actum_ledger::event::State;
use actum_ledger::journal::{JournalError, Outcome};
use actum_ledger::refusal::Refusal;
use actum_ledger::spend::Purse;
use actum_ledger::state::Last;
use actum_ledger::time::{self, Moment};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use super::clock::FileClock;
use super::run::Seen;
use super::{access, failed, read, rows, webhook};
use crate::batch::{Effect, NotTaken, Refused, decide, decide_all, left_out};
use crate::crash;
use crate::queue::{Done, Receiver, Request};

/// Runs until all callers are gone, or until a commit fails: after that nobody knows what the disk holds, so this
/// handle is not used again.
pub(super) fn run(mut connection: Connection, mut receiver: Receiver, clock: &FileClock) {
    let mut latest = clock.now();
    while let Some(batch) = receiver.next_blocking() {
        match commit(&mut connection, &batch.requests, clock, &mut latest) {
            Ok(done) => batch.answer(Ok(done)),
            Err(Failure::Before(e)) => batch.answer(Err(e)),
            Err(Failure::Commit(e)) => {
                receiver.stop_because(&e);
                return batch.answer(Err(e));
            }
        }
    }
}

enum Failure {
    /// Nothing was written.
    Before(JournalError),
    Commit(JournalError),
}

impl From<rusqlite::Error> for Failure {
    fn from(e: rusqlite::Error) -> Self {
        Self::Before(failed(e))
    }
}

impl From<JournalError> for Failure {
    fn from(e: JournalError) -> Self {
        Self::Before(e)
    }
}

/// Commits what the requests come to. A refusal that comes too late to leave out what was decided before it is rare:
/// then all is decided again without that request.
fn commit(
    connection: &mut Connection,
    requests: &[Request],
    clock: &FileClock,
    latest: &mut Timestamp,
) -> Result<Vec<Done>, Failure> {
    let mut refused = Refused::new();
    loop {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        crash::point("append.begun");
        // Read after the lock is held: leases count from here. Within a process these times never go back.
        *latest = (*latest).max(clock.now());
        let mut writing = Writing::new(&tx, *latest);
        match writing.all(requests, &refused)? {
            Ok(all) => {
                writing.finish()?;
                tx.commit().map_err(|e| Failure::Commit(failed(e)))?;
                crash::point("append.committed");
                return Ok(all);
            }
            Err((at, refusal)) => refused.insert(at, refusal),
        };
    }
}

/// A transaction under way.
pub(super) struct Writing<'c, 'r> {
    pub(super) tx: &'c Connection,
    pub(super) now_ms: i64,
    pub(super) seen: Seen<'r>,
    pub(super) purse: Purse,
    now: Moment,
    book: Book,
    changed: BTreeSet<Tenant>,
    letters: BTreeSet<Option<String>>,
}

impl<'c, 'r> Writing<'c, 'r> {
    fn new(tx: &'c Connection, at: Timestamp) -> Self {
        let (now, now_ms) = (Moment::new(at), at.as_millisecond());
        let (book, changed, letters) = (Book::default(), BTreeSet::new(), BTreeSet::new());
        Self { tx, now_ms, seen: Seen::new(), purse: Purse::default(), now, book, changed, letters }
    }

    /// The answers; or the request that has to be left out, and why.
    fn all(
        &mut self,
        requests: &'r [Request],
        refused: &Refused,
    ) -> Result<Result<Vec<Done>, (usize, Refusal)>, JournalError> {
        let mut all = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter().enumerate() {
            let done = match request {
                _ if refused.contains_key(&at) => Ok(left_out(request, &refused[&at])),
                Request::Append(submission) => self.append(submission).map(Done::Appended),
                Request::Checkpoint { tenant, size, note } => {
                    // The same head with more signatures is worth more.
                    let sql = "INSERT INTO checkpoint (tenant, size, note) VALUES (?1, ?2, ?3) ON CONFLICT (tenant, size)
                               DO UPDATE SET note = excluded.note WHERE length(excluded.note) > length(checkpoint.note)";
                    let values = params![tenant.as_str(), *size as i64, note];
                    let kept = self.tx.prepare_cached(sql).and_then(|mut s| s.execute(values));
                    crash::point("checkpoint.written");
                    kept.map(|_| Done::Kept).map_err(failed)
                }
                Request::Keep(request) => access::keep(self.tx, request).map(Done::KeptAnswer).map_err(failed),
                Request::Webhook(request) => {
                    webhook::write(self.tx, request, self.now_ms).map(Done::Webhook).map_err(failed)
                }
                Request::Run(request) => match self.run(request)? {
                    Ok(done) => Ok(done),
                    Err(refusal) => return Ok(Err((at, refusal))),
                },
                Request::Spend(request) => match self.spend(request)? {
                    Ok(done) => Ok(done),
                    Err(refusal) => return Ok(Err((at, refusal))),
                },
            };
            all.push(done?);
        }
        Ok(Ok(all))
    }

    fn append(&mut self, submission: &Submission) -> Result<Outcome, JournalError> {
        if let Submission::Draft(draft) = submission {
            learn(self.tx, &mut self.book, draft)?;
        }
        let (effect, outcome) = decide(&mut self.book, submission, &self.now);
        match effect {
            Effect::Entry(entry) => self.put_entry(*entry).map_err(failed)?,
            Effect::DeadLetter(letter) => {
                rows::insert_letter(self.tx, &letter, time::nanoseconds(self.now.at)).map_err(failed)?;
                self.letters.insert(letter.tenant);
            }
            Effect::Nothing => {}
        }
        Ok(outcome)
    }

    /// Decides the entries of a request, all or none. Nothing is written yet.
    pub(super) fn decide_all(
        &mut self,
        submissions: &[Submission],
    ) -> Result<Result<Vec<Appended>, NotTaken>, JournalError> {
        for submission in submissions {
            if let Submission::Draft(draft) = submission {
                learn(self.tx, &mut self.book, draft)?;
            }
        }
        Ok(decide_all(&mut self.book, submissions, &self.now))
    }

    pub(super) fn put_entry(&mut self, entry: Appended) -> rusqlite::Result<()> {
        rows::insert_entry(self.tx, &entry)?;
        crash::point("append.inserted");
        rows::project(self.tx, &entry)?;
        self.changed.insert(entry.tenant);
        Ok(())
    }

    fn finish(&mut self) -> rusqlite::Result<()> {
        self.settle_rows()?;
        self.settle_money()?;
        for (tenant, log) in self.book.logs().filter(|(tenant, _)| self.changed.contains(*tenant)) {
            rows::put_log(self.tx, tenant.as_str(), log)?;
        }
        for tenant in &self.letters {
            rows::trim_letters(self.tx, tenant.as_deref())?;
        }
        crash::point("append.written");
        Ok(())
    }
}

/// Tells the book what the rules will ask about this draft.
fn learn(connection: &Connection, book: &mut Book, draft: &Draft) -> Result<(), JournalError> {
    let tenant = &draft.tenant;
    if !book.knows_log(tenant) {
        let log = read::log(connection, tenant)?;
        if let Some(at) = read::last_recorded(connection, tenant)? {
            book.learn_recorded(tenant, at);
        }
        book.learn_log(tenant, log);
    }
    for id in draft.asks_about() {
        learn_entry(connection, book, tenant, &id, false).map_err(failed)?;
    }
    if let Some(id) = draft.asks_about_token()
        && !book.knows_token(id)
        && let Some(token) = access::token(connection, id)?
    {
        book.learn_token(token);
    }
    if let Some(event) = &draft.event {
        let key = (event.robot.clone(), event.execution.clone());
        if !book.knows_execution(tenant, &key) {
            match read_last(connection, tenant, &key).map_err(failed)? {
                Some(last) => book.learn_execution(tenant, key, last?),
                // An event of an execution nobody has heard of cannot be recorded already.
                None => return Ok(()),
            }
        }
    }
    if let Some(id) = &draft.id {
        learn_entry(connection, book, tenant, id, true).map_err(failed)?;
    }
    Ok(())
}

fn learn_entry(
    connection: &Connection,
    book: &mut Book,
    tenant: &Tenant,
    id: &str,
    with_body: bool,
) -> rusqlite::Result<()> {
    // A dependency learned without its text may turn up as a draft's own id later in the batch.
    if book.knows_entry(tenant, id) && !with_body {
        return Ok(());
    }
    let sql = if with_body {
        "SELECT seq, created_ns, body FROM ledger_entry WHERE tenant = ?1 AND id = ?2"
    } else {
        "SELECT seq, created_ns, NULL FROM ledger_entry WHERE tenant = ?1 AND id = ?2"
    };
    let known = connection
        .prepare_cached(sql)?
        .query_row(params![tenant.as_str(), id], |row| {
            let body: Option<Vec<u8>> = row.get(2)?;
            Ok(Known { seq: row.get::<_, i64>(0)? as u64, created_ns: row.get(1)?, body: body.map(Arc::new) })
        })
        .optional()?;
    if let Some(known) = known {
        book.learn_entry(tenant, id.to_owned(), known);
    }
    Ok(())
}

fn read_last(
    connection: &Connection,
    tenant: &Tenant,
    (robot, execution): &(String, String),
) -> rusqlite::Result<Option<Result<Last, JournalError>>> {
    let sql = "SELECT state, attempt FROM execution WHERE tenant = ?1 AND robot = ?2 AND execution = ?3";
    let found = connection
        .prepare_cached(sql)?
        .query_row(params![tenant.as_str(), robot, execution], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64))
        })
        .optional()?;
    Ok(found.map(|(state, attempt)| {
        let state = State::named(&state);
        let state = state.ok_or_else(|| JournalError::Damaged(format!("execution {execution} has no known state")))?;
        Ok(Last { state, attempt })
    }))
}
