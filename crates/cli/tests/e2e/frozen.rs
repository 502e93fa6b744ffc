//! D-503: an agent sees the workspace as it was when its run began. Users edit while it works; their edits stay theirs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use actum_testkit::dice::Dice;
use actum_testkit::folder::Folder;
use actum_testkit::program::{self, Program, other};
use actum_testkit::tree::{Leaves, build, edit, play, read};
use serde_json::{Value, json};

use super::actum;
use super::run::{asked, item, live, project, until_it_acts, with};
use super::workspace::{act, file, freeze, json, new_stage, ops, text};
use super::workspace_crash::killed_at;

/// Lets an agent wait until the test has made its edits. A replay, in which no test says so, waits for the whole time.
const WAIT: &str = r#"d=$(dirname "$ACTUM_REQUEST"); : > "$d/waits"; for i in $(seq 100); do [ -e "$d/go" ] && break; sleep 0.05; done; "#;

/// Runs an item and makes `edits` while its agent waits. Returns the run and its exit code.
fn run_with_edits(actum: &Program, item: &Value, edits: impl FnOnce()) -> (String, i32) {
    let path = actum.file("work.json", item.to_string());
    let running = actum.start(&["run", "--json", path.to_str().unwrap()], &[]);
    let run = until_it_acts(actum);
    let exchange = actum.path(&format!(".actum/runs/{run}/exchange"));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !exchange.join("waits").exists() {
        assert!(std::time::Instant::now() < deadline, "the agent never waits");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    edits();
    fs::write(exchange.join("go"), "").unwrap();
    let (code, ..) = running.finish();
    (run, code)
}

fn view_on_receipt(actum: &Program, run: &str) -> Value {
    let statement = text(actum, &format!(".actum/runs/{run}/receipt.statement.json"));
    serde_json::from_str::<Value>(&statement).unwrap()["predicate"]["view"].clone()
}

#[test]
fn d503_an_edit_during_a_run_is_invisible_to_the_agent_and_not_in_its_diff() {
    let script = format!("{WAIT} cat edited > seen; ls > names; echo agent > other");
    let actum = project(&[("a", &script)]);
    for name in ["edited", "gone", "other"] {
        actum.file(name, "1\n");
    }
    let (run, code) = run_with_edits(&actum, &item("i", "a"), || {
        actum.file("edited", "1\nuser\n");
        actum.file("new", "user\n");
        fs::remove_file(actum.path("gone")).unwrap();
    });
    assert_eq!(code, 0);
    assert_eq!(text(&actum, "seen"), "1\n");
    assert_eq!(text(&actum, "names"), "actum.toml\nedited\ngone\nnames\nother\nseen\nwork.json\n");
    assert_eq!((text(&actum, "edited"), text(&actum, "new")), ("1\nuser\n".into(), "user\n".into()));
    assert!(!actum.path("gone").exists());
    let patch = actum.run(&["diff", &run]).stdout;
    assert!(patch.contains("+agent") && !patch.contains("user"), "{patch}");
    assert_eq!(view_on_receipt(&actum, &run), "frozen");
    let replayed = asked(&actum, &["replay", "--json", &run]);
    assert_eq!(replayed["identical"], true, "{replayed}");
}

#[test]
fn d503_a_file_changed_by_both_is_a_conflict_that_keeps_both_versions() {
    let script = format!("{WAIT} echo agent >> shared; echo agent > other");
    let actum = project(&[("a", &script)]);
    actum.file("shared", "1\n");
    let (run, code) = run_with_edits(&actum, &item("i", "a"), || {
        actum.file("shared", "1\nuser\n");
    });
    assert_eq!(code, 6);
    assert_eq!(text(&actum, "shared"), "1\nuser\n");
    assert!(!actum.path("other").exists(), "all or nothing");
    let patch = actum.run(&["diff", &run]).stdout;
    assert!(patch.contains("+agent") && !patch.contains("user"), "{patch}");
    actum.file("shared", "1\n");
    assert_eq!(actum.run(&["apply", &run]).code, 0);
    assert_eq!((text(&actum, "shared"), text(&actum, "other")), ("1\nagent\n".into(), "agent\n".into()));
}

#[test]
fn d503_a_live_view_is_a_choice_and_on_the_receipt() {
    let actum = project(&[("a", &format!("{WAIT} cat edited > seen"))]);
    actum.file("edited", "1\n");
    let (run, code) = run_with_edits(&actum, &live(item("i", "a")), || {
        actum.file("edited", "user\n");
    });
    assert_eq!((code, text(&actum, "seen")), (0, "user\n".into()));
    assert_eq!(view_on_receipt(&actum, &run), "live");
    let strict = with(live(item("s", "a")), "strict", json!(true));
    let refused = actum.run_with(&["run", "--json", "-"], strict.to_string().as_bytes());
    assert_eq!(refused.code, 2, "{}", refused.stdout);
}

#[test]
fn d503_a_resumed_run_goes_on_with_what_it_began_with() {
    // The second step fails until the test removes `wait`, which no snapshot holds.
    let script = r#"
        case "$ACTUM_PHASE" in
          plan) cp plan.json "$ACTUM_RESPONSE" ;;
          step) if [ -s seen ]; then [ ! -e wait ]; fi; cat edited >> seen ;;
        esac"#;
    let actum = project(&[("a", script)]);
    actum.file(
        "plan.json",
        json!({"steps": [{"id": "s1", "description": "d"}, {"id": "s2", "description": "d"}]}).to_string(),
    );
    actum.file(".gitignore", "wait\n");
    actum.file("wait", "");
    actum.file("edited", "1\n");
    let (code, run) = super::run::one(&actum, item("i", "a"), &[]);
    assert_eq!(code, 1, "{run}");
    let run = super::run::id(&run);
    actum.file("edited", "user\n");
    fs::remove_file(actum.path("wait")).unwrap();
    let resumed = actum.run(&["resume", "--json", &run]);
    assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
    assert_eq!((text(&actum, "seen"), text(&actum, "edited")), ("1\n1\n".into(), "user\n".into()));
}

