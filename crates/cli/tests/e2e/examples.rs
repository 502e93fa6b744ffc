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

/// An example in a folder of its own, as it was before anybody tried it out.
fn example(name: &str, files: &[&str]) -> actum_testkit::program::Program {
    let actum = actum();
    for file in ["actum.toml", "work.yaml"].iter().chain(files) {
        let path = format!("{}/../../examples/{name}/{file}", env!("CARGO_MANIFEST_DIR"));
        actum.file(file, std::fs::read(path).unwrap());
    }
    actum
}

#[test]
fn the_quickstart_publishes_verifies_and_repeats() {
    let actum = example("quickstart", &["agent.yaml"]);
    let before = actum_testkit::tree::read(actum.folder());
    let ended = actum.run(&["run", "--json", "work.yaml"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let run = ended.json()["runs"][0]["run_id"].as_str().unwrap().to_owned();
    for proof in ["verify", "replay", "gate"] {
        let ended = actum.run(&[proof, &run]);
        assert_eq!(ended.code, 0, "{proof}: {}{}", ended.stdout, ended.stderr);
    }
    // Again, with nothing left to do; and again after it was taken back.
    assert_eq!(actum.run(&["run", "work.yaml"]).code, 0);
    assert_eq!(actum.run(&["undo", &run]).code, 0);
    assert_eq!(actum_testkit::tree::read(actum.folder()), before);
    assert_eq!(actum.run(&["run", "work.yaml"]).code, 0);
}

#[test]
fn the_dag_has_three_levels_and_a_report() {
    let actum = example("dag", &["draft.sh", "reconcile.sh"]);
    let ended = actum.run(&["run", "work.yaml"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("6 runs succeeded of 6"), "{}", ended.stdout);
    let report = std::fs::read_to_string(actum.path("REPORT.txt")).unwrap();
    assert_eq!(report, "Numbers are true.\nSentences are short.\nSources are named.\n");
}

#[test]
fn what_is_denied_leaves_nothing() {
    let actum = example("denied", &[]);
    let before = actum_testkit::tree::read(actum.folder());
    let ended = actum.run(&["run", "work.yaml"]);
    assert_eq!(ended.code, 3, "{}", ended.stdout);
    assert!(ended.stdout.contains("Exceeded max files: 3 > 2"), "{}", ended.stdout);
    assert!(ended.stdout.contains("Exceeded max tool ops: 3 > 2"), "{}", ended.stdout);
    assert_eq!(actum_testkit::tree::read(actum.folder()), before);
}

#[test]
fn corrections_converge_or_do_not() {
    let actum = example("correction", &[]);
    let ended = actum.run(&["run", "work.yaml"]);
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    for line in ["✓ light  published", "✓ heavy  published", "CORRECTION_NOT_CONVERGING"] {
        assert!(ended.stdout.contains(line), "{line}: {}", ended.stdout);
    }
    assert_eq!(std::fs::read_to_string(actum.path("answer.txt")).unwrap(), "42\n");
    assert!(!actum.path("stubborn.json").exists());
}

#[test]
fn a_recorded_model_answers_a_signature() {
    let actum = actum();
    for name in ["actum.toml", "sentiment.yaml", "answers.json"] {
        let text = std::fs::read(format!("{}/../../examples/predict/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        actum.file(name, text);
    }
    actum.run(&["signature", "add", "sentiment.yaml"]).ok();
    for (text, expected) in [("I love this wonderful film.", "positive"), ("This is awful, I hate it.", "negative")] {
        let told = actum.run(&["predict", "examples/Sentiment.v1", "--param", &format!("text={text}")]);
        assert!(told.ok().contains(expected));
    }
}
