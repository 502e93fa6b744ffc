//! `actum run` killed at every named place and at random: whoever comes next finishes it, every step was done once, and
//! the workspace was never between before and after.

use std::collections::BTreeSet;
use std::fs;

use actum_testkit::dice::Dice;
use actum_testkit::program::Program;
use actum_testkit::tree::{Leaves, read};

use super::runs::{DONE, all_runs, check, check_project, history, is_over, project, stages, until, work, worker};
use super::{actum, runs};

/// Both steps add a line to the same file: done twice, it would show. Replaces, adds and removes beside that.
const STEP: &str = "echo $1 >> lines; echo $1 > made-$1; echo $1 > d/kept; rm -f gone-$1";

const WORK: &str = r#"
items:
  - id: item
    agent_id: a
    description: both
    validation: { light: [["sh", "-c", "echo checked > trace"]], heavy: [["test", "-e", "made-two"]] }
    test_command: test -e made-one
"#;

fn prepared() -> Program {
    let actum = project(STEP);
    actum.file("work.yaml", WORK);
    fs::create_dir(actum.path("d")).unwrap();
    for name in ["d/kept", "gone-one", "gone-two", "stays"] {
        actum.file(name, "before\n");
    }
    actum
}

/// What the run comes to when nobody is in its way. Without the definition of the agent, which names its folder.
fn before_and_after() -> (Leaves, Leaves) {
    let actum = prepared();
    let before = tree(&actum);
    actum.run(&["run", "-q", "work.yaml"]).ok();
    (before, tree(&actum))
}

fn tree(actum: &Program) -> Leaves {
    let mut tree = read(actum.folder());
    tree.retain(|path, _| !path.ends_with(b"actum.toml"));
    tree
}

/// Who finishes what the dead have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Worker,
    /// One that is killed at the same place, then another.
    SameAgain,
    /// Somebody else who only looks at the workspace, then a worker.
    Freeze,
}

fn killed_at(actum: &Program, arguments: &[&str], at: &str) -> bool {
    let mut running = actum.start(arguments, &[("ACTUM_CRASH_AT", at)]);
    let reached = running.error_line().is_some_and(|line| line.starts_with("crash point"));
    let below = running.below();
    running.kill();
    until("its processes are gone", || !below.iter().any(|process| process.lives()));
    reached
}

fn finished(actum: Program, at: &str, next: Next, (before, after): &(Leaves, Leaves)) -> bool {
    let case = format!("{at} {next:?}");
    if !killed_at(&actum, &["run", "--json", "work.yaml"], at) {
        return false;
    }
    if next == Next::Freeze {
        actum.run(&["snapshot", "freeze"]).ok();
    }
    // While names are exchanged one by one only the journal knows; everybody else looks after it was asked.
    let found = tree(&actum);
    let in_between = at.starts_with("publish.") && next != Next::Freeze;
    assert!(in_between || found == *before || found == *after, "{case}: neither before nor after: {found:#?}");
    if next == Next::SameAgain && !killed_at(&actum, &["worker", "--json"], at) {
        return false;
    }
    let runs = all_runs(&actum);
    if runs.is_empty() {
        // It was not even submitted: then nothing happened, and nothing stands in the way of doing it now.
        assert_eq!(found, *before, "{case}");
        actum.run(&["run", "-q", "work.yaml"]).ok();
    } else {
        work(&actum, &runs);
    }
    let runs = all_runs(&actum);
    assert_eq!(runs.len(), 1, "{case}");
    assert_eq!(tree(&actum), *after, "{case}");
    check(&actum, &runs[0], &case);
    check_project(&actum, &case);
    // There is nothing more to do: another one looks once, and once more.
    assert!(killed_at(&actum, &["worker", "--json"], "run.claimed#2"), "{case}");
    assert_eq!(history(&actum, &runs[0]), DONE, "{case}");
    assert_eq!(tree(&actum), *after, "{case}");
    true
}

/// Every place of the list, at the passings that are asked for; each must have been reached at its first.
fn matrix(places: &[&str], passings: impl Fn(&str) -> Vec<u32>, nexts: &[Next]) {
    let expected = before_and_after();
    let mut reached = BTreeSet::new();
    for place in places {
        for n in passings(place) {
            for next in nexts {
                if finished(prepared(), &format!("{place}#{n}"), *next, &expected) {
                    reached.insert(*place);
                }
            }
        }
    }
    assert_eq!(reached, places.iter().copied().collect());
}

/// Places of the engine and of publishing that come more than once in this run.
fn of_a_run(place: &str) -> Vec<u32> {
    match place {
        "run.acted" => vec![1, 2],
        "run.checked" => vec![1, 2, 3],
        _ => vec![1],
    }
}

#[test]
fn killed_at_each_place_of_a_run() {
    matrix(actum_engine::CRASH_POINTS, of_a_run, &[Next::Worker]);
}

#[test]
fn killed_twice_at_each_place_of_a_run() {
    // Behind its last place there is nothing left for a second one to be killed in.
    let places: Vec<_> = actum_engine::CRASH_POINTS.iter().filter(|place| **place != "run.ended").copied().collect();
    matrix(&places, |_| vec![1], &[Next::SameAgain]);
}

