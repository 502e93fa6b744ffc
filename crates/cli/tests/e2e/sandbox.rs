//! Cells: real programs work in them, limits hold, nothing is left behind. As root and as an ordinary user.

use std::fs;
use std::path::Path;
use std::process::Command;

use actum_testkit::program::{Ended, Program, other};
use serde_json::Value;

use super::actum;

/// On whose behalf a cell is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    Nobody,
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

impl Who {
    pub(crate) const BOTH: [Self; 2] = [Self::Root, Self::Nobody];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Nobody => "nobody",
        }
    }

    /// Whoever runs the tests; or `nobody`, if that is root.
    pub(crate) fn run(self, actum: &Program, arguments: &[&str]) -> Ended {
        self.run_with(actum, arguments, b"")
    }

    pub(crate) fn run_with(self, actum: &Program, arguments: &[&str], input: &[u8]) -> Ended {
        match self {
            Self::Root => actum.run_with(arguments, input),
            Self::Nobody => actum.as_nobody().run_with(arguments, input),
        }
    }

    /// The binary, where this user can run it.
    pub(crate) fn binary(self, actum: &Program) -> String {
        if self == Self::Root || !is_root() {
            return env!("CARGO_BIN_EXE_actum").to_owned();
        }
        actum.copy_for_nobody().display().to_string()
    }

    /// A shell of this user's, in the program's folder.
    pub(crate) fn shell(self, actum: &Program, script: &str) -> Ended {
        let mut command = match self {
            Self::Nobody if is_root() => {
                let mut command = other("setpriv");
                command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "sh", "-c", script]);
                command
            }
            _ => {
                let mut command = other("sh");
                command.args(["-c", script]);
                command
            }
        };
        let output = command.current_dir(actum.folder()).env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
        Ended {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Gives a folder and all in it to this user.
pub(crate) fn own_all(folder: &Path, who: Who) {
    if who == Who::Nobody && is_root() {
        let done = other("chown").args(["-R", "nobody:nogroup"]).arg(folder).status().unwrap();
        assert!(done.success());
    }
}

fn sandbox(who: Who, actum: &Program, flags: &[&str], script: &str) -> Ended {
    let arguments = [&["sandbox"], flags, &["--", "sh", "-c", script]].concat();
    who.run(actum, &arguments)
}

#[test]
fn input_output_and_exit_code_pass_through() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let ended = who.run_with(&actum, &["sandbox", "--", "sh", "-c", "cat; echo err >&2; exit 7"], b"through\n");
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (7, "through\n", "err\n"));
        let code = |script: &str| sandbox(who, &actum, &[], script).code;
        assert_eq!(code("kill -SEGV $$"), 139);
        assert_eq!(code("kill -9 $$"), 137);
        assert_eq!(who.run(&actum, &["sandbox", "--", "no-such-program"]).code, 127);
        assert_eq!(who.run(&actum, &["sandbox", "--", "/etc/passwd"]).code, 126);
        // Without input a program finds its end, and does not wait for it.
        assert_eq!(sandbox(who, &actum, &[], "cat; read x; echo end").stdout, "end\n");
    }
}

