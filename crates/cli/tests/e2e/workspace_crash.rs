//! kill -9 at every named place of freeze, publish, undo, thaw and gc. Afterwards, with the next command that opens the
//! workspace: exactly before or exactly after, never between, and every content that is referred to is there.

use std::collections::BTreeSet;
use std::fs;

use actum_testkit::dice::Dice;
use actum_testkit::folder::Folder;
use actum_testkit::program::{Program, other};
use actum_testkit::tree::{build, edit, play, read};

use super::actum;
use super::workspace::{act, json, new_stage};

/// Runs a command to a place and kills it there; whether the place was reached.
pub(super) fn killed_at(actum: &Program, arguments: &[&str], place: &str) -> bool {
    let mut running = actum.start(arguments, &[("ACTUM_CRASH_AT", place)]);
    let reached = running.error_line().is_some_and(|line| line.starts_with("crash point"));
    running.kill();
    reached
}

/// Every place, at its first passings: those inside loops are passed often.
fn places() -> Vec<(String, &'static str)> {
    let passings = |name: &str| if name.starts_with("publish.") { 1..=5 } else { 1..=2 };
    all_places().iter().flat_map(|name| passings(name).map(move |n| (format!("{name}#{n}"), *name))).collect()
}

fn all_places() -> Vec<&'static str> {
    // Those of sending are passed only where there is an object store.
    let sending = ["blobs.sending", "blobs.sent", "blobs.marked"];
    let own = |p: &&&str| p.starts_with("blobs") || p.starts_with("sweep");
    let blobs = actum_store::CRASH_POINTS.iter().filter(own).filter(|p| !sending.contains(*p));
    let ledger = ["append.begun", "append.committed"];
    actum_workspace::CRASH_POINTS.iter().chain(blobs).copied().chain(ledger).collect()
}

fn check(actum: &Program) {
    assert_eq!(json(actum, &["snapshot", "check", "--json"])["valid"], true);
    let left: Vec<_> = fs::read_dir(actum.path(".actum/workspace/tx"))
        .map(|entries| entries.map(|e| e.unwrap().path()).filter(|p| !p.join("done").exists()).collect())
        .unwrap_or_default();
    assert!(left.is_empty(), "nothing is left unfinished: {left:?}");
}

/// A tree in which every kind of step happens, and a script that makes them happen.
fn scenario(seed: u64) -> (String, String) {
    let mut dice = Dice::new(seed);
    let sure = "mkdir -p d/e t; echo 1 > m1; echo 1 > m2; echo 1 > gone; echo 1 > d/e/f; echo 1 > t/x; ln -s m1 l\n";
    let then = "echo 2 > m1; echo 2 > m2; rm gone; rm -r d; echo file > d; mkdir n; echo 2 > n/new; rm -r t; \
                ln -snf m2 l; chmod +x m2; mkdir -p hollow\n";
    (format!("{}{sure}", build(&mut dice, 12)), format!("{}{then}", edit(&mut dice, 8)))
}

/// Kills `arguments` at every place, each time on a fresh workspace, and looks what became of it.
fn matrix(prepare: impl Fn(&Program) -> Vec<String>, required: &[&str]) {
    let mut reached_places = BTreeSet::new();
    for (at, name) in places() {
        let actum = actum();
        let arguments = prepare(&actum);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let before = read(actum.folder());
        let copy = Folder::new();
        let status = other("cp").args(["-a", "--"]).arg(actum.folder()).arg(copy.join("w")).status();
        assert!(status.unwrap().success());
        if !killed_at(&actum, &arguments, &at) {
            continue;
        }
        reached_places.insert(name);
        json(&actum, &["snapshot", "freeze", "--json"]);
        let found = read(actum.folder());
        // What the whole command would have come to, found out on the copy with nobody in the way.
        let whole = Program::new(env!("CARGO_BIN_EXE_actum"));
        fs::remove_dir(whole.folder()).unwrap();
        fs::rename(copy.join("w"), whole.folder()).unwrap();
        let path_of =
            |text: &&str| text.replace(&actum.folder().display().to_string(), &whole.folder().display().to_string());
        let arguments: Vec<String> = arguments.iter().map(path_of).collect();
        assert_eq!(whole.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).code, 0);
        let after = read(whole.folder());
        assert!(
            found == before || found == after,
            "{at}: neither before nor after\n{found:#?}\n{before:#?}\n{after:#?}"
        );
        check(&actum);
        assert_eq!(json(&actum, &["ledger", "verify", "--json"])["valid"], true);
        // Publishing it again, or once more, comes to the same.
        if found == before {
            let arguments: Vec<String> = arguments
                .iter()
                .map(|a| a.replace(&whole.folder().display().to_string(), &actum.folder().display().to_string()))
                .collect();
            let again = actum.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(again.code, 0, "{at}: {}", again.stderr);
            assert_eq!(read(actum.folder()), after, "{at}");
        }
    }
    for name in required {
        assert!(reached_places.contains(name), "{name} was never reached: {reached_places:?}");
    }
}

