//! What a command in `actum sandbox` writes goes to a layer, and is in place only after it was looked at.

use std::fs;

use actum_testkit::program::other;

use super::actum;
use super::sandbox::{Who, own_all};

/// In a layer, covers and protected files stay the same when the host replaces the files below.
#[test]
fn layers_keep_covers_when_a_file_is_replaced_outside() {
    for is_nobody in [false, true] {
        let actum = actum();
        actum.file("h/.git-credentials", "old-credential");
        actum.file("denied", "old-denied");
        for part in [".git/objects/x", ".git/refs/x", ".git/HEAD", ".git/config"] {
            actum.file(part, "mine");
        }
        let actum = if is_nobody { actum.owned_by_nobody() } else { actum };
        let home = actum.path("h").display().to_string();
        let actum = actum.with_env("HOME", &home);
        let script = "echo started; read line; cat denied h/.git-credentials; echo evil >> .git/config; echo over";
        let arguments =
            ["sandbox", "--read", "h", "--at-end", "--write", ".", "--deny", "denied", "--", "sh", "-c", script];
        let mut running = actum.start(&arguments, &[]);
        assert_eq!(running.line().as_deref(), Some("started"), "{is_nobody}");
        for file in ["denied", "h/.git-credentials", ".git/config"] {
            fs::rename(actum.file("new", "new-text"), actum.path(file)).unwrap();
        }
        assert!(running.send("go on"));
        let (_, lines, errors) = running.finish();
        assert_eq!(lines, ["over"], "{is_nobody}: {errors:?}");
        for file in ["denied", "h/.git-credentials", ".git/config"] {
            assert_eq!(fs::read_to_string(actum.path(file)).unwrap(), "new-text", "{is_nobody}: {file}");
        }
    }
}

/// While a command runs, other programs find nothing that it writes: neither hooks nor plain files. Afterwards the folder is as
/// the command left it, but for obeyed files and for files that others changed meanwhile.
#[test]
fn what_a_command_writes_is_in_place_only_when_it_has_ended() {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

    for is_nobody in [false, true] {
        let actum = actum();
        for (name, text) in [
            ("changed", "old"),
            ("removed", "old"),
            ("edited", "old"),
            ("removed-and-edited", "old"),
            ("gone/a/b", "old"),
            ("replaced/a", "old"),
            ("file-to-folder", "old"),
            ("repository/HEAD", "ref: refs/heads/main"),
            ("repository/objects/x", "old"),
        ] {
            actum.file(name, text);
        }
        let actum = if is_nobody { actum.owned_by_nobody() } else { actum };
        let script = "echo new > changed; rm removed removed-and-edited; echo new > edited; rm -r gone replaced; \
                      mkdir replaced; echo new > replaced/b; rm file-to-folder; mkdir file-to-folder; \
                      echo new > file-to-folder/a; mkdir -m 700 private; ln -s changed link; mkfifo pipe; \
                      echo x > program; chmod 755 program; ln program second; mkdir .vscode; \
                      echo evil > .vscode/tasks.json; mkdir repository/refs; echo evil > repository/config; \
                      mkdir closed; echo new > closed/f; chmod 000 closed; echo started; read line; echo over";
        let mut running = actum.start(&["sandbox", "--at-end", "--write", ".", "--", "sh", "-c", script], &[]);
        assert_eq!(running.line().as_deref(), Some("started"), "{is_nobody}");
        for name in [".vscode", "repository/config", "program", "private", "closed"] {
            assert!(fs::symlink_metadata(actum.path(name)).is_err(), "{is_nobody}: {name}");
        }
        assert_eq!(fs::read_to_string(actum.path("changed")).unwrap(), "old");
        for name in ["edited", "removed-and-edited"] {
            actum.file(name, "mine");
        }
        assert!(running.send("go on"));
        let (code, lines, errors) = running.finish();
        let errors = errors.concat();
        assert_eq!((code, lines), (125, vec!["over".to_owned()]), "{is_nobody}: {errors}");
        let read = |name: &str| fs::read_to_string(actum.path(name)).map_err(|e| e.kind());
        let missing = Err(std::io::ErrorKind::NotFound);
        for (name, text) in [
            ("changed", Ok("new\n")),
            ("removed", missing),
            ("edited", Ok("mine")),
            ("removed-and-edited", Ok("mine")),
            ("gone", missing),
            ("replaced/a", missing),
            ("replaced/b", Ok("new\n")),
            ("file-to-folder/a", Ok("new\n")),
            ("program", Ok("x\n")),
            (".vscode", missing),
            ("repository/config", missing),
            ("repository/HEAD", Ok("ref: refs/heads/main")),
        ] {
            assert_eq!(read(name), text.map(str::to_owned), "{is_nobody}: {name}: {errors}");
        }
        for name in ["edited", "removed-and-edited"] {
            assert!(errors.contains(&format!("{name} was changed by others meanwhile")), "{errors}");
        }
        let stat = |name: &str| fs::symlink_metadata(actum.path(name)).unwrap();
        let mode = |name: &str| stat(name).permissions().mode() & 0o777;
        // Who is not root has to open a folder to look into it.
        let closed = if is_nobody { 0o700 } else { 0 };
        assert_eq!((mode("private"), mode("program"), mode("closed")), (0o700, 0o755, closed), "{is_nobody}");
        assert_eq!(stat("program").ino(), stat("second").ino());
        assert!(stat("link").is_symlink() && stat("pipe").file_type().is_fifo());
        let owners = ["program", "private", "replaced"].map(|name| stat(name).uid());
        assert_eq!(owners, [stat("changed").uid(); 3], "{is_nobody}");
        assert!(!actum.path(".actum").exists(), "{is_nobody}");
    }
}

