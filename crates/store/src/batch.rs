//! One batch on its way through the rules: from requests and facts to rows. Shared by the dialects.

use std::collections::HashMap;

use actum_ledger::append::{Appended, Book, Decision};
use actum_ledger::draft::{Draft, Rejection, Submission};
use actum_ledger::journal::{JournalError, Outcome};
use actum_ledger::refusal::Refusal;
use actum_ledger::registry::Status;
use actum_ledger::run::Written;
use actum_ledger::time::Moment;
use serde_json::json;
use uuid::Uuid;

use crate::queue::{Done, Request};

/// Refused documents kept for each tenant; older ones make room.
pub(crate) const DEAD_LETTERS_MAX: i64 = 10_000;

/// What has to be written for one submission.
#[derive(Debug)]
pub(crate) enum Effect {
    Entry(Box<Appended>),
    DeadLetter(Letter),
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Letter {
    pub tenant: Option<String>,
    pub code: &'static str,
    pub refusal: String,
    pub document: Vec<u8>,
}

/// The requests of a batch that turned out to be refused as a whole, by their place in it.
pub(crate) type Refused = HashMap<usize, Refusal>;

/// The drafts of a batch, for a dialect that fetches their facts together.
pub(crate) fn drafts(requests: &[Request]) -> impl Iterator<Item = &Draft> {
    requests.iter().flat_map(Request::submissions).filter_map(|submission| match submission {
        Submission::Draft(draft) => Some(&**draft),
        Submission::Rejected(_) => None,
    })
}

/// Decides one submission. The book must know the facts it needs.
pub(crate) fn decide(book: &mut Book, submission: &Submission, now: &Moment) -> (Effect, Outcome) {
    match submission {
        Submission::Rejected(rejection) => refused(rejection),
        Submission::Draft(draft) => match book.decide(draft, fresh_id, now) {
            Decision::Append(appended) => {
                let outcome = Outcome::Created { id: appended.id.clone(), seq: appended.seq };
                (Effect::Entry(appended), outcome)
            }
            Decision::Idempotent { id, seq } => (Effect::Nothing, Outcome::Idempotent { id, seq }),
            Decision::Refuse(refusal) => refused(&draft.rejected(refusal)),
        },
    }
}

/// Why the entries of one request are not taken.
#[derive(Debug)]
pub(crate) struct NotTaken {
    pub refusal: Refusal,
    /// The book has taken note of entries before the refused one: it is of no use any more.
    pub spoiled: bool,
}

/// Decides the entries of one request, all or none.
pub(crate) fn decide_all(book: &mut Book, all: &[Submission], now: &Moment) -> Result<Vec<Appended>, NotTaken> {
    let mut entries = Vec::with_capacity(all.len());
    for submission in all {
        let refusal = match submission {
            Submission::Rejected(rejection) => rejection.refusal.clone(),
            Submission::Draft(draft) => match book.decide(draft, fresh_id, now) {
                Decision::Append(appended) => {
                    entries.push(*appended);
                    continue;
                }
                Decision::Idempotent { .. } => continue,
                Decision::Refuse(refusal) => refusal,
            },
        };
        return Err(NotTaken { refusal, spoiled: !entries.is_empty() });
    }
    Ok(entries)
}

/// The answer to a request whose entries are refused.
pub(crate) fn left_out(request: &Request, refusal: &Refusal) -> Done {
    match request {
        Request::Spend(request) => Done::Spent(request.not_taken(&refusal.message)),
        _ => Done::Written(Written::Refused(refusal.clone())),
    }
}

/// A word out of the table of what is registered.
pub(crate) fn status_named(item: &str, word: &str) -> Result<Status, JournalError> {
    let damaged = || JournalError::Damaged(format!("{item} has no known status: run `actum store rebuild`"));
    Status::named(word).ok_or_else(damaged)
}

fn fresh_id() -> String {
    Uuid::now_v7().to_string()
}

fn refused(rejection: &Rejection) -> (Effect, Outcome) {
    let Rejection { tenant, refusal, document } = rejection;
    let letter = Letter {
        tenant: tenant.as_ref().map(|t| t.as_str().to_owned()),
        code: refusal.code.name(),
        refusal: json!({"message": refusal.message, "details": refusal.details()}).to_string(),
        document: document.clone(),
    };
    (Effect::DeadLetter(letter), Outcome::Refused(refusal.clone()))
}
