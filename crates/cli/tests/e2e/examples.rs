//! What the examples say is what the binary does: every `$ actum …` in their README is run and compared.

use super::actum;

const README: &str = include_str!("../../../../examples/ledger/README.md");

/// The commands of the page with the output it claims for them.
fn transcript() -> Vec<(Vec<&'static str>, String)> {
    let mut commands: Vec<(Vec<&str>, String)> = Vec::new();
    let mut inside = false;
    for line in README.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ actum ").filter(|_| inside) {
            commands.push((command.split_whitespace().collect(), String::new()));
        } else if let Some((_, output)) = commands.last_mut().filter(|_| inside && !line.is_empty()) {
            output.push_str(line);
            output.push('\n');
        }
    }
    commands
}

#[test]
fn the_execution_runs() {
    let actum = actum();
    for name in ["actum.toml", "search.yaml"] {
        let text = std::fs::read(format!("{}/../../examples/execution/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        actum.file(name, text);
    }
    let ended = actum.run(&["exec", "search.yaml"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("exit 0: Success. Continue workflow."), "{}", ended.stdout);
}

#[test]
fn the_transcript_is_true() {
    let actum = actum();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    std::os::unix::fs::symlink(examples, actum.path("examples")).unwrap();
    let commands = transcript();
    assert!(commands.len() >= 4);
    for (arguments, expected) in commands {
        let ended = actum.run(&arguments);
        let shown = format!("{}{}", ended.stdout, ended.stderr);
        let shown: String = shown.lines().filter(|l| !l.is_empty()).map(|l| format!("{l}\n")).collect();
        // Entries hold the time at which they were recorded, so the root is another every time.
        let (shown, expected) = (without_root(&shown), without_root(&expected));
        assert_eq!(shown, expected, "actum {}", arguments.join(" "));
    }
    let hash = actum.run(&["contract", "hash", "--config", "examples/contract/strict.yaml"]);
    assert_eq!(hash.code, 0, "{}", hash.stderr);
}

fn without_root(text: &str) -> &str {
    text.split(", root ").next().unwrap_or_default()
}