#[test]
fn killed_at_each_place_of_publishing() {
    let own = ["run.publishing", "run.applied"];
    // Taking back and thawing are for those who publish against somebody.
    let others = ["publish.aborted", "publish.reversed"];
    let passed = |place: &&str| place.starts_with("publish.") && !others.contains(place);
    let places: Vec<_> = actum_workspace::CRASH_POINTS.iter().copied().filter(passed).chain(own).collect();
    matrix(
        &places,
        |place| if place == "publish.changed" { vec![1, 3] } else { vec![1] },
        &[Next::Worker, Next::Freeze],
    );
}

#[test]
fn killed_at_each_place_where_files_are_kept() {
    let freeze = actum_workspace::CRASH_POINTS.iter().filter(|place| place.starts_with("freeze."));
    // Those of sending are passed only where there is an object store.
    let sending = ["blobs.sending", "blobs.sent", "blobs.marked"];
    let blobs = actum_store::CRASH_POINTS.iter().filter(|place| place.starts_with("blobs."));
    let blobs = blobs.filter(|place| !sending.contains(*place));
    let places: Vec<_> = freeze.chain(blobs).copied().collect();
    matrix(&places, |_| vec![1, 2], &[Next::Worker]);
}

#[test]
fn killed_at_each_place_of_the_store() {
    let passed = |place: &&str| place.starts_with("append.") || place.starts_with("run.");
    let places: Vec<_> = actum_store::CRASH_POINTS.iter().copied().filter(passed).collect();
    let passings = |place: &str| match place {
        // After each write there is another state that somebody finds.
        "append.committed" => (1..=18).step_by(2).collect(),
        "run.committed" => vec![1, 5, 9, 13],
        "append.begun" | "append.written" => vec![1, 6],
        _ => vec![1, 2],
    };
    matrix(&places, passings, &[Next::Worker]);
}

#[test]
fn an_ordinary_user_killed_at_some_places() {
    let expected = before_and_after();
    for place in ["run.staged", "run.acted#2", "publish.changed", "run.applied", "run.receipted", "run.ended"] {
        assert!(finished(prepared().owned_by_nobody(), place, Next::Worker, &expected), "{place}");
    }
}

/// Whoever has no worker resumes: what the dead have left is nobody's. What somebody works on is not for the taking.
#[test]
fn an_agent_that_was_at_work_is_gone_with_its_worker() {
    let actum = project("echo $1 >> lines; [ $1 = two ] || sleep 1");
    actum.file("work.yaml", "items: [{id: item, agent_id: a, description: d}]\n");
    let running = actum.start(&["run", "--json", "work.yaml"], &[]);
    until("the agent works", || !actum_testkit::program::Process::with_argument(&runs::tag(&actum)).is_empty());
    let below = running.below();
    assert!(!below.is_empty());
    let runs = all_runs(&actum);
    assert_eq!(actum.run(&["resume", &runs[0]]).code, 6, "it is at work");
    running.kill();
    until("its processes are gone", || !below.iter().any(|process| process.lives()));
    assert_eq!(actum.run(&["resume", "--profile", "ci", &runs[0]]).code, 5, "it keeps its contract");
    actum.run(&["resume", "-q", &runs[0]]).ok();
    assert_eq!(fs::read_to_string(actum.path("lines")).unwrap(), "one\ntwo\n");
    check(&actum, &runs[0], "at work");
    check_project(&actum, "at work");
}

/// Four items, one behind two others behind one: killed 20 times, and every line is there once.
#[test]
fn killed_at_random_20_times() {
    let actum = actum();
    // Nobody is merged with anybody here: each has a file of its own, and the last one joins them.
    runs::define(&actum, "cat top left right > bottom.new 2>/dev/null; echo $1 >> $2; rm -f bottom.new");
    actum.file(
        "work.yaml",
        "items:
  - { id: top, agent_id: a, description: d }
  - { id: left, agent_id: a, description: d, dependencies: [top] }
  - { id: right, agent_id: a, description: d, dependencies: [top] }
  - { id: bottom, agent_id: a, description: d, dependencies: [left, right], output_files: [bottom] }
",
    );
    let ids = runs::submit(&actum, &[]);
    let (mut dice, mut killed) = (Dice::new(23), 0);
    while killed < 20 {
        let worker = worker(&actum, &[], &[]);
        // From before it has done anything to about as long as one item takes.
        std::thread::sleep(std::time::Duration::from_millis(10 + dice.roll(110)));
        worker.kill();
        killed += 1;
        for name in ["top", "left", "right", "bottom"] {
            let lines = fs::read_to_string(actum.path(name)).unwrap_or_else(|_| "one\ntwo\n".into());
            assert_eq!(lines, "one\ntwo\n", "{name} after {killed}");
        }
        if ids.iter().all(|run| is_over(&actum, run)) {
            break;
        }
    }
    work(&actum, &ids);
    for run in &ids {
        check(&actum, run, "random");
    }
    for (name, run) in ["top", "left", "right", "bottom"].iter().zip(&ids) {
        assert_eq!(fs::read_to_string(actum.path(name)).unwrap(), "one\ntwo\n", "{name} {run}");
    }
    assert_eq!(stages(&actum), Vec::<std::path::PathBuf>::new());
    check_project(&actum, "random");
}