#[test]
fn what_is_granted_can_be_used_and_nothing_else_is_there() {
    for who in Who::BOTH {
        let actum = actum();
        for folder in ["read", "write", "read/hidden", "work"] {
            fs::create_dir_all(actum.path(folder)).unwrap();
        }
        actum.file("read/file", "r");
        actum.file("read/hidden/file", "h");
        own_all(actum.folder(), who);
        let work = actum.path("work").display().to_string();
        let flags = ["-C", &work, "--read", "../read", "--write", "../write", "--deny", "../read/hidden"];
        let script = "cat ../read/file; echo w > ../write/new; ls ../read/hidden 2>&1; (echo x > ../read/x) 2>&1; \
                      (echo x > here) 2>&1; ls -A ..; id -u; id -un; pwd; echo $HOME; hostname";
        let ended = sandbox(who, &actum, &flags, script);
        let out = ended.stdout.replace(&actum.folder().display().to_string(), "HERE");
        let out: Vec<&str> = out.lines().collect();
        assert_eq!(out[0], "rls: cannot open directory '../read/hidden': Permission denied", "{ended:?}");
        assert!(out[1].ends_with("Read-only file system") && out[2].ends_with("Read-only file system"), "{out:?}");
        assert_eq!(out[3..], ["read", "work", "write", "1000", "actum", "HERE/work", "/home/actum", "actum"]);
        assert_eq!(fs::read_to_string(actum.path("write/new")).unwrap(), "w\n");
        // On the disk it is as if the user had written it.
        let owner = |path: &str| std::os::unix::fs::MetadataExt::uid(&fs::metadata(actum.path(path)).unwrap());
        assert_eq!(owner("write/new"), owner("write"), "{who:?}");
        assert!(!actum.path("read/x").exists() && !actum.path("work/here").exists());
    }
}

#[test]
fn no_rights_are_left_and_none_can_be_had() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let script = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; grep -cvE '[ ,]nosuid[ ,]' /proc/self/mounts; ulimit -c; \
                      ulimit -Hn; cat /proc/self/oom_score_adj; (sh -c 'kill -SEGV $$') 2>/dev/null; ls";
        let ended = sandbox(who, &actum, &["--write", "."], script);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        for line in &lines[..5] {
            assert!(line.starts_with("Cap") && line.ends_with("\t0000000000000000"), "{line}");
        }
        assert_eq!(lines[5..7], ["NoNewPrivs:\t1", "Seccomp:\t2"]);
        // But for devices, which run nothing, no mount lets a program have its owner's rights.
        let others: usize = lines[7].parse().unwrap();
        assert!(others <= 4, "{who:?}: {}", ended.stdout);
        assert_eq!(lines[8..11], ["0", "2048", "1000"], "{who:?}: {}", ended.stdout);
        let left: Vec<&&str> = lines[11..].iter().filter(|name| !name.contains("actum-for-nobody")).collect();
        assert!(left.is_empty(), "a core was dumped: {left:?}");
    }
}

/// Names that could be mistaken for something else.
#[test]
fn any_name_can_be_used() {
    let actum = actum();
    let long = "n".repeat(255);
    let script = format!(
        "echo 1 > \"$(printf 'new\\nline')\"; echo 2 > \"$(printf 'bad\\377')\"; echo 3 > {long}; mkdir -p $(printf 'd/%.0s' $(seq 1500)); ls | wc -l"
    );
    let ended = actum.run(&["sandbox", "--write", ".", "--", "bash", "-c", &script]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "5"), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(actum.path("new\nline")).unwrap(), "1\n");
    assert_eq!(fs::read_to_string(actum.path(&long)).unwrap(), "3\n");
    // And granted, denied and gone to.
    fs::create_dir_all(actum.path("a b,c:d\\e/in\nner")).unwrap();
    actum.file("a b,c:d\\e/in\nner/x", "deep");
    let folder = actum.path("a b,c:d\\e").display().to_string();
    let shown = actum.run(&["sandbox", "-C", &folder, "--", "cat", "in\nner/x"]);
    assert_eq!(shown.stdout, "deep", "{}", shown.stderr);
    let denied = actum.run(&["sandbox", "-C", &folder, "--deny", "in\nner", "--", "cat", "in\nner/x"]);
    assert_ne!(denied.code, 0);
    other("rm").args(["-rf"]).arg(actum.path("d")).status().unwrap();
}