/// Large ignored files and folders, and many of them, are as usable as small ones, and a repository's references are frozen.
#[test]
fn d503_large_ignored_entries_are_shown() {
    let count = 100;
    let script = format!(
        "{WAIT} for n in $(seq {count}); do echo agent > cache-$n/by-agent; done; wc -c < cache-7/big > seen; ls .git/refs/heads | wc -l >> seen"
    );
    let actum = project(&[("a", &script)]);
    actum.file(".gitignore", "cache-*\n");
    for n in 1..=count {
        actum.file(&format!("cache-{n}/big"), "");
        fs::File::options().write(true).open(actum.path(&format!("cache-{n}/big"))).unwrap().set_len(17 << 20).unwrap();
    }
    for n in 0..600 {
        actum.file(&format!(".git/refs/heads/b{n}"), "");
    }
    let (run, code) = run_with_edits(&actum, &item("i", "a"), || {
        actum.file(".git/refs/heads/by-user", "");
    });
    assert_eq!(code, 0, "{}", actum.run(&["status", &run]).stdout);
    assert_eq!(text(&actum, "seen"), format!("{}\n600\n", 17 << 20));
    assert!(!actum.path("cache-7/by-agent").exists());
}

/// The paths whose leaves differ.
fn changed<'a>(from: &'a Leaves, to: &'a Leaves) -> BTreeSet<&'a [u8]> {
    let paths = from.keys().chain(to.keys()).filter(|path| from.get(*path) != to.get(*path));
    paths.map(Vec::as_slice).collect()
}

