//! One batch on its way through the rules: from requests and facts to rows. Shared by the dialects.

use actum_contract::id::Tenant;
use actum_ledger::append::{Appended, Book, Decision};
use actum_ledger::draft::{Draft, Rejection, Submission};
use actum_ledger::journal::Outcome;
use actum_ledger::time::Moment;
use serde_json::json;
use uuid::Uuid;

use crate::queue::{Done, Request};

/// Refused documents kept for each tenant; older ones make room.
pub(crate) const DEAD_LETTERS_MAX: i64 = 10_000;

/// What has to be written for one request.
#[derive(Debug)]
pub(crate) enum Effect<'a> {
    Entry(Box<Appended>),
    DeadLetter(Letter),
    Checkpoint { tenant: &'a Tenant, size: u64, note: &'a str },
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Letter {
    pub tenant: Option<String>,
    pub code: &'static str,
    pub refusal: String,
    pub document: Vec<u8>,
}

/// The drafts of a batch, for a dialect that fetches their facts together.
pub(crate) fn drafts(requests: &[Request]) -> impl Iterator<Item = &Draft> {
    requests.iter().filter_map(|r| match r {
        Request::Append(Submission::Draft(draft)) => Some(&**draft),
        _ => None,
    })
}

/// Decides one request. The book must know the facts the request needs.
pub(crate) fn decide<'a>(book: &mut Book, request: &'a Request, now: &Moment) -> (Effect<'a>, Done) {
    match request {
        Request::Checkpoint { tenant, size, note } => (Effect::Checkpoint { tenant, size: *size, note }, Done::Kept),
        Request::Append(Submission::Rejected(rejection)) => refused(rejection),
        Request::Append(Submission::Draft(draft)) => match book.decide(draft, || Uuid::now_v7().to_string(), now) {
            Decision::Append(appended) => {
                let outcome = Outcome::Created { id: appended.id.clone(), seq: appended.seq };
                (Effect::Entry(appended), Done::Appended(outcome))
            }
            Decision::Idempotent { id, seq } => (Effect::Nothing, Done::Appended(Outcome::Idempotent { id, seq })),
            Decision::Refuse(refusal) => refused(&draft.rejected(refusal)),
        },
    }
}

fn refused<'a>(rejection: &Rejection) -> (Effect<'a>, Done) {
    let Rejection { tenant, refusal, document } = rejection;
    let letter = Letter {
        tenant: tenant.as_ref().map(|t| t.as_str().to_owned()),
        code: refusal.code.name(),
        refusal: json!({"message": refusal.message, "details": refusal.details()}).to_string(),
        document: document.clone(),
    };
    (Effect::DeadLetter(letter), Done::Appended(Outcome::Refused(refusal.clone())))
}
