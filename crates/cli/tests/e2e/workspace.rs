//! Freeze, stage, publish, undo and thaw through the real binary, on real folders, with the real kernel.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use actum_testkit::dice::Dice;
use actum_testkit::folder::Folder;
use actum_testkit::program::{Program, other};
use actum_testkit::tree::{Leaves, build, edit, play, read};
use serde_json::Value;

use super::actum;
use super::workspace_hostile::{in_own_mounts, is_root};

pub(super) fn freeze(actum: &Program) -> Value {
    json(actum, &["snapshot", "freeze", "--json"])
}

pub(super) fn json(actum: &Program, arguments: &[&str]) -> Value {
    let ended = actum.run(arguments);
    assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.stderr);
    ended.json()
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

pub(super) fn new_stage(actum: &Program, flags: &[&str]) -> String {
    id(&json(actum, &[&["stage", "new", "--json"], flags].concat()))
}

/// Runs a script in a stage.
pub(super) fn act(actum: &Program, stage: &str, script: &str) {
    let ended = actum.run(&["stage", "exec", stage, "--", "bash", "-c", script]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

pub(super) fn file(actum: &Program, path: &str, text: &str) {
    let path = actum.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

pub(super) fn text(actum: &Program, path: &str) -> String {
    fs::read_to_string(actum.path(path)).unwrap()
}

pub(super) fn ops(value: &Value) -> Vec<String> {
    let deltas = value["deltas"].as_array().unwrap();
    deltas.iter().map(|d| format!("{} {}", d["op"].as_str().unwrap(), d["path"].as_str().unwrap())).collect()
}

/// What a plain folder with the same tree looks like after the same edits.
fn expected(first: &str, then: &str) -> Leaves {
    let plain = Folder::new();
    play(first, plain.path());
    play(then, plain.path());
    read(plain.path())
}

const MODES: [&[&str]; 3] = [&["--mode", "overlay"], &["--mode", "overlay", "--strict"], &["--mode", "copy"]];

#[test]
fn what_is_edited_in_a_stage_is_what_is_published() {
    for seed in 0..24 {
        let mut dice = Dice::new(seed);
        let (first, then) = (build(&mut dice, 30), edit(&mut dice, 40));
        for flags in MODES {
            let actum = actum();
            play(&first, actum.folder());
            let before = read(actum.folder());
            let stage = new_stage(&actum, flags);
            act(&actum, &stage, &then);
            assert_eq!(read(actum.folder()), before, "seed {seed} {flags:?}: the stage is private");
            let applied = json(&actum, &["apply", "--json", &stage]);
            let after = expected(&first, &then);
            assert_eq!(read(actum.folder()), after, "seed {seed} {flags:?}");
            assert_eq!(freeze(&actum)["id"], applied["after"], "seed {seed} {flags:?}: the id was foretold");
            if before != after {
                assert_ne!(applied["before"], applied["after"]);
                let undone = json(&actum, &["undo", "--json", &stage]);
                assert_eq!(read(actum.folder()), before, "seed {seed} {flags:?}: undone");
                let again = undone["publication"].as_str().unwrap();
                json(&actum, &["undo", "--json", again]);
                assert_eq!(read(actum.folder()), after, "seed {seed} {flags:?}: the undo is undone");
            }
            assert_eq!(json(&actum, &["snapshot", "check", "--json"])["valid"], true);
        }
    }
}

#[test]
fn what_is_edited_after_a_freeze_is_gone_after_a_thaw() {
    for seed in 100..130 {
        let mut dice = Dice::new(seed);
        let actum = actum();
        play(&build(&mut dice, 30), actum.folder());
        let before = read(actum.folder());
        let snapshot = id(&freeze(&actum));
        play(&edit(&mut dice, 40), actum.folder());
        let edited = read(actum.folder());
        if edited != before {
            let refused = actum.run(&["snapshot", "thaw", "--json", &snapshot, "."]);
            assert_eq!((refused.code, &refused.error()["code"]), (6, &"UNSAVED_CHANGES".into()), "seed {seed}");
            assert_eq!(read(actum.folder()), edited, "seed {seed}: a refusal changes nothing");
        }
        let thawed = json(&actum, &["snapshot", "thaw", "--json", "--discard", &snapshot, "."]);
        assert_eq!(read(actum.folder()), before, "seed {seed}");
        // Even what was discarded is still to be had.
        if edited != before {
            let discarded = thawed["before"].as_str().unwrap();
            json(&actum, &["snapshot", "thaw", "--json", discarded, "."]);
            assert_eq!(read(actum.folder()), edited, "seed {seed}: back again");
        }
        let elsewhere = Folder::new();
        let target = elsewhere.join("new/folder").display().to_string();
        json(&actum, &["snapshot", "thaw", "--json", &snapshot, &target]);
        assert_eq!(read(Path::new(&target)), before, "seed {seed}: into a new folder");
    }
}

#[test]
fn an_ordinary_user_can_do_all_of_it() {
    let actum = actum();
    fs::set_permissions(actum.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    let user = actum.as_nobody();
    user.run_with(&["snapshot", "freeze"], b"").ok();
    let stage = user.run(&["stage", "new", "--json", "--mode", "overlay"]);
    assert_eq!(stage.code, 0, "{}", stage.stderr);
    let stage = id(&stage.json());
    let script = "id -u && mkdir d && echo x > d/f && test ! -e .actum";
    let ended = user.run(&["stage", "exec", &stage, "--", "sh", "-c", script]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_ne!(ended.stdout.trim(), "0", "nobody becomes root in a stage");
    assert!(!actum.path("d").exists());
    user.run(&["apply", &stage]).ok();
    assert_eq!(text(&actum, "d/f"), "x\n");
    user.run(&["undo", &stage]).ok();
    assert!(!actum.path("d").exists());
    let doctor = user.run(&["doctor", "--json"]).json();
    assert_eq!(doctor["staging"]["chosen"], "overlay", "{doctor}");
    assert_eq!(doctor["publishing"]["ok"], true, "{doctor}");
}

/// Only root may mount a file system from a file; for others this asks what their own file system can do.
#[test]
fn blocks_are_shared_where_the_file_system_can() {
    let mount = "truncate -s 128M image; mkfs.btrfs -q image > /dev/null; mount -o loop image w";
    let script = format!(
        r#"{}
        cd w; head -c 4000000 /dev/urandom > big; mkdir d; echo 1 > d/f; ln -s d l; echo '*.log' > .gitignore; echo x > a.log
        can=$("$ACTUM" doctor --json | grep -o '"name":"reflink","ok":[a-z]*' | cut -d: -f3)
        for mode in overlay reflink; do
            if ! stage=$("$ACTUM" stage new -q --mode $mode 2> ../err); then
                [ $mode = reflink ] && [ $can = false ] && grep -q A0406 ../err && continue
                cat ../err; exit 9
            fi
            before=$(sha256sum big d/f)
            "$ACTUM" stage exec $stage -- sh -c 'test -e a.log && echo more >> big && echo 2 > d/f && rm l'
            [ "$(sha256sum big d/f)" = "$before" ]
            "$ACTUM" apply --json $stage | grep -q '"deltas":\[.*\]'
            [ ! -e l ]; [ "$(cat d/f)" = 2 ]; tail -c 5 big | grep -q more
            "$ACTUM" undo -q $stage > /dev/null
            [ "$(sha256sum big d/f)" = "$before" ]; [ -L l ]
            echo $mode
        done
        "$ACTUM" snapshot check -q > /dev/null; echo can: $can"#,
        if is_root() { mount } else { ":" },
    );
    let folder = Folder::new();
    fs::create_dir(folder.join("w")).unwrap();
    let ended = in_own_mounts(&script, folder.path());
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout}\n{stderr}");
    if is_root() {
        assert_eq!(stdout, "overlay\nreflink\ncan: true\n", "{stderr}");
    }
}

#[test]
fn a_second_freeze_reads_nothing_and_one_change_is_one_read() {
    let actum = actum();
    for n in 0..50 {
        file(&actum, &format!("d{}/f{n}", n % 5), &n.to_string());
    }
    let first = freeze(&actum);
    assert_eq!((&first["files"], &first["hashed_files"]), (&50.into(), &50.into()));
    settle(&actum);
    assert_eq!(freeze(&actum)["hashed_files"], 0);
    file(&actum, "d1/f1", "one");
    let changed = freeze(&actum);
    assert_ne!(changed["id"], first["id"]);
    assert_eq!(changed["hashed_files"], 1);
    file(&actum, "d1/f1", "1");
    assert_eq!(freeze(&actum)["id"], first["id"], "the id depends on the content alone");
    assert_eq!(json(&actum, &["snapshot", "freeze", "--json", "--paranoid"])["hashed_files"], 50);
}

/// Freezes until no file is too young to be trusted.
fn settle(actum: &Program) {
    while freeze(actum)["hashed_files"] != 0 {}
}

#[test]
fn a_change_within_a_tick_of_the_clock_is_seen() {
    let actum = actum();
    file(&actum, "f", "aaaa");
    let mut last = freeze(&actum)["id"].clone();
    // Same size, same inode, mtime put back: only the rule about young files, or the ctime, can tell.
    for round in 0..40 {
        let time = fs::metadata(actum.path("f")).unwrap().modified().unwrap();
        let handle = fs::OpenOptions::new().write(true).open(actum.path("f")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&handle, format!("{round:04}").as_bytes(), 0).unwrap();
        handle.set_modified(time).unwrap();
        let now = freeze(&actum)["id"].clone();
        assert_ne!(now, last, "round {round}");
        last = now;
    }
}

#[test]
fn ignored_files_stay_out_and_patterns_bring_them_in() {
    let actum = actum();
    fs::create_dir(actum.path(".git")).unwrap();
    file(&actum, ".gitignore", "/target/\n*.log\n");
    file(&actum, "src/.gitignore", "!keep.log\n");
    for path in ["a", "b.log", "src/x", "src/keep.log", "src/other.log", "target/out", "target/deep/kept"] {
        file(&actum, path, path);
    }
    let plain = freeze(&actum);
    assert_eq!(plain["files"], 5, "{plain}");
    let included = json(&actum, &["snapshot", "freeze", "--json", "--include", "kept", "--exclude", "a"]);
    assert_eq!(included["files"], 5, "{included}");
    let diff = json(&actum, &["snapshot", "diff", "--json", plain["id"].as_str().unwrap(), &id(&included)]);
    assert_eq!(ops(&diff), ["delete a", "add target/deep/kept"]);

    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "cat target/out && echo changed > target/out && echo new > new.log && echo y > src/y");
    let applied = json(&actum, &["apply", "--json", &stage]);
    assert_eq!(ops(&applied), ["add src/y"]);
    assert_eq!(applied["left_out"].as_array().unwrap().len(), 2, "{applied}");
    assert_eq!(text(&actum, "target/out"), "target/out", "ignored files are never published");
    assert!(!actum.path("new.log").exists());
}

#[test]
fn an_agent_cannot_hide_or_reveal_by_writing_rules() {
    let actum = actum();
    file(&actum, ".gitignore", "secret\n");
    file(&actum, "a", "1");
    file(&actum, "secret", "s");
    for flags in MODES {
        let stage = new_stage(&actum, flags);
        act(&actum, &stage, "printf '!secret\\na\\nnew\\n' > .gitignore; echo 2 > a; echo n > new; rm -f secret");
        let diff = json(&actum, &["diff", "--json", &stage]);
        assert_eq!(ops(&diff), ["modify .gitignore", "modify a", "add new"], "{flags:?}");
        json(&actum, &["stage", "drop", "--json", &stage]);
    }
    assert_eq!(text(&actum, "secret"), "s");
}

#[test]
fn what_has_no_content_is_refused_by_name() {
    let actum = actum();
    file(&actum, "a", "1");
    fs::create_dir(actum.path("run")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(actum.path("run/s")).unwrap();
    let refused = actum.run(&["snapshot", "freeze"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("run/s (socket)"), "{}", refused.stderr);
    file(&actum, ".gitignore", "run\n");
    assert_eq!(freeze(&actum)["files"], 2);
    for flags in MODES {
        let stage = new_stage(&actum, flags);
        act(&actum, &stage, "mkfifo pipe; echo 2 > a");
        for verb in ["diff", "apply"] {
            let refused = actum.run(&[verb, "--json", &stage]);
            assert_eq!((refused.code, &refused.error()["code"]), (2, &"WORKSPACE_REFUSED".into()), "{flags:?}");
            assert!(refused.stderr.contains("pipe (named pipe)"), "{}", refused.stderr);
        }
        assert_eq!(text(&actum, "a"), "1");
    }
}

#[test]
fn repositories_in_the_workspace_are_folders_and_git_is_left_alone() {
    let actum = actum();
    let git = |arguments: &[&str], folder: &str| {
        let own = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"];
        let ended = other("git")
            .args(own)
            .args(arguments)
            .current_dir(actum.path(folder))
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8_lossy(&ended.stdout).into_owned()
    };
    git(&["init", "--quiet"], ".");
    file(&actum, "a", "1");
    file(&actum, ".gitignore", ".actum/\n");
    file(&actum, "nested/n", "n");
    git(&["init", "--quiet"], "nested");
    git(&["add", "a"], ".");
    let index = fs::read(actum.path(".git/index")).unwrap();
    assert_eq!(freeze(&actum)["files"], 3);
    let stage = new_stage(&actum, &["--mode", "overlay"]);
    let script = "export PATH=/usr/local/bin:/usr/bin:/bin HOME=/nonexistent; git config user.name x; \
                  git config user.email x@localhost; git add -A . 2>/dev/null; git commit -qm mine; \
                  echo 2 > a; echo m > nested/m; git reset -q --hard; echo 3 > a";
    act(&actum, &stage, script);
    let applied = json(&actum, &["apply", "--json", &stage]);
    assert_eq!(ops(&applied), ["modify a", "add nested/m"]);
    assert_eq!(fs::read(actum.path(".git/index")).unwrap(), index, "the user's index is untouched");
    assert!(!actum.path(".git/refs/heads/main").exists(), "what the agent committed stays in its stage");
}

#[test]
fn the_permissions_of_existing_files_are_kept() {
    let actum = actum();
    file(&actum, "private", "1");
    file(&actum, "tool", "1");
    for (name, mode) in [("private", 0o600), ("tool", 0o750)] {
        fs::set_permissions(actum.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let inode = fs::metadata(actum.path("private")).unwrap().ino();
    let mut reader = fs::File::open(actum.path("private")).unwrap();
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "echo 22222 > private; chmod 644 private; chmod a-x tool; echo x > new; chmod 755 new");
    json(&actum, &["apply", "--json", &stage]);
    let mode = |name: &str| fs::metadata(actum.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("private"), mode("tool"), mode("new") & 0o100), (0o600, 0o640, 0o100));
    // A file that its owner may not even read becomes one that he may run.
    fs::set_permissions(actum.path("tool"), fs::Permissions::from_mode(0o040)).unwrap();
    if is_root() {
        let stage = new_stage(&actum, &[]);
        act(&actum, &stage, "chmod u+x tool");
        json(&actum, &["apply", "--json", &stage]);
        assert_eq!(mode("tool"), 0o150);
    }
    // Replaced, not overwritten: who has the old file open goes on reading it whole.
    assert_ne!(fs::metadata(actum.path("private")).unwrap().ino(), inode);
    let mut old = String::new();
    std::io::Read::read_to_string(&mut reader, &mut old).unwrap();
    assert_eq!(old, "1");
}

#[test]
fn a_conflict_names_the_paths_and_keeps_everything() {
    for flags in MODES {
        let actum = actum();
        file(&actum, "both", "1");
        file(&actum, "mine", "1");
        file(&actum, "dir/x", "1");
        let stage = new_stage(&actum, flags);
        act(&actum, &stage, "echo agent > both; echo agent > only; rm -r dir; echo file > dir");
        file(&actum, "both", "user");
        file(&actum, "dir/y", "user");
        let before = read(actum.folder());
        let refused = actum.run(&["apply", "--json", &stage]);
        assert_eq!((refused.code, &refused.error()["code"]), (6, &"PUBLISH_CONFLICT".into()), "{flags:?}");
        let paths = refused.error()["details"]["paths"].clone();
        assert_eq!(paths, serde_json::json!(["both", "dir"]), "{flags:?}");
        assert_eq!(read(actum.folder()), before, "nothing is written");
        assert_eq!(json(&actum, &["diff", "--json", &stage])["deltas"].as_array().unwrap().len(), 4);
        file(&actum, "both", "1");
        fs::remove_file(actum.path("dir/y")).unwrap();
        json(&actum, &["apply", "--json", &stage]);
        assert_eq!(text(&actum, "dir"), "file\n");
    }
}

#[test]
fn later_edits_are_invisible_in_a_stage_unless_its_view_is_live() {
    let actum = actum();
    file(&actum, ".gitignore", "ignored");
    file(&actum, "ignored", "1");
    for path in ["a", "b", "gone"] {
        file(&actum, path, "1");
    }
    let frozen = new_stage(&actum, &["--mode", "overlay"]);
    let (live, strict) = (new_stage(&actum, &["--live"]), new_stage(&actum, &["--strict"]));
    file(&actum, "b", "changed");
    file(&actum, "came", "new");
    fs::remove_file(actum.path("gone")).unwrap();
    act(&actum, &live, "grep -q changed b && test -e came && test -e ignored && echo live > a");
    act(&actum, &frozen, "grep -q 1 b && test ! -e came && test -e gone && test -e ignored && echo frozen > f");
    act(&actum, &strict, "grep -q 1 b && test ! -e came && test -e gone && test ! -e ignored && echo strict > s");
    let applied = json(&actum, &["apply", "--json", &live]);
    assert_eq!(applied["base_drift"], serde_json::json!(["b", "came", "gone"]));
    for (stage, added, drift) in
        [(&frozen, "add f", &["a", "b", "came", "gone"][..]), (&strict, "add s", &["a", "b", "came", "f", "gone"])]
    {
        let applied = json(&actum, &["apply", "--json", stage]);
        assert_eq!((ops(&applied), &applied["base_drift"]), (vec![added.to_owned()], &serde_json::json!(drift)));
    }
    assert_eq!((text(&actum, "a"), text(&actum, "b")), ("live\n".into(), "changed".into()));
}

#[test]
fn a_stage_in_which_a_program_runs_is_left_alone() {
    let actum = actum();
    file(&actum, "a", "1");
    let stage = new_stage(&actum, &[]);
    // The program itself ends at once; what it leaves running goes on writing.
    let outside = Folder::new();
    let fifo = outside.join("fifo").display().to_string();
    assert!(other("mkfifo").arg(&fifo).status().unwrap().success());
    act(&actum, &stage, &format!("(read line < {fifo}; echo late > late) > /dev/null 2>&1 & echo early > early"));
    for verb in [&["apply", "--json"][..], &["stage", "drop", "--json"]] {
        let refused = actum.run(&[verb, &[&stage]].concat());
        assert_eq!((refused.code, &refused.error()["code"]), (6, &"STAGE_BUSY".into()), "{verb:?}");
    }
    assert_eq!(actum.run(&["stage", "exec", &stage, "--", "true"]).code, 6, "one program at a time");
    fs::write(fifo, "go\n").unwrap();
    // What closed everything it inherited is found all the same.
    let second = outside.join("second").display().to_string();
    assert!(other("mkfifo").arg(&second).status().unwrap().success());
    let closes = r#"for fd in /proc/self/fd/*; do fd=${fd##*/}; [ $fd -gt 2 ] && eval "exec $fd>&-"; done"#;
    let script = format!("({closes}; read x < {second}) > /dev/null 2>&1 &");
    while actum.run(&["stage", "exec", &stage, "--", "bash", "-c", &script]).code == 6 {}
    assert_eq!(actum.run(&["apply", "--json", &stage]).error()["code"], "STAGE_BUSY");
    fs::write(outside.join("second"), "go\n").unwrap();
    // It ends when the last of its processes does.
    let applied = loop {
        let ended = actum.run(&["apply", "--json", &stage]);
        if ended.code == 0 {
            break ended.json();
        }
        assert_eq!(ended.error()["code"], "STAGE_BUSY", "{}", ended.stderr);
    };
    assert_eq!(ops(&applied), ["add early", "add late"]);
    let again = actum.run(&["apply", "--json", &stage]);
    assert_eq!((again.code, &again.error()["code"]), (6, &"ALREADY_APPLIED".into()));
}

#[test]
fn a_program_in_a_stage_is_the_process_that_was_started() {
    let actum = actum();
    file(&actum, "sub/x", "1");
    for flags in MODES {
        let stage = new_stage(&actum, flags);
        let here = actum.path("sub").display().to_string();
        let ended =
            actum.run_with(&["-C", &here, "stage", "exec", &stage, "--", "sh", "-c", "cat; ls; exit 9"], b"in\n");
        assert_eq!((ended.code, ended.stdout.as_str()), (9, "in\nx\n"), "{flags:?}: {}", ended.stderr);
        // A signal reaches the program itself.
        let mut running = actum
            .start(&["stage", "exec", &stage, "--", "sh", "-c", "trap 'exit 5' TERM; echo up; sleep 60 & wait"], &[]);
        assert_eq!(running.line().unwrap(), "up");
        other("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
        assert_eq!(running.abandon(), 5, "{flags:?}");
    }
}

#[test]
fn what_cannot_be_recorded_is_not_done() {
    let actum = actum();
    file(&actum, "a", "1");
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "echo 2 > a");
    let id = id(&freeze(&actum));
    for arguments in [&["apply", &stage][..], &["undo", &stage], &["snapshot", "thaw", &id, "."]] {
        let unreachable = ["--json", "--store", "postgres://127.0.0.1:1/x"];
        let refused = actum.run(&[arguments, &unreachable].concat());
        assert_eq!((refused.code, &refused.error()["code"]), (1, &"STORE_UNAVAILABLE".into()), "{arguments:?}");
        assert_eq!(text(&actum, "a"), "1");
    }
    json(&actum, &["apply", "--json", &stage]);
    assert_eq!(text(&actum, "a"), "2\n");
}

#[test]
fn a_snapshot_with_patterns_is_restored_with_them() {
    let actum = actum();
    file(&actum, "a", "1");
    file(&actum, "data/x", "1");
    let without = id(&json(&actum, &["snapshot", "freeze", "--json", "--exclude", "data"]));
    freeze(&actum);
    let thawed = json(&actum, &["snapshot", "thaw", "--json", &without, "."]);
    assert_eq!(ops(&thawed), Vec::<String>::new());
    assert_eq!(text(&actum, "data/x"), "1", "what the snapshot never spoke about is left alone");

    // Ignored since, and still the same: it may stay. Another: it is named.
    file(&actum, "build", "1");
    let with = id(&freeze(&actum));
    file(&actum, ".gitignore", "build\n");
    freeze(&actum);
    let thawed = json(&actum, &["snapshot", "thaw", "--json", &with, "."]);
    assert_eq!((text(&actum, "build"), actum.path(".gitignore").exists()), ("1".into(), false));
    json(&actum, &["undo", "--json", thawed["publication"].as_str().unwrap()]);
    assert_eq!(text(&actum, "build"), "1", "what was there before is there after the undo");
    json(&actum, &["snapshot", "thaw", "--json", &with, "."]);
    file(&actum, ".gitignore", "build\n");
    file(&actum, "build", "other");
    freeze(&actum);
    let refused = actum.run(&["snapshot", "thaw", "--json", &with, "."]);
    assert_eq!((refused.code, &refused.error()["details"]["in_the_way"]), (6, &serde_json::json!(["build"])));
    assert_eq!((text(&actum, "build"), text(&actum, ".gitignore")), ("other".into(), "build\n".into()));
}

#[test]
fn nothing_is_restored_into_our_own_folder_or_gits() {
    let actum = actum();
    file(&actum, "a", "1");
    fs::create_dir(actum.path(".git")).unwrap();
    let id = id(&freeze(&actum));
    for target in [".actum", ".actum/blobs", ".git", ".git/new"] {
        let refused = actum.run(&["snapshot", "thaw", "--json", "--discard", &id, target]);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &"WORKSPACE_REFUSED".into()), "{target}");
    }
    // A folder that is restored to does not become a project of its own, refused or not.
    file(&actum, "sub/x", "1");
    assert_eq!(actum.run(&["snapshot", "thaw", "--json", &id, "sub"]).code, 6);
    assert!(!actum.path("sub/.actum").exists());
    json(&actum, &["snapshot", "thaw", "--json", "--discard", &id, "sub"]);
    let from_there = json(&actum, &["-C", &actum.path("sub").display().to_string(), "snapshot", "list", "--json"]);
    assert!(from_there["snapshots"].as_array().unwrap().len() > 1, "{from_there}");
}

#[test]
fn a_path_that_changes_its_kind_and_is_ignored_now_is_gone() {
    let actum = actum();
    file(&actum, ".gitignore", "out/\n");
    file(&actum, "out", "a file");
    for flags in MODES {
        let stage = new_stage(&actum, flags);
        act(&actum, &stage, "rm out; mkdir out; echo x > out/x");
        assert_eq!(ops(&json(&actum, &["diff", "--json", &stage])), ["delete out"], "{flags:?}");
    }
}

#[test]
fn what_is_done_in_git_is_said_to_stay_behind() {
    let actum = actum();
    fs::create_dir(actum.path(".git")).unwrap();
    let stage = new_stage(&actum, &["--mode", "overlay"]);
    act(&actum, &stage, "echo x > .git/commit; echo 1 > a");
    let applied = json(&actum, &["apply", "--json", "--keep", &stage]);
    assert_eq!((ops(&applied), &applied["left_out"]), (vec!["add a".to_owned()], &serde_json::json!([".git"])));
    act(&actum, &stage, "test -e .git/commit");
    assert_eq!(actum.run(&["apply", "--json", &stage]).code, 6, "once");
}

#[test]
fn a_folder_that_nobody_may_enter_is_published_and_removed() {
    let actum = actum();
    fs::set_permissions(actum.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    let user = actum.as_nobody();
    for mode in ["overlay", "copy"] {
        let stage = user.run(&["stage", "new", "-q", "--mode", mode]).ok().trim().to_owned();
        let script = format!("mkdir -p cache-{mode}; echo x > cache-{mode}/f; chmod 555 cache-{mode}");
        assert_eq!(user.run(&["stage", "exec", &stage, "--", "sh", "-c", &script]).code, 0);
        user.run(&["apply", "--json", &stage]).ok();
        assert_eq!(text(&actum, &format!("cache-{mode}/f")), "x\n");
        let left: Vec<_> = fs::read_dir(actum.path(".actum/stages")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"], "{mode}");
    }
}

#[test]
fn a_whole_folder_deleted_counts_as_every_file_in_it() {
    let actum = actum();
    for n in 0..300 {
        file(&actum, &format!("big/sub{}/f{n}", n % 3), "x");
    }
    let stage = new_stage(&actum, &["--mode", "overlay"]);
    act(&actum, &stage, "rm -rf big; mkdir big; echo 1 > big/one");
    let diff = json(&actum, &["diff", "--json", &stage]);
    assert_eq!(diff["deltas"].as_array().unwrap().len(), 301);
}

#[test]
fn a_patch_is_one_that_git_applies() {
    let actum = actum();
    file(&actum, "a b", "one\ntwo\nthree\n");
    file(&actum, "no-newline", "x");
    file(&actum, "moved", "a file that moves\n");
    file(&actum, "tool", "#!/bin/sh\n");
    file(&actum, "was-file", "text\n");
    fs::write(actum.path("gone"), "bye\n").unwrap();
    symlink("moved", actum.path("link")).unwrap();
    let first = id(&freeze(&actum));
    let stage = new_stage(&actum, &[]);
    let script = "printf 'one\\n2\\nthree\\n' > 'a b'; printf y > no-newline; mkdir sub; mv moved sub/moved; \
                  chmod +x tool; rm gone; ln -snf tool link; printf 'tab\\n' > $'t\\tab'; rm was-file; ln -s tool was-file";
    act(&actum, &stage, script);
    let patch = actum.run(&["diff", &stage]).ok();
    let plain = Folder::new();
    let target = plain.join("w").display().to_string();
    json(&actum, &["snapshot", "thaw", "--json", &first, &target]);
    fs::write(plain.join("patch"), &patch).unwrap();
    let git = other("git").args(["apply", "../patch"]).current_dir(&target).output().unwrap();
    assert!(git.status.success(), "{}\n{patch}", String::from_utf8_lossy(&git.stderr));
    json(&actum, &["apply", "--json", &stage]);
    assert_eq!(read(Path::new(&target)), read(actum.folder()), "{patch}");
    assert!(patch.contains("rename from moved\nrename to sub/moved\n"), "{patch}");
}

#[test]
fn gc_keeps_what_is_needed_and_gives_up_the_oldest_to_fit() {
    let actum = actum();
    let mut ids = Vec::new();
    for n in 0..6_u8 {
        fs::write(actum.path("big"), vec![n; 100_000]).unwrap();
        ids.push(id(&freeze(&actum)));
    }
    json(&actum, &["snapshot", "pin", "--json", &ids[0]]);
    json(&actum, &["snapshot", "forget", "--json", &ids[1]]);
    assert_eq!(json(&actum, &["snapshot", "gc", "--json"])["removed_contents"], 2, "the content and its folder");
    let list = || json(&actum, &["snapshot", "list", "--json"])["snapshots"].as_array().unwrap().len();
    assert_eq!(list(), 5);
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "echo small > big");
    let swept = json(&actum, &["snapshot", "gc", "--json", "--max-bytes", "310k"]);
    assert!(swept["bytes"].as_u64().unwrap() <= 310 << 10, "{swept}");
    assert_eq!(swept["forgotten_snapshots"].as_array().unwrap().len(), 2, "{swept}");
    assert_eq!(json(&actum, &["snapshot", "check", "--json"])["valid"], true);
    json(&actum, &["apply", "--json", &stage]);
    json(&actum, &["snapshot", "thaw", "--json", &ids[0], "."]);
    assert_eq!(fs::read(actum.path("big")).unwrap(), vec![0; 100_000]);
    let gone = actum.run(&["snapshot", "thaw", "--json", &ids[2], "."]);
    assert_eq!((gone.code, &gone.error()["code"]), (7, &"NOT_FOUND".into()));
}

#[test]
fn a_content_that_gc_removed_is_stored_again_by_the_next_freeze() {
    let actum = actum();
    file(&actum, "d/a", "content");
    file(&actum, "d/b", "other");
    let first = id(&freeze(&actum));
    settle(&actum);
    json(&actum, &["snapshot", "forget", "--json", &first]);
    assert_eq!(json(&actum, &["snapshot", "gc", "--json"])["bytes"], 0);
    assert_eq!(id(&freeze(&actum)), first);
    assert_eq!(json(&actum, &["snapshot", "check", "--json"])["valid"], true);
    json(&actum, &["snapshot", "thaw", "--json", &first, "out"]);
    assert_eq!(read(&actum.path("out")).len(), 2);
}

#[test]
fn bad_input_is_answered_clearly() {
    let actum = actum();
    file(&actum, "a", "1");
    let case = |arguments: &[&str], code: i32, name: &str, says: &str| {
        let ended = actum.run(arguments);
        assert_eq!((ended.code, ended.error()["code"].as_str().unwrap()), (code, name), "{arguments:?}");
        assert!(ended.stderr.contains(says), "{arguments:?}: {}", ended.stderr);
    };
    case(&["snapshot", "freeze", "--json", "missing"], 2, "FILE_UNREADABLE", "missing");
    case(&["snapshot", "freeze", "--json", "/"], 2, "WORKSPACE_REFUSED", "whole home folder or disk");
    let home = super::actum();
    let home = home.folder().display().to_string();
    let at_home = Program::new(env!("CARGO_BIN_EXE_actum")).with_env("HOME", &home);
    assert_eq!(at_home.run(&["-C", &home, "snapshot", "freeze"]).code, 0, "an empty home may be a workspace");
    fs::write(Path::new(&home).join(".bashrc"), "").unwrap();
    assert_eq!(at_home.run(&["-C", &home, "snapshot", "freeze"]).code, 2, "one that is lived in may not");
    case(&["snapshot", "freeze", "--json", "--exclude", "[z-a]"], 2, "USAGE", "bad pattern");
    case(&["snapshot", "thaw", "--json", "abcd", "x"], 7, "NOT_FOUND", "no snapshot");
    case(&["snapshot", "gc", "--json", "--max-bytes", "5x"], 2, "USAGE", "unit");
    case(&["diff", "--json", "nosuch"], 7, "NOT_FOUND", "no stage");
    case(&["apply", "--json", ""], 2, "USAGE", "empty");
    case(&["undo", "--json", "nosuch"], 7, "NOT_FOUND", "no publication");
    case(&["stage", "new", "--json", "--mode", "reflink"], 1, "STAGING_UNAVAILABLE", "share blocks");
    let id = id(&freeze(&actum));
    case(&["snapshot", "thaw", "--json", &id, "a"], 2, "FILE_UNREADABLE", "look into");
    let stage = new_stage(&actum, &[]);
    assert_eq!(actum.run(&["stage", "exec", &stage, "--", "no-such-program"]).code, 127);
    assert_eq!(actum.run(&["stage", "exec", &stage, "--", "sh", "-c", "exit 7"]).code, 7);
    assert_eq!(read(actum.folder()).len(), 1);
}

#[test]
fn a_damaged_pack_is_found_and_never_restored_from() {
    let actum = actum();
    file(&actum, "a", &"content ".repeat(1000));
    let id = id(&freeze(&actum));
    let packs = actum.path(".actum/blobs/packs");
    let pack =
        fs::read_dir(&packs).unwrap().map(|e| e.unwrap().path()).find(|p| p.extension().unwrap() == "pack").unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    let at = bytes.windows(7).position(|w| w == b"content").unwrap();
    bytes[at + 100] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let checked = actum.run(&["snapshot", "check", "--json"]);
    assert_eq!((checked.code, &checked.json()["valid"]), (1, &false.into()));
    let thawed = actum.run(&["snapshot", "thaw", "--json", &id, "out"]);
    assert_eq!((thawed.code, &thawed.error()["code"]), (1, &"CONTENT_DAMAGED".into()));
    assert!(!actum.path("out").exists(), "nothing half restored is left");
    // While the file is still in the workspace, it can be stored again; a sweep does not stumble over the rest.
    json(&actum, &["snapshot", "freeze", "--json", "--paranoid"]);
    assert_eq!(json(&actum, &["snapshot", "check", "--json"])["valid"], true);
    json(&actum, &["snapshot", "gc", "--json", "--max-bytes", "1G"]);
    json(&actum, &["snapshot", "thaw", "--json", &id, "out"]);
}
