//! Tools and adapters: what an agent may call, what each may do at most, and how a call is made. Read from files of the
//! user, registered by `cli`, called through `adapters`. Says nothing of how anything is run.

mod adapter;
mod argument;
mod chain;
mod disclose;
mod entry;
mod narrow;
mod schema;
mod settlement;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::execution::Host;

pub use argument::{BadArgument, CliCall, arguments};
pub use chain::{BadChain, check_chain};
pub use disclose::{Level, disclose_adapter, disclose_tool, summary_of_adapter, summary_of_tool};
pub use entry::SECRET_PLACE;
pub use narrow::{Narrowed, narrow};
pub use schema::{adapter_schema, tool_schema};
pub use settlement::{Amount, BadAmount, RetryClass, Settlement};

/// A tool that was registered: who answers for it, where it comes from, and the most it may do.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub tool_id: String,
    pub name: String,
    /// Semantic, without range.
    pub version: String,
    pub description: String,
    pub owner: String,
    pub provenance: Provenance,
    pub scope: Scope,
    pub approval: Option<Approval>,
    pub status: Status,
    pub last_review: Option<String>,
    pub next_review: Option<String>,
    /// What it can be asked for, as far as somebody has written it down.
    pub operations: BTreeMap<String, Operation>,
    /// MCP servers by the identifier that adapters use.
    pub servers: BTreeMap<String, Server>,
    /// References, never values: by the variable or the part of a sign-in that gets them.
    pub secrets: BTreeMap<String, String>,
    /// Secrets that its programs do not get: requests for some hosts do, on their way out of the cell.
    pub injections: Vec<Injection>,
    /// The first call in a session waits for a person.
    pub first_use: bool,
    /// What each call spends, if one does.
    pub settlement: Option<Settlement>,
}

/// A secret that requests for a host get as a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// Its name in `secrets`.
    pub secret: String,
    pub host: Host,
    pub header: String,
    /// With `{secret}` in the place of the value.
    pub value: String,
    /// Also over plain HTTP.
    pub is_plain: bool,
}

