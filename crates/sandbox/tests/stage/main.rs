//! Cells whose current folder is a stage: a folder under another path, or an overlay; and those we talk to meanwhile. Each
//! case as root and as an ordinary user; beside it, what is left on the disk is looked at from outside.
#![expect(clippy::unwrap_used, reason = "a test, though without the harness by which clippy would know")]

mod bridge;
mod case;
mod desk;
mod layers;
mod session;

use std::ffi::OsString;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};

use actum_testkit::folder::Folder;
use desk::{Case, Desk};

/// Says that one case is to be run by whoever this process is.
const ONE: &str = "--one";

fn cases() -> impl Iterator<Item = &'static Case> {
    [case::ALL, bridge::ALL, layers::ALL, session::ALL].into_iter().flatten()
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some((code, why)) = actum_sandbox::entry(&arguments) {
        say(&why);
        return ExitCode::from(code);
    }
    let words: Vec<String> = arguments.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    if let [mark, name] = &words[..]
        && mark == ONE
    {
        let found = cases().find(|(case, _)| case == name);
        return ExitCode::from(u8::from(!found.is_some_and(|(_, case)| passes(*case))));
    }
    if words.iter().any(|word| word == "--list") {
        cases().for_each(|(name, _)| say(&format!("{name}: test")));
        return ExitCode::SUCCESS;
    }
    let wanted = words.iter().find(|word| !word.starts_with('-'));
    run_all(wanted.map_or("", String::as_str))
}

/// In the words by which `cargo test` tells of its own, so that they are counted with the others.
fn run_all(wanted: &str) -> ExitCode {
    let (mut passed, mut failed, mut left) = (0, 0, 0);
    for (name, case) in cases() {
        if !name.contains(wanted) {
            left += 1;
            continue;
        }
        let done = passes(*case) && (!actum_sandbox::is_root() || passes_as_nobody(name));
        say(&format!("test {name} ... {}", if done { "ok" } else { "FAILED" }));
        *(if done { &mut passed } else { &mut failed }) += 1;
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    say(&format!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left} filtered out\n"
    ));
    ExitCode::from(u8::from(failed > 0))
}

fn passes(case: fn(&Desk)) -> bool {
    let before = mounts();
    let passed = catch_unwind(AssertUnwindSafe(|| {
        case(&Desk::new());
        assert_eq!(mounts(), before, "a mount was left on the machine");
    }));
    passed.is_ok()
}

fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").expect("the machine tells of its mounts")
}

/// From a copy: the binary may lie where nobody may not go.
fn passes_as_nobody(name: &str) -> bool {
    let folder = Folder::new();
    let copy = folder.join("stage-for-nobody");
    let own = std::env::current_exe().expect("this program has a path");
    let copied = Command::new("cp").arg(own).arg(&copy).status().expect("there is cp");
    assert!(copied.success(), "the program can be copied");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]).arg(&copy).args([ONE, name]);
    let passed = command.current_dir("/").env_clear().status().expect("there is setpriv").success();
    if !passed {
        say(&format!("{name} failed as nobody"));
    }
    passed
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