#[test]
fn levels_are_sets_of_paths() {
    let actum = actum();
    actum.file("actum.toml", "");
    fs::create_dir_all(actum.path("sub")).unwrap();
    actum.file("top", "t");
    let sub = actum.path("sub").display().to_string();
    let at = |level: &str, script: &str| sandbox(Who::Root, &actum, &["-C", &sub, "--level", level], script).code;
    assert_ne!(at("minimal", "echo x > x"), 0);
    assert_ne!(at("minimal", "cat ../top"), 0);
    assert_eq!(at("standard", "cat ../top; echo x > x"), 0);
    assert_ne!(at("standard", "echo x > ../x"), 0);
    assert_eq!(at("elevated", "cat ../top; ls /var/lib"), 0);
    assert_ne!(at("elevated", "cat /etc/shadow"), 0);
    assert_ne!(at("standard", "ls /var/lib"), 0);
}

#[test]
fn the_environment_is_fixed() {
    let actum = actum().with_env("ACTUM_TEST_SECRET", "x").with_env("LD_PRELOAD", "").with_env("TZ", "Asia/Tokyo");
    let ended = actum.run(&["sandbox", "--env", "MINE=1", "--", "env"]);
    let mut names: Vec<&str> = ended.stdout.lines().map(|line| line.split('=').next().unwrap()).collect();
    names.sort_unstable();
    let fixed = [
        "HOME",
        "LANG",
        "LC_ALL",
        "LOGNAME",
        "MINE",
        "PATH",
        "PYTHONHASHSEED",
        "SHELL",
        "SOURCE_DATE_EPOCH",
        "TMPDIR",
        "TZ",
        "USER",
    ];
    assert_eq!(names, fixed);
    assert!(ended.stdout.contains("TZ=UTC\n"));
}

#[test]
fn limits_are_refused_out_of_range() {
    let actum = actum();
    for (flag, bad) in [
        ("--timeout-ms", "999"),
        ("--timeout-ms", "600001"),
        ("--memory-mb", "63"),
        ("--memory-mb", "4097"),
        ("--cpu-cores", "0"),
        ("--cpu-cores", "5"),
        ("--max-children", "101"),
        ("--net", "most"),
        ("--level", "all"),
        ("--allow", "http://x"),
        ("--env", "x"),
    ] {
        let ended = actum.run(&["sandbox", flag, bad, "--", "true"]);
        assert_eq!(ended.code, 2, "{flag} {bad}: {}", ended.stderr);
    }
    assert_eq!(actum.run(&["sandbox", "--read", "nowhere", "--", "true"]).code, 2);
    assert_eq!(
        actum.run(&["sandbox", "--deny", "nowhere", "--", "true"]).code,
        2,
        "what is not there cannot be hidden"
    );
    assert_eq!(actum.run(&["sandbox", "--write", "/", "--", "true"]).code, 2);
}

#[test]
fn a_timeout_ends_everything() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        for script in [
            "trap '' TERM; sleep 100 & sleep 100",
            "kill -STOP $$",
            "(setsid sleep 100 &) ; sleep 100",
            "exec 1>&- 2>&-; sleep 100",
        ] {
            let ended = sandbox(who, &actum, &["--timeout-ms", "1000"], script);
            assert_eq!(ended.code, 143, "{script}: {}", ended.stderr);
        }
        // A program that ends when it is asked to has the time for it.
        let kind = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done";
        let ended = sandbox(who, &actum, &["--timeout-ms", "1000"], kind);
        assert_eq!((ended.code, ended.stdout.as_str()), (143, "bye\n"));
    }
}

#[test]
fn nothing_outlives_the_command() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let script = "(setsid sh -c 'sleep 1; echo late > late' </dev/null >/dev/null 2>&1 &); (sleep 100 &); echo end";
        let ended = sandbox(who, &actum, &["--write", "."], script);
        // Had the pipe stayed open with the one that sleeps, this would not be here yet.
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "end\n"));
        assert!(!is_running("echo late > late"), "it is gone before the command has ended");
    }
}

/// Whoever presses Ctrl-C ends the command, and what it left is dealt with as always.
#[test]
fn a_signal_ends_the_command_first() {
    let actum = actum();
    let script = "echo x > .envrc; trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running = actum.start(&["sandbox", "--write", ".", "--", "sh", "-c", script], &[]);
    assert_eq!(running.line().as_deref(), Some("ready"));
    assert!(other("kill").args(["-INT", &running.id().to_string()]).status().unwrap().success());
    assert_eq!(running.line().as_deref(), Some("asked"));
    let (code, _, _) = running.finish();
    assert_eq!(code, 143);
    assert!(!actum.path(".envrc").exists());
}