impl Injection {
    /// How approvals and changes name it.
    pub fn summary(&self) -> String {
        let plain = if self.is_plain { " over plain HTTP, too" } else { "" };
        format!("secret {} in {} of requests for {}{plain}", self.secret, self.header, self.host)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    pub repo_url: String,
    pub commit_or_tag: String,
    /// `blake3:` or `sha256:` and 64 hexadecimal digits of the program.
    pub checksum: Option<Checksum>,
    pub license: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checksum {
    Blake3(String),
    Sha256(String),
}

/// The most a tool may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Programs it may run, or operations it may be asked for.
    pub commands: Vec<String>,
    pub endpoints: Vec<Host>,
    pub data_access: DataAccess,
    pub network: bool,
    /// Paths of the project it sees: `.` is all of it.
    pub filesystem: Vec<String>,
    pub environment: Vec<String>,
    pub scoped: Vec<String>,
    pub any_arguments: bool,
    pub cuts_input: bool,
    /// Limits that nobody may go beyond, by their names in the table of limits.
    pub limits: BTreeMap<String, u64>,
    /// Level `elevated` of the file system, level `open` of the network: each call waits for a person.
    pub elevated: bool,
    pub open: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataAccess {
    None,
    #[default]
    Read,
    Write,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    pub approver: String,
    pub date: String,
    pub evidence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Active,
    Experimental,
    Deprecated,
    Blocked,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Operation {
    pub description: String,
    /// JSON Schema of the parameters.
    pub parameters: Option<Value>,
    pub result: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// Started in a cell, spoken to through its input and output.
    Command(Vec<String>),
    /// Streamable HTTP.
    Url(String),
}

/// A way to call a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    pub adapter_id: String,
    pub name: String,
    pub version: String,
    pub tool_id: String,
    /// Versions of the tool it was made for, as a requirement; none: all of them.
    pub tool_version: Option<String>,
    pub interface: Interface,
    pub input: Vec<Transform>,
    pub output: Vec<Transform>,
    pub retry: Retry,
    pub fallback: Option<Fallback>,
    pub override_: Override,
    pub status: Status,
    pub author: Option<String>,
    pub examples: Vec<Example>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Interface {
    Cli(Cli),
    Api(Api),
    Sdk(Sdk),
    Mcp(Mcp),
}

impl Interface {
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Cli(_) => "cli",
            Self::Api(_) => "api",
            Self::Sdk(_) => "sdk",
            Self::Mcp(_) => "mcp",
        }
    }

    /// What it can be asked for by name. A program without operations of its own is asked for itself.
    pub fn operations(&self) -> Vec<&str> {
        match self {
            Self::Cli(cli) => cli.operations.keys().map(String::as_str).collect(),
            Self::Api(api) => api.endpoints.keys().map(String::as_str).collect(),
            Self::Sdk(sdk) => sdk.functions.keys().map(String::as_str).collect(),
            Self::Mcp(mcp) => mcp.tools.keys().map(String::as_str).collect(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cli {
    pub executable: String,
    pub base_args: Vec<String>,
    /// In the order in which they stand on the command line.
    pub arguments: Vec<(String, ArgumentTemplate)>,
    pub environment: BTreeMap<String, String>,
    /// The parameter that becomes the input.
    pub stdin: Option<String>,
    /// Arguments that stand for an operation, before all others.
    pub operations: BTreeMap<String, Vec<String>>,
    /// Codes that are no error.
    pub success_codes: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentTemplate {
    /// Pieces of the command line; each may have places for values.
    pub pieces: Vec<String>,
    /// A value may begin with `-` although nothing stands before it.
    pub allow_dash: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    pub base_url: String,
    pub auth: Auth,
    pub headers: BTreeMap<String, String>,
    pub endpoints: BTreeMap<String, Endpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    None,
    /// The secret `api_key`, in a header or in the query.
    ApiKey {
        header: Option<String>,
        query: Option<String>,
    },
    /// The secret `token`.
    Bearer,
    /// The secrets `client_id` and `client_secret`, exchanged for a token.
    OAuth {
        token_url: String,
        scope: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub method: String,
    /// With places for values: `/resources/{id}`.
    pub path: String,
    /// Parameters that go into the query whatever the method is, by the name they have there.
    pub query: BTreeMap<String, String>,
    /// A template of the body; without one it is made of the parameters that are left.
    pub body: Option<Body>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    None,
    /// This parameter alone.
    Parameter(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sdk {
    pub language: Language,
    pub package: String,
    pub import_path: String,
    pub functions: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Python,
    Node,
    Go,
    Rust,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mcp {
    pub server: String,
    pub transport: Transport,
    pub tools: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Stdio,
    Http,
    Websocket,
}

/// One change to what goes in or comes out.
#[derive(Debug, Clone, PartialEq)]
pub struct Transform {
    pub kind: TransformKind,
    pub spec: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransformKind {
    Rename,
    Map,
    Default,
    Validate,
    Parse,
    Extract,
    Format,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    pub max_attempts: u64,
    pub backoff_ms: u64,
    /// Exit codes, or statuses of HTTP.
    pub retryable_codes: Vec<u64>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 1, backoff_ms: 0, retryable_codes: Vec::new() }
    }
}

/// Who is asked instead, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    pub adapter_id: String,
    pub condition: Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    OnError,
    OnTimeout,
    OnUnavailable,
    OnExit(Vec<u64>),
}

/// How a call went, as far as a fallback asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Went {
    Well,
    /// With the exit code or the status of HTTP, if there was one.
    Wrong(Option<u64>),
    TimedOut,
    /// It was never reached: no such program, nobody listens, the server does not start.
    Unavailable,
}

impl Condition {
    pub fn holds(&self, went: Went) -> bool {
        match (self, went) {
            (_, Went::Well) => false,
            (Self::OnError, _) | (Self::OnTimeout, Went::TimedOut) | (Self::OnUnavailable, Went::Unavailable) => true,
            (Self::OnExit(codes), Went::Wrong(Some(code))) => codes.contains(&code),
            (Self::OnExit(codes), Went::TimedOut) => codes.contains(&143),
            _ => false,
        }
    }
}

/// What an adapter wants to be different from what was granted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Override {
    pub limits: BTreeMap<String, u64>,
    pub network: Option<NetworkOverride>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkOverride {
    pub enabled: bool,
    pub allow: Vec<Host>,
}

/// A call that shows how it is used; its answer is kept as a golden output.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    pub name: String,
    pub operation: Option<String>,
    pub params: Map<String, Value>,
}

impl Status {
    pub const ALL: [Self; 4] = [Self::Active, Self::Experimental, Self::Deprecated, Self::Blocked];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Experimental => "experimental",
            Self::Deprecated => "deprecated",
            Self::Blocked => "blocked",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

impl DataAccess {
    pub const ALL: [Self; 3] = [Self::None, Self::Read, Self::Write];

    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|access| access.word() == word)
    }
}

impl Language {
    pub const ALL: [Self; 4] = [Self::Python, Self::Node, Self::Go, Self::Rust];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Go => "go",
            Self::Rust => "rust",
        }
    }

    /// The program that runs or builds its functions: what a tool has to be allowed.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Go => "go",
            Self::Rust => "cargo",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.word() == word)
    }
}

impl TransformKind {
    pub const INPUT: [Self; 4] = [Self::Rename, Self::Map, Self::Default, Self::Validate];
    pub const OUTPUT: [Self; 3] = [Self::Parse, Self::Extract, Self::Format];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Rename => "rename",
            Self::Map => "map",
            Self::Default => "default",
            Self::Validate => "validate",
            Self::Parse => "parse",
            Self::Extract => "extract",
            Self::Format => "format",
        }
    }
}

