//! Programs in a cell that are out to harm: every attempt of the list is refused, and the machine is as it was. As root and
//! as an ordinary user.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use actum_testkit::folder::Folder;
use actum_testkit::program::{Ended, Program, other};

use super::actum;
use super::sandbox::{Who, own_all};

const ATTACKS: &str = include_str!("attacks.py");
const SECRET: &str = "6f1c2a: nobody in a cell may read this";

/// Kept as they are while cells try to change them.
const SETTINGS: [&str; 4] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/printk_ratelimit_burst",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/modprobe",
];

fn settings() -> Vec<Option<String>> {
    SETTINGS.iter().map(|path| fs::read_to_string(path).ok()).collect()
}

/// Attempts that may succeed, because what they reach is the cell's own.
const HARMLESS: &[&str] = &[
    // A network of its own has a loopback of its own, on which nobody listens; `ping` there tells nothing.
    "50 ping",
];

fn attack(who: Who) {
    let actum = actum();
    let outside = Folder::new();
    fs::write(outside.join("secret"), SECRET).unwrap();
    prepare(&actum);
    let script = actum.file("attacks.py", ATTACKS);
    own_all(actum.folder(), who);
    own_all(outside.path(), who);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let abstract_name = format!("actum-test-{}-{}", std::process::id(), who.word());
    let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
    hidden.set_nonblocking(true).unwrap();
    let pathname = outside.join("socket");
    let socket = UnixListener::bind(&pathname).unwrap();
    socket.set_nonblocking(true).unwrap();
    let before = settings();

    let text = |path: &Path| path.display().to_string();
    let (here, out, own) = (text(actum.folder()), text(outside.path()), std::process::id().to_string());
    let denied = ["--deny", "denied", "--deny", "denied-file"];
    let limits = ["--timeout-ms", "60000", "--max-children", "50"];
    let command =
        ["--", "/usr/bin/python3", "-B", &text(&script), &here, &out, &port, &abstract_name, &text(&pathname), &own];
    let arguments = [&["sandbox", "--write", "."][..], &denied, &limits, &command].concat();
    let ended = who.run(&actum, &arguments);

    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.last(), Some(&"end"), "{}: {}{}", who.word(), ended.stdout, ended.stderr);
    assert!(lines.len() > 190, "only {} attempts were made", lines.len());
    let done: Vec<&&str> = lines
        .iter()
        .filter(|line| line.contains("\tDONE") && !HARMLESS.iter().any(|name| line.starts_with(name)))
        .collect();
    assert!(done.is_empty(), "{}: {done:#?}", who.word());

    assert_eq!(settings(), before);
    for path in ["/etc", "/usr", "/var/tmp", "", "/dev", "/bin"] {
        assert!(!Path::new(&format!("{path}/actum-attack")).exists());
    }
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), SECRET);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2, "something was left outside");
    assert!(!ended.stdout.contains("6f1c2a"), "the secret was read");
    assert!(listener.accept().is_err() && hidden.accept().is_err() && socket.accept().is_err(), "somebody was reached");
    unharmed(&actum);
}

/// A workspace with repositories, links and things that are not to be seen.
fn prepare(actum: &Program) {
    for folder in [".git/hooks", "vendor/x/.git/hooks", "tree", "denied", ".actum"] {
        fs::create_dir_all(actum.path(folder)).unwrap();
    }
    actum.file("mine", "mine");
    actum.file(".git/config", "[core]\n");
    actum.file(".git/HEAD", "ref: refs/heads/main\n");
    actum.file("vendor/x/.git/config", "[core]\n");
    actum.file("tree/.git", "gitdir: ../.git/worktrees/tree\n");
    actum.file("denied/secret", SECRET);
    actum.file("denied-file", SECRET);
    actum.file(".actum/key.pem", SECRET);
}

