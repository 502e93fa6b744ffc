//! `actum init`: a project to begin with. Never overwrites anything.

use std::fs::OpenOptions;
use std::io::Write as _;

use actum_api::error;
use clap::Args;
use serde_json::json;

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::ui::Out;

#[derive(Debug, Args)]
pub(crate) struct Init {}

/// Agents that are looked for, with the way in which each is asked to do something without a person.
const AGENTS: &[(&str, &str)] = &[
    ("claude", r#"["claude", "-p", "{description}", "--permission-mode", "acceptEdits"]"#),
    ("codex", r#"["codex", "exec", "--full-auto", "{description}"]"#),
    ("gemini", r#"["gemini", "-p", "{description}", "--yolo"]"#),
    ("goose", r#"["goose", "run", "-t", "{description}"]"#),
    ("aider", r#"["aider", "--yes", "--message", "{description}"]"#),
];

impl Init {
    pub(crate) fn run(self, _global: &Global, out: &mut Out) -> Ended {
        let here = std::env::current_dir()
            .map_err(|e| Failure::new(error::FILE, format!("cannot tell the current folder: {e}")))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            AGENTS.iter().find(|(name, _)| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()));
        let agent = match found {
            Some((name, command)) => format!(
                "# {name} was found on this machine. It is started in a sandbox, in a private copy of this folder.\n\
                 [agents.agent-1]\ntype = \"command\"\ncommand = {command}\nnetwork = \"offline\"\n"
            ),
            None => "# Any program: it is started in a sandbox, in a private copy of this folder.\n\
                     [agents.agent-1]\ntype = \"command\"\ncommand = [\"sh\", \"-c\", \"echo 'hello from actum' > hello.txt\"]\nnetwork = \"offline\"\n"
                .to_owned(),
        };
        let file = here.join("actum.toml");
        let work = here.join("work.yaml");
        let mut made = Vec::new();
        for (path, text) in [(&file, agent.as_str()), (&work, WORK)] {
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .and_then(|mut f| f.write_all(text.as_bytes()))
            {
                Ok(()) => made.push(path.display().to_string()),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                    out.remark(&format!("{} is there already, and stays as it is", path.display()));
                }
                Err(e) => return Err(Failure::new(error::FILE, format!("cannot write {}: {e}", path.display()))),
            }
        }
        // Made with a rule of its own that keeps it out of version control.
        actum_workspace::make_own_folder(&here.join(".actum"))?;
        out.result(&json!({"made": made}), || {
            if made.is_empty() { "nothing to do".to_owned() } else { format!("made {}", made.join(", ")) }
        });
        out.remark("say in work.yaml what is to be done, then: actum run work.yaml");
        Ok(0)
    }
}

const WORK: &str = "\
# What is to be done, by whom, within which limits. `actum schema work` lists everything that may stand here.
workspace: .
items:
  - id: first-task
    agent_id: agent-1
    description: Say hello.
    constraints: { max_files: 5, timeout_ms: 300000 }
";
