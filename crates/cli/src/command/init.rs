//! `actum init`: a project to begin with. Never overwrites anything.

use std::fs::OpenOptions;
use std::io::Write as _;

use clap::Args;
use serde_json::json;

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::ui::Out;

#[derive(Debug, Args)]
pub(crate) struct Init {}

/// Agents that are looked for, with what each needs to work without a person and by way of the gateway, and whose models it
/// asks for. `docs/agents.md` says why.
const AGENTS: &[(&str, &str, &str)] = &[
    (
        "claude",
        r#"command = ["claude", "--model", "claude-sonnet-4-5", "--permission-mode", "acceptEdits", "--allowedTools=Bash", "-p", "--", "{description}"]
environment = { CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC = "1", DISABLE_AUTOUPDATER = "1", IS_SANDBOX = "1" }"#,
        ANTHROPIC,
    ),
    (
        "codex",
        r#"command = [
  "codex", "exec", "--ephemeral", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--model", "gpt-5-codex",
  "-c", "model_provider=actum",
  "-c", 'model_providers.actum={name="actum",base_url="http://127.0.0.1:47800/v1",wire_api="responses",env_key="OPENAI_API_KEY"}',
  "-c", "web_search=disabled", "--", "{description}",
]"#,
        OPENAI,
    ),
    (
        "gemini",
        r#"command = [
  "sh", "-c", '''mkdir -p ~/.gemini && echo '{"security":{"auth":{"selectedType":"gemini-api-key"}}}' > ~/.gemini/settings.json && exec "$@"''', "sh",
  "gemini", "--yolo", "--skip-trust", "-m", "gemini-2.5-flash", "--prompt={description}",
]"#,
        GEMINI,
    ),
    (
        "goose",
        r#"command = ["goose", "run", "--no-session", "--no-profile", "--with-builtin", "developer", "--text={description}"]
environment = { GOOSE_PROVIDER = "openai", GOOSE_MODEL = "gpt-5", GOOSE_MODE = "auto", GOOSE_DISABLE_KEYRING = "1" }"#,
        OPENAI,
    ),
    (
        "aider",
        r#"command = ["aider", "--model", "openai/gpt-5", "--yes-always", "--message", "{description}"]"#,
        OPENAI,
    ),
];

const ANTHROPIC: &str = r#"
[providers.anthropic]
type = "anthropic"
base_url = "https://api.anthropic.com"
key = "env:ANTHROPIC_API_KEY"                     # stays outside the sandbox
models = ["claude-*"]
output_tokens = 16000                             # the most one answer may be

# What a million tokens cost, in millionths of a dollar. A model without a price is not asked: look it up.
# [prices."claude-*"]
# input = 3000000
# output = 15000000
"#;

const OPENAI: &str = r#"
[providers.openai]
type = "openai"
base_url = "https://api.openai.com/v1"
key = "env:OPENAI_API_KEY"                        # stays outside the sandbox
models = ["gpt-*"]
limit_field = "max_completion_tokens"
output_tokens = 16000                             # the most one answer may be

# What a million tokens cost, in millionths of a dollar. A model without a price is not asked: look it up.
# [prices."gpt-*"]
# input = 1250000
# output = 10000000
"#;

const GEMINI: &str = r#"
[providers.gemini]
type = "gemini"
base_url = "https://generativelanguage.googleapis.com"
key = "env:GEMINI_API_KEY"                        # stays outside the sandbox
models = ["gemini-*"]
output_tokens = 16000                             # the most one answer may be

# What a million tokens cost, in millionths of a dollar. A model without a price is not asked: look it up.
# [prices."gemini-*"]
# input = 300000
# output = 2500000
"#;

impl Init {
    pub(crate) fn run(self, _global: &Global, out: &mut Out) -> Ended {
        let here =
            std::env::current_dir().map_err(|e| Failure::of_io(format!("cannot tell the current folder: {e}"), &e))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            AGENTS.iter().find(|(name, ..)| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()));
        let agent = match found {
            Some((name, command, provider)) => format!(
                "# {name} was found on this machine. It is started in a sandbox, in a private copy of this folder, and reaches\n\
                 # its model by way of actum alone: metered, within the budget of its work item.\n\
                 [agents.agent-1]\ntype = \"command\"\n{command}\nnetwork = \"gateway\"\nfilesystem = \"extended\"\n{provider}"
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
                Err(e) => return Err(Failure::of_io(format!("cannot write {}: {e}", path.display()), &e)),
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
    # budget: { spend: { max_total: 2000000 } }   # two dollars, for an agent that asks models
";