fn unharmed(actum: &Program) {
    let read = |name: &str| fs::read_to_string(actum.path(name)).unwrap();
    assert_eq!(read(".git/config"), "[core]\n");
    assert_eq!(read("tree/.git"), "gitdir: ../.git/worktrees/tree\n");
    assert_eq!(
        (read("denied/secret"), read("denied-file"), read(".actum/key.pem")),
        (SECRET.into(), SECRET.into(), SECRET.into())
    );
    for folder in [".git/hooks", "vendor/x/.git/hooks"] {
        assert_eq!(fs::read_dir(actum.path(folder)).unwrap().count(), 0, "{folder}");
    }
    assert!(!actum.path("suid").exists() && !actum.path("disk").exists() && !actum.path("hard").exists());
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(actum.path("mine")).unwrap().permissions().mode() & 0o6000, 0);
}

#[test]
fn every_attack_is_refused_to_root() {
    attack(Who::Root);
}

#[test]
fn every_attack_is_refused_to_an_ordinary_user() {
    attack(Who::Nobody);
}

/// What other programs obey is not left behind, and no empty file in its place either.
#[test]
fn hooks_and_settings_that_appear_are_put_aside() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let script = "mkdir -p .vscode new/.git/hooks .claude deep/er; echo x > .vscode/tasks.json; echo x > .envrc; \
                      echo x > .bashrc; echo x > .mcp.json; echo x > new/.git/config; echo x > .claude/settings.json; \
                      echo x > deep/er/.envrc; echo x > deep/er/kept; echo x > actum.toml; ln -s /etc .git; echo kept > kept";
        let ended = who.run(&actum, &["sandbox", "--write", ".", "--", "sh", "-c", script]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let mut left: Vec<String> = names_below(actum.folder());
        left.retain(|name| !name.contains("actum-for-nobody"));
        let aside: Vec<String> = left.extract_if(.., |name| name.starts_with(".actum-aside-")).collect();
        assert_eq!(left, ["deep/er/kept", "kept"], "{}", who.word());
        assert_eq!(aside.len(), 9, "{aside:?}");
        assert!(ended.stderr.contains(".envrc") && ended.stderr.contains("is now"), "{}", ended.stderr);
    }
}

