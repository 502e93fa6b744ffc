//! Any bytes as a document for the ledger, called by libFuzzer: an accepted draft must be the same draft when its own
//! document is read again, and appending it twice must change the log once. It never writes to a store.
#![no_main]

use actum_ledger::append::{Decision, Log, replay};
use actum_ledger::draft::{self, Draft, Submission};
use actum_ledger::{Book, Code};
use actum_ledger::time::Moment;
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;

/// The reader's clock, 2025-06-01T00:00:00Z: a finding must be the same finding tomorrow.
const NOW_SECONDS: i64 = 1_748_736_000;

fuzz_target!(|bytes: &[u8]| {
    let now = Timestamp::from_second(NOW_SECONDS).expect("a second of this century");
    let draft = match draft::read(bytes, now) {
        Submission::Draft(draft) => draft,
        Submission::Rejected(rejection) => {
            assert_eq!(rejection.refusal.code, Code::Validation);
            assert!(!rejection.refusal.violations.is_empty(), "refused without a reason");
            return;
        }
    };
    check_document(&draft, now);
    check_append(&draft, now);
});

fn check_document(draft: &Draft, now: Timestamp) {
    let document = draft.document();
    match draft::read(&document, now) {
        Submission::Draft(again) => assert_eq!(*again, *draft, "the document became another draft"),
        Submission::Rejected(rejection) => {
            panic!("the document of an accepted draft is refused: {}", rejection.refusal);
        }
    }
}

fn check_append(draft: &Draft, now: Timestamp) {
    let mut book = Book::default();
    let appended = match book.decide(draft, || "fresh".to_owned(), &Moment::new(now)) {
        Decision::Append(appended) => appended,
        Decision::Idempotent { id, .. } => panic!("an empty book knows {id}"),
        Decision::Refuse(refusal) => {
            assert_ne!(refusal.code, Code::Validation);
            assert!(!refusal.violations.is_empty(), "refused without a reason");
            // The dead-letter list keeps it.
            draft.rejected(refusal);
            return;
        }
    };

    // What was recorded can be opened and gives the same entry when the projections are made anew.
    let mut log = Log::default();
    let replayed = replay(&draft.tenant, &mut log, &appended.body).expect("a recorded entry can be replayed");
    assert_eq!((&replayed.id, replayed.hash, replayed.seq), (&appended.id, appended.hash, appended.seq));
    assert_eq!((replayed.created_ns, &replayed.event), (appended.created_ns, &appended.event));
    assert_eq!(book.logs().map(|(_, log)| log).collect::<Vec<_>>(), [&log], "the log after replay is another one");

    // A draft without an id of its own is a new entry each time.
    if draft.id.is_some() {
        match book.decide(draft, || "fresh".to_owned(), &Moment::new(now)) {
            Decision::Idempotent { id, seq } => assert_eq!((&id, seq), (&appended.id, appended.seq)),
            other => panic!("the same draft twice: {other:?}"),
        }
    }
}
