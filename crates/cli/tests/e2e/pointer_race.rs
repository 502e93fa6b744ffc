//! One pointer and many who move it at once; and processes killed while they do. Pointer and history always agree, and nobody
//! overwrites what he has not seen.

use std::collections::BTreeSet;

use actum_testkit::postgres::shared_url;
use actum_testkit::program::Program;
use serde_json::{Value, json};

use super::artifact::ID;
use super::pointer::{moved, pointed, quiet};
use super::run::asked;
use super::{actum, predict::SIGNATURE};

const OPERATORS: usize = 8;

/// Everybody at once; of each his exit code and what he was told.
fn at_once(actum: &Program, arguments: impl Fn(usize) -> Vec<String>) -> Vec<(i32, Value)> {
    let running: Vec<_> = (0..OPERATORS)
        .map(|n| {
            let (arguments, name) = (arguments(n), format!("operator {n}"));
            let mut all = vec!["pointer", &arguments[0], ID, "--json", "--reason", "mine", "--actor", &name];
            all.extend(arguments[1..].iter().map(String::as_str));
            actum.start(&all, &[])
        })
        .collect();
    let told = running.into_iter().map(|process| {
        let (code, lines, errors) = process.finish();
        let text = if code == 0 { lines.concat() } else { errors.concat() };
        (code, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    });
    told.collect()
}

fn history(actum: &Program) -> Vec<Value> {
    asked(actum, &["pointer", "history", ID, "--json"])["history"].as_array().unwrap().clone()
}

/// The row is what the newest change left, and each change begins where the one before it ended.
fn agrees(actum: &Program) {
    let (mut shown, history) = (asked(actum, &["pointer", "show", ID, "--json"]), history(actum));
    let fields = shown.as_object_mut().unwrap();
    assert_eq!(fields.remove("revision").as_ref(), history.first().map(|newest| &newest["revision"]));
    assert_eq!(fields.remove("restores").as_ref(), history.first().map(|newest| &newest["restores"]));
    assert_eq!(Some(&shown), history.first().map(|newest| &newest["after"]));
    for (n, (newer, older)) in history.iter().zip(&history[1..]).enumerate() {
        assert_eq!(newer["before"], older["after"], "{n}");
        assert_eq!(newer["revision"].as_u64(), older["revision"].as_u64().map(|n| n + 1));
    }
    for arguments in [["store", "check", "--json"], ["ledger", "verify", "--json"]] {
        assert_eq!(actum.run(&arguments).json()["valid"], true);
    }
    assert_eq!(actum.run(&["store", "rebuild", "--json"]).json()["equal"], true);
}

fn one_winner_each(actum: &Program) {
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    let (a, b) = pointed(actum);
    let words = |all: &[&str]| all.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    // Each wants to be the first.
    let first = at_once(actum, |_| words(&["set", "--primary", &a, "--if", "0"]));
    assert_eq!(first.iter().filter(|(code, _)| *code == 0).count(), 1);
    let (_, winner) = first.iter().find(|(code, _)| *code == 0).unwrap();
    for (code, told) in first.iter().filter(|(code, _)| *code != 0) {
        let error = &told["error"];
        assert_eq!((*code, &error["code"], &error["ref"]), (6, &json!("POINTER_CONFLICT"), &json!("A0902")), "{told}");
        assert_eq!((&error["details"]["actor"], &error["details"]["revision"]), (&winner["actor"], &json!(1)));
    }
    // Each has seen revision n, and wants his own percentage.
    for revision in 1..4 {
        let only = revision.to_string();
        let told = at_once(actum, |n| {
            let percent = (revision * 10 + n).to_string();
            words(&["canary", "--artifact", &b, "--percent", &percent, "--if", &only])
        });
        assert_eq!(told.iter().filter(|(code, _)| *code == 0).count(), 1, "{told:?}");
        assert!(told.iter().all(|(code, _)| matches!(code, 0 | 6)));
    }
    // Nobody looks: who is told yes has his change on record, who is told no has none.
    let told = at_once(actum, |n| words(&["canary", "--artifact", &b, "--percent", &(50 + n).to_string()]));
    let winners: BTreeSet<u64> =
        told.iter().filter(|(code, _)| *code == 0).map(|(_, told)| told["revision"].as_u64().unwrap()).collect();
    assert!(!winners.is_empty() && told.iter().all(|(code, _)| matches!(code, 0 | 6)), "{told:?}");
    assert_eq!(winners.len(), told.iter().filter(|(code, _)| *code == 0).count(), "each has a revision of his own");
    let history = history(actum);
    assert_eq!(history.len(), 4 + winners.len());
    for (_, told) in told.iter().filter(|(code, _)| *code == 0) {
        let kept = history.iter().find(|one| one["revision"] == told["revision"]).unwrap();
        assert_eq!((&kept["actor"], &kept["after"]), (&told["actor"], &told["after"]));
    }
    agrees(actum);
}

#[test]
fn of_many_operators_one_makes_each_change_on_sqlite() {
    one_winner_each(&actum());
}

#[test]
fn of_many_operators_one_makes_each_change_on_postgres() {
    one_winner_each(&actum().on_store(&shared_url()));
}

#[test]
fn of_many_operators_one_makes_each_change_as_an_ordinary_user() {
    one_winner_each(&actum().owned_by_nobody());
}

fn killed_at_each_place(actum: &Program) {
    actum.file("sentiment.yaml", SIGNATURE);
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    let (a, b) = pointed(actum);
    moved(actum, "set", &["--primary", &a]);
    moved(actum, "canary", &["--artifact", &b, "--percent", "5"]);
    let of_store = actum_store::CRASH_POINTS.iter().filter(|place| place.starts_with("append.")).copied();
    let places: Vec<&str> = ["pointer.appending", "pointer.appended"].into_iter().chain(of_store).collect();
    let percent = |at: usize| (10 + at).to_string();
    let wanted = |verb: &str, at: usize| -> Vec<String> {
        let more = match verb {
            "canary" => vec!["--artifact".into(), b.clone(), "--percent".into(), percent(at)],
            _ => Vec::new(),
        };
        [vec!["pointer".into(), verb.into(), ID.into(), "--reason".into(), "killed".into()], more].concat()
    };
    for (at, place) in places.iter().enumerate() {
        for verb in ["canary", "rollback"] {
            let before = history(actum).len();
            let arguments = wanted(verb, at);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut process = actum.start(&arguments, &[("ACTUM_CRASH_AT", place)]);
            assert_eq!(process.error_line(), Some(format!("crash point {place}")));
            assert_eq!(process.kill(), Vec::<String>::new(), "{place}: told before it was through");
            let is_made = matches!(*place, "pointer.appended" | "append.committed");
            assert_eq!(history(actum).len(), before + usize::from(is_made), "{place}");
            agrees(actum);
            // Whoever looked before is not fooled into doing it twice.
            let again = actum.run(&[&arguments[..], &["--if", &before.to_string()]].concat());
            assert_eq!(again.code, if is_made { 6 } else { 0 }, "{place}: {}", again.stderr);
        }
    }
}

#[test]
fn killed_while_a_pointer_is_moved_on_sqlite() {
    killed_at_each_place(&quiet());
}

#[test]
fn killed_while_a_pointer_is_moved_on_postgres() {
    killed_at_each_place(&actum().on_store(&shared_url()));
}
