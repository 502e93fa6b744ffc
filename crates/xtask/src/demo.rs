//! `cargo xtask demo`: a tour of the real program as a transcript, in a folder of its own that is gone afterwards.
//! Called by people who want to see it work and by checks: it fails when a command does not end as it should, and it
//! never touches the project's own store.

use crate::program;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

/// One command, and how it must end.
struct Scene {
    caption: &'static str,
    /// The words after `actum`.
    words: &'static [&'static str],
    input: &'static str,
    exit: i32,
    /// What the output must hold.
    says: &'static str,
    /// How much of the output is shown.
    lines_max: usize,
}

const PLAIN: Scene = Scene { caption: "", words: &[], input: "", exit: 0, says: "", lines_max: 12 };

const DEPENDENCIES: &str = "examples/ledger/dependencies.jsonl";
const EXECUTION: &str = "examples/ledger/execution.jsonl";
const WRONG: &str = "examples/ledger/wrong.jsonl";
/// Made on the stage.
const ACKNOWLEDGED: &str = "acknowledged.jsonl";
const COPY: &str = "copy.db";

const BEFORE_THE_KILL: &[Scene] = &[
    Scene {
        caption: "Everything that may change the course of a run is in its contract, and the contract has one hash.",
        words: &["contract", "hash", "--profile", "full"],
        ..PLAIN
    },
    Scene {
        caption: "Each value can be explained: where it comes from, what it may be, what it does.",
        words: &["contract", "explain", "--profile", "ci", "--set", "maxFileBytes=2000"],
        says: "maxFileBytes",
        lines_max: 18,
        ..PLAIN
    },
    Scene {
        caption: "Two contracts are compared field by field.",
        words: &["contract", "diff", "full", "ci"],
        says: "plannerTimeoutMs",
        ..PLAIN
    },
    Scene {
        caption: "A bad value is refused, never clamped.",
        words: &["contract", "hash", "--set", "plannerTimeoutMs=999999", "--set", "profil=ci"],
        exit: 2,
        says: "did you mean profile?",
        ..PLAIN
    },
    Scene {
        caption: "Hashes are taken over canonical JSON (RFC 8785).",
        words: &["canon"],
        input: "{\"b\": 1.0, \"a\": [2e3, \"\\u20ac\"]}",
        says: "{\"a\":[2000,\"€\"],\"b\":1}",
        ..PLAIN
    },
    Scene {
        caption: "Any command, in a cell: it sees what it is granted, reaches nobody, and stays within its limits.",
        words: &[
            "sandbox",
            "--",
            "sh",
            "-c",
            "id -un; ls ~; (echo x > here) 2>&1; (echo x > /dev/tcp/1.1.1.1/80) 2>&1; true",
        ],
        says: "actum",
        ..PLAIN
    },
    Scene {
        caption: "What takes too much is ended, and one can tell by what.",
        words: &["sandbox", "--timeout-ms", "1000", "--", "sleep", "60"],
        exit: 143,
        says: "took longer than --timeout-ms 1000",
        ..PLAIN
    },
    Scene {
        caption: "The ledger begins with two signals that a plan will rest on.",
        words: &["ledger", "append", DEPENDENCIES],
        says: "2 recorded, 0 already recorded, 0 refused",
        ..PLAIN
    },
    Scene {
        caption: "One execution: planned, running, failed, running again, succeeded.",
        words: &["ledger", "append", EXECUTION],
        says: "5 recorded, 0 already recorded, 0 refused",
        ..PLAIN
    },
    Scene {
        caption: "A producer that is not sure may send everything again.",
        words: &["ledger", "append", EXECUTION],
        says: "0 recorded, 5 already recorded, 0 refused",
        lines_max: 3,
        ..PLAIN
    },
    Scene {
        caption: "What breaks a rule is refused with every reason: one document for each kind of refusal.",
        words: &["ledger", "append", WRONG],
        exit: 6,
        says: "0 recorded, 0 already recorded, 6 refused",
        lines_max: 40,
        ..PLAIN
    },
    Scene {
        caption: "The ledger holds what was accepted, in order.",
        words: &["ledger", "list"],
        says: "exec-001 #2",
        lines_max: 6,
        ..PLAIN
    },
];

const AFTER_THE_KILL: Scene = Scene {
    caption: "What the killed program left behind is whole: every entry, the chain, the tree.",
    words: &["ledger", "verify"],
    says: "ledger of t-001 holds",
    ..PLAIN
};

