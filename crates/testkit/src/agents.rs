//! Agents that others wrote, to be run headless under us: Node packages in a cache folder, installed by
//! `cargo xtask test`. Never part of a checkout, never installed by a test.
//! Only std and what stands beside it: xtask includes this very file, so that it need not build the crate.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages::{place, run, succeeds};

/// The variable that names the folder they are in; `cargo xtask test` sets it.
pub const FOLDER: &str = "ACTUM_TEST_AGENTS";

const MISSING: &str = "the agents of others are not installed: run `cargo xtask test` once, it installs them";

/// Name and exact version. goose counts its package apart from its program, which is 1.34.0 here.
const NODE: &[(&str, &str)] = &[
    ("@aaif/goose", "0.20.1"),
    ("@anthropic-ai/claude-code", "2.1.325"),
    ("@openai/codex", "0.166.0"),
    ("@google/gemini-cli", "0.61.0"),
    ("node", "22.23.3"),
];
/// npm runs what a package brings only where it is told so; these two put their program in its place that way.
const SCRIPTS: &[&str] = &["@anthropic-ai/claude-code", "node"];
/// Models that nobody has to know.
const MODEL: &str = "stub-1";
/// That one knows only the names of its maker.
const MODEL_GEMINI: &str = "gemini-2.5-flash";

/// One for each protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Agent {
    /// Chat completions; for a model whose name it knows, responses.
    Goose,
    /// Messages.
    Claude,
    /// Responses.
    Codex,
    /// Generated contents.
    Gemini,
}

impl Agent {
    pub const ALL: [Self; 4] = [Self::Goose, Self::Claude, Self::Codex, Self::Gemini];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Goose => "goose",
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
        }
    }

    /// The model it is told to ask for.
    pub const fn model(self) -> &'static str {
        match self {
            Self::Gemini => MODEL_GEMINI,
            Self::Goose | Self::Claude | Self::Codex => MODEL,
        }
    }
}

/// Everything needed to run an agent without a person.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headless {
    /// Program and arguments, the task among them.
    pub command: Vec<String>,
    pub environment: BTreeMap<String, String>,
    /// What it wants in its home: path from there, and content.
    pub files: Vec<(String, String)>,
}

impl Headless {
    /// The command for where nobody puts files into its home beforehand: it does so itself, then becomes the agent.
    pub fn complete_command(&self) -> Vec<String> {
        if self.files.is_empty() {
            return self.command.clone();
        }
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let mut script = String::new();
        for (name, content) in &self.files {
            let folder = Path::new(name).parent().unwrap_or(Path::new("")).display().to_string();
            let (folder, file, content) = (quoted(&folder), quoted(name), quoted(content));
            script += &format!("mkdir -p ~/{folder} && printf %s {content} > ~/{file} && ");
        }
        script += "exec \"$@\"";
        let start = ["sh", "-c", &script, "sh"].map(str::to_owned);
        start.into_iter().chain(self.command.iter().cloned()).collect()
    }
}

/// Where everything is once it is installed.
#[derive(Debug, Clone)]
pub struct Agents(PathBuf);

impl Agents {
    /// The folder that [`FOLDER`] names, else one in the user's cache.
    pub fn place() -> PathBuf {
        place(FOLDER, "agents")
    }

    /// What is installed.
    ///
    /// # Panics
    /// When it is not, or other versions are.
    pub fn find() -> Self {
        let found = Self(Self::place());
        assert!(found.is_stamped(), "{MISSING}");
        found
    }

    /// Whether everything is there and starts.
    pub fn are_installed() -> bool {
        let found = Self(Self::place());
        found.is_stamped() && found.starts()
    }

    /// Installs them anew, before everybody's eyes.
    pub fn install() -> Result<(), String> {
        let folder = Self::place();
        let cannot = |e: std::io::Error| format!("cannot make {}: {e}", folder.display());
        fs::create_dir_all(&folder).map_err(cannot)?;
        // Two checkouts share the folder; the second finds what the first has made.
        let lock = File::create(folder.with_extension("lock")).map_err(cannot)?;
        lock.lock().map_err(cannot)?;
        let this = Self(folder.clone());
        if !(this.is_stamped() && this.starts()) {
            fs::remove_dir_all(&folder).and_then(|()| fs::create_dir_all(&folder)).map_err(cannot)?;
            fs::write(folder.join("package.json"), manifest()).map_err(cannot)?;
            let flags = ["--no-audit", "--no-fund", "--engine-strict=false", "--loglevel=error"];
            run(Command::new("npm").arg("install").args(flags).current_dir(&folder))?;
            fs::create_dir_all(folder.join("home")).map_err(cannot)?;
        }
        fs::write(this.stamp(), versions()).map_err(cannot)
    }

