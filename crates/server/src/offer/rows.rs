//! What is offered over MCP beside the registered tools: one table, each row a tool that stands for a route of the table of
//! routes, so that whoever may not ask for the route may not use the tool. Read by `offer`; it runs nothing.

use std::sync::{Arc, LazyLock};

use actum_api::route::{Method, Need, ROUTES, Route};
use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

use super::watch::{WAIT_SECONDS, WAIT_SECONDS_MAX};

pub(crate) const WATCH: &str = "watch";
pub(crate) const LIST_TOOLS: &str = "list_tools";
pub(crate) const DESCRIBE_TOOL: &str = "describe_tool";
pub(crate) const CALL_TOOL: &str = "call_tool";

/// What a list of tools comes to, unless more are asked for.
pub(crate) const TOOLS_SHOWN: usize = 50;
pub(crate) const TOOLS_SHOWN_MAX: usize = 200;

/// One tool.
pub(crate) struct Row {
    pub name: &'static str,
    title: &'static str,
    description: &'static str,
    pub route: &'static Route,
    /// The route for when the argument in the path is left out, or for when the first one knows nothing of it.
    pub other: Option<&'static Route>,
    /// The argument that is the whole content of the request.
    pub content: Option<&'static str>,
    /// The member of the answer that is the text itself, for what is read rather than parsed.
    pub text: Option<&'static str>,
    /// Whether it can undo, replace or end something. What only looks never does.
    is_destructive: bool,
    is_idempotent: bool,
    /// Whether it may reach beyond this machine.
    is_open: bool,
    properties: Value,
    required: &'static [&'static str],
    out: Value,
}

impl Row {
    pub(crate) fn need(&self) -> Need {
        self.route.need
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.properties.get(name).is_some()
    }

    /// The types that an argument may be of.
    pub(crate) fn kinds(&self, name: &str) -> Vec<&str> {
        let kinds = &self.properties[name]["type"];
        let all = kinds.as_array().map_or_else(|| std::slice::from_ref(kinds), Vec::as_slice);
        all.iter().filter_map(Value::as_str).collect()
    }

    pub(crate) fn required(&self) -> &'static [&'static str] {
        self.required
    }

    fn new(name: &'static str, title: &'static str, route: &'static Route, description: &'static str) -> Self {
        let is_look = route.method == Method::Get;
        Self {
            name,
            title,
            description,
            route,
            other: None,
            content: None,
            text: None,
            is_destructive: !is_look,
            is_idempotent: is_look,
            is_open: !is_look,
            properties: json!({}),
            required: &[],
            out: json!({}),
        }
    }

    fn takes(self, required: &'static [&'static str], properties: Value) -> Self {
        Self { required, properties, ..self }
    }

    fn gives(self, out: Value) -> Self {
        Self { out, ..self }
    }

    fn tool(&self) -> Tool {
        let input = json!({
            "type": "object", "properties": self.properties, "required": self.required, "additionalProperties": false,
        });
        // What a command adds one day does not break who checks answers.
        let output = json!({"type": "object", "properties": self.out});
        let is_look = self.route.method == Method::Get;
        let annotations = ToolAnnotations::with_title(self.title)
            .read_only(is_look)
            .destructive(self.is_destructive)
            .idempotent(self.is_idempotent)
            .open_world(self.is_open);
        Tool::new(self.name, self.description, members(input))
            .with_title(self.title)
            .with_raw_output_schema(Arc::new(members(output)))
            .with_annotations(annotations)
    }
}

fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// The route with this method and path. Every row has one, which the tests see to.
fn route(method: Method, path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.method == method && route.path == path)
}

pub(crate) static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| rows().into_iter().flatten().collect());

/// As they are listed, each beside its row.
pub(crate) static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| ROWS.iter().map(Row::tool).collect());

pub(crate) fn named(name: &str) -> Option<(&'static Row, &'static Tool)> {
    ROWS.iter().zip(TOOLS.iter()).find(|(row, _)| row.name == name)
}

fn run_id() -> Value {
    json!({"type": "string", "description": "A run_id from submit or list, or its beginning."})
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

fn settings() -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": "Fields of the execution contract, FIELD=VALUE each."})
}

fn runs() -> Value {
    json!({"submission": {"type": "string"}, "runs": {"type": "array", "items": {"type": "object"}}})
}