/// What is in a layer is read and never run; folders that the user makes meanwhile let nothing through; a pipe in the place of an
/// index blocks nothing; read-only folders are filled; and what belongs to a file's group stays with it.
#[test]
fn layers_are_put_in_place_without_trusting_them() {
    use std::os::unix::fs::PermissionsExt as _;

    for who in Who::BOTH {
        let actum = actum();
        let binary = actum.path("bin/actum");
        fs::create_dir(actum.path("bin")).unwrap();
        let copied = other("cp").arg(env!("CARGO_BIN_EXE_actum")).arg(&binary).status().unwrap();
        assert!(copied.success());
        actum.file("half/HEAD", "ref: refs/heads/main\n");
        let git = other("git").args(["init", "-q"]).arg(actum.folder()).status().unwrap();
        assert!(git.success());
        own_all(actum.folder(), who);
        let evil = actum.path("evil");
        let script = format!(
            "printf '#!/bin/sh\\ntouch {}\\n' > bin/new; chmod 755 bin/new; mv bin/new bin/actum; \
             mkdir .vscode; echo evil > .vscode/tasks.json; mkdir -p d/e; echo new > d/e/f; chmod 555 d/e d; \
             rm -f .git/index; mkfifo .git/index; touch started; read line",
            evil.display()
        );
        let folder = actum.folder().display();
        let shell = format!(
            "cd {folder}; (until ls .actum/sandbox/*/upper/started > /dev/null 2>&1; do sleep 0.05; done; \
             mkdir .vscode; echo mine > .vscode/mine; echo go) | {0} sandbox --at-end --write . -- sh -c \"$SCRIPT\"; echo \"code $?\"",
            binary.display()
        );
        let shell = shell.replace("$SCRIPT", &script.replace('$', "\\$").replace('"', "\\\""));
        let ended = who.shell(&actum, &shell);
        let text = format!("{}: {}{}", who.word(), ended.stdout, ended.stderr);
        assert!(!evil.exists() && !text.contains("too many files"), "{text}");
        assert!(!actum.path(".vscode/tasks.json").exists() && actum.path(".vscode/mine").exists(), "{text}");
        assert_eq!(fs::read_to_string(actum.path("d/e/f")).unwrap(), "new\n", "{text}");
        let mode = fs::metadata(actum.path("d/e")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o555, "{text}");
        let index = fs::symlink_metadata(actum.path(".git/index"));
        assert!(!index.is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type())), "{text}");
        for folder in ["d/e", "d"] {
            fs::set_permissions(actum.path(folder), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

/// A folder in which the user may make nothing itself is written to directly.
#[test]
fn folders_of_others_are_written_to_where_that_is_allowed() {
    if !super::sandbox::is_root() {
        return;
    }
    let actum = actum();
    fs::create_dir_all(actum.path("shared/own")).unwrap();
    own_all(&actum.path("shared/own"), Who::Nobody);
    let ended = Who::Nobody
        .run(&actum, &["sandbox", "--at-end", "--write", "shared", "--", "sh", "-c", "echo new > shared/own/f"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("changes are written directly"), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(actum.path("shared/own/f")).unwrap(), "new\n");
}

/// Where no overlay can be mounted, or another file system is mounted within, commands write directly, and a warning says so.
#[test]
fn folders_without_layers_are_written_to_directly() {
    let actum = actum();
    let who = Who::BOTH.into_iter().find(|who| matches!(who, Who::Nobody)).expect("an ordinary user");
    own_all(actum.folder(), who);
    let program = actum.copy_for_nobody();
    let run = r#"setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all env HOME=/nonexistent "$PROGRAM"         sandbox --at-end --write . -- sh -c 'echo new > f; mkdir .vscode; echo evil > .vscode/tasks.json' 2>&1; ls -A; rm -r f .actum-*"#;
    let script = format!(
        "mkdir l u w m; chown 65534:65534 . l u m; mount -t overlay -o lowerdir=l,upperdir=u,workdir=w x m; cd m; {run}; cd ..; \
         mkdir -p n/sub; chown 65534:65534 n; mount -t tmpfs x n/sub; cd n; {run}"
    );
    let script = script.replace("$PROGRAM", program.to_str().unwrap());
    let ended = super::workspace_hostile::in_own_mounts(&script, actum.folder());
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(text.matches("changes are written directly").count(), 2, "{text}");
    assert_eq!(text.matches(".vscode was made by the command").count(), 2, "{text}");
    assert_eq!(text.lines().filter(|line| *line == "f").count(), 2, "{text}");
    assert!(!text.lines().any(|line| line == ".vscode"), "{text}");
}

/// A command that is killed together with Actum leaves the folder as it was; the next one clears its layer away.
#[test]
fn killed_command_leaves_the_folder_as_it_was() {
    let actum = actum();
    actum.file("f", "old");
    let mut running = actum
        .start(&["sandbox", "--at-end", "--write", ".", "--", "sh", "-c", "echo new > f; echo started; read x"], &[]);
    assert_eq!(running.line().as_deref(), Some("started"));
    running.kill();
    assert_eq!(fs::read_to_string(actum.path("f")).unwrap(), "old");
    assert_eq!(actum.run(&["sandbox", "--at-end", "--write", ".", "--", "true"]).code, 0);
    assert!(!actum.path(".actum").exists());
}

/// What could not be put in place is kept, and each later command says where.
#[test]
fn what_was_not_put_in_place_is_kept_and_named() {
    let actum = actum();
    actum.file("f", "old");
    let mut running = actum
        .start(&["sandbox", "--at-end", "--write", ".", "--", "sh", "-c", "echo new > f; echo started; read x"], &[]);
    assert_eq!(running.line().as_deref(), Some("started"));
    let layers = || fs::read_dir(actum.path(".actum/sandbox")).unwrap().flatten().map(|entry| entry.path());
    // As if it had been killed while it put things in place.
    fs::write(layers().next().unwrap().join("settling"), "").unwrap();
    running.kill();
    for _ in 0..2 {
        let ended = actum.run(&["sandbox", "--at-end", "--write", ".", "--", "true"]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let upper = layers().next().unwrap().join("upper");
        assert!(
            ended.stderr.contains(&format!("{} holds what an earlier command wrote", upper.display())),
            "{}",
            ended.stderr
        );
        assert_eq!(fs::read_to_string(upper.join("f")).unwrap(), "new\n");
    }
}