#[test]
fn freeze_killed_anywhere_loses_nothing() {
    matrix(
        |actum| {
            play(&scenario(1).0, actum.folder());
            vec!["snapshot".into(), "freeze".into(), "--json".into()]
        },
        &[
            "freeze.walked",
            "freeze.stored",
            "freeze.indexed",
            "freeze.recorded",
            "blobs.written",
            "blobs.packed",
            "blobs.indexed",
        ],
    );
}

#[test]
fn publish_killed_anywhere_is_all_or_nothing() {
    for (seed, flags) in [(2, ["--mode", "overlay"]), (3, ["--mode", "copy"])] {
        matrix(
            |actum| {
                let (first, then) = scenario(seed);
                play(&first, actum.folder());
                let stage = new_stage(actum, &flags);
                act(actum, &stage, &then);
                vec!["apply".into(), "--json".into(), stage]
            },
            &[
                "publish.staged",
                "publish.synced",
                "publish.committed",
                "publish.taken",
                "publish.cleared",
                "publish.changed",
                "publish.applied",
                "publish.settled",
                "append.committed",
            ],
        );
    }
}

#[test]
fn undo_killed_anywhere_is_all_or_nothing() {
    matrix(
        |actum| {
            let (first, then) = scenario(4);
            play(&first, actum.folder());
            let stage = new_stage(actum, &[]);
            act(actum, &stage, &then);
            json(actum, &["apply", "--json", &stage]);
            vec!["undo".into(), "--json".into(), stage]
        },
        &["publish.committed", "publish.taken", "publish.changed", "publish.applied"],
    );
}

#[test]
fn thaw_killed_anywhere_is_all_or_nothing() {
    matrix(
        |actum| {
            let (first, then) = scenario(5);
            play(&first, actum.folder());
            let id = json(actum, &["snapshot", "freeze", "--json"])["id"].as_str().unwrap().to_owned();
            play(&then, actum.folder());
            json(actum, &["snapshot", "freeze", "--json"]);
            vec!["snapshot".into(), "thaw".into(), "--json".into(), id, ".".into()]
        },
        &["publish.committed", "publish.taken", "publish.changed", "publish.applied"],
    );
    matrix(
        |actum| {
            play(&scenario(5).0, actum.folder());
            let id = json(actum, &["snapshot", "freeze", "--json"])["id"].as_str().unwrap().to_owned();
            vec!["snapshot".into(), "thaw".into(), "--json".into(), id, "out".into()]
        },
        &["thaw.written", "thaw.named"],
    );
}

#[test]
fn gc_killed_anywhere_loses_nothing() {
    matrix(
        |actum| {
            for n in 0..4_u8 {
                fs::write(actum.path("f"), vec![n; 20_000]).unwrap();
                fs::write(actum.path("g"), [n]).unwrap();
                let id = json(actum, &["snapshot", "freeze", "--json"])["id"].as_str().unwrap().to_owned();
                if n < 2 {
                    json(actum, &["snapshot", "forget", "--json", &id]);
                }
            }
            // Half of a pack lives on.
            fs::write(actum.path("f"), vec![1; 20_000]).unwrap();
            vec!["snapshot".into(), "gc".into(), "--json".into()]
        },
        &["sweep.copied", "sweep.removed"],
    );
}

#[test]
fn a_stage_whose_publication_was_interrupted_is_never_published_twice() {
    for place in ["publish.applied", "publish.settled"] {
        let actum = actum();
        fs::write(actum.path("base"), "1").unwrap();
        let stage = new_stage(&actum, &[]);
        act(&actum, &stage, "echo 2 > base; echo x > x; echo y > y");
        assert!(killed_at(&actum, &["apply", "--json", &stage], place));
        fs::write(actum.path("other"), "user").unwrap();
        json(&actum, &["undo", "--json", &stage]);
        let again = actum.run(&["apply", "--json", &stage]);
        assert_eq!((again.code, &again.error()["code"]), (6, &"ALREADY_APPLIED".into()), "{place}");
        assert_eq!(read(actum.folder()).len(), 2);
        for arguments in [&["snapshot", "freeze"][..], &["snapshot", "gc"], &["stage", "list"], &["stage", "new"]] {
            json(&actum, &[arguments, &["--json"]].concat());
        }
        check(&actum);
    }
}