const AGAIN: Scene = Scene {
    caption: "Nothing acknowledged was lost: sent again, each one is already there, under its number.",
    words: &["ledger", "append", ACKNOWLEDGED],
    says: "0 recorded, ",
    lines_max: 3,
    ..PLAIN
};

const PROOFS: &[Scene] = &[
    Scene {
        caption: "The head of the log, signed: who keeps it elsewhere notices if history changes.",
        words: &["ledger", "checkpoint"],
        says: "/t-001",
        ..PLAIN
    },
    Scene {
        caption: "A proof that one entry is in the log, for somebody who does not have the log.",
        words: &["ledger", "proof", "led-200"],
        says: "index 1",
        lines_max: 5,
        ..PLAIN
    },
    Scene {
        caption: "A copy of the whole store, to play the forger with.",
        words: &["store", "backup", COPY],
        says: "verified",
        ..PLAIN
    },
];

/// There is one stage, and ids begin with the time: this is enough of it.
const THE_STAGE: &str = "01";

const WORKSPACE: &[Scene] = &[
    Scene {
        caption: "A folder is frozen: one hash for everything in it. A second freeze would read nothing.",
        words: &["snapshot", "freeze"],
        says: "files",
        ..PLAIN
    },
    Scene {
        caption: "A stage is a private copy of it, made in milliseconds whatever the size.",
        words: &["stage", "new"],
        ..PLAIN
    },
    Scene {
        caption: "Whatever a program does in there, the folder does not notice.",
        words: &["stage", "exec", THE_STAGE, "--", "sh", "-c", "rm -r examples; echo done > result.txt; ls"],
        says: "result.txt",
        ..PLAIN
    },
    Scene {
        caption: "What it has come to: every file, also those that went with their folder.",
        words: &["diff", THE_STAGE, "--stat"],
        says: "delete  examples/ledger/wrong.jsonl",
        ..PLAIN
    },
    Scene {
        caption: "Publishing is all or nothing, and refused where somebody else changed the same file.",
        words: &["apply", THE_STAGE],
        says: "takes it back",
        ..PLAIN
    },
    Scene {
        caption: "And it can be taken back.",
        words: &["undo", THE_STAGE],
        says: "add     examples/ledger/wrong.jsonl",
        ..PLAIN
    },
];

/// In the payload of the last event of `EXECUTION`, and nowhere else.
const FORGED_TEXT: &[u8] = b"site-plan.json";
const FORGED: Scene = Scene {
    caption: "One bit of one payload is changed in the copy, behind the program's back.",
    words: &["ledger", "verify", "--store", COPY],
    exit: 1,
    says: "entry 6 (event:",
    ..PLAIN
};

const ENTRIES: usize = 2_000;
const KILL_AFTER_ACKNOWLEDGEMENTS: usize = 600;
/// How far the producer runs ahead of the acknowledgements; small enough that the kill always comes in the middle.
const AHEAD_MAX: usize = 900;

pub(crate) fn run() -> Result<(), String> {
    program::run(program::cargo().args(["build", "--release", "--locked", "-p", "actum"]))?;
    play("release")
}

/// The tour on the binary that the tests have built already: it is the first thing a stranger tries.
pub(crate) fn check() -> Result<(), String> {
    play("debug")
}

fn play(profile: &str) -> Result<(), String> {
    let stage = Stage::build(&binary(profile)?)?;
    for scene in BEFORE_THE_KILL {
        stage.play(scene)?;
    }
    let acknowledged = stage.kill_in_the_middle()?;
    stage.play(&AFTER_THE_KILL)?;
    stage.append_again(&acknowledged)?;
    for scene in PROOFS {
        stage.play(scene)?;
    }
    flip_one_bit(&stage.folder.join(COPY))?;
    stage.play(&FORGED)?;
    for scene in WORKSPACE {
        stage.play(scene)?;
    }
    println!("\nEvery command ended as it should.");
    Ok(())
}

fn binary(profile: &str) -> Result<PathBuf, String> {
    let metadata = program::output(program::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)
        .map_err(|error| format!("cannot read the output of `cargo metadata`: {error}"))?;
    let target = metadata["target_directory"].as_str().ok_or("`cargo metadata` names no target directory")?;
    Ok(Path::new(target).join(profile).join("actum"))
}