fn rows() -> Vec<Option<Row>> {
    let get = |path| route(Method::Get, path);
    let post = |path| route(Method::Post, path);
    let tool = |name, title, route: Option<&'static Route>, description| {
        route.map(|route| Row::new(name, title, route, description))
    };
    vec![
        tool("submit", "Submit work", post("/v1/runs"),
            "Submits work items; agents then do them under the project's contract, and what passes its checks is published to \
             the workspace. Returns the run_id of each item at once, without waiting: follow them with watch. Each item needs \
             id, agent_id (an agent of actum.toml) and description.")
            .map(|row| Row { content: Some("work"), ..row }
                .takes(&["work"], json!({
                    "work": {
                        "type": ["array", "object"],
                        "description": "Work items: a list of {id, agent_id, description, dependencies?, constraints?, \
                                        budget?, validation?, test_command?, publish?}; or one item; or a work file {items: […], workspace?, contract?}. \
                                        test_command is a program with arguments, not a line for a shell.",
                    },
                    "item": {"type": "array", "items": {"type": "string"}, "description": "Only these items, and what they depend on."},
                    "profile": text("The profile of the contract: full, ci or smoke."),
                    "set": settings(),
                    "dry_run": flag("Do everything but publish: the result is kept for diff and apply."),
                }))
                .gives(runs())),
        tool(WATCH, "Wait for a run", get("/v1/runs/{run}"),
            "Waits until a run is over, at most wait_seconds; tells progress meanwhile. Returns its state, result or error, \
             the events since cursor, and a new cursor. If is_over is false, call it again with that cursor.")
            .map(|row| row.takes(&["run"], json!({
                    "run": run_id(),
                    "cursor": {"type": "integer", "minimum": 0, "description": "From the last watch: earlier events are left out."},
                    "wait_seconds": {
                        "type": "integer", "minimum": 0, "maximum": WAIT_SECONDS_MAX, "default": WAIT_SECONDS,
                        "description": "How long to wait. Some clients give up after 30 seconds.",
                    },
                }))
                .gives(json!({
                    "run_id": {"type": "string"}, "state": {"type": "string"}, "is_over": {"type": "boolean"},
                    "cursor": {"type": "integer"}, "events": {"type": "array"}, "progress": {"type": ["object", "null"]},
                    "result": {"type": ["object", "null"]},
                }))),
        tool("status", "Show the status of a run", get("/v1/runs/{run}"),
            "Everything about one run: state, contract, events, progress, result, error, spend. Without run: how many runs \
             there are in each state.")
            .map(|row| Row { other: get("/v1/status"), ..row }
                .takes(&[], json!({"run": run_id()}))
                .gives(json!({"run_id": {"type": "string"}, "state": {"type": "string"}}))),
        tool("list", "List runs", get("/v1/runs"), "The runs there are, newest first, page by page.")
            .map(|row| row.takes(&[], json!({
                    "state": text("Only those in this state: blocked, planned, queued, running, succeeded, failed, cancelled."),
                    "limit": {"type": "integer", "minimum": 1, "description": "At most so many."},
                    "cursor": text("The `next` of the last page."),
                }))
                .gives(json!({"runs": {"type": "array"}, "next": {"type": ["string", "null"]}}))),
        tool("diff", "What a run changed", get("/v1/runs/{run}/diff"),
            "What a run has changed or would change, as a patch; with stat only the paths.")
            .map(|row| Row { text: Some("patch"), ..row }
                .takes(&["run"], json!({"run": run_id(), "stat": flag("Only paths and sizes.")}))
                .gives(json!({"patch": {"type": "string"}, "is_cut": {"type": "boolean"}}))),
        tool("apply", "Publish a kept result", post("/v1/runs/{run}/apply"),
            "Publishes a result that a run kept instead of publishing it: all of it or nothing. Look at diff first; undo takes \
             it back.")
            .map(|row| Row { is_open: false, ..row }
                .takes(&["run"], json!({"run": run_id(), "keep": flag("Keep the stage afterwards.")}))),
        tool("undo", "Take a publication back", post("/v1/runs/{run}/undo"),
            "Reverts what a run published. Files edited since are kept and named.")
            .map(|row| Row { is_open: false, ..row }.takes(&["run"], json!({"run": run_id()}))),
        tool("cancel", "Stop a run", post("/v1/runs/{run}/cancel"), "Stops a run for good. Nothing of it is published.")
            .map(|row| Row { is_open: false, is_idempotent: true, ..row }.takes(&["run"], json!({"run": run_id()}))),
        tool("resume", "Go on with a run", post("/v1/runs/{run}/resume"),
            "Goes on with a run that failed or was stopped, under the contract it began with. Returns at once: follow it with watch.")
            .map(|row| row.takes(&["run"], json!({
                    "run": run_id(), "profile": text("Another profile; only with override_execution_config."), "set": settings(),
                    "override_execution_config": flag("Replace the contract it began with."),
                }))
                .gives(runs())),
        tool("verify", "Verify a receipt", get("/v1/receipts/{receipt}/verification"),
            "Verifies the receipt of a run: signature, hashes, chain, inclusion in the ledger. valid says whether all of it holds.")
            .map(|row| row.takes(&["receipt"], json!({"receipt": text("A run_id or a receipt_id.")}))
                .gives(json!({"valid": {"type": "boolean"}, "checks": {"type": "array"}}))),
        tool("logs", "What was put out", get("/v1/runs/{run}/logs"), "What a run, or one call of a tool, has put out so far.")
            .map(|row| Row { text: Some("log"), ..row }
                .takes(&["run"], json!({"run": text("A run_id, or the execution_id of a call.")}))
                .gives(json!({"log": {"type": "string"}, "is_cut": {"type": "boolean"}}))),
        tool("approvals", "What waits for a person", get("/v1/approvals"),
            "What waits for a person to agree to, and what was decided. Only a person agrees: `actum approve ID`.")
            .map(|row| row.gives(json!({"approvals": {"type": "array"}}))),
        tool(LIST_TOOLS, "Find registered tools", get("/v1/adapters"),
            "Finds registered tools by words in their ids, names and operations. Start here; then describe_tool, then \
             call_tool. L0 gives ids, names and types; L1 adds the operations of each.")
            .map(|row| row.takes(&[], json!({
                    "query": text("Words; all of them have to occur. All tools if left out."),
                    "level": {"type": "string", "enum": ["L0", "L1"], "default": "L0", "description": "How much of each."},
                    "tool_id": text("Only what belongs to this tool."),
                    "limit": {"type": "integer", "minimum": 1, "maximum": TOOLS_SHOWN_MAX, "default": TOOLS_SHOWN},
                }))
                .gives(json!({"adapters": {"type": "array"}, "found": {"type": "integer"}}))),
        tool(DESCRIBE_TOOL, "Describe a registered tool", get("/v1/tools/{id}"),
            "Describes one tool or adapter from list_tools. Read L2 before the first call: it has the operations and the \
             schemas of their parameters. L1 is shorter; L3 adds examples and everything else.")
            .map(|row| Row { other: get("/v1/adapters/{id}"), ..row }
                .takes(&["id"], json!({
                    "id": text("A tool_id or adapter_id from list_tools."),
                    "level": {"type": "string", "enum": ["L1", "L2", "L3"], "default": "L2", "description": "How much of it."},
                }))),
        tool(CALL_TOOL, "Call a registered tool", post("/v1/executions"),
            "Calls one tool that describe_tool described, in its sandbox, and waits for its result. The result has an exit \
             status and what the tool put out; a refusal says why, and what to do about it.")
            .map(|row| row.takes(&["tool_id"], json!({
                    "tool_id": text("A tool_id from list_tools."),
                    "adapter_id": text("One of its adapters; the best one if left out."),
                    "operation": text("One of its operations, if it has several."),
                    "params": {"type": "object", "description": "The parameters, as describe_tool gives their schema."},
                }))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_route_and_every_property_its_place() {
        assert_eq!(ROWS.len(), rows().len(), "a route is gone");
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        for row in ROWS.iter() {
            assert!(row.required.iter().all(|name| row.knows(name)), "{}", row.name);
            let own = [WATCH, LIST_TOOLS, CALL_TOOL].contains(&row.name);
            for name in row.properties.as_object().unwrap().keys() {
                let is_content = row.content == Some(name.as_str());
                assert!(own || is_content || row.route.args.iter().any(|arg| arg.name == name), "{} {name}", row.name);
            }
            for name in row.route.path_names() {
                assert!(row.knows(name), "{} {name}", row.name);
                assert!(row.other.is_some() || row.required.contains(&name), "{} {name}", row.name);
            }
            assert_eq!(row.other.map(|other| other.need), row.other.and(Some(row.route.need)), "{}", row.name);
        }
    }

    #[test]
    fn each_says_what_it_does() {
        for (row, tool) in ROWS.iter().zip(TOOLS.iter()) {
            let hints = tool.annotations.as_ref().unwrap();
            assert_eq!(hints.read_only_hint, Some(row.need() == Need::Read), "{}", row.name);
            assert!(tool.title.is_some() && tool.description.as_ref().is_some_and(|text| text.len() > 30));
            assert!(tool.input_schema.contains_key("properties") && tool.output_schema.is_some());
            assert!(hints.destructive_hint.is_some() && hints.idempotent_hint.is_some());
        }
    }
}