fn is_running(words: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok()).any(|line| {
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.starts_with("sh -c") && line.contains(words)
    })
}

#[test]
fn memory_is_limited_for_all_processes_together() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let one = "x = bytearray(1 << 30); print(len(x))";
        let many = "import os, time\nfor i in range(8):\n  if os.fork() == 0:\n    x = bytearray(40 << 20); time.sleep(20)\ntime.sleep(20)";
        let files = "import os, time\nfds = []\nfor i in range(300):\n  f = os.memfd_create('x'); os.write(f, b'x' * (1 << 20)); fds.append(f)\ntime.sleep(5)";
        let scratch = "import time\nopen('/dev/shm/x', 'wb').write(b'x' * (200 << 20)); time.sleep(5)";
        let shared = "import mmap, time\nm = mmap.mmap(-1, 300 << 20)\nfor i in range(0, 300 << 20, 4096): m[i] = 1\ntime.sleep(5)";
        // Touched and let go, it is in nobody's account; behind a first thread that has ended, too; before the system counts.
        let let_go = "import mmap, time\nm = mmap.mmap(-1, 300 << 20)\nfor i in range(300):\n  for j in range(0, 1 << 20, 4096): m[(i << 20) + j] = 1\n  m.madvise(mmap.MADV_DONTNEED, i << 20, 1 << 20)\ntime.sleep(5)";
        let behind = "import threading, ctypes, time\ndef go():\n  time.sleep(0.2); x = bytearray(1 << 30); time.sleep(5)\nthreading.Thread(target=go).start(); ctypes.CDLL(None).syscall(60, 0)";
        let early = "import time\na = bytearray(60 << 20); time.sleep(0.3); b = bytearray(60 << 20); time.sleep(5)";
        let dying = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nend = time.time() + 0.1\nwhile time.time() < end:\n  try:\n    if os.fork() == 0: os._exit(0)\n  except OSError: pass\nx = bytearray(1 << 30); time.sleep(5)";
        let kids = "import mmap, os, time\nfor i in range(8):\n  if os.fork() == 0:\n    m = mmap.mmap(-1, 50 << 20)\n    for j in range(0, 50 << 20, 4096): m[j] = 1\n    m.madvise(mmap.MADV_DONTNEED, 0, 50 << 20); time.sleep(20)\ntime.sleep(20)";
        let tables = "import mmap, time\nm = mmap.mmap(-1, 200 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)\nfor i in range(0, 200 << 30, 2 << 20): m[i]\ntime.sleep(5)";
        // Where nobody counts files of memory, there are none.
        if who == Who::Root && is_root() {
            let ended = who.run(&actum, &["sandbox", "--memory-mb", "100", "--", "/usr/bin/python3", "-c", files]);
            assert_eq!(ended.code, 137, "{}", ended.stderr);
        }
        for text in [one, many, shared, let_go, behind, early, dying, kids, tables] {
            let program = ["-c", text];
            let arguments = [&["sandbox", "--memory-mb", "100", "--", "/usr/bin/python3"], &program[..]].concat();
            let ended = who.run(&actum, &arguments);
            assert_eq!(ended.code, 137, "{who:?} {program:?}: {}", ended.stderr);
            assert!(ended.stderr.contains("--memory-mb 100"), "{}", ended.stderr);
        }
        // There is no room for more than that in the folders that are memory.
        let ended = who.run(&actum, &["sandbox", "--memory-mb", "100", "--", "/usr/bin/python3", "-c", scratch]);
        assert_ne!(ended.code, 0, "{who:?}: {}", ended.stderr);
        // A kill is not taken for a want of memory.
        let ended = sandbox(who, &actum, &[], "kill -9 $$");
        assert!(ended.code == 137 && !ended.stderr.contains("memory"), "{}", ended.stderr);
    }
}

