//! Output on a terminal: nothing that an agent or a file says is obeyed by it, and what a reader would not see is marked.

use actum_testkit::program::Program;
use serde_json::Value;

use super::run::{id, item, one, project};
use super::serve::{Server, token};

/// Sets the clipboard and the title, clears the screen, and turns the direction of text.
const SAYS: &str =
    r"printf '\033]52;c;eA==\007\033]0;title\007\033[2Jsaid \342\200\256desrever\342\200\254 adm\342\200\213in\233\n'";

fn world() -> (Program, String) {
    let script =
        format!("{SAYS}; {SAYS} >&2; {SAYS} > file.txt; echo x > \"$(printf 'n\\033[2J\\342\\200\\256ame')\"; exit 0");
    let actum = project(&[("a", &script)]);
    let (code, run) = one(&actum, item("i", "a"), &["--dry-run"]);
    assert_eq!(code, 0, "{run}");
    let id = id(&run);
    (actum, id)
}

fn is_harmless(text: &str) -> bool {
    // `script` shows a line's end as the terminal gets it.
    let text = text.replace("\r\n", "\n");
    let is_bad =
        |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{200b}' | '\u{202a}'..='\u{202e}');
    !text.chars().any(is_bad)
}

#[test]
fn a_terminal_gets_marks_for_what_it_would_obey() {
    let (actum, run) = world();
    for arguments in [&["logs", &run][..], &["logs", "-f", &run], &["diff", &run], &["diff", "--stat", &run]] {
        let shown = actum.on_terminal(arguments, b"");
        assert_eq!(shown.code, 0, "{arguments:?}: {}", shown.stdout);
        assert!(is_harmless(&shown.stdout), "{arguments:?}: {:?}", shown.stdout);
        let marks: &[&str] = match arguments.contains(&"--stat") {
            true => &["<U+202E>"],
            false => &["<U+001B>]52;c;eA==<U+0007>", "<U+001B>[2J", "<U+202E>desrever<U+202C>", "adm<U+200B>in"],
        };
        for mark in marks {
            assert!(shown.stdout.contains(mark), "{arguments:?}, {mark}: {:?}", shown.stdout);
        }
    }
    for arguments in [&["status", &run][..], &["list"], &["show", &run], &["apply", &run], &["undo", &run]] {
        let shown = actum.on_terminal(arguments, b"");
        assert!(is_harmless(&shown.stdout), "{arguments:?}: {:?}", shown.stdout);
    }
}

#[test]
fn raw_bytes_reach_a_terminal_only_by_request() {
    let (actum, run) = world();
    for command in ["logs", "diff"] {
        let piped = actum.run(&[command, &run]).stdout;
        assert!(piped.contains("\x1b]52;c;eA==\x07"), "{piped:?}");
        let raw = actum.on_terminal(&[command, &run, "--raw"], b"").stdout.replace("\r\n", "\n");
        assert!(raw.contains("\x1b]52;c;eA==\x07") && raw.contains('\u{202e}'), "{raw:?}");
        let json = actum.on_terminal(&[command, &run, "--json"], b"").stdout;
        assert!(is_harmless(&json), "{json:?}");
        let (shown, meant): (Value, Value) =
            (serde_json::from_str(&json).unwrap(), actum.run(&[command, &run, "--json"]).json());
        assert_eq!(shown, meant);
    }
}

#[test]
fn answers_of_a_server_are_marked_too() {
    let (actum, run) = world();
    let operator = token(&actum, "operator", &[]);
    let server = Server::start(&actum, &["--workers", "0"]);
    let away = super::actum().with_env("ACTUM_TOKEN", &operator);
    for command in ["logs", "diff"] {
        let shown = away.on_terminal(&["--server", &format!("http://{}", server.at), command, &run], b"");
        assert_eq!(shown.code, 0, "{}", shown.stdout);
        assert!(is_harmless(&shown.stdout), "{:?}", shown.stdout);
        assert!(shown.stdout.contains("<U+001B>]52;c;eA==<U+0007>"), "{:?}", shown.stdout);
        let raw = away.on_terminal(&["--server", &format!("http://{}", server.at), command, "--raw", &run], b"");
        assert!(raw.stdout.contains("\x1b]52;c;eA==\x07"), "{:?}", raw.stdout);
    }
}
