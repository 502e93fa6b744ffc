//! Speaking to MCP servers and packages for one call: which server it is, in what surroundings it lives, and how it is asked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use actum_adapters::mcp::{HttpLink, McpLink};
use actum_adapters::{Attempt, Job, Link, McpCall, Problem, SdkCall, Stage, sdk};
use actum_contract::digest::Digest;
use actum_contract::execution::Sandbox;
use actum_contract::tool::{Entry, Interface, Mcp, Server, Went};
use serde_json::{Map, Value};

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
            Ground::Layers { upper, .. } => cache::state_of(std::slice::from_ref(upper)).map(|(state, _)| state),
            _ => None,
        };
        let ground = &self.cells.ground;
        let key = format!("{} {} {sandbox:?} {secret} {ground:?} {seen:?}", self.tool_hash, mcp.server);
        let headers = BTreeMap::new();
        let client_for = |url: &str| self.setting.http.client_for(&link.sandbox.network, url);
        let bearer = secrets.get("token").map(String::as_str);
        let http = HttpLink { headers: &headers, bearer, client_for: &client_for };
        then(&McpLink { adapter_id: &link.adapter.adapter_id, mcp, server, key: &key, job: &job, http: Some(http) })
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
        let listed = self.reached(link, mcp, server, secrets, |reached| {
            self.setting.servers.list(self.cells, reached, left, self.stop)
        });
        listed.map_err(|problem| problem.message)
    }
}

impl McpCall for Speaker<'_> {
    fn attempt(
        &self,
        link: &Link<'_>,
        tool: &Entry,
        operation: Option<&str>,
        params: &Map<String, Value>,
        secrets: &BTreeMap<String, String>,
        deadline: Instant,
    ) -> Attempt {
        let adapter = &link.adapter.adapter_id;
        let failed = |message: String| Attempt::failed(adapter, Went::Unavailable, Problem::new(Stage::Call, message));
        let Interface::Mcp(mcp) = &link.adapter.interface else {
            return failed("the adapter is of another type".into());
        };
        let Some(server) = tool.servers.get(&mcp.server) else {
            return failed(format!("{} names no server {:?}", tool.tool_id, mcp.server));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let operation = operation.unwrap_or_default();
        self.reached(link, mcp, server, secrets, |reached| {
            self.setting.servers.attempt(self.cells, reached, operation, params.clone(), left, self.stop)
        })
    }
}

impl SdkCall for Speaker<'_> {
    fn attempt(
        &self,
        link: &Link<'_>,
        _: &Entry,
        operation: Option<&str>,
        params: &Map<String, Value>,
        secrets: &BTreeMap<String, String>,
        deadline: Instant,
    ) -> Attempt {
        let adapter = &link.adapter.adapter_id;
        let Interface::Sdk(package) = &link.adapter.interface else {
            let problem = Problem::new(Stage::Call, "the adapter is of another type");
            return Attempt::failed(adapter, Went::Unavailable, problem);
        };
        let mut job = self.job(&[], link, secrets);
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        job.sandbox.timeout_ms = job.sandbox.timeout_ms.min(u64::try_from(left).unwrap_or(u64::MAX)).max(1);
        sdk::attempt(self.cells, adapter, package, operation.unwrap_or_default(), params, job)
    }
}
