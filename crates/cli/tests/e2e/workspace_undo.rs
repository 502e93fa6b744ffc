//! Taking back: only what still is what the publication left, all of it as it was, and nothing of the user's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use actum_testkit::tree::read;

use super::actum;
use super::workspace::{act, file, freeze, json, new_stage, ops, text};

#[test]
fn an_undo_keeps_later_work() {
    let actum = actum();
    for name in ["a", "b", "c"] {
        file(&actum, name, "1");
    }
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "echo 2 > a; echo 2 > b; rm c; echo 2 > d");
    json(&actum, &["apply", "--json", &stage]);
    file(&actum, "b", "later work");
    file(&actum, "c", "again");
    let undone = json(&actum, &["undo", "--json", &stage]);
    assert_eq!(ops(&undone), ["modify a", "delete d"]);
    assert_eq!(undone["kept"], serde_json::json!(["b", "c"]));
    assert_eq!(
        (text(&actum, "a"), text(&actum, "b"), text(&actum, "c")),
        ("1".into(), "later work".into(), "again".into())
    );
    let again = actum.run(&["undo", "--json", &stage]);
    assert_eq!(again.code, 6, "nothing is left to undo: {}", again.stdout);
    let listed = json(&actum, &["ledger", "list", "--json"]);
    let causes: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|e| e["type"].clone()).collect();
    assert_eq!(causes, ["workspace_publication", "workspace_publication"], "{listed}");
    assert_eq!(json(&actum, &["ledger", "verify", "--json"])["valid"], true);
}

#[test]
fn an_undo_looks_at_the_disk_and_not_at_what_is_ignored_by_now() {
    let actum = actum();
    file(&actum, "config.json", "1");
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "printf 'config.json\\nout/\\n' > .gitignore; echo 2 > config.json; mkdir out; echo x > out/x");
    json(&actum, &["apply", "--json", &stage]);
    let undone = json(&actum, &["undo", "--json", &stage]);
    assert_eq!(ops(&undone), ["delete .gitignore", "modify config.json", "delete out/x"]);
    assert_eq!((text(&actum, "config.json"), read(actum.folder()).len()), ("1".into(), 1));

    // The other way round: the user begins to ignore what the stage has deleted.
    file(&actum, "a.cfg", "1");
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "rm a.cfg");
    file(&actum, ".gitignore", "*.cfg\n");
    assert_eq!(ops(&json(&actum, &["apply", "--json", &stage])), ["delete a.cfg"]);
    assert!(!actum.path("a.cfg").exists());

    // What was taken by name is undone by name.
    file(&actum, "b.cfg", "1");
    let stage = new_stage(&actum, &["--include", "b.cfg"]);
    act(&actum, &stage, "echo 2 > b.cfg");
    json(&actum, &["apply", "--json", &stage]);
    assert_eq!(ops(&json(&actum, &["undo", "--json", &stage])), ["modify b.cfg"]);
    assert_eq!(text(&actum, "b.cfg"), "1");
}

#[test]
fn what_the_user_ignores_is_his() {
    let actum = actum();
    file(&actum, "b", "1");
    // The same file, made by both: it stays when the stage's is taken back.
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "echo same > f.log; echo 2 > b");
    file(&actum, ".gitignore", "*.log\n");
    file(&actum, "f.log", "same\n");
    assert_eq!(ops(&json(&actum, &["apply", "--json", &stage])), ["modify b"]);
    json(&actum, &["undo", "--json", &stage]);
    assert_eq!((text(&actum, "f.log"), text(&actum, "b")), ("same\n".into(), "1".into()));
    // Another file where one was deleted: kept and named, and the rest is undone.
    fs::remove_file(actum.path(".gitignore")).unwrap();
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "rm f.log; echo 2 > b");
    json(&actum, &["apply", "--json", &stage]);
    file(&actum, ".gitignore", "*.log\n");
    file(&actum, "f.log", "another");
    let undone = json(&actum, &["undo", "--json", &stage]);
    assert_eq!((ops(&undone), &undone["kept"]), (vec!["modify b".to_owned()], &serde_json::json!(["f.log"])));
    assert_eq!((text(&actum, "f.log"), text(&actum, "b")), ("another".into(), "1".into()));
}

#[test]
fn an_empty_folder_filled_by_two_holds_both() {
    let actum = actum();
    fs::create_dir(actum.path("d")).unwrap();
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "echo f > d/f");
    file(&actum, "d/g", "g");
    let applied = json(&actum, &["apply", "--json", &stage]);
    assert_eq!(freeze(&actum)["id"], applied["after"]);
    json(&actum, &["undo", "--json", &stage]);
    assert_eq!(read(actum.folder()).len(), 1);
}

#[test]
fn an_undo_goes_on_around_a_folder_that_became_the_users_file() {
    let actum = actum();
    file(&actum, "d/x", "1");
    file(&actum, "other", "1");
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "rm -r d; echo agent > d; echo 2 > other");
    json(&actum, &["apply", "--json", &stage]);
    file(&actum, "d", "the user's");
    let undone = json(&actum, &["undo", "--json", &stage]);
    assert_eq!((ops(&undone), &undone["kept"]), (vec!["modify other".to_owned()], &serde_json::json!(["d", "d/x"])));
    assert_eq!((text(&actum, "d"), text(&actum, "other")), ("the user's".into(), "1".into()));
}

#[test]
fn what_comes_back_has_the_permissions_it_had() {
    let actum = actum();
    file(&actum, "secret/key", "1");
    for (name, mode) in [("secret/key", 0o600), ("secret", 0o700)] {
        fs::set_permissions(actum.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let stage = new_stage(&actum, &[]);
    act(&actum, &stage, "rm -r secret");
    json(&actum, &["apply", "--json", &stage]);
    assert!(!actum.path("secret").exists());
    json(&actum, &["undo", "--json", &stage]);
    let mode = |name: &str| fs::metadata(actum.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("secret/key"), mode("secret")), (0o600, 0o700));
    fs::set_permissions(actum.path("secret"), fs::Permissions::from_mode(0o777)).unwrap();
    for script in ["ln -snf nowhere secret/key", "rm -r secret"] {
        let stage = new_stage(&actum, &[]);
        act(&actum, &stage, script);
        json(&actum, &["apply", "--json", &stage]);
        json(&actum, &["undo", "--json", &stage]);
        assert_eq!((mode("secret/key"), mode("secret")), (0o600, 0o777), "{script}");
    }
    assert_eq!(mode(".actum"), 0o700, "copies of private files are private");
}
