//! Clocks that jump (D-502): the store accepts entries that it stamps itself under any clock, and their times never go back.

use actum_ledger::append::{Book, Decision};
use actum_ledger::draft::{self, Submission};
use actum_ledger::entry::{Entry, recorded_at};
use actum_ledger::time::{self, Moment};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::now;

fn own(document: Value) -> Box<draft::Draft> {
    match draft::read_own(document) {
        Submission::Draft(draft) => draft,
        Submission::Rejected(rejection) => panic!("{:?}", rejection.refusal),
    }
}

fn event(state: &str, attempt: u64, snapshot_at: Timestamp) -> Value {
    let error = json!({"code": "X", "message": "m", "retryable": true});
    let mut payload = json!({
        "executionId": "e", "workflowVersion": "v1", "agentVersion": "v1", "executionContractVersion": "v1",
        "attempt": attempt, "target": "t", "action": "a", "snapshotAt": time::format(snapshot_at),
        "coherenceStatus": "coherent", "dryRun": true,
    });
    match state {
        "failed" => payload["error"] = error,
        "succeeded" => payload["result"] = json!({}),
        _ => {}
    }
    json!({
        "tenantId": "t", "robotId": "r", "module": "agent-builder", "source": "agent-builder", "type": "execution_event",
        "state": state, "payload": payload, "lineage": {"dependsOnLedgerIds": ["snapshot"]},
    })
}

/// Decides in a book that learned the last entry as a store would.
fn append(stored: &mut Vec<Entry>, book: &mut Book, document: Value, clock: Timestamp) -> Entry {
    match book.decide(&own(document), || "fresh".to_owned(), &Moment::new(clock)) {
        Decision::Append(appended) => {
            let entry = Entry::open(&appended.body).unwrap();
            assert_eq!(recorded_at(&appended.body), time::parse(&entry.recorded_at).ok());
            stored.push(entry.clone());
            entry
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn any_clock_leaves_runs_and_times_in_order(
        jumps in prop::collection::vec(-86_400_000i64..86_400_000, 12),
        attempts in 1u64..3,
    ) {
        let clock = |at: usize| now().saturating_add(SignedDuration::from_millis(jumps[at])).unwrap();
        let tenant = actum_contract::id::Tenant::new("t").unwrap();
        let (mut book, mut stored) = (Book::default(), Vec::new());
        let log_time = |stored: &[Entry], clock: Timestamp| {
            stored.last().map_or(clock, |last: &Entry| time::parse(&last.recorded_at).unwrap().max(clock))
        };
        let snapshot = json!({
            "id": "snapshot", "tenantId": "t", "module": "m", "source": "s", "type": "note", "payload": {},
        });
        append(&mut stored, &mut book, snapshot, clock(0));
        let mut at = 0;
        for attempt in 1..=attempts {
            let snapshot_at = log_time(&stored, clock(at));
            let end = if attempt == attempts { "succeeded" } else { "failed" };
            for state in ["planned", "running", end] {
                at += 1;
                let entry = append(&mut stored, &mut book, event(state, attempt, snapshot_at), clock(at));
                prop_assert!(time::parse(&entry.created_at).unwrap() >= snapshot_at);
            }
        }
        let times: Vec<_> = stored.iter().map(|entry| time::parse(&entry.recorded_at).unwrap()).collect();
        prop_assert!(times.is_sorted(), "{times:?}");
        // Another process learns the last time from the log.
        let mut other = Book::default();
        other.learn_recorded(&tenant, *times.last().unwrap());
        let note = json!({"tenantId": "t", "module": "m", "source": "s", "type": "note", "payload": {}});
        let entry = append(&mut stored, &mut other, note, clock(11));
        prop_assert!(time::parse(&entry.recorded_at).unwrap() >= *times.last().unwrap());
    }
}

/// A snapshot far in the future does not take the log along.
#[test]
fn snapshot_far_in_the_future_is_refused() {
    let mut book = Book::default();
    let mut stored = Vec::new();
    let note = json!({"id": "snapshot", "tenantId": "t", "module": "m", "source": "s", "type": "note", "payload": {}});
    append(&mut stored, &mut book, note, now());
    let far = now().saturating_add(SignedDuration::from_hours(1)).unwrap();
    let decision = book.decide(&own(event("planned", 1, far)), String::new, &Moment::new(now()));
    assert!(
        matches!(&decision, Decision::Refuse(refusal) if refusal.violations[0].path == "payload.snapshotAt"),
        "{decision:?}"
    );
}

/// Others bring their own time for an event; only Actum's own may leave it to the store.
#[test]
fn events_of_others_name_their_time() {
    assert!(matches!(draft::read_value(event("planned", 1, now()), now()), Submission::Rejected(_)));
}