/// Whether a text can be the id of a tool or an adapter.
pub fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

impl Entry {
    /// The secrets that become variables of its programs.
    pub fn is_variable(&self, secret: &str) -> bool {
        self.injections.iter().all(|one| one.secret != secret)
    }
}

impl Scope {
    /// In what it goes beyond another one; nothing if it stays within.
    pub fn widens(&self, before: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut more = |what: &str, now: Vec<String>, was: &[String]| {
            found.extend(now.into_iter().filter(|one| !was.contains(one)).map(|one| format!("{what} {one}")));
        };
        let texts = |hosts: &[Host]| hosts.iter().map(ToString::to_string).collect::<Vec<_>>();
        more("command", self.commands.clone(), &before.commands);
        more("endpoint", texts(&self.endpoints), &texts(&before.endpoints));
        more("filesystem", self.filesystem.clone(), &before.filesystem);
        more("environment", self.environment.clone(), &before.environment);
        more("scoped variable", self.scoped.clone(), &before.scoped);
        if self.data_access > before.data_access {
            found.push(format!("data_access {}", self.data_access.word()));
        }
        for (now, was, what) in [
            (self.network, before.network, "network on"),
            (self.any_arguments, before.any_arguments, "arguments any"),
            (self.elevated, before.elevated, "filesystem elevated"),
            (self.open, before.open, "network open"),
        ] {
            found.extend((now && !was).then(|| what.to_owned()));
        }
        for (name, amount) in &self.limits {
            if before.limits.get(name).is_some_and(|was| amount > was) {
                found.push(format!("{name} {amount}"));
            }
        }
        found.extend(
            before
                .limits
                .keys()
                .filter(|name| !self.limits.contains_key(*name))
                .map(|name| format!("{name} unlimited")),
        );
        found
    }
}

#[cfg(test)]
mod tests;