#[test]
fn whoever_waited_for_the_dead_mends_what_they_left() {
    for waiting in [&["snapshot", "gc", "--json"][..], &["snapshot", "gc", "--json", "--max-bytes", "1"]] {
        let actum = actum();
        for name in ["a", "b", "c"] {
            fs::write(actum.path(name), "1").unwrap();
        }
        let stage = new_stage(&actum, &[]);
        act(&actum, &stage, "rm a; rm c; echo 2 > b");
        // Dies while it holds the lock, in the middle of its changes; the other has looked before, and waits.
        let mut dying = actum.start(&["apply", "--json", &stage], &[("ACTUM_CRASH_AT", "publish.staged")]);
        assert!(dying.error_line().unwrap().starts_with("crash point"));
        let waiter = actum.start(waiting, &[]);
        wait_for_lock(waiter.id());
        dying.kill();
        let (code, _, errors) = waiter.finish();
        assert_eq!(code, 0, "{errors:?}");
        assert_eq!(read(actum.folder()).len(), 3, "nothing had been committed");
        check(&actum);
        assert_eq!(actum.run(&["apply", "--json", &stage]).code, 0);
        assert_eq!(read(actum.folder()).len(), 1);
    }
}

/// Until the kernel lists the process among those that wait for a lock.
fn wait_for_lock(process: u32) {
    let waits = |line: &str| line.contains("->") && line.split_whitespace().any(|word| word == process.to_string());
    while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        std::thread::yield_now();
    }
}

#[test]
fn a_stage_that_was_half_dropped_is_no_stage() {
    let actum = actum();
    fs::write(actum.path("f"), "1").unwrap();
    let stage = new_stage(&actum, &["--mode", "copy"]);
    let folder = actum.path(".actum/stages");
    // As a kill in the middle of removing would leave it.
    fs::rename(folder.join(&stage), folder.join(format!(".unfinished-{stage}"))).unwrap();
    fs::remove_file(folder.join(format!(".unfinished-{stage}/folder/f"))).unwrap();
    assert_eq!(actum.run(&["apply", "--json", &stage]).code, 7);
    assert_eq!(json(&actum, &["stage", "list", "--json"])["stages"], serde_json::json!([]));
    json(&actum, &["snapshot", "gc", "--json"]);
    assert!(!folder.join(format!(".unfinished-{stage}")).exists());
}

#[test]
fn a_publication_that_meets_an_edit_at_the_last_moment_is_taken_back_even_across_a_kill() {
    for second in [None, Some("publish.aborted"), Some("publish.reversed")] {
        let actum = actum();
        let (first, then) = scenario(6);
        play(&first, actum.folder());
        let stage = new_stage(&actum, &[]);
        act(&actum, &stage, &then);
        assert!(killed_at(&actum, &["apply", "--json", &stage], "publish.cleared"));
        // The journal is written and deletions are made; now somebody edits a file that is still to be replaced.
        fs::write(actum.path("m2"), "the user's own work").unwrap();
        if let Some(place) = second {
            assert!(killed_at(&actum, &["snapshot", "freeze", "--json"], place));
        }
        json(&actum, &["snapshot", "freeze", "--json"]);
        let plain = Folder::new();
        play(&first, plain.path());
        fs::write(plain.join("m2"), "the user's own work").unwrap();
        assert_eq!(read(actum.folder()), read(plain.path()), "{second:?}");
        check(&actum);
        assert_eq!(actum.run(&["apply", "--json", &stage]).code, 6, "the result is kept and in conflict");
    }
}

#[test]
fn killed_at_random_100_times_it_is_all_or_nothing() {
    let actum = actum();
    let mut dice = Dice::new(77);
    play(&scenario(7).0, actum.folder());
    for round in 0..100 {
        let stage = new_stage(&actum, &[]);
        act(&actum, &stage, &edit(&mut dice, 12));
        let before = json(&actum, &["snapshot", "freeze", "--json"])["id"].clone();
        let after = json(&actum, &["diff", "--json", &stage])["after"].clone();
        let running = actum.start(&["apply", "--json", &stage], &[]);
        std::thread::sleep(std::time::Duration::from_micros(dice.roll(30_000)));
        running.kill();
        let found = json(&actum, &["snapshot", "freeze", "--json"])["id"].clone();
        assert!(found == before || found == after, "round {round}: neither before nor after");
        check(&actum);
        actum.run(&["stage", "drop", "--json", &stage]);
    }
    assert_eq!(json(&actum, &["ledger", "verify", "--json"])["valid"], true);
}
