//! The rules of the ledger, in memory: one program, so that it is linked once.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod clock;
mod pointer;
mod registry;
mod rules;
mod spend;

use actum_ledger::append::{Appended, Book, Decision};
use actum_ledger::draft::{self, Submission};
use actum_ledger::refusal::Refusal;
use actum_ledger::time::{self, Moment};
use jiff::Timestamp;
use serde_json::Value;

fn now() -> Timestamp {
    time::parse("2026-01-01T00:00:00Z").unwrap()
}

/// Why a document is none of the ledger's.
fn refused(document: Value) -> Refusal {
    match draft::read_value(document, now()) {
        Submission::Rejected(rejection) => rejection.refusal,
        Submission::Draft(draft) => panic!("accepted {draft:?}"),
    }
}

fn paths(refusal: &Refusal) -> Vec<&str> {
    refusal.violations.iter().map(|v| v.path.as_str()).collect()
}

/// Decides a document as our own code hands it in.
fn decide(book: &mut Book, document: Value) -> Decision {
    let Submission::Draft(draft) = draft::read_value(document.clone(), now()) else { panic!("{}", refused(document)) };
    book.decide(&draft, || panic!("a change brings its id"), &Moment::new(now()))
}

fn appended(decision: Decision) -> Appended {
    match decision {
        Decision::Append(appended) => *appended,
        other => panic!("{other:?}"),
    }
}

fn refusal(decision: Decision) -> Refusal {
    match decision {
        Decision::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}
