//! `Idempotency-Key`: once is once.

use std::thread::scope;

use serde_json::json;

use super::{Served, request, served};
use crate::tests::until;

fn post(served: &Served, token: &str, target: &str, key: &str, content: &str) -> super::Heard {
    served.ask("POST", target, token, &format!("idempotency-key: {key}\r\n"), content)
}

#[test]
fn the_same_again_gets_the_same_answer() {
    let served = served();
    let first = post(&served, "operator", "/v1/runs", "k 1", "{}");
    assert_eq!((first.status, first.json(), first.header("idempotent-replayed")), (200, json!({"number": 1}), None));
    let again = post(&served, "operator", "/v1/runs", "k 1", "{}");
    assert_eq!(
        (again.status, again.json(), again.header("idempotent-replayed")),
        (200, json!({"number": 1}), Some("true"))
    );
    assert_eq!(served.fake.started(), 1);
    for (target, content) in [("/v1/runs", "{\"a\":1}"), ("/v1/runs?dry_run=true", "{}"), ("/v1/runs", "")] {
        let other = post(&served, "operator", target, "k 1", content);
        assert_eq!(
            (other.status, other.code().as_str(), other.header("x-actum-exit")),
            (409, "IDEMPOTENCY_CONFLICT", Some("6"))
        );
    }
    // Of another token, another tenant, another key.
    for (token, key) in [("admin", "k 1"), ("acme.operator", "k 1"), ("operator", "k 2")] {
        assert_eq!(post(&served, token, "/v1/runs", key, "{}").header("idempotent-replayed"), None);
    }
    assert_eq!(served.fake.started(), 4);
    let other = post(&served, "admin", "/v1/pointers/x/promote", "k 1", "{}");
    assert_eq!(other.status, 409);
    assert_eq!(post(&served, "admin", "/v1/pointers/x/promote", "k 3", "{}").json(), json!({"number": 5}));
    assert_eq!(post(&served, "admin", "/v1/pointers/y/promote", "k 3", "{}").status, 409);
}

#[test]
fn failures_of_ours_and_what_waits_are_tried_again() {
    let served = served();
    for (task, status, is_kept) in
        [("fail", 500, false), ("wait", 428, false), ("broken", 500, false), ("conflict", 409, true)]
    {
        let content = format!("{{\"do\":\"{task}\"}}");
        let first = post(&served, "admin", "/v1/runs", task, &content);
        let again = post(&served, "admin", "/v1/runs", task, &content);
        assert_eq!((first.status, again.status), (status, status), "{task}");
        assert_eq!(again.header("idempotent-replayed").is_some(), is_kept, "{task}");
    }
    assert_eq!(served.fake.started(), 7);
}

#[test]
fn two_at_once_are_worked_on_once() {
    let served = served();
    scope(|scope| {
        let same: Vec<_> =
            (0..8).map(|_| scope.spawn(|| post(&served, "admin", "/v1/runs", "k", "{\"do\":\"hang\"}"))).collect();
        until("one has begun", || served.fake.started() == 1);
        let other = scope.spawn(|| post(&served, "admin", "/v1/runs", "k", "{}"));
        // Nobody else waits for them.
        assert_eq!(post(&served, "admin", "/v1/runs", "l", "{}").status, 200);
        served.fake.open();
        let same: Vec<_> = same.into_iter().map(|asked| asked.join().unwrap()).collect();
        assert!(same.iter().all(|heard| (heard.status, heard.json()) == (200, json!({"number": 1}))));
        assert_eq!(same.iter().filter(|heard| heard.header("idempotent-replayed").is_none()).count(), 1);
        // The other one comes when the first is through, however many are before it.
        assert_eq!(other.join().unwrap().status, 409);
    });
    assert_eq!(served.fake.started(), 2);
}

#[test]
fn who_comes_back_after_he_left_is_told_what_became_of_it() {
    let served = served();
    let content = "{\"do\":\"hang\"}";
    let left = served.say(&request("POST", "/v1/runs", "admin", "idempotency-key: k\r\n", content));
    until("begun", || served.fake.started() == 1);
    drop(left);
    until("it is noticed", || served.lines().iter().any(|line| line.status == 499));
    scope(|scope| {
        let back = scope.spawn(|| post(&served, "admin", "/v1/runs", "k", content));
        served.fake.open();
        let back = back.join().unwrap();
        assert_eq!(
            (back.status, back.json(), back.header("idempotent-replayed")),
            (200, json!({"number": 1}), Some("true"))
        );
    });
    assert_eq!(served.fake.started(), 1);
}

#[test]
fn bad_keys_and_keys_where_nothing_is_made() {
    let served = served();
    let long = "x".repeat(201);
    for key in ["", "\u{e9}", "a\tb", long.as_str(), "a\r\nidempotency-key: a"] {
        let heard = post(&served, "admin", "/v1/runs", key, "{}");
        assert_eq!((heard.status, heard.code().as_str()), (400, "INPUT_INVALID"), "{key}");
    }
    assert_eq!(served.fake.started(), 0);
    assert_eq!(post(&served, "admin", "/v1/runs", &"x".repeat(200), "{}").status, 200);
    for _ in 0..2 {
        assert_eq!(post(&served, "admin", "/v1/runs/1/cancel", "k", "").header("idempotent-replayed"), None);
    }
    assert_eq!(served.fake.started(), 3);
    assert_eq!(served.fake.kept.lock().unwrap().len(), 1);
}