/// Ways to have something obeyed all the same: by moving what is there, through links, and where nobody looks.
#[test]
fn nothing_obeyed_is_left_by_detours() {
    for who in Who::BOTH {
        let actum = actum();
        let outside = Folder::new();
        for folder in ["sub/.git/hooks", "sub2", "real", "sub3"] {
            fs::create_dir_all(actum.path(folder)).unwrap();
        }
        fs::create_dir(outside.join("hooks")).unwrap();
        fs::write(outside.join("config"), "theirs").unwrap();
        actum.file("sub/.git/config", "mine");
        actum.file("sub2/.envrc", "mine");
        actum.file("sub3/.git", "gitdir: x");
        actum.file("real/t", "mine");
        std::os::unix::fs::symlink("real/t", actum.path(".envrc")).unwrap();
        std::os::unix::fs::symlink("real", actum.path(".vscode")).unwrap();
        fs::create_dir_all(actum.path("scripts")).unwrap();
        fs::create_dir_all(actum.path("hooked/.git/hooks")).unwrap();
        actum.file("scripts/pc", "mine");
        for (link, to) in [
            ("step", "real/t"),
            (".mcp.json", "step"),
            ("CLAUDE.md", "notthere"),
            ("hooked/.git/hooks/pre-commit", "../../../scripts/pc"),
        ] {
            std::os::unix::fs::symlink(to, actum.path(link)).unwrap();
        }
        own_all(actum.folder(), who);
        own_all(outside.path(), who);
        let script = format!(
            "mv sub old; mkdir -p sub/.git/hooks && echo evil > sub/.git/hooks/x; mv sub2 old2; mkdir sub2 && echo evil > sub2/.envrc;              rm .envrc; echo evil > .envrc; rm .vscode; mkdir .vscode; echo evil > .vscode/tasks.json; echo evil > real/t;              mkdir -p fake/objects fake/refs; touch fake/HEAD; mkdir -p fake/.git/hooks; echo evil > fake/.git/hooks/x; echo evil > fake/config;              mkdir -p target/.git/hooks node_modules; echo evil > target/.git/hooks/x; echo evil > node_modules/.envrc;              mkdir hid; echo evil > hid/.envrc; chmod 311 hid; touch HEAD; mkdir objects refs; echo evil > config;              mv sub3 old3; mkdir sub3; ln -s {} sub3/.git; \
             mkdir shut; echo evil > shut/.envrc; chmod 555 shut; mkdir blind; echo evil > blind/.envrc; chmod 600 blind; \
             mkdir -p z/objects z/refs; ln -s nowhere z/HEAD; echo evil > z/config; mkdir -p x y/objects y/refs; ln -s ../y x/commondir; \
             touch x/HEAD; echo evil > y/config; rm step; echo evil > step; echo evil > notthere; echo evil > scripts/pc; true",
            outside.path().display()
        );
        let ended = who.run(&actum, &["sandbox", "--write", ".", "--", "sh", "-c", &script]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let names = names_below(actum.folder());
        let evil: Vec<&String> = names
            .iter()
            .filter(|name| !name.starts_with(".actum-aside-") && !name.contains("actum-for-nobody"))
            .filter(|name| fs::read_to_string(actum.path(name)).is_ok_and(|text| text.contains("evil")))
            .collect();
        assert_eq!(evil, [""; 0], "{}: {names:#?}", who.word());
        let read = |name: &str| fs::read_to_string(actum.path(name)).unwrap_or_default();
        let kept = ["sub/.git/config", "sub2/.envrc", "real/t", "scripts/pc", "hooked/.git/hooks/pre-commit"].map(read);
        assert_eq!(kept, ["mine"; 5], "{}", who.word());
        assert_eq!(fs::read_link(actum.path(".envrc")).unwrap(), Path::new("real/t"), "what was there is there again");
        assert_eq!(read(".vscode/t"), "mine");
        assert_eq!(fs::read_to_string(outside.join("config")).unwrap(), "theirs", "outside nothing is touched");
        assert!(outside.join("hooks").exists());
    }
}

/// What was put aside does not go where the program would like it to.
#[test]
fn what_is_put_aside_stays_where_it_was_granted() {
    let actum = actum();
    let outside = Folder::new();
    actum.file("actum.toml", "[tools.sh]\ncommands = [\"sh\"]\narguments = \"any\"\n");
    let script = format!(
        "for i in 0 1 2; do ln -s {} .actum-aside-run-1-$i; done; ln -s {} .actum-aside-run-1; echo evil > .envrc",
        outside.path().display(),
        outside.path().display()
    );
    let contract = serde_json::json!({
        "execution_id": "run-1", "tool_id": "sh", "inputs": {"command": "sh", "arguments": ["-c", script]},
        "sandbox": {"filesystem": {"level": "standard"}},
    });
    let result = actum.run_with(&["exec", "--json", "-"], contract.to_string().as_bytes()).json();
    assert_eq!(result["status"], "success", "{result}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let now = result["evidence"]["put_aside"][0]["now"].as_str().unwrap();
    assert_eq!(fs::read_to_string(now).unwrap(), "evil\n");
    assert!(!actum.path(".envrc").exists());
}

/// Where the machine's mounts are shared with each other, a cell's are not.
#[test]
fn mounts_do_not_spread() {
    if !super::sandbox::is_root() {
        return;
    }
    let actum = actum();
    let script = "set -e; mount -t tmpfs none .; mount --make-shared .; cd .; mkdir -p ws/.git/hooks ws/secret; echo s > ws/secret/k; \
                  echo h > ws/.git/config; echo e > ws/.envrc; cd ws; before=$(wc -l < /proc/self/mountinfo); \
                  $ACTUM sandbox --write . --deny secret -- true; test $(wc -l < /proc/self/mountinfo) = $before; \
                  cat secret/k; echo changed > .envrc; cat .envrc";
    let binary = env!("CARGO_BIN_EXE_actum");
    let folder = actum.folder().display().to_string();
    let command = format!(
        "cd {folder} && mount -t tmpfs none {folder} && cd {folder} && {}",
        script.replace("mount -t tmpfs none .; ", "").replace("$ACTUM", binary)
    );
    let output = other("unshare").args(["-m", "sh", "-c", &command]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "s\nchanged\n", "{}", String::from_utf8_lossy(&output.stderr));
}

/// An overlay cannot show its files as somebody else's. That is refused, or said; and its mounts do not spread either.
#[test]
fn a_wall_that_is_missing_is_refused_or_said() {
    if !super::sandbox::is_root() {
        return;
    }
    let actum = actum();
    let (binary, folder) = (env!("CARGO_BIN_EXE_actum"), actum.folder().display().to_string());
    let script = format!(
        "set -e; mount -t tmpfs none {folder}; cd {folder}; mkdir l u w m; echo x > l/a; echo e > l/.envrc; \
         mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m; mount --make-shared m; cd m; \
         printf '[tools.t]\ncommands = [\"cat\"]\n' > actum.toml; \
         echo '{{\"tool_id\": \"t\", \"inputs\": {{\"command\": \"cat\", \"arguments\": [\"a\"]}}}}' > c.json; \
         before=$(wc -l < /proc/self/mountinfo); \
         {binary} sandbox --write . -- cat a || echo refused $?; {binary} exec c.json --json || true; echo; \
         printf '[sandbox]\nweaker = [\"owners\"]\n' >> actum.toml; \
         {binary} sandbox --write . -- cat a; {binary} exec c.json --json; echo; test $(wc -l < /proc/self/mountinfo) = $before; echo end"
    );
    let output = other("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = stdout.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!((lines[0], lines[2], lines[4]), ("refused 125", "x", "end"), "{stdout}{stderr}");
    let [refused, weaker] = [1, 3].map(|at| serde_json::from_str::<serde_json::Value>(lines[at]).unwrap());
    assert_eq!((&refused["status"], &refused["error"]["code"]), (&"unavailable".into(), &"SANDBOX_UNAVAILABLE".into()));
    assert_eq!((&weaker["status"], &weaker["stdout"]), (&"success".into(), &"x\n".into()));
    let walls = weaker["evidence"]["walls"].as_array().unwrap();
    assert!(walls.iter().any(|wall| wall["wall"] == "owners" && wall["weaker"] == true), "{walls:?}");
}

/// Keys in their usual places, and what this program keeps for itself in folders below.
#[test]
fn keys_are_not_shown_because_one_stands_at_home() {
    let actum = actum();
    for folder in [".ssh", ".aws", "work/project/.actum"] {
        fs::create_dir_all(actum.path(folder)).unwrap();
    }
    for file in [".ssh/id_rsa", ".aws/credentials", "work/project/.actum/key.pem", ".netrc"] {
        actum.file(file, SECRET);
    }
    let home = actum.folder().display().to_string();
    let actum = actum.with_env("HOME", &home);
    let script = "cat .ssh/id_rsa .aws/credentials work/project/.actum/key.pem .netrc";
    let ended = actum.run(&["sandbox", "--", "sh", "-c", script]);
    assert!(ended.code != 0 && !ended.stdout.contains("6f1c2a"), "{}", ended.stdout);
    // Named, they are meant.
    assert_eq!(actum.run(&["sandbox", "--read", ".ssh", "--", "cat", ".ssh/id_rsa"]).stdout, SECRET);
    assert_eq!(actum.run(&["sandbox", "--read", "work/project/.actum", "--", "true"]).code, 0);
    let own =
        actum.run(&["sandbox", "--read", "work/project/.actum/key.pem", "--", "cat", "work/project/.actum/key.pem"]);
    assert!(own.code != 0 && !own.stdout.contains("6f1c2a"));
}

fn names_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

/// A file of the caller's that was open when the cell was made.
#[test]
fn open_files_of_the_caller_do_not_come_along() {
    for who in Who::BOTH {
        let actum = actum();
        let outside = Folder::new();
        let secret = outside.join("secret");
        fs::write(&secret, SECRET).unwrap();
        own_all(actum.folder(), who);
        own_all(outside.path(), who);
        let binary = who.binary(&actum);
        let script = format!(
            "exec 7<{} 8<{}; exec {binary} sandbox -- sh -c 'ls /proc/self/fd; cat <&7; cat /proc/self/fd/8'",
            secret.display(),
            secret.display()
        );
        let ended: Ended = who.shell(&actum, &script);
        assert!(!ended.stdout.contains("6f1c2a"), "{}", ended.stdout);
        assert_eq!(
            ended.stdout.lines().filter(|line| line.parse::<u32>().is_ok_and(|n| n > 3)).count(),
            0,
            "{}",
            ended.stdout
        );
    }
}

/// A program cannot keep what it planted by closing the folder that it may write to.
#[test]
fn closed_folder_keeps_nothing_that_is_obeyed() {
    for who in Who::BOTH {
        let actum = actum();
        fs::create_dir(actum.path("ws")).unwrap();
        own_all(actum.folder(), who);
        let script = "echo evil > ws/.envrc; mkdir ws/sub; echo evil > ws/sub/.envrc; chmod 0555 ws/sub ws";
        let ended = who.run(&actum, &["sandbox", "--write", "ws", "--", "sh", "-c", script]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        for name in ["ws/.envrc", "ws/sub/.envrc"] {
            assert!(!actum.path(name).exists(), "{}: {name}: {}", who.word(), ended.stderr);
        }
    }
}

/// What was put aside runs nothing for a user who looks into it with git.
#[test]
fn what_is_put_aside_is_no_repository() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let script = "git init -q . && git init -q sub && git init -q --bare sub/bare.git && for r in .git sub/.git sub/bare.git; do \
                      git --git-dir=$r config core.fsmonitor \"touch $PWD/ran\"; done";
        let ended = who.run(&actum, &["sandbox", "--write", ".", "--", "sh", "-c", script]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let mut folders = vec![actum.folder().to_owned()];
        while let Some(folder) = folders.pop() {
            let ran = other("git").args(["status"]).current_dir(&folder).env("GIT_CEILING_DIRECTORIES", "/").output();
            drop(ran.unwrap());
            let entries = fs::read_dir(&folder).unwrap().flatten();
            folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()));
        }
        assert!(!actum.path("ran").exists(), "{}", who.word());
    }
}

/// Repositories of jj and repo hold stores of git, hooks and programs that those run.
#[test]
fn stores_inside_other_repositories_keep_what_they_run() {
    for who in Who::BOTH {
        let actum = actum();
        let files = [
            ".jj/repo/store/git/config",
            ".jj/repo/store/git_target",
            ".repo/repo/main.py",
            ".repo/manifests.git/config",
        ];
        files.iter().for_each(|file| drop(actum.file(file, "mine")));
        for folder in [".jj/repo/store/git", ".repo/manifests.git"] {
            for inner in ["objects", "refs", "hooks"] {
                fs::create_dir_all(actum.path(folder).join(inner)).unwrap();
            }
            fs::write(actum.path(folder).join("HEAD"), "ref: refs/heads/main\n").unwrap();
        }
        own_all(actum.folder(), who);
        let script = format!(
            "for f in {}; do echo evil > $f; done; echo evil > .jj/repo/store/git/hooks/post-fetch; echo evil > .repo/manifests.git/hooks/x; true",
            files.join(" ")
        );
        let ended = who.run(&actum, &["sandbox", "--write", ".", "--", "sh", "-c", &script]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        for file in files {
            assert_eq!(fs::read_to_string(actum.path(file)).unwrap(), "mine", "{}: {file}", who.word());
        }
        for hook in [".jj/repo/store/git/hooks/post-fetch", ".repo/manifests.git/hooks/x"] {
            assert!(!actum.path(hook).exists(), "{}: {hook}", who.word());
        }
    }
}

/// A folder that is granted itself is protected by its own name too.
#[test]
fn granted_folder_is_protected_by_its_own_name() {
    for who in Who::BOTH {
        let actum = actum();
        actum.file(".github/workflows/ci.yml", "mine");
        own_all(actum.folder(), who);
        let script = "echo evil > .github/workflows/ci.yml; echo evil > .github/workflows/new.yml; true";
        who.run(&actum, &["sandbox", "--write", ".github", "--", "sh", "-c", script]);
        assert_eq!(fs::read_to_string(actum.path(".github/workflows/ci.yml")).unwrap(), "mine", "{}", who.word());
        assert!(!actum.path(".github/workflows/new.yml").exists(), "{}", who.word());
    }
}

/// Every file and folder of the list of credentials is hidden, also if the home is granted.
#[test]
fn every_known_credential_is_hidden() {
    let rows = include_str!("../../data/credentials.tsv").lines().filter(|line| !line.starts_with('#'));
    let paths: Vec<String> = rows.map(|row| row.split('\t').next().unwrap().replace('*', "x")).collect();
    assert!(paths.len() > 60, "{}", paths.len());
    for who in Who::BOTH {
        let actum = actum();
        for path in &paths {
            // A row may name a folder that another row has something in.
            let is_folder = paths.iter().any(|other| other.starts_with(&format!("{path}/")));
            let place = if is_folder { format!("{path}/secret") } else { path.clone() };
            actum.file(&format!("home/{place}"), "hunter2-credential");
        }
        actum.file("home/plain", "plain");
        own_all(actum.folder(), who);
        let home = actum.path("home");
        let script = format!("cd {0}; grep -rs hunter2-credential . ; cat plain", home.display());
        let actum = actum.with_env("HOME", &home.display().to_string());
        let ended = who.run(&actum, &["sandbox", "--read", "home", "--", "sh", "-c", &script]);
        assert_eq!(ended.stdout, "plain", "{}: {}{}", who.word(), ended.stdout, ended.stderr);
    }
}

/// A cover falls off when the host replaces the file under it: the cell ends, and says why. A moment remains.
#[test]
fn cell_ends_when_a_covered_file_is_replaced_outside() {
    for is_nobody in [false, true] {
        for file in ["denied", "h/.git-credentials", ".git/config"] {
            let actum = actum();
            actum.file("h/.git-credentials", "old-credential");
            actum.file("denied", "old-denied");
            for part in [".git/objects/x", ".git/refs/x", ".git/HEAD", ".git/config"] {
                actum.file(part, "mine");
            }
            let actum = if is_nobody { actum.owned_by_nobody() } else { actum };
            let home = actum.path("h").display().to_string();
            let actum = actum.with_env("HOME", &home);
            let script =
                "echo started; while :; do cat denied h/.git-credentials; echo evil >> .git/config; done 2> /dev/null";
            let arguments = ["sandbox", "--read", "h", "--write", ".", "--deny", "denied", "--", "sh", "-c", script];
            let mut running = actum.start(&arguments, &[]);
            assert_eq!(running.line().as_deref(), Some("started"), "{is_nobody}");
            fs::rename(actum.file("new", "mine-too"), actum.path(file)).unwrap();
            let (code, lines, errors) = running.finish();
            assert_eq!(code, 137, "{is_nobody}: {file}: {lines:?} {errors:?}");
            assert!(!lines.concat().contains("old-"), "{is_nobody}: {file}: {lines:?}");
            assert!(errors.concat().contains("replaced outside"), "{errors:?}");
        }
    }
}

/// Links in the place of obeyed folders or inside them, indexes and links in a repository's own folder, repositories that two
/// commands put together, and names that are too long for another ending.
#[test]
fn nothing_obeyed_is_left_by_links_and_indexes() {
    for (who, mode) in Who::BOTH.into_iter().flat_map(|who| [(who, &[][..]), (who, &["--at-end"])]) {
        let actum = actum();
        for (file, text) in [
            ("scripts/check.sh", "mine"),
            ("conf/tasks.json", "mine"),
            ("linked/kept", "mine"),
            ("tracked", "mine"),
            ("half/HEAD", "ref: refs/heads/main\n"),
            ("half/objects/x", "mine"),
            ("half/refs/x", "mine"),
        ] {
            actum.file(file, text);
        }
        let git = |words: &[&str]| {
            let mut git = other("git");
            git.args(["-c", "user.name=a", "-c", "user.email=a@b.c", "-C"]).arg(actum.folder()).args(words);
            actum_testkit::program::run(git, b"").ok();
        };
        git(&["init", "-q", "."]);
        git(&["add", "tracked"]);
        git(&["commit", "-qm", "first"]);
        for folder in [".husky", ".vscode"] {
            fs::create_dir(actum.path(folder)).unwrap();
        }
        for (link, to) in [
            (".husky/pre-commit", "../scripts/check.sh"),
            (".vscode/tasks.json", "../conf/tasks.json"),
            (".vscode/launch.json", "../conf/launch.json"),
            (".yarn", "linked"),
        ] {
            std::os::unix::fs::symlink(to, actum.path(link)).unwrap();
        }
        own_all(actum.folder(), who);
        let long = "0".repeat(240);
        let script = format!(
            "mkdir b g gh g/wrapper gh/workflows linked/releases; echo evil > b/config; ln -s b .bundle; \
             echo evil > g/wrapper/gradle-wrapper.jar; ln -s g gradle; echo evil > gh/workflows/ci.yml; ln -s gh .github; \
             echo evil > linked/releases/yarn.cjs; echo evil > scripts/check.sh; echo evil > conf/tasks.json; \
             echo evil > conf/launch.json; export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'; \
             blob=$(echo evil | git hash-object -w --stdin); \
             git -c core.protectNTFS=false update-index --add --cacheinfo 100755,$blob,hooks/post-checkout; \
             sed -i 's#hooks/post-checkout#.git/post-checkout#' .git/index; \
             ln -sf /tmp/victim .git/COMMIT_EDITMSG; echo evil > half/config; \
             echo evil > {long}.code-workspace; true"
        );
        let arguments = [&["sandbox"], mode, &["--write", ".", "--", "sh", "-c", &script]].concat();
        who.run(&actum, &arguments);
        let read = |name: &str| fs::read_to_string(actum.path(name)).unwrap_or_default();
        for name in [
            ".bundle/config",
            "gradle/wrapper/gradle-wrapper.jar",
            ".github/workflows/ci.yml",
            ".yarn/releases/yarn.cjs",
            ".husky/pre-commit",
            ".vscode/tasks.json",
            ".vscode/launch.json",
            "half/config",
        ] {
            assert!(!read(name).contains("evil"), "{} {mode:?}: {name}", who.word());
        }
        let message = fs::symlink_metadata(actum.path(".git/COMMIT_EDITMSG"));
        assert!(!message.is_ok_and(|found| found.is_symlink()), "{} {mode:?}", who.word());
        let index = fs::read(actum.path(".git/index")).unwrap_or_default();
        assert!(!index.windows(5).any(|part| part == b".git/"), "{} {mode:?}", who.word());
        assert!(!actum.path(&format!("{long}.code-workspace")).exists(), "{} {mode:?}", who.word());
    }
}

/// One command leaves a part of a repository, another one the rest.
#[test]
fn two_commands_make_no_repository() {
    for (first, second) in [
        ("mkdir x; echo 'ref: refs/heads/main' > x/HEAD; echo '[core]' > x/config", "mkdir -p x/objects x/refs/heads"),
        ("mkdir -p x/objects; echo '[core]' > x/config", "mkdir -p x/refs/heads; echo 'ref: refs/heads/main' > x/HEAD"),
    ] {
        let actum = actum();
        for script in [first, second] {
            actum.run(&["sandbox", "--write", ".", "--", "sh", "-c", script]);
        }
        assert!(!(actum.path("x/config").exists() && actum.path("x/HEAD").exists()), "{first}");
    }
}

/// What waits for leases of a reader, room that is reserved by requests of file systems, and folders as streams.
#[test]
fn readers_and_requests_stop_nobody() {
    const LITE: &str = "import fcntl, os, struct\n\
        def is_refused(ask):\n  try: ask(); return False\n  except OSError: return True\n\
        f = open('made', 'w+b')\n\
        print(is_refused(lambda: fcntl.fcntl(os.open('file', os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)),\n\
        is_refused(lambda: fcntl.ioctl(f, 0x4030582A, struct.pack('hhqqii16x', 0, 0, 0, 1 << 30, 0, 0))),\n\
        is_refused(lambda: fcntl.ioctl(f, 0x50009417, bytes(1000))))";
    for who in Who::BOTH {
        let actum = actum();
        actum.file("file", "text");
        own_all(actum.folder(), who);
        let ended = who.run(&actum, &["sandbox", "--write", ".", "--", "/usr/bin/python3", "-c", LITE]);
        assert_eq!(ended.stdout, "True True True\n", "{}: {}", who.word(), ended.stderr);
        let binary = who.binary(&actum);
        let ended = who.shell(&actum, &format!("{binary} sandbox -- true 2< ."));
        assert_eq!(ended.code, 2, "{}", ended.stdout);
    }
}

/// A new folder that cannot be listed hides nothing: the cell ends.
#[test]
fn folders_that_cannot_be_counted_end_the_cell() {
    if !super::sandbox::is_root() {
        return;
    }
    let actum = actum();
    let program = actum.copy_for_nobody();
    let folder = actum.path("w");
    fs::create_dir(&folder).unwrap();
    let script = format!(
        "chown 65534:100 {0}; chmod 2775 {0}; cd {0}; exec setpriv --reuid=65534 --regid=65534 --groups=100 --inh-caps=-all \
         env HOME=/nonexistent {1} sandbox --write . --disk-mb 10 -- sh -c \
         'mkdir hid; cd hid; chmod 0311 .; for i in 1 2 3 4 5 6; do head -c 30000000 /dev/zero > $i; sleep 0.2; done'",
        folder.display(),
        program.display()
    );
    let ended = actum_testkit::program::run(
        {
            let mut shell = other("sh");
            shell.args(["-c", &script]);
            shell
        },
        b"",
    );
    assert_eq!(ended.code, 153, "{}", ended.stderr);
}

/// Folders that programs obey are not granted as such.
#[test]
fn obeyed_folders_are_not_granted() {
    let actum = actum();
    for folder in [".github/workflows", "gradle/wrapper", ".vscode"] {
        fs::create_dir_all(actum.path(folder)).unwrap();
        let ended = actum.run(&["sandbox", "--write", folder, "--", "true"]);
        assert_eq!(ended.code, 2, "{folder}: {}", ended.stderr);
        let inside = ["-C", folder, "sandbox", "--write", ".", "--", "true"];
        assert_eq!(actum.run(&inside).code, 2, "{folder}");
    }
}

/// State of a rebase, links that put-aside restores, and names that are not text.
#[test]
fn nothing_obeyed_is_left_by_further_detours() {
    for who in Who::BOTH {
        let actum = actum();
        for part in [".git/objects/x", ".git/refs/x", ".git/HEAD", ".git/config"] {
            actum.file(part, "mine");
        }
        actum.file("conf-v1/env.sh", "mine");
        for (link, to) in [("conf", "conf-v1"), (".envrc", "conf/env.sh"), (".mcp.json", "missing.sh")] {
            std::os::unix::fs::symlink(to, actum.path(link)).unwrap();
        }
        own_all(actum.folder(), who);
        let script = "mkdir .git/rebase-merge; echo 'exec touch PWNED' > .git/rebase-merge/git-rebase-todo; \
                      mkdir e; echo evil > e/env.sh; rm conf; ln -s e conf; rm .envrc; echo decoy > .envrc; \
                      rm .mcp.json; echo decoy > .mcp.json; echo evil > missing.sh; \
                      mkdir -p node_modules/y/.hg; echo evil > node_modules/y/.hg/hgrc; \
                      echo evil > \"$(printf '\\377.code-workspace')\"; true";
        let ended = who.run(&actum, &["sandbox", "--write", ".", "--", "sh", "-c", script]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let read = |name: &str| fs::read_to_string(actum.path(name)).unwrap_or_default();
        for name in [".envrc", ".mcp.json", "node_modules/y/.hg/hgrc"] {
            assert!(!read(name).contains("evil"), "{}: {name}", who.word());
        }
        assert!(!actum.path(".git/rebase-merge").exists(), "{}", who.word());
        let names = fs::read_dir(actum.folder()).unwrap().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".code-workspace")).collect();
        assert!(left.is_empty(), "{}: {left:?}", who.word());
    }
}