#[test]
fn processes_are_limited_and_threads_are_free() {
    const FORKS: &str = "import os, time\nn = 0\nfor i in range(700):\n  try:\n    if os.fork() == 0: time.sleep(20); os._exit(0)\n    n += 1\n  except OSError: pass\nprint(n)";
    const RACING: &str = "import os, threading, time\ndone = []\nb = threading.Barrier(8)\ndef go():\n  b.wait()\n  for i in range(5):\n    try:\n      if os.fork() == 0: time.sleep(20); os._exit(0)\n      done.append(1)\n    except OSError: pass\nts = [threading.Thread(target=go) for i in range(8)]\n[t.start() for t in ts]; [t.join() for t in ts]\ntime.sleep(0.5)\nended = 0\ntry:\n  while os.waitpid(-1, os.WNOHANG)[0]: ended += 1\nexcept OSError: pass\nprint(len(done) - ended)";
    const THREADS: &str = "import threading\nts = [threading.Thread(target=lambda: None) for i in range(50)]\n[t.start() for t in ts]; [t.join() for t in ts]\nprint('threads')";
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let python = |flags: &[&str], text: &str| {
            who.run(&actum, &[&["sandbox"], flags, &["--", "/usr/bin/python3", "-c", text]].concat())
        };
        for most in ["0", "5", "20"] {
            let ended = python(&["--max-children", most], FORKS);
            assert_eq!((ended.code, ended.stdout.trim()), (0, most), "{who:?} {}", ended.stderr);
        }
        let ended = python(&["--max-children", "5"], RACING);
        // A thread that ends leaves its place to a process, for a moment; those that are too many do not stay.
        let alive: u32 = ended.stdout.trim().parse().unwrap();
        assert!((4..=5).contains(&alive), "{who:?}: {alive} are alive");
        assert_eq!(python(&["--max-children", "0"], THREADS).stdout, "threads\n");
        assert_eq!(python(&["--no-fork"], THREADS).stdout, "threads\n");
        let refused = python(&["--no-fork"], "import os\ntry: os.fork()\nexcept PermissionError: print('refused')");
        assert_eq!(refused.stdout, "refused\n");
        let spawned = python(
            &["--no-fork"],
            "import os\ntry: os.posix_spawn('/bin/true', ['true'], {})\nexcept PermissionError: print('refused')",
        );
        assert_eq!(spawned.stdout, "refused\n");
    }
}

#[test]
fn cores_are_limited_whatever_the_program_wishes() {
    let actum = actum();
    let ended = sandbox(
        Who::Root,
        &actum,
        &["--cpu-cores", "1"],
        "nproc; taskset -p 0xff $$ >/dev/null 2>&1 || echo refused; nproc",
    );
    assert_eq!(ended.stdout, "1\nrefused\n1\n");
}

#[test]
fn the_disk_is_limited() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let flags = ["--write", ".", "--disk-mb", "20"];
        let sparse = sandbox(who, &actum, &flags, "truncate -s 1T big");
        assert_ne!(sparse.code, 0, "one file");
        let many = "i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero > f$i || exit 1; done";
        let ended = sandbox(who, &actum, &flags, many);
        assert_eq!(ended.code, 153, "{who:?}: {}", ended.stderr);
        for detour in [
            "mkdir h; chmod 300 h; for i in $(seq 60); do head -c 5000000 /dev/zero > h/$i; done; sleep 2",
            "exec python3 -c 'import os, time\nfs = []\nfor i in range(60):\n  f = open(\"u\", \"wb\"); f.write(b\"x\" * 5000000); f.flush(); os.unlink(\"u\"); fs.append(f)\ntime.sleep(3)'",
            "p=.; for i in $(seq 30); do p=$(printf 'n%.0s' $(seq 250)); mkdir $p && cd $p || exit 9; done; head -c 30000000 /dev/zero > x; sleep 2",
        ] {
            assert_eq!(sandbox(who, &actum, &flags, detour).code, 153, "{who:?}: {detour}");
        }
        let full = sandbox(who, &actum, &["--memory-mb", "64"], "head -c 100000000 /dev/zero > /tmp/x");
        assert_ne!(full.code, 0, "the folder for temporary files is no larger than the memory");
        let inodes = "i=0; while [ $i -lt 70000 ]; do i=$((i+1)); : > /tmp/$i || exit 3; done";
        assert_eq!(sandbox(who, &actum, &[], inodes).code, 2, "{who:?}");
    }
}