/// A project of its own in a private folder, removed when it is dropped.
struct Stage {
    binary: PathBuf,
    folder: PathBuf,
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What cannot be removed from the folder for temporary files will be by others.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What the killed program had said it recorded.
struct Acknowledged {
    id: String,
    seq: u64,
}

impl Stage {
    fn build(binary: &Path) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("actum-demo-{}", std::process::id()));
        let cannot = |error| format!("cannot set up {}: {error}", folder.display());
        std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(cannot)?;
        let stage = Self { binary: binary.to_owned(), folder: folder.clone() };
        // With a folder of its own the program does not look for a project further up.
        std::fs::create_dir_all(folder.join(".actum")).map_err(cannot)?;
        std::fs::create_dir_all(folder.join("examples/ledger")).map_err(cannot)?;
        for file in [DEPENDENCIES, EXECUTION, WRONG] {
            std::fs::copy(program::root().join(file), folder.join(file)).map_err(cannot)?;
        }
        Ok(stage)
    }

    fn actum(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).current_dir(&self.folder);
        // The transcript must not depend on who plays it.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ACTUM_")) {
            command.env_remove(name);
        }
        command
    }

    /// Plays one scene before everybody's eyes; returns what was said, in the order in which it was said.
    fn play(&self, scene: &Scene) -> Result<String, String> {
        let shown = shown(scene);
        println!("\n# {}\n$ {shown}", scene.caption);
        let (text, code) = self.listen(scene).map_err(|error| format!("cannot play `{shown}`: {error}"))?;
        print!("{}", shortened(&text, scene.lines_max));
        if scene.exit != 0 {
            println!("(exit code {code})");
        }
        if code != scene.exit {
            return Err(format!("`{shown}` ended with exit code {code}, expected {}:\n{text}", scene.exit));
        }
        if !text.contains(scene.says) {
            return Err(format!("`{shown}` did not say `{}`:\n{text}", scene.says));
        }
        Ok(text)
    }

    /// One pipe for both streams keeps the order in which a terminal would show them.
    fn listen(&self, scene: &Scene) -> std::io::Result<(String, i32)> {
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = self.actum(scene.words);
        let input = if scene.input.is_empty() { Stdio::null() } else { Stdio::piped() };
        let mut child = command.stdin(input).stdout(writer.try_clone()?).stderr(writer).spawn()?;
        // The command holds the writing ends, and with them the end of the text.
        drop(command);
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(scene.input.as_bytes())?;
        }
        let mut text = Vec::new();
        reader.read_to_end(&mut text)?;
        let status = child.wait()?;
        Ok((String::from_utf8_lossy(&text).into_owned(), status.code().unwrap_or(-1)))
    }

    /// Kills the program while it is recording a stream.
    fn kill_in_the_middle(&self) -> Result<Vec<Acknowledged>, String> {
        println!("\n# Killed with SIGKILL while it records a stream of {ENTRIES} entries.");
        println!("$ producer | actum ledger append --json -");
        let cannot = |error| format!("cannot play the kill: {error}");
        let mut command = self.actum(&["ledger", "append", "--json", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the program has no pipes".into());
        };
        // One token for each acknowledgement; the channel ends when the reader below does.
        let (token, tokens) = sync_channel(ENTRIES);
        let producer = std::thread::Builder::new().name("producer".into()).spawn(move || produce(stdin, &tokens));
        let producer = producer.map_err(cannot)?;

        let mut acknowledged = Vec::new();
        let mut lines = BufReader::new(stdout);
        let mut line = String::new();
        while lines.read_line(&mut line).map_err(cannot)? > 0 {
            // A line without its end was cut by the kill, and nobody could have believed it.
            if line.ends_with('\n') {
                acknowledged.push(acknowledgement(&line)?);
                let _ = token.send(());
            }
            if acknowledged.len() == KILL_AFTER_ACKNOWLEDGEMENTS {
                child.kill().map_err(cannot)?;
            }
            line.clear();
        }
        drop(token);
        child.wait().map_err(cannot)?;
        let sent = producer.join().map_err(|_| "the producer panicked")?;
        println!("{sent} entries sent, {} acknowledged, then killed", acknowledged.len());
        if !(KILL_AFTER_ACKNOWLEDGEMENTS..ENTRIES).contains(&acknowledged.len()) {
            return Err(format!("{} acknowledgements are not the middle of the stream", acknowledged.len()));
        }
        Ok(acknowledged)
    }

    fn append_again(&self, acknowledged: &[Acknowledged]) -> Result<(), String> {
        let documents: String = (0..acknowledged.len()).map(document).collect();
        std::fs::write(self.folder.join(ACKNOWLEDGED), documents)
            .map_err(|error| format!("cannot write {ACKNOWLEDGED}: {error}"))?;
        let text = self.play(&AGAIN)?;
        let expected =
            acknowledged.iter().map(|Acknowledged { id, seq }| format!("already recorded {id} as entry {seq}"));
        let mut lines = text.lines();
        for line in expected {
            if lines.next() != Some(line.as_str()) {
                return Err(format!("an acknowledged entry was lost or moved; expected `{line}`"));
            }
        }
        println!("All {} acknowledged entries are there.", acknowledged.len());
        Ok(())
    }
}

