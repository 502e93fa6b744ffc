//! Publishing survives kill -9 (D-504): the folder is whole without any further command, and after a crash of the machine
//! every order of commands leaves folder, run and ledger in agreement.

use std::fs;
use std::time::{Duration, Instant};

use actum_testkit::dice::Dice;
use actum_testkit::program::Program;
use actum_testkit::tree::{Leaves, read};
use serde_json::Value;

use super::run::{id, item, project, with};
use super::runs::{all_runs, end, entries, is_over, state, status, until, worker};

const FILES: usize = 60;

/// An agent that replaces sixty files.
fn sixty() -> Program {
    let actum = project(&[("a", "for n in $(seq 60); do echo new > file-$n; done")]);
    for n in 1..=FILES {
        actum.file(&format!("file-{n}"), "old\n");
    }
    actum.file("work.json", with(item("i", "a"), "constraints", serde_json::json!({"max_files": 100})).to_string());
    actum
}

/// The same in a folder of the project, by an agent that also adds and removes files and folders.
fn sixty_in_a_folder() -> Program {
    let script =
        "for n in $(seq 60); do echo new > file-$n; done; rm -r gone; mkdir -p made/deep; echo new > made/deep/file";
    let actum = project(&[("a", script)]);
    for n in 1..=FILES {
        actum.file(&format!("sub/file-{n}"), "old\n");
    }
    actum.file("sub/gone/deep/file", "old\n");
    let item = with(item("i", "a"), "constraints", serde_json::json!({"max_files": 100}));
    actum.file("work.json", serde_json::json!({"workspace": "sub", "items": [item]}).to_string());
    actum
}

const RUN: [&str; 7] =
    ["run", "--json", "--set", "maxFilesPerStep=100", "--set", "lightValidationMode=off", "work.json"];

fn texts(actum: &Program) -> Vec<String> {
    let at = |path: &str| fs::read_to_string(actum.path(path)).unwrap_or_default();
    if !actum.path("sub").is_dir() {
        return (1..=FILES).map(|n| at(&format!("file-{n}"))).collect();
    }
    // What is removed and what is added speak for the state in which they are not there.
    let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
    let others = [or(at("sub/gone/deep/file"), "new\n"), or(at("sub/made/deep/file"), "old\n")];
    (1..=FILES).map(|n| at(&format!("sub/file-{n}"))).chain(others).collect()
}

fn is_whole(actum: &Program) -> bool {
    let texts = texts(actum);
    texts.iter().all(|text| text == "old\n") || texts.iter().all(|text| text == "new\n")
}