/// Whether one path is the other, or lies in it.
fn are_related(a: &[u8], b: &[u8]) -> bool {
    let is_in = |outer: &[u8], inner: &[u8]| {
        let outer = outer.strip_suffix(b"/").unwrap_or(outer);
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    is_in(a, b) || is_in(b, a)
}

/// Random edits by a user during and between the steps of a random agent.
#[test]
fn d503_what_is_published_is_what_the_agent_does_to_a_copy_of_the_frozen_tree() {
    let mut conflicts = 0;
    for seed in 0..40 {
        let mut dice = Dice::new(5_030 + seed);
        let first = build(&mut dice, 25);
        let agent = [edit(&mut dice, 6), edit(&mut dice, 6)];
        let user = [edit(&mut dice, 3), edit(&mut dice, 2), edit(&mut dice, 2)];
        let actum = actum();
        play(&first, actum.folder());
        let frozen = read(actum.folder());
        let plain = Program::new(env!("CARGO_BIN_EXE_actum"));
        play(&first, plain.folder());
        play(&agent.concat(), plain.folder());
        let by_agent = read(plain.folder());

        let flags: &[&str] = if seed % 4 == 3 { &["--mode", "copy"] } else { &["--mode", "overlay"] };
        let stage = new_stage(&actum, flags);
        // While the agent works, and between its steps.
        let at_once = |user: &str, agent: &str| {
            std::thread::scope(|scope| {
                scope.spawn(|| play(user, actum.folder()));
                act(&actum, &stage, agent);
            });
        };
        at_once(&user[0], &agent[0]);
        play(&user[1], actum.folder());
        // A second stage while the first is in use shows the edits of until then.
        let second = new_stage(&actum, flags);
        let shown = read(actum.folder());
        at_once(&user[2], &agent[1]);
        let by_user = read(actum.folder());

        let diff = json(&actum, &["diff", "--json", &stage]);
        assert_eq!(diff["after"], freeze(&plain)["id"], "seed {seed}");
        let applied = actum.run(&["apply", "--json", &stage]);
        let (agents, users) = (changed(&frozen, &by_agent), changed(&frozen, &by_user));
        if applied.code == 6 {
            conflicts += 1;
            assert_eq!(applied.error()["code"], "PUBLISH_CONFLICT", "seed {seed}: {}", applied.stderr);
            let details = applied.error()["details"].clone();
            let named = ["paths", "in_the_way"].map(|list| details[list].as_array().unwrap().len());
            assert!(named.iter().sum::<usize>() > 0, "seed {seed}: {details}");
            let is_real = agents.iter().any(|a| users.iter().any(|u| are_related(a, u)));
            assert!(is_real, "seed {seed}: {details} was not changed by both");
            assert_eq!(read(actum.folder()), by_user, "seed {seed}: the user's version stays");
            assert_eq!(json(&actum, &["diff", "--json", &stage])["after"], diff["after"], "seed {seed}");
        } else {
            assert_eq!(applied.code, 0, "seed {seed}: {}", applied.stderr);
            let published = read(actum.folder());
            // Folders that are empty depend on what both left in them.
            for path in published.keys().chain(by_agent.keys()).chain(by_user.keys()).filter(|p| !p.ends_with(b"/")) {
                let from = if agents.contains(path.as_slice()) { &by_agent } else { &by_user };
                let name = String::from_utf8_lossy(path);
                assert_eq!(published.get(path), from.get(path), "seed {seed}: {name}");
                let is_clash = agents.contains(path.as_slice()) && users.contains(path.as_slice());
                assert!(!is_clash || by_agent.get(path) == by_user.get(path), "seed {seed}: {name} is a conflict");
            }
        }
        let copy = Folder::new();
        let target = copy.join("second").display().to_string();
        let id = json(&actum, &["diff", "--json", &second])["before"].as_str().unwrap().to_owned();
        json(&actum, &["snapshot", "thaw", "--json", &id, &target]);
        assert_eq!(read(copy.join("second").as_path()), shown, "seed {seed}: frozen at the second stage");
        assert_eq!(listed_in(&actum, &second), names(&shown), "seed {seed}: shown by the second stage");
    }
    assert!(conflicts > 3 && conflicts < 37, "both ways are taken: {conflicts}");
}

/// The leaves of a stage, as its programs see them.
fn listed_in(actum: &Program, stage: &str) -> BTreeSet<Vec<u8>> {
    let script = "find . -mindepth 1 ! -type d -printf '%P\\0' -o -mindepth 1 -type d -empty -printf '%P/\\0' \
                  | od -An -v -tx1 | tr -d ' \\n'";
    let ended = actum.run(&["stage", "exec", stage, "--", "bash", "-c", script]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let hex = ended.stdout.trim().as_bytes();
    let bytes: Vec<u8> = hex.chunks(2).map(|b| u8::from_str_radix(str::from_utf8(b).unwrap(), 16).unwrap()).collect();
    bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

fn names(leaves: &Leaves) -> BTreeSet<Vec<u8>> {
    leaves.keys().cloned().collect()
}

#[test]
fn ignored_files_are_there_and_changes_to_them_stay_in_the_stage() {
    let actum = actum();
    file(&actum, ".gitignore", ".env\n/cache\n/deps\n*.log\n");
    file(&actum, ".env", "secret=1");
    file(&actum, "cache/a", "1");
    file(&actum, "src/main", "1");
    file(&actum, "src/build.log", "1");
    symlink("cache/a", actum.path("link.log")).unwrap();
    for n in 0..700 {
        file(&actum, &format!("deps/d{}/f{n}", n % 10), "1");
    }
    let stage = new_stage(&actum, &["--mode", "overlay"]);
    file(&actum, ".env", "secret=2");
    file(&actum, "cache/a", "2");
    file(&actum, "cache/b", "2");
    act(
        &actum,
        &stage,
        "[ $(cat .env) = secret=1 ] && [ $(cat cache/a) = 1 ] && [ ! -e cache/b ] && [ -e src/build.log ] && [ -L link.log ]
         [ $(find deps -type f | wc -l) = 700 ]; echo agent > deps/d1/f1; echo agent > deps/new; rm deps/d2/f2
         echo agent > .env; rm -r cache; echo agent > src/build.log; echo agent > src/main",
    );
    // The next program in the same stage still sees what the first one did.
    act(
        &actum,
        &stage,
        "[ $(cat deps/new) = agent ] && [ ! -e deps/d2/f2 ] && [ ! -e cache ] && [ $(cat .env) = agent ]",
    );
    let applied = json(&actum, &["apply", "--json", &stage]);
    assert_eq!(ops(&applied), ["modify src/main"]);
    let left_out = applied["left_out"].to_string();
    for path in [".env", "cache", "deps", "src/build.log"] {
        assert!(left_out.contains(&format!("\"{path}")), "{path} in {left_out}");
    }
    assert_eq!((text(&actum, ".env"), text(&actum, "cache/b")), ("secret=2".into(), "2".into()));
    assert_eq!((text(&actum, "deps/d1/f1"), text(&actum, "deps/d2/f2")), ("1".into(), "1".into()));
    assert!(!actum.path("deps/new").exists());
}

fn layers(actum: &Program) -> Vec<String> {
    let bases = fs::read_dir(actum.path(".actum/workspace/bases")).unwrap().next().unwrap().unwrap().path();
    let entries = fs::read_dir(bases).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_base_is_updated_when_idle_extended_when_used_and_collected() {
    let actum = actum();
    for n in 0..20 {
        file(&actum, &format!("d{}/f{n}", n % 4), "1");
    }
    let first = new_stage(&actum, &[]);
    assert_eq!(layers(&actum), ["base-1"]);
    file(&actum, "d1/f1", "2");
    fs::remove_dir_all(actum.path("d2")).unwrap();
    let second = new_stage(&actum, &[]);
    assert_eq!(layers(&actum).len(), 2, "a delta, because the base is in use");
    act(&actum, &first, "[ $(cat d1/f1) = 1 ] && [ -e d2/f2 ]");
    act(&actum, &second, "[ $(cat d1/f1) = 2 ] && [ ! -e d2 ]");
    for stage in [&first, &second] {
        json(&actum, &["stage", "drop", "--json", stage]);
    }
    file(&actum, "new/f", "3");
    let third = new_stage(&actum, &[]);
    assert_eq!(layers(&actum), ["base-1"], "updated in place");
    act(&actum, &third, "[ $(cat d1/f1) = 2 ] && [ ! -e d2 ] && [ $(cat new/f) = 3 ]");

    let doctor = json(&actum, &["doctor", "--json"]);
    assert_eq!(doctor["staging"]["bases"].as_array().unwrap().len(), 1, "{doctor}");
    let mut du = other("du");
    du.args(["-s", "--block-size=1", "--exclude=record", "--exclude=lock", "--exclude=extra"]);
    let folder = fs::read_dir(actum.path(".actum/workspace/bases")).unwrap().next().unwrap().unwrap().path();
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    du.args(folders);
    let counted = program::run(du, b"").ok();
    let counted: u64 = counted.lines().map(|line| line.split('\t').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(doctor["staging"]["bases"][0]["bytes"].as_u64(), Some(counted), "{doctor}");
    let kept = json(&actum, &["snapshot", "gc", "--json", "--max-bytes", "0"]);
    assert_eq!(kept["removed_bases"], 0, "in use: {kept}");
    act(&actum, &third, "[ $(cat new/f) = 3 ]");
    json(&actum, &["stage", "drop", "--json", &third]);
    let removed = json(&actum, &["snapshot", "gc", "--json", "--max-bytes", "0"]);
    assert_eq!(removed["removed_bases"], 1, "{removed}");
    assert!(removed["removed_bases_bytes"].as_u64().unwrap() > 0, "{removed}");
    assert_eq!(layers(&actum), [""; 0]);
    let fourth = new_stage(&actum, &[]);
    act(&actum, &fourth, "[ $(cat new/f) = 3 ] && [ $(cat d1/f1) = 2 ]");
}

#[test]
fn a_stage_is_right_after_a_kill_at_any_place_of_staging() {
    for place in ["base.copied", "base.unrecorded", "base.updated", "stage.layered"] {
        let actum = actum();
        file(&actum, "a", "1");
        file(&actum, "d/b", "1");
        if place != "base.copied" {
            let stage = new_stage(&actum, &[]);
            json(&actum, &["stage", "drop", "--json", &stage]);
        }
        file(&actum, "a", "2");
        fs::remove_dir_all(actum.path("d")).unwrap();
        file(&actum, "e/c", "2");
        assert!(killed_at(&actum, &["stage", "new", "--json"], place), "{place}");
        file(&actum, "e/c", "3");
        let stage = new_stage(&actum, &[]);
        act(&actum, &stage, "[ $(cat a) = 2 ] && [ ! -e d ] && [ $(cat e/c) = 3 ]; echo agent > a");
        assert_eq!(ops(&json(&actum, &["apply", "--json", &stage])), ["modify a"], "{place}");
        json(&actum, &["snapshot", "gc", "--json"]);
        assert_eq!(layers(&actum).len(), 1, "{place}: {:?}", layers(&actum));
    }
}

#[test]
fn stages_made_at_the_same_time_are_all_right() {
    let actum = actum();
    for n in 0..40 {
        file(&actum, &format!("d{}/f{n}", n % 4), "1");
    }
    let stages: Vec<String> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..8)
            .map(|n| {
                let actum = &actum;
                scope.spawn(move || {
                    file(actum, &format!("mine{n}"), &n.to_string());
                    new_stage(actum, &[])
                })
            })
            .collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    for (n, stage) in stages.iter().enumerate() {
        act(&actum, stage, &format!("[ $(cat mine{n}) = {n} ] && [ $(cat d*/f* | wc -c) = 40 ]; echo x > out{n}"));
        assert_eq!(ops(&json(&actum, &["diff", "--json", stage])), [format!("add out{n}")]);
    }
}

#[test]
fn a_frozen_stage_serves_an_ordinary_user_too() {
    let actum = actum();
    fs::set_permissions(actum.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    file(&actum, ".gitignore", "/deps\n.env\n");
    file(&actum, ".env", "1");
    file(&actum, "a", "1");
    for n in 0..600 {
        file(&actum, &format!("deps/f{n}"), "1");
    }
    let user = actum.as_nobody();
    let stages: Vec<String> = (0..2)
        .map(|n| {
            file(&actum, "a", &n.to_string());
            let made = user.run(&["stage", "new", "--json"]);
            assert_eq!(made.code, 0, "{}", made.stderr);
            made.json()["id"].as_str().unwrap().to_owned()
        })
        .collect();
    file(&actum, "a", "9");
    for (n, stage) in stages.iter().enumerate() {
        let script = format!("[ $(cat a) = {n} ] && [ $(ls deps | wc -l) = 600 ] && [ -e .env ] && echo x > out{n}");
        let ended = user.run(&["stage", "exec", stage, "--", "sh", "-c", &script]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert_eq!(ops(&user.run(&["apply", "--json", stage]).json()), [format!("add out{n}")]);
    }
    assert_eq!(text(&actum, "a"), "9");
}

/// The first copy reports its progress, with an overlay and with a plain copy.
#[test]
fn the_first_copy_of_a_large_workspace_reports_its_progress() {
    let actum = project(&[("a", "echo x > made")]);
    for n in 0..5_200 {
        file(&actum, &format!("d{}/f{n}", n % 50), "1");
    }
    let work = actum.file("work.json", item("i", "a").to_string());
    let ended = actum.run(&["run", work.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for part in ["0% of 52", "50% of 52", "100% of 52", "files copied"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    let again = actum.run(&["run", work.to_str().unwrap()]);
    assert!(!again.stderr.contains("files copied"), "{}", again.stderr);
    // Files of another owner are copied; only root can make one.
    if std::os::unix::fs::chown(actum.path("d1/f1"), Some(65_534), Some(65_534)).is_ok() {
        file(&actum, "made", "other");
        let copied = actum.run(&["run", work.to_str().unwrap()]);
        assert!(copied.stderr.contains("100% of 5"), "{}", copied.stderr);
    }
}