    /// The folder of it all. Whoever runs them elsewhere has to let them read it.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// How to give an agent a task, with a provider at `url` (without a path) and its key.
    pub fn headless(&self, agent: Agent, task: &str, url: &str, key: &str) -> Headless {
        let mut all = self.behind_gateway(agent, task, url);
        let mut set = |name: &str, value: &str| all.environment.insert(name.into(), value.into());
        match agent {
            Agent::Goose => {
                set("OPENAI_HOST", url);
                set("OPENAI_API_KEY", key);
            }
            Agent::Claude => {
                set("ANTHROPIC_BASE_URL", url);
                set("ANTHROPIC_API_KEY", key);
            }
            Agent::Codex => {
                set("OPENAI_API_KEY", key);
            }
            Agent::Gemini => {
                set("GOOGLE_GEMINI_BASE_URL", url);
                set("GEMINI_API_KEY", key);
            }
        }
        all
    }

    /// The same where somebody else sets the variables of providers. codex reads no address from there, so it is told.
    pub fn behind_gateway(&self, agent: Agent, task: &str, url: &str) -> Headless {
        let provider = format!(
            "model_providers.actum={{name=\"actum\",base_url=\"{url}/v1\",wire_api=\"responses\",env_key=\"OPENAI_API_KEY\"}}"
        );
        let (words, environment): (&[&str], &[(&str, &str)]) = match agent {
            Agent::Goose => (
                &["run", "--no-session", "--no-profile", "--with-builtin", "developer", "--output-format", "json"],
                &[
                    ("GOOSE_PROVIDER", "openai"),
                    ("GOOSE_MODEL", MODEL),
                    ("GOOSE_MODE", "auto"),
                    ("GOOSE_DISABLE_KEYRING", "1"),
                ],
            ),
            Agent::Claude => (
                &[
                    "--output-format",
                    "json",
                    "--model",
                    MODEL,
                    "--permission-mode",
                    "acceptEdits",
                    "--allowedTools=Bash",
                    "-p",
                ],
                &[
                    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
                    ("DISABLE_AUTOUPDATER", "1"),
                    // It refuses root elsewhere.
                    ("IS_SANDBOX", "1"),
                ],
            ),
            Agent::Codex => (
                &[
                    "exec",
                    "--json",
                    "--ephemeral",
                    "--skip-git-repo-check",
                    // Its own sandbox cannot be made within another one.
                    "--sandbox",
                    "danger-full-access",
                    "--model",
                    MODEL,
                    "-c",
                    "model_provider=actum",
                    "-c",
                    &provider,
                    // What a search of the provider's own adds to a question has no bound, and so no price.
                    "-c",
                    "web_search=disabled",
                ],
                &[],
            ),
            Agent::Gemini => (&["--yolo", "--skip-trust", "-m", MODEL_GEMINI, "--output-format", "json"], &[]),
        };
        let mut command = self.program(agent);
        command.extend(words.iter().map(|word| (*word).to_owned()));
        // Where nobody takes it for an option, however it begins.
        command.extend(match agent {
            Agent::Goose => vec![format!("--text={task}")],
            Agent::Claude | Agent::Codex => vec!["--".into(), task.into()],
            Agent::Gemini => vec![format!("--prompt={task}")],
        });
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings = r#"{"security":{"auth":{"selectedType":"gemini-api-key"}}}"#;
        let files = match agent {
            Agent::Gemini => vec![(".gemini/settings.json".into(), settings.into())],
            Agent::Goose | Agent::Claude | Agent::Codex => Vec::new(),
        };
        Headless { command, environment: environment.iter().map(pair).collect(), files }
    }

    /// The program, and the interpreter before it where it needs one.
    fn program(&self, agent: Agent) -> Vec<String> {
        let path = |name: &str| self.0.join("node_modules").join(name).display().to_string();
        match agent {
            Agent::Goose => vec![path(".bin/goose")],
            Agent::Claude => vec![path(".bin/claude")],
            Agent::Codex => vec![path(".bin/node"), path("@openai/codex/bin/codex.js")],
            Agent::Gemini => vec![path(".bin/node"), path("@google/gemini-cli/bundle/gemini.js")],
        }
    }

    fn starts(&self) -> bool {
        // Some leave folders in their home even for that; it must not be the user's.
        let home = self.0.join("home");
        Agent::ALL.iter().all(|agent| {
            let words = self.program(*agent);
            let mut command = Command::new(&words[0]);
            match agent {
                // It needs seconds to say its version, and brings no program that might not fit.
                Agent::Gemini => command.arg("--check").args(&words[1..]),
                Agent::Goose | Agent::Claude | Agent::Codex => command.args(&words[1..]).arg("--version"),
            };
            succeeds(command.env("HOME", &home))
        })
    }

    /// Written last: what it stands in is whole.
    fn stamp(&self) -> PathBuf {
        self.0.join("installed")
    }

    fn is_stamped(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|text| text == versions())
    }
}

fn manifest() -> String {
    let rows = |of: Vec<String>| of.join(", ");
    let packages = rows(NODE.iter().map(|(name, version)| format!("\"{name}\": \"{version}\"")).collect());
    let scripts = rows(SCRIPTS.iter().map(|name| format!("\"{name}\": true")).collect());
    format!("{{\"private\": true, \"dependencies\": {{{packages}}}, \"allowScripts\": {{{scripts}}}}}\n")
}

fn versions() -> String {
    NODE.iter().map(|(name, version)| format!("{name} {version}\n")).collect()
}
