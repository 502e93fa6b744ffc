//! Speaking to MCP servers and packages for one call: which server it is, in what surroundings it lives, and how it is asked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use actum_adapters::call::KEY_VARIABLE;
use actum_adapters::mcp::{HttpLink, McpLink};
use actum_adapters::{Ask, Attempt, Job, Link, Others, Problem, Stage, sdk};
use actum_contract::digest::Digest;
use actum_contract::execution::Sandbox;
use actum_contract::tool::{Entry, Interface, Mcp, Server, Went};
use serde_json::Value;

use super::cache;
use super::call::Setting;
use super::cells::{Ground, ToolCells};

/// Speaks to servers and packages for one call.
pub(super) struct Speaker<'a> {
    pub setting: &'a Setting,
    pub cells: &'a ToolCells,
    pub stop: &'a (dyn Fn() -> bool + Sync),
    pub tool_hash: &'a str,
}

impl std::fmt::Debug for Speaker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Speaker")
    }
}

impl Speaker<'_> {
    fn job(&self, program: &[String], link: &Link<'_>, secrets: &BTreeMap<String, String>) -> Job {
        Job {
            program: program.to_vec(),
            environment: BTreeMap::new(),
            secrets: secrets.clone(),
            stdin: None,
            sandbox: link.sandbox.clone(),
        }
    }
}

impl Speaker<'_> {
    /// A server, with all that makes it this one and no other.
    fn reached<T>(
        &self,
        link: &Link<'_>,
        mcp: &Mcp,
        server: &Server,
        secrets: &BTreeMap<String, String>,
        idempotency_key: Option<&str>,
        then: impl FnOnce(&McpLink<'_>) -> T,
    ) -> T {
        let program: &[String] = match server {
            Server::Command(command) => command,
            Server::Url(_) => &[],
        };
        let job = self.job(program, link, secrets);
        // What the secrets are is told by their digest alone; how long one call may take is no part of a server.
        let secret = Digest::sha256(format!("{secrets:?}").as_bytes()).to_hex();
        let sandbox = Sandbox { timeout_ms: 0, ..link.sandbox.clone() };
        // A view of an agent's changes is of the moment it was made: one that is out of date belongs to another server.
        let seen = match &self.cells.ground {
            Ground::Layers { layers, .. } => {
                let changes = layers.first().map(std::slice::from_ref).unwrap_or_default();
                cache::state_of(changes).map(|(state, _)| state)
            }
            _ => None,
        };
        let ground = &self.cells.ground;
        let key = format!("{} {} {sandbox:?} {secret} {ground:?} {seen:?}", self.tool_hash, mcp.server);
        let headers = BTreeMap::new();
        let client_for = |url: &str| self.setting.http.client_for(&link.sandbox.network, url);
        let bearer = secrets.get("token").map(String::as_str);
        let http = HttpLink { headers: &headers, bearer, client_for: &client_for };
        let adapter_id = &link.adapter.adapter_id;
        then(&McpLink { adapter_id, mcp, server, key: &key, job: &job, http: Some(http), idempotency_key })
    }

    /// The tools a server has.
    pub(super) fn list(
        &self,
        link: &Link<'_>,
        tool: &Entry,
        mcp: &Mcp,
        secrets: &BTreeMap<String, String>,
    ) -> Result<Vec<Value>, String> {
        let server = tool.servers.get(&mcp.server).ok_or_else(|| format!("there is no server {:?}", mcp.server))?;
        let left = Duration::from_millis(link.sandbox.timeout_ms);
        let listed = self.reached(link, mcp, server, secrets, None, |reached| {
            self.setting.servers.list(self.cells, reached, left, self.stop)
        });
        listed.map_err(|problem| problem.message)
    }
}

impl Others for Speaker<'_> {
    fn attempt(&self, ask: &Ask<'_>) -> Attempt {
        let Ask { link, tool, params, secrets, .. } = ask;
        let adapter = &link.adapter.adapter_id;
        let failed = |message: String| Attempt::failed(adapter, Went::Unavailable, Problem::new(Stage::Call, message));
        let left = ask.deadline.saturating_duration_since(Instant::now());
        let operation = ask.operation.unwrap_or_default();
        match &link.adapter.interface {
            Interface::Mcp(mcp) => match tool.servers.get(&mcp.server) {
                None => failed(format!("{} names no server {:?}", tool.tool_id, mcp.server)),
                Some(server) => self.reached(link, mcp, server, secrets, ask.idempotency_key, |reached| {
                    self.setting.servers.attempt(self.cells, reached, operation, (*params).clone(), left, ask.stop)
                }),
            },
            Interface::Sdk(package) => {
                let mut job = self.job(&[], link, secrets);
                job.environment.extend(ask.idempotency_key.map(|key| (KEY_VARIABLE.to_owned(), key.to_owned())));
                let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                job.sandbox.timeout_ms = job.sandbox.timeout_ms.min(left).max(1);
                sdk::attempt(self.cells, adapter, package, operation, params, job)
            }
            Interface::Cli(_) | Interface::Api(_) => failed("the adapter is of another type".into()),
        }
    }
}