/// How often the kill is aimed at publishing; more by `ACTUM_PUBLISH_KILLS`.
fn kills() -> usize {
    std::env::var("ACTUM_PUBLISH_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

#[test]
fn folder_is_whole_after_kill_without_another_command() {
    let mut dice = Dice::new(21);
    let mut published = 0;
    for round in 0..kills() {
        let actum = sixty();
        let running = actum.start(&RUN, &[]);
        // Aimed at the moment when the first file changes, or at one just before.
        let aim = dice.roll(3);
        let watched = actum.path(".actum/workspace/pending");
        let deadline = Instant::now() + Duration::from_secs(60);
        let has_begun = || match aim {
            0 => texts(&actum).iter().any(|text| text == "new\n"),
            _ => fs::read_dir(&watched).is_ok_and(|mut names| names.next().is_some()),
        };
        while !has_begun() {
            assert!(Instant::now() < deadline, "it never publishes");
        }
        running.kill_alone();
        // No other command: only the publisher's own end is waited for.
        until("the publisher has ended", || is_whole(&actum) && !is_committed(&actum));
        assert!(is_whole(&actum), "round {round}");
        let run = all_runs(&actum).remove(0);
        let is_new = texts(&actum)[0] == "new\n";
        published += usize::from(is_new);
        // The first command that comes by finishes the record of a run that has published.
        if is_new {
            assert_eq!(state(&actum, &run), "succeeded", "round {round}");
            assert_eq!(actum.run(&["verify", &run]).code, 0, "round {round}");
        }
        assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true);
    }
    assert!(published > 0, "some of the kills came after the commit");
}

/// Whether a publication is committed and not at its end.
fn is_committed(actum: &Program) -> bool {
    let places = [".actum/workspace/tx", "sub/.actum/workspace/tx"];
    let folders = places.into_iter().flat_map(|place| fs::read_dir(actum.path(place)).into_iter().flatten().flatten());
    folders.into_iter().any(|folder| folder.path().join("journal").exists())
}

/// The places between the commit and the end of a run.
const PLACES: [&str; 11] = [
    "run.publishing",
    "publish.marked",
    "publish.staged",
    "publish.committed",
    "publish.changed",
    "publish.changed#40",
    "publish.applied",
    "run.applied",
    "publish.settled",
    "run.published",
    "run.receipted",
];

/// Commands that come next, in this order.
const ORDERS: [&[&str]; 9] = [
    &["gc-all", "cancel", "worker"],
    &["status"],
    &["cancel", "worker"],
    &["undo", "worker"],
    &["freeze", "cancel", "worker"],
    &["gc", "undo"],
    &["resume", "undo"],
    &["cancel", "resume"],
    &["apply", "cancel"],
];

fn command(actum: &Program, run: &str, name: &str) {
    let arguments: Vec<&str> = match name {
        "freeze" => vec!["snapshot", "freeze"],
        "gc" => vec!["snapshot", "gc"],
        "gc-all" => vec!["snapshot", "gc", "--max-bytes", "0"],
        "worker" => {
            let worker = worker(actum, &[], &[]);
            until("the run is over", || is_over(actum, run));
            return end(worker);
        }
        name => vec![name, run],
    };
    let ended = actum.run(&arguments);
    assert!(ended.code != 70, "{name}: {}{}", ended.stdout, ended.stderr);
}

/// What a simple observer expects: the folder is all old or all new, and the record and the ledger say which.
fn agrees(actum: &Program, run: &str, before: &Leaves, case: &str) {
    let found = read(actum.folder());
    let is_new = found != *before;
    assert!(is_whole(actum), "{case}: {:?}", texts(actum));
    let shown = status(actum, run);
    // A draft that was not applied is kept, and changes nothing.
    let is_out = shown["run"]["undone"] == true || shown["run"]["kept"] == true;
    match shown["state"].as_str().unwrap() {
        "succeeded" => assert_eq!(is_new, !is_out, "{case}: {shown}"),
        "failed" | "cancelled" | "queued" | "running" => assert!(!is_new, "{case}: {shown}"),
        other => panic!("{case}: {other}"),
    }
    let published = entries(actum, "workspace_publication");
    let count = |cause: &str| published.iter().filter(|entry| entry["payload"]["cause"] == cause).count();
    assert_eq!(count("publish") > count("undo"), is_new, "{case}: {published:?}");
    assert_eq!(actum.run(&["ledger", "verify", "--json"]).json()["valid"], true, "{case}");
    let gate: Value = actum.run(&["gate", "--json", run]).json();
    if gate["decision"] == "PASS" {
        assert!(is_new, "{case}");
    }
    let left = fs::read_dir(actum.path(".actum/workspace/pending")).into_iter().flatten().count();
    assert_eq!(left, 0, "{case}: nothing is pending");
}

/// The machine stops at a named place; then commands in some order.
fn orders(at: &str) {
    for order in ORDERS {
        let case = format!("{at}, then {order:?}");
        let actum = sixty();
        let before = read(actum.folder());
        let mut running = actum.start(&RUN, &[("ACTUM_CRASH_AT", at)]);
        let reached = running.error_line().is_some_and(|line| line.starts_with("crash point"));
        running.kill();
        assert!(reached, "{case}");
        let run = all_runs_without_recovery(&actum);
        for name in order {
            command(&actum, &run, name);
        }
        agrees(&actum, &run, &before, &case);
        // Open work can be finished.
        if !is_over(&actum, &run) {
            command(&actum, &run, "worker");
            agrees(&actum, &run, &before, &case);
        }
    }
}

macro_rules! after_a_crash {
    ($($name:ident: $at:expr;)*) => {
        $(
            #[test]
            fn $name() {
                orders(PLACES[$at]);
            }
        )*
    };
}

after_a_crash! {
    any_order_of_commands_agrees_after_a_crash_before_publishing: 0;
    any_order_of_commands_agrees_after_a_crash_at_the_marker: 1;
    any_order_of_commands_agrees_after_a_crash_while_staging: 2;
    any_order_of_commands_agrees_after_a_crash_at_the_commit: 3;
    any_order_of_commands_agrees_after_a_crash_at_the_first_file: 4;
    any_order_of_commands_agrees_after_a_crash_in_the_middle: 5;
    any_order_of_commands_agrees_after_a_crash_at_the_last_file: 6;
    any_order_of_commands_agrees_after_a_crash_before_recording: 7;
    any_order_of_commands_agrees_after_a_crash_after_recording: 8;
    any_order_of_commands_agrees_after_a_crash_before_the_receipt: 9;
    any_order_of_commands_agrees_after_a_crash_before_the_end: 10;
}

/// Two commands at once, right after the machine has stopped.
#[test]
fn two_commands_at_once_agree_after_a_crash() {
    const PAIRS: [[&str; 2]; 5] =
        [["cancel", "undo"], ["resume", "undo"], ["status", "status"], ["resume", "cancel"], ["resume", "resume"]];
    for at in ["publish.committed", "publish.changed#20", "publish.applied", "run.receipted"] {
        for pair in PAIRS {
            let case = format!("{at}, then {pair:?} at once");
            let actum = sixty();
            let before = read(actum.folder());
            let mut running = actum.start(&RUN, &[("ACTUM_CRASH_AT", at)]);
            assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{case}");
            running.kill();
            let run = all_runs_without_recovery(&actum);
            let both = pair.map(|name| actum.start(&[name, &run], &[]));
            for running in both {
                let (code, lines, errors) = running.finish();
                assert!(code != 70, "{case}: {lines:?} {errors:?}");
            }
            if !is_over(&actum, &run) {
                command(&actum, &run, "worker");
            }
            agrees(&actum, &run, &before, &case);
        }
    }
}

/// Starts a command and kills it at a named place, if it comes by there.
fn command_killed_at(actum: &Program, arguments: &[&str], place: &str) {
    let mut running = actum.start(arguments, &[("ACTUM_CRASH_AT", place)]);
    while running.error_line().is_some_and(|line| !line.starts_with("crash point")) {}
    running.kill();
}

/// Random commands after a crash at a random place: some are killed as well, some meet another one. More seeds by
/// `ACTUM_PUBLISH_SEEDS`.
#[test]
fn random_commands_and_kills_end_in_agreement() {
    const NAMES: [&str; 10] = [
        "status",
        "cancel",
        "undo",
        "resume",
        "apply",
        "snapshot freeze",
        "snapshot gc",
        "store gc",
        "recover",
        "store check",
    ];
    let with_run = |name: &'static str, run: &str| -> Vec<String> {
        let needs_run = ["status", "cancel", "undo", "resume", "apply"].contains(&name);
        let words = name.split(' ').chain(needs_run.then_some(run));
        words.map(str::to_owned).collect()
    };
    let seeds = std::env::var("ACTUM_PUBLISH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    // Later commands are killed at any place that has a name, also where only some of them pass.
    let places: Vec<&str> =
        actum_engine::CRASH_POINTS.iter().chain(actum_workspace::CRASH_POINTS).chain(&PLACES).copied().collect();
    for seed in 0..seeds {
        let mut dice = Dice::new(2_100 + seed);
        let at = dice.pick(&PLACES);
        let actum = if seed % 2 == 0 { sixty() } else { sixty_in_a_folder() };
        let before = read(actum.folder());
        let mut case = format!("seed {seed}: {at}");
        // Every third one is a draft first, and it is `apply` that dies.
        let is_draft = seed % 3 == 2;
        if is_draft {
            let draft: Vec<&str> = RUN.into_iter().chain(["--dry-run"]).collect();
            assert_eq!(actum.run(&draft).code, 0, "{case}");
        }
        let draft = if is_draft { all_runs_without_recovery(&actum) } else { String::new() };
        let first = if is_draft { vec!["apply", &draft] } else { RUN.to_vec() };
        command_killed_at(&actum, &first, at);
        let run = all_runs_without_recovery(&actum);
        for _ in 0..3 + dice.roll(4) {
            let (name, second, place) = (dice.pick(&NAMES), dice.pick(&NAMES), dice.pick(&places));
            let arguments = with_run(name, &run);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            match dice.roll(6) {
                5 => {
                    case += ", a worker killed at some moment";
                    let mut worker = actum.start(&["worker"], &[("ACTUM_CRASH_AT", place)]);
                    // It stops at the place already if that lies in what it has to finish first.
                    let begun = |line: &String| line.contains("works for") || line.starts_with("crash point");
                    let line = std::iter::from_fn(|| worker.error_line()).find(begun).expect("it begins");
                    if line.contains("works for") {
                        until("the run is taken up or over", || {
                            ["running", "succeeded", "failed", "cancelled"].contains(&state(&actum, &run).as_str())
                        });
                    }
                    worker.kill();
                }
                4 => {
                    // A worker that may take the run while the command is at work, and is ended before it is through.
                    case += &format!(", {name} beside a worker");
                    let worker = worker(&actum, &[], &[]);
                    let ended = actum.run(&arguments);
                    assert!(ended.code != 70, "{case}: {}{}", ended.stdout, ended.stderr);
                    end(worker);
                }
                0 => {
                    case += &format!(", {name} killed at {place}");
                    command_killed_at(&actum, &arguments, place);
                }
                1 => {
                    case += &format!(", {name} beside {second}");
                    let others = with_run(second, &run);
                    let others: Vec<&str> = others.iter().map(String::as_str).collect();
                    for running in [actum.start(&arguments, &[]), actum.start(&others, &[])] {
                        let (code, lines, errors) = running.finish();
                        assert!(code != 70, "{case}: {lines:?} {errors:?}");
                    }
                }
                _ => {
                    case += &format!(", {name}");
                    let ended = actum.run(&arguments);
                    assert!(ended.code != 70, "{case}: {}{}", ended.stdout, ended.stderr);
                }
            }
        }
        if !is_over(&actum, &run) {
            command(&actum, &run, "worker");
        }
        agrees(&actum, &run, &before, &case);
    }
}

/// A marker is written before there is anything to find. A command that comes by meanwhile leaves it, and says whom it waits
/// for.
#[test]
fn a_marker_stays_while_its_publication_is_prepared() {
    let actum = sixty_in_a_folder();
    let markers = || fs::read_dir(actum.path(".actum/workspace/pending")).into_iter().flatten().count();
    let mut running = actum.start(&RUN, &[("ACTUM_CRASH_AT", "publish.marked")]);
    assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")));
    assert_eq!(markers(), 1);
    for command in [&["status"][..], &["list"]] {
        let looked = actum.run(command);
        assert_eq!(looked.code, 0, "{}", looked.stderr);
        assert!(looked.stderr.contains("sub is being changed by process"), "{}", looked.stderr);
        assert_eq!(markers(), 1, "{command:?}");
    }
    running.kill();
    assert_eq!(actum.run(&["status"]).code, 0);
    assert_eq!(markers(), 0);
    assert!(is_whole(&actum) && texts(&actum)[0] == "old\n");
}

/// The only run, read from the database: a command would recover first.
fn all_runs_without_recovery(actum: &Program) -> String {
    let database = rusqlite::Connection::open(actum.path(".actum/actum.db")).unwrap();
    database.query_row("SELECT id FROM run", [], |row| row.get(0)).unwrap()
}

/// `apply` and `undo` killed by a crash of the machine are written down by the next command.
#[test]
fn killed_apply_and_undo_are_recorded_by_the_next_command() {
    for at in ["publish.committed", "publish.changed", "publish.applied", "publish.settled"] {
        let actum = sixty();
        let draft = actum.run(&[&RUN[..], &["--dry-run"]].concat()).json()["runs"][0].clone();
        let run = id(&draft);
        let killed = |arguments: &[&str]| {
            let mut running = actum.start(arguments, &[("ACTUM_CRASH_AT", at)]);
            assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")), "{at}");
            running.kill();
        };
        killed(&["apply", &run]);
        let shown = status(&actum, &run);
        assert!(is_whole(&actum) && texts(&actum)[0] == "new\n", "{at}");
        assert_eq!((&shown["run"]["kept"], &shown["state"]), (&Value::Bool(false), &Value::from("succeeded")), "{at}");
        killed(&["undo", &run]);
        let shown = status(&actum, &run);
        assert!(is_whole(&actum) && texts(&actum)[0] == "old\n", "{at}: {shown}");
        assert_eq!(shown["run"]["undone"], true, "{at}");
    }
}

#[test]
fn recover_says_what_it_did_and_is_quiet_otherwise() {
    let actum = sixty();
    assert_eq!(actum.run(&["recover", "--json"]).json()["recovered"], serde_json::json!([]));
    let mut running = actum.start(&RUN, &[("ACTUM_CRASH_AT", "publish.changed#30")]);
    assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")));
    running.kill();
    assert!(!is_whole(&actum));
    let recovered = actum.run(&["recover", "--json"]);
    assert_eq!(recovered.code, 0, "{}", recovered.stderr);
    let rows = recovered.json()["recovered"].clone();
    assert!(rows[0]["outcome"].as_str().unwrap().contains("succeeded"), "{rows}");
    assert!(is_whole(&actum));
    let run = all_runs(&actum).remove(0);
    let quiet = actum.run(&["status", &run]);
    assert!(quiet.stderr.is_empty(), "{}", quiet.stderr);
}

/// A command that only looks recovers too, and says so in one line.
#[test]
fn looking_commands_recover_first_and_say_so() {
    for command in [&["list"][..], &["doctor"], &["store", "check"], &["ledger", "verify"], &["snapshot", "list"]] {
        let actum = sixty();
        let mut running = actum.start(&RUN, &[("ACTUM_CRASH_AT", "publish.changed#30")]);
        assert!(running.error_line().is_some_and(|line| line.starts_with("crash point")));
        running.kill();
        assert!(!is_whole(&actum), "{command:?}");
        let looked = actum.run(command);
        assert_eq!(looked.code, 0, "{command:?}: {}{}", looked.stdout, looked.stderr);
        assert!(is_whole(&actum) && texts(&actum)[0] == "new\n", "{command:?}");
        assert!(looked.stderr.contains("had published when its process ended"), "{command:?}: {}", looked.stderr);
        assert_eq!(state(&actum, &all_runs(&actum).remove(0)), "succeeded", "{command:?}");
    }
}

/// An error of the file system in the middle of publishing: all is taken back, and the run names the true reason.
#[test]
fn permission_error_while_publishing_is_rolled_back_with_its_reason() {
    let actum = project(&[("a", "echo new > a/x; echo new > b/y")]).owned_by_nobody();
    for (folder, name) in [("a", "x"), ("b", "y")] {
        actum.file(&format!("{folder}/{name}"), "old\n");
    }
    actum.file("work.json", item("i", "a").to_string());
    let own = |path: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        std::os::unix::fs::chown(actum.path(path), Some(65_534), Some(65_534)).unwrap();
        fs::set_permissions(actum.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, mode) in [("work.json", 0o644), ("a", 0o755), ("a/x", 0o644), ("b/y", 0o644), ("b", 0o555)] {
        own(path, mode);
    }
    let before = read(actum.folder());
    let ended = actum.run(&["run", "--json", "work.json"]);
    let run = ended.json()["runs"][0].clone();
    assert_eq!((ended.code, &run["state"]), (1, &Value::from("failed")), "{run} {}", ended.stderr);
    let reason = run["error"].as_str().unwrap();
    assert!(reason.contains("b/y") && reason.contains("ermission denied"), "{reason}");
    assert_eq!(read(actum.folder()), before);
    own("b", 0o755);
    let resumed = actum.run(&["resume", "--json", &id(&run)]);
    assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
    assert_eq!(fs::read_to_string(actum.path("b/y")).unwrap(), "new\n");
}

/// What an archive brought along under our name is not followed: no file elsewhere is written to.
#[test]
fn links_and_pipes_among_our_own_files_are_not_followed() {
    let actum = project(&[("a", "echo x > x")]);
    let victim = actum.folder().with_extension("victim");
    fs::write(&victim, "precious\n").unwrap();
    fs::create_dir_all(actum.path(".actum/workspace/pending")).unwrap();
    std::os::unix::fs::symlink(&victim, actum.path(".actum/workspace/lock")).unwrap();
    fs::write(actum.path(".actum/workspace/pending/relative"), ".\n").unwrap();
    fs::write(actum.path(".actum/workspace/pending/here"), format!("{}\n", actum.folder().display())).unwrap();
    assert_eq!(
        actum_testkit::program::other("mkfifo")
            .arg(actum.path(".actum/workspace/pending/pipe"))
            .status()
            .unwrap()
            .code(),
        Some(0)
    );
    let looked = actum.run(&["list", "--json"]);
    assert_eq!(looked.code, 0, "{}", looked.stderr);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious\n");
    let frozen = actum.run(&["snapshot", "freeze", "--json"]);
    assert_ne!(frozen.code, 0, "{}", frozen.stdout);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious\n");
    fs::remove_file(&victim).unwrap();
}

/// A lock that another user holds can be read but not taken: the message says whose it is.
#[test]
fn lock_of_another_user_is_named() {
    let actum = sixty().owned_by_nobody();
    assert_eq!(actum.run(&["snapshot", "freeze"]).code, 0);
    let root = Program::new(env!("CARGO_BIN_EXE_actum"));
    let folder = actum.folder().display().to_string();
    let arguments: Vec<&str> = ["-C", &folder].into_iter().chain(RUN).collect();
    let mut running = root.start(&arguments, &[("ACTUM_CRASH_AT", "publish.marked")]);
    while running.error_line().is_some_and(|line| !line.starts_with("crash point")) {}
    let shown = actum.run(&["status"]);
    assert!(shown.stderr.contains("of user 0 on"), "{}{}", shown.stdout, shown.stderr);
    running.kill();
}