/// Programs that people use, as they are.
#[test]
fn real_programs_work() {
    let actum = actum();
    let run = |flags: &[&str], script: &str| {
        let flags = [&["--timeout-ms", "120000", "--memory-mb", "2048", "--max-children", "50"], flags].concat();
        let ended = sandbox(Who::Root, &actum, &flags, script);
        assert_eq!(ended.code, 0, "{script}: {}{}", ended.stdout, ended.stderr);
        ended.stdout
    };
    let bash = run(
        &[],
        "bash -c 'for i in {1..3}; do echo $i | cat; done | wc -l; [[ abc =~ b ]] && echo yes; cat <(echo sub)'",
    );
    assert_eq!(bash, "3\nyes\nsub\n");
    let git = "git init -q repo && cd repo && echo a > a && git add a && git -c user.name=x -c user.email=x commit -qm a && git log --format=%s && git gc -q && git status --short";
    assert_eq!(run(&["--write", ".", "--keep-protected"], git), "a\n");
    let venv = "/usr/bin/python3 -m venv --without-pip v && v/bin/python -c 'import sys, sqlite3, ssl, multiprocessing; print(sys.prefix.endswith(\"/v\"))'";
    assert_eq!(run(&["--write", "."], venv), "True\n");
    for folder in ["package", "app", "crate/src"] {
        fs::create_dir_all(actum.path(folder)).unwrap();
    }
    actum.file("package/package.json", r#"{"name": "p", "version": "1.0.0", "main": "i.js"}"#);
    actum.file("package/i.js", "module.exports = 41");
    actum.file("app/package.json", r#"{"name": "app", "version": "1.0.0", "scripts": {"start": "node a.js"}}"#);
    actum.file("app/a.js", "console.log(require('p') + 1)");
    let node = "cd app && npm install --offline --no-audit --no-fund --silent ../package && npm run --silent start";
    assert_eq!(run(&["--write", "."], node), "42\n");
    actum.file("crate/Cargo.toml", "[package]\nname = \"c\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n");
    actum.file("crate/src/main.rs", "fn main() { println!(\"built\"); }");
    assert_eq!(cargo(&actum), "built\n");
    actum.file("words", "alpha\nfn main() {\n");
    assert_eq!(run(&[], r"rg -n 'fn \w+\(' words"), "2:fn main() {\n");
}

/// With the toolchain of whoever runs the tests, which may lie in a home.
fn cargo(actum: &Program) -> String {
    let toolchain = other("rustc").args(["--print", "sysroot"]).output().unwrap();
    let toolchain = String::from_utf8(toolchain.stdout).unwrap().trim().to_owned();
    let path = format!("PATH={toolchain}/bin:/usr/bin:/bin");
    let folder = actum.path("crate").display().to_string();
    let flags =
        ["--write", ".", "--read", &toolchain, "--timeout-ms", "300000", "--memory-mb", "2048", "--max-children", "50"];
    let command = ["--env", &path, "--", "cargo", "run", "-q", "--offline"];
    let ended = actum.run(&[&["sandbox", "-C", &folder], &flags[..], &command].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stdout
}

/// What a machine has of cells: processes, mounts, groups, folders, interfaces.
fn traces() -> Vec<String> {
    let mut found = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    found.extend(mounts.lines().filter(|line| line.starts_with("actum ")).map(ToOwned::to_owned));
    let interfaces =
        fs::read_dir("/sys/class/net").unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    // Other tests have networks of their own.
    found.extend(interfaces.filter(|name| !name.starts_with(actum_testkit::fleet::PREFIX)));
    found
}

/// Groups that this test's own programs have made.
fn groups_of(pids: &[u32]) -> Vec<String> {
    let list =
        other("find").args(["/sys/fs/cgroup", "-maxdepth", "4", "-name", "actum-*", "-type", "d"]).output().unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    // Numbers of processes come again: a group of somebody who lives is his.
    let is_ours = |line: &&str| {
        let of = |pid: &&u32| line.contains(&format!("actum-{pid}-"));
        pids.iter().find(of).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    list.lines().filter(is_ours).map(ToOwned::to_owned).collect()
}

#[test]
fn a_thousand_in_a_row_and_64_at_once_leave_nothing_behind() {
    let actum = actum();
    let before = traces();
    let binary = env!("CARGO_BIN_EXE_actum");
    let start = |script: &str| {
        let mut command: Command = other(binary);
        command.args(["sandbox", "--write", ".", "--", "sh", "-c", script]).current_dir(actum.folder()).env_clear();
        command.spawn().unwrap()
    };
    let mut pids = Vec::new();
    for round in 0..1000 {
        let mut child = start(if round % 50 == 0 { "sleep 0.05" } else { ":" });
        pids.push(child.id());
        assert!(child.wait().unwrap().success(), "round {round}");
    }
    let mut together: Vec<_> = (0..64).map(|_| start("sleep 1; echo x > /tmp/x; true | true")).collect();
    pids.extend(together.iter().map(std::process::Child::id));
    for child in &mut together {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(traces(), before);
    let aside = |pid: &u32| std::env::temp_dir().join(format!("actum-aside-{pid}")).exists();
    assert!(!pids.iter().any(aside));
    // Other tests kill programs that have such a number by now; whoever makes groups next sweeps theirs away.
    let mut left = groups_of(&pids);
    for _ in 0..100 {
        if left.is_empty() {
            break;
        }
        assert!(start("sleep 0.1").wait().unwrap().success());
        left = groups_of(&pids);
    }
    assert_eq!(left, [""; 0]);
    assert_eq!(fs::read_dir(actum.folder()).unwrap().count(), 0);
}

#[test]
fn a_killed_actum_takes_its_cells_along() {
    let actum = actum();
    let mut pids = Vec::new();
    for _ in 0..10 {
        let mut running =
            actum.start(&["sandbox", "--write", ".", "--", "sh", "-c", "echo ready; sleep 300 & exec sleep 301"], &[]);
        assert_eq!(running.line().as_deref(), Some("ready"));
        pids.push(running.id());
        running.kill();
    }
    wait_until(|| !is_running_exactly("sleep 301") && !is_running_exactly("sleep 300"));
    // What only the system's tables remember is swept by whoever comes next.
    sandbox(Who::Root, &actum, &[], ":");
    wait_until(|| {
        sandbox(Who::Root, &actum, &[], ":");
        groups_of(&pids).is_empty()
    });
}

fn is_running_exactly(words: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).replace('\0', " ").trim() == words)
}

/// The kernel takes its time to bury; what counts is that it does.
fn wait_until(done: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < end, "it does not happen");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn doctor_says_what_this_machine_enforces() {
    for who in Who::BOTH {
        let actum = actum();
        own_all(actum.folder(), who);
        let found: Value = who.run(&actum, &["doctor", "--json"]).json();
        assert_eq!(found["sandbox"]["available"], true, "{found}");
        let walls: Vec<&str> =
            found["sandbox"]["walls"].as_array().unwrap().iter().map(|wall| wall["name"].as_str().unwrap()).collect();
        for wall in ["cell", "landlock", "seccomp", "memory", "processes", "cores", "disk"] {
            assert!(walls.contains(&wall), "{walls:?}");
        }
    }
}