/// Writes entries until the reader is gone; returns how many it could write.
fn produce(mut stdin: ChildStdin, tokens: &Receiver<()>) -> usize {
    for index in 0..ENTRIES {
        let may_go_on = index < AHEAD_MAX || tokens.recv().is_ok();
        if !may_go_on || stdin.write_all(document(index).as_bytes()).is_err() {
            return index;
        }
    }
    ENTRIES
}

fn document(index: usize) -> String {
    format!(
        "{{\"id\": \"reading-{index:04}\", \"tenantId\": \"t-001\", \"module\": \"crm\", \"source\": \"producer\", \
         \"type\": \"signal\", \"payload\": {{\"reading\": {index}}}}}\n"
    )
}

fn acknowledgement(line: &str) -> Result<Acknowledged, String> {
    let answer: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    match (answer["ok"].as_bool(), answer["id"].as_str(), answer["seq"].as_u64()) {
        (Some(true), Some(id), Some(seq)) => Ok(Acknowledged { id: id.to_owned(), seq }),
        _ => Err(format!("this is no acknowledgement: {line}")),
    }
}

/// The change of a letter's case, so that what is forged is still a good document.
fn flip_one_bit(path: &Path) -> Result<(), String> {
    let cannot = |error| format!("cannot forge {}: {error}", path.display());
    let mut bytes = std::fs::read(path).map_err(cannot)?;
    let mut places = bytes.windows(FORGED_TEXT.len()).enumerate().filter(|(_, text)| *text == FORGED_TEXT);
    let (Some((place, _)), None) = (places.next(), places.next()) else {
        return Err(format!("{} does not hold the text to forge exactly once", path.display()));
    };
    bytes[place] ^= 0x20;
    std::fs::write(path, bytes).map_err(cannot)
}

/// The command as one would type it.
fn shown(scene: &Scene) -> String {
    // As it would have to be typed: somebody may copy the line.
    let is_plain = |word: &&str| word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:@".contains(&b));
    let typed = |word: &&str| if is_plain(word) { (*word).to_owned() } else { format!("'{word}'") };
    let words = scene.words.iter().map(typed).collect::<Vec<_>>().join(" ");
    if scene.input.is_empty() { format!("actum {words}") } else { format!("echo '{}' | actum {words}", scene.input) }
}

/// The first lines and the last one, which often holds the sum.
fn shortened(text: &str, lines_max: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let whole = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    match lines.split_last() {
        Some((last, rest)) if lines.len() > lines_max => {
            let head = &rest[..lines_max.saturating_sub(2)];
            format!("{}… {} more lines\n{last}\n", whole(head), rest.len() - head.len())
        }
        _ => whole(&lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_their_beginning_and_their_last_line() {
        assert_eq!(shortened("a\nb\nc\nd\ne\n", 4), "a\nb\n… 2 more lines\ne\n");
        assert_eq!(shortened("a\nb", 2), "a\nb\n");
        assert_eq!(shortened("", 2), "");
    }

    #[test]
    fn only_a_recorded_entry_is_an_acknowledgement() {
        let answer = acknowledgement("{\"ok\":true,\"id\":\"reading-0007\",\"seq\":9}\n").unwrap();
        assert_eq!((answer.id, answer.seq), ("reading-0007".to_owned(), 9));
        assert!(acknowledgement("{\"ok\":false,\"id\":null}\n").is_err());
        assert!(acknowledgement("nonsense\n").is_err());
    }

    #[test]
    fn the_text_to_forge_stands_in_one_entry_of_the_examples() {
        let read = |path: &str| std::fs::read_to_string(program::root().join(path)).unwrap();
        let all = [DEPENDENCIES, EXECUTION, WRONG].map(read).concat();
        assert_eq!(all.matches(std::str::from_utf8(FORGED_TEXT).unwrap()).count(), 1);
    }
}
